// Flash attention (Dao et al. 2022) over paged KV (Kwon et al. 2023): any mix of prefill chunks and decodes.
//
// One item of work is a few queries of one KV head. It walks over the keys in chunks of KEYS, whose borders depend on
// positions alone. Rows whose tables begin with the same blocks, as after a common prefix, are one item: they see these
// keys together, once, and then each its own (cascade attention: Ye et al. 2024). A weight 2^(score - base) has the type that
// meets the cache's values (kv_types.h); sums over chunks are float32.
// Every query's additions have one order, whatever else is in its item, its step or its thread: the bits of a row do not
// depend on the batch or on how a prompt was cut.
#pragma once

#include <vector>

#include "attention_queries.h"

namespace quire::QUIRE_ISA {

// A `Meeting` is how queries meet a chunk: `Type` (kv_types.h), SPARE_QUERIES whose memory it reads beyond the last, a
// `chunk`, and `meet` for queries [begin, begin + count) and the chunk's keys from `first` on; `whole` where all see all of it.
// It is made for the call and the most queries that one of its items has.

constexpr int CHUNKS_AHEAD = 2;  // what is asked for while a chunk is met

// Queries [begin, begin + count) meet keys; those `after` them come next.
template <typename Meeting>
void walk(const AttentionCall& call, const Keys& keys, const Keys& after, int begin, int count, Queries& queries, Meeting& meeting) {
    using Type = typename Meeting::Type;
    auto& chunk = meeting.chunk;
    int64_t beyond = keys.first + (keys.end - keys.first + KEYS - 1) / KEYS * KEYS;
    for (int64_t first = keys.first; first < keys.end; first += KEYS) {
        find<Type>(call, keys.row, keys.kv_head, first, keys.low, keys.end, chunk);
        int64_t next = first + CHUNKS_AHEAD * KEYS;
        const Keys& coming = next < beyond ? keys : after;
        if (next >= beyond) next += after.first - beyond;
        chunk.next.begin(call, coming.row, coming.kv_head, next, next + KEYS < coming.end ? next + KEYS : coming.end);
        bool whole = seen_by(call, queries.position[begin], first).all() && seen_by(call, queries.position[begin + count - 1], first).all();
        meeting.meet(call, queries, begin, count, first, whole);
    }
}

template <typename Meeting>
void attend(const AttentionCall& call, const Item& item, const Keys& after, Queries& queries, Meeting& meeting) {
    using Type = typename Meeting::Type;
    int counts[MAX_QUERIES], count = 0;
    for (int p = 0; p < item.num_parts; ++p)
        count += counts[p] = read_queries<Type>(call, item.parts[p], item.kv_head, count, queries);
    queries.count = count;
    Keys keys = own_keys(call, item.parts[0], item.kv_head, item.shared);
    if (item.shared > 0) walk(call, first_keys(call, item), keys, 0, count, queries, meeting);
    for (int p = 0, begin = 0; p < item.num_parts; begin += counts[p++]) {
        Keys next = p + 1 < item.num_parts ? own_keys(call, item.parts[p + 1], item.kv_head, item.shared) : after;
        walk(call, keys, next, begin, counts[p], queries, meeting);
        write_output<Type>(call, item.parts[p], item.kv_head, begin, queries);
        keys = next;
    }
}

template <typename Meeting>
void attention(const AttentionCall& call, const Team& team) {
    using Type = typename Meeting::Type;
    constexpr int ROOM = MAX_QUERIES + Meeting::SPARE_QUERIES;
    AttentionItems items(call, team.size);
    int head_dim = call.layout.head_dim, num_units = (head_dim + Type::PER_UNIT - 1) / Type::PER_UNIT, num_words = num_units * Type::WORDS;
    int width = (head_dim + LANES - 1) / LANES * LANES;
    std::vector<Line> lines(num_lines(ROOM * (width + LANES + num_words)) + 2 * num_lines(KEYS * head_dim) + 2);
    Queries queries;
    Meeting meeting(call, items.most_queries());
    queries.width = width;
    queries.num_words = num_words;
    queries.output = lines.data()->lanes;
    queries.total = queries.output + ROOM * width;
    queries.values = reinterpret_cast<int32_t*>(queries.total + ROOM * LANES);
    meeting.chunk.copied_keys = reinterpret_cast<typename Type::Unit*>(queries.values + ROOM * num_words);
    meeting.chunk.copied_values = meeting.chunk.copied_keys + KEYS * num_units;
    hand_out(team, items.size(), 1, [&](int64_t i) {
        Keys after = i + 1 < items.size() ? first_keys(call, items[i + 1]) : Keys{};
        attend(call, items[i], after, queries, meeting);
    });
}

}  // namespace quire::QUIRE_ISA
