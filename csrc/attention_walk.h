// Flash attention (Dao et al. 2022) over paged KV (Kwon et al. 2023): any mix of prefill chunks and decodes.
//
// One item of work is a few queries of one KV head, or of several heads of a row that decodes. It walks over the keys in chunks of KEYS, whose borders depend on
// positions alone. Rows whose tables begin with the same blocks, as after a common prefix, are one item: they see these
// keys together, once, and then each its own (cascade attention: Ye et al. 2024). A weight 2^(score - base) has the type that
// meets the cache's values (kv_types.h); sums over chunks are float32. They begin anew with each section, and where items are few
// the members of a team compute an item's sections side by side (flash decoding: Dao et al. 2023).
// Every query's additions have one order, whatever else is in its item, its step or its thread: the bits of a row do not
// depend on the batch or on how a prompt was cut.
#pragma once

#include <memory>

#include "attention_sections.h"
#include "first_cache.h"
#include "flush_to_zero.h"

namespace quire::QUIRE_ISA {

// A `Way` is how queries meet a chunk: `Type` (kv_types.h), SPARE_QUERIES whose memory it reads beyond the last, a
// `chunk`, `keep_awake` for what multiplies in it while that has nothing to do, and `meet` for queries [begin, begin + count) and the
// chunk's keys from `first` on; `whole` where all see all of it.
// HEADS_TOGETHER: whether its items may be of several KV heads, whose queries meet a chunk one head after the other: where what is asked for comes
// into the first cache, one head's chunk is enough, and all heads' too much. It is made for the call and the most queries that one of its items has.

// What is asked for while a chunk is met; of several KV heads the next one is enough to be on its way.
constexpr int CHUNKS_AHEAD = 2, CHUNKS_AHEAD_OF_HEADS = 1;

// Queries [begin, begin + count) meet keys, those of each KV head its own; those `after` them come next.
template <typename Way>
void walk(const AttentionCall& call, const Keys& keys, const Keys& after, int begin, int count, Queries& queries, Way& way) {
    using Type = typename Way::Type;
    auto& chunk = way.chunk;
    int num_heads = Way::HEADS_TOGETHER ? keys.kv_heads.count : 1, of_head = count / num_heads;
    int64_t beyond = keys.first + (keys.end - keys.first + KEYS - 1) / KEYS * KEYS;
    for (int64_t first = keys.first; first < keys.end; first += KEYS) {
        int64_t next = first + (num_heads > 1 ? CHUNKS_AHEAD_OF_HEADS : CHUNKS_AHEAD) * KEYS;
        const Keys& coming = next < beyond ? keys : after;
        if (next >= beyond) next += after.first - beyond;
        chunk.next.begin(call, coming.row, coming.kv_heads, next, next + KEYS < coming.end ? next + KEYS : coming.end);
        bool whole = seen_by(call, queries.position[begin], first).all() && seen_by(call, queries.position[begin + count - 1], first).all();
        for (int head = 0; head < num_heads; ++head) {
            find<Type>(call, keys.row, keys.kv_heads.first + head, first, keys.low, keys.end, chunk);
            way.meet(call, queries, begin + head * of_head, of_head, first, whole);
        }
    }
}

// All queries of an item meet their keys of a section; those `after` them come next.
template <typename Way>
void attend_section(const AttentionCall& call, const Item& item, int64_t section, const Keys& after, Queries& queries,
                    Way& way) {
    int heads = call.num_heads / call.layout.num_kv_heads * item.kv_heads.count;
    auto walk_over = [&](int stage, int begin, int count) {
        walk(call, keys_of(call, item, section, stage), next_keys(call, item, section, stage + 1, after), begin, count, queries, way);
    };
    if (item.shared > 0) walk_over(0, 0, queries.count);
    for (int p = 0, begin = 0; p < item.num_parts; ++p) {
        int count = static_cast<int>(item.parts[p].last - item.parts[p].first) * heads;
        walk_over(p + 1, begin, count);
        begin += count;
    }
}

// All of a job's sections. Sums of a query's last one are in Queries then, and others kept.
template <typename Way>
void attend_sections(const AttentionCall& call, const Job& job, const Keys& after, Queries& queries, const Kept& kept, Way& way) {
    int64_t last = job.sections.last - 1;
    for (int64_t section = job.sections.first; section < last; ++section) {
        attend_section(call, *job.item, section, next_keys(call, *job.item, section + 1, 0, after), queries, way);
        kept.keep(call, queries, section);
    }
    attend_section(call, *job.item, last, after, queries, way);
}

// Results of the job's queries; or their sums, where it is of a split item.
template <typename Way>
void attend(const AttentionCall& call, const Job& job, const Keys& after, Queries& queries, const Kept& kept, Way& way) {
    using Type = typename Way::Type;
    const Item& item = *job.item;
    queries.count = 0;
    for (int p = 0; p < item.num_parts; ++p)
        queries.count += read_queries<Way>(call, item.parts[p], item.kv_heads, queries.count, queries);
    attend_sections(call, job, after, queries, kept, way);
    if (job.split) return SplitSums(call, *job.split, queries.width).put(queries, job.sections.last - 1);
    for (int p = 0, begin = 0; p < item.num_parts; ++p) {
        auto sums = [&](int n, int64_t) { return kept.all(call, queries, begin + n); };
        begin += write_output<Type>(call, item.parts[p], item.kv_heads, queries.width, sums);
    }
}

template <typename Way>
void attention(const AttentionCall& call, const Team& team) {
    using Type = typename Way::Type;
    constexpr int ROOM = MAX_QUERIES + Way::SPARE_QUERIES;
    const FlushToZero of_weights_far_below_the_largest;
    const bool near = Type::MAY_FILL_FIRST_CACHE && first_cache_has_room();
    AttentionJobs jobs(call, team.size, Way::HEADS_TOGETHER && !near);
    int head_dim = call.layout.head_dim, num_units = (head_dim + Type::PER_UNIT - 1) / Type::PER_UNIT, num_words = num_units * Type::WORDS;
    int width = (head_dim + LANES - 1) / LANES * LANES;
    int64_t kept_floats = floats_of_sums(head_dim), num_kept = jobs.adds_up() ? jobs.most_queries() + Way::SPARE_QUERIES : 0;
    // As it comes: to fill it with zeros would take a hundredth of a decoding step.
    auto lines = std::make_unique_for_overwrite<Line[]>(num_lines(num_kept * kept_floats + ROOM * (width + LANES + num_words)) + 2 * num_lines(KEYS * head_dim) + 2);
    Queries queries;
    Way way(call, jobs.most_queries());
    queries.width = width;
    queries.num_words = num_words;
    const Kept kept(lines[0].lanes, kept_floats);
    queries.output = lines[0].lanes + num_kept * kept_floats;
    queries.total = queries.output + ROOM * width;
    queries.values = reinterpret_cast<int32_t*>(queries.total + ROOM * LANES);
    way.chunk.next.into_first_cache = near;
    way.chunk.copied_keys = reinterpret_cast<typename Type::Unit*>(queries.values + ROOM * num_words);
    way.chunk.copied_values = way.chunk.copied_keys + KEYS * num_units;
    hand_out(team, jobs.size(), 1, [&](int64_t i) {
        Keys after = i + 1 < jobs.size() ? next_keys(call, *jobs[i + 1].item, jobs[i + 1].sections.first, 0, Keys{}) : Keys{};
        attend(call, jobs[i], after, queries, kept, way);
    });
    if (jobs.num_splits() == 0) return;
    team.wait();
    share(team, jobs.num_splits(), [&](int64_t i) { SplitSums(call, jobs.split(i), width).template write_outputs<Type>(); });
}

}  // namespace quire::QUIRE_ISA
