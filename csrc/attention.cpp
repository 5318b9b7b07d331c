// Flash attention (Dao et al. 2022) over paged KV (Kwon et al. 2023): any mix of prefill chunks and decodes.
//
// One item of work is a few queries of one KV head. It walks over the keys in chunks of KEYS, whose borders depend on
// positions alone. Rows whose tables begin with the same blocks, as after a common prefix, are one item: they see these
// keys together, once, and then each its own (cascade attention: Ye et al. 2024). A weight 2^(score - base) has the type that
// meets the cache's values (kv_types.h); sums over chunks are float32.
// Every query's additions have one order, whatever else is in its item, its step or its thread: the bits of a row do not
// depend on the batch or on how a prompt was cut.
#include "attention.h"

#include <type_traits>
#include <vector>

#include "attention_chunk.h"
#include "attention_items.h"
#include "kernels.h"

namespace quire::QUIRE_ISA {
namespace {

// Queries, and registers of keys or of the head's values, whose sums are in registers at one time.
constexpr int QUERIES = LANES == 16 ? 6 : 2;
constexpr int VECTORS = LANES == 16 ? 4 : 2;

// What an item keeps: its queries and what they have seen so far.
struct Queries {
    int width;                    // head_dim, rounded up to whole vectors
    int num_units;                // of a query
    int32_t* values;              // [MAX_QUERIES, num_units], each query's times its `scale`
    float* output;                // [MAX_QUERIES, width], not yet divided by `total`
    float* total;                 // [MAX_QUERIES, LANES], whose sum is that of 2^(score - base)
    float base[MAX_QUERIES];      // a whole number
    float scale[MAX_QUERIES];
    float weight_scale[MAX_QUERIES];  // what the last chunk's weights, as units, have to be multiplied by
    int64_t position[MAX_QUERIES];
    float scores[QUERIES][KEYS] = {};  // of those that meet a chunk; then, in the same memory, the weights as units
};

template <int MOST, typename Function>
inline void in_groups(int first, int count, Function&& function) {
    for (; first + MOST <= count; first += MOST) function(first, std::integral_constant<int, MOST>());
    if constexpr (MOST > 1) in_groups<MOST - 1>(first, count, function);
}

template <int MOST, typename Function>
inline void in_halves(int first, int count, Function&& function) {
    for (; first + MOST <= count; first += MOST) function(first, std::integral_constant<int, MOST>());
    if constexpr (MOST > 1) in_halves<MOST / 2>(first, count, function);
}

// Sums are one array and one loop, unrolled early, and the loop around it runs at least once: else GCC keeps them in memory.
constexpr int MAX_SUMS = QUERIES * VECTORS;

// Scores of N queries from `query` on for M registers of keys from `group` on, over the head's units in their order.
template <typename Type, int N, int M>
inline void score(Queries& queries, int query, int group, Chunk<Type>& chunk) {
    typename Type::Sums sums[N * M];
#pragma GCC unroll MAX_SUMS
    for (int i = 0; i < N * M; ++i) sums[i] = typename Type::Sums{};
    const int32_t* q = queries.values + query * queries.num_units;
    int unit = 0;
    do {
        Ints keys[M];
#pragma GCC unroll MAX_SUMS
        for (int m = 0; m < M; ++m) keys[m] = Type::read(chunk.keys[group + m] + unit * chunk.key_stride);
        chunk.next.ask();
#pragma GCC unroll MAX_SUMS
        for (int i = 0; i < N * M; ++i) sums[i] = Type::add_products(sums[i], keys[i % M], q[i / M * queries.num_units + unit]);
    } while (++unit < queries.num_units);
#pragma GCC unroll MAX_SUMS
    for (int i = 0; i < N * M; ++i) {
        int n = i / M, key = (group + i % M) * LANES;
        store(queries.scores[n] + key, Type::score(sums[i], queries.scale[query + n], chunk.key_scales + key));
    }
}

// N queries from `query` on, M registers of the output from column `d` on: the values of `units`, weighted, in the keys' order.
template <typename Type, int N, int M, bool WHOLE>
inline void add_values(const Queries& queries, int query, int d, int head_dim, Units units, Chunk<Type>& chunk) {
    typename Type::Sums sums[N * M];
    float* output = queries.output + query * queries.width + d;
    const int32_t* weights = reinterpret_cast<const int32_t*>(queries.scores[0]);
#pragma GCC unroll MAX_SUMS
    for (int i = 0; i < N * M; ++i) sums[i] = Type::first_sums(output + i / M * queries.width + i % M * LANES);
    int unit = units.first;
    do {
        Ints values[M];
#pragma GCC unroll MAX_SUMS
        for (int m = 0; m < M; ++m) {
            const auto* from = chunk.values[unit] + d + m * LANES;
            values[m] = WHOLE ? Type::read(from) : Type::read(from, head_dim - d - m * LANES);
        }
        chunk.next.ask();
#pragma GCC unroll MAX_SUMS
        for (int i = 0; i < N * M; ++i) sums[i] = Type::add_products(sums[i], values[i % M], weights[i / M * KEYS + unit]);
    } while (++unit < units.last);
#pragma GCC unroll MAX_SUMS
    for (int i = 0; i < N * M; ++i) {
        float* to = output + i / M * queries.width + i % M * LANES;
        store(to, Type::last_sums(sums[i], to, queries.weight_scale[query + i / M]));
    }
}

template <typename Type, int N>
inline void add_all_values(const Queries& queries, int query, int head_dim, Units units, Chunk<Type>& chunk) {
    int d = 0;
    for (; d + VECTORS * LANES <= head_dim; d += VECTORS * LANES) add_values<Type, N, VECTORS, true>(queries, query, d, head_dim, units, chunk);
    for (; d + LANES <= head_dim; d += LANES) add_values<Type, N, 1, true>(queries, query, d, head_dim, units, chunk);
    if (d < head_dim) add_values<Type, N, 1, false>(queries, query, d, head_dim, units, chunk);
}

constexpr float LOG2_E = 1.44269504f;
constexpr float UNSEEN = -1e30f;  // a score, and the base before there is one: 2^UNSEEN is 0
constexpr float HEADROOM = 8;     // powers of two by which a score may be above the base

// Sums under another base: by a whole power of two, so that nothing is rounded.
inline void rebase(Queries& queries, int n, float base) {
    float kept = whole_power_of_two(queries.base[n] - base), *output = queries.output + n * queries.width, *total = queries.total + n * LANES;
    for (int d = 0; d < queries.width; d += LANES) store(output + d, load(output + d) * kept);
    store(total, load(total) * kept);
    queries.base[n] = base;
}

// Scores under a base, in powers of two. Returns the largest of each lane.
inline Floats put_under(float base, const float* scores, float factor, Seen seen, Floats (&v)[GROUPS]) {
    for (int group = 0; group < GROUPS; ++group) v[group] = multiply_subtract(load(scores + group * LANES), fill(factor), fill(base));
    if (!seen.all())
        for (int group = 0; group < GROUPS; ++group) v[group] = seen.holds(group) ? v[group] : fill(UNSEEN);
    Floats most = v[0];
    for (int group = 1; group < GROUPS; ++group) most = max(most, v[group]);
    return most;
}

inline float whole_top(const float* scores, float factor, Seen seen) {
    Floats v[GROUPS];
    return __builtin_ceilf(max_of(put_under(0, scores, factor, seen, v)));
}

inline void cap(const AttentionCall& call, float* scores) {
    for (int key = 0; key < KEYS; key += LANES) store(scores + key, soft_capped(load(scores + key) * call.scale, call.softcap));
}

// From scores to weights, which are 2^(score - base). The base is no largest score: it follows that only when a score is far above
// it (as in FlashAttention-4), so that most chunks need not know theirs and leave the sums as they are. When it does follow is up
// to the query's own scores. Weights of codes are under the chunk's own largest score.
template <typename Type>
inline void weigh(float factor, Queries& queries, int n, Seen seen, float* scores, const ValueScales& value_scales) {
    Floats v[GROUPS];
    float under = queries.base[n];
    if constexpr (Type::HAS_SCALES) {
        under = whole_top(scores, factor, seen);
        if (under > queries.base[n] + HEADROOM) rebase(queries, n, under);
        put_under(under, scores, factor, seen, v);
    } else if (any_above(put_under(under, scores, factor, seen, v), HEADROOM)) {
        under = whole_top(scores, factor, seen);
        rebase(queries, n, under);
        put_under(under, scores, factor, seen, v);
    }
    Floats sum = {}, other = {};
    for (int group = 0; group < GROUPS; group += 2) {
        sum += v[group] = power_of_two<Type::WEIGHT_DEGREE>(v[group]);
        other += v[group + 1] = power_of_two<Type::WEIGHT_DEGREE>(v[group + 1]);
    }
    float shrunk = Type::HAS_SCALES ? whole_power_of_two(under - queries.base[n]) : 1.0f, *total = queries.total + n * LANES;
    queries.weight_scale[n] = Type::put_weights(v, value_scales, seen, scores) * shrunk;
    store(total, load(total) + (sum + other) * shrunk);
}

Seen seen_by(const AttentionCall& call, int64_t position, int64_t first) {
    int64_t newest = position - first, oldest = call.window ? newest - call.window + 1 : 0;
    return {static_cast<int>(oldest < 0 ? 0 : oldest < KEYS ? oldest : KEYS), static_cast<int>(newest < KEYS ? newest : KEYS - 1)};
}

// N queries from `query` on meet the chunk that begins at `first`: of its keys those that one of them sees.
template <typename Type, int N>
void meet(const AttentionCall& call, Queries& queries, int query, int64_t first, bool whole, Chunk<Type>& chunk) {
    constexpr int PER_UNIT = Type::PER_UNIT;
    Seen seen[N];
    Units units = chunk.units;
    if (whole) {
        for (int n = 0; n < N; ++n) seen[n] = {0, KEYS - 1};
    } else {
        int oldest = KEYS, newest = -1;
        for (int n = 0; n < N; ++n) {
            seen[n] = seen_by(call, queries.position[query + n], first);
            if (seen[n].oldest < oldest) oldest = seen[n].oldest;
            if (seen[n].newest > newest) newest = seen[n].newest;
        }
        if (oldest / PER_UNIT > units.first) units.first = oldest / PER_UNIT;
        if ((newest + PER_UNIT) / PER_UNIT < units.last) units.last = (newest + PER_UNIT) / PER_UNIT;
        if (units.first >= units.last) return;
    }
    in_halves<VECTORS>(units.first * PER_UNIT / LANES, (units.last * PER_UNIT + LANES - 1) / LANES,
                       [&](int group, auto M) { score<Type, N, M>(queries, query, group, chunk); });
    if (call.softcap > 0)
        for (int n = 0; n < N; ++n) cap(call, queries.scores[n]);
    float factor = call.softcap > 0 ? LOG2_E : call.scale * LOG2_E;
    for (int n = 0; n < N; ++n) weigh<Type>(factor, queries, query + n, seen[n], queries.scores[n], chunk.value_scales);
    add_all_values<Type, N>(queries, query, call.layout.head_dim, units, chunk);
}

// The queries of one part, from the place `n` on; returns how many.
template <typename Type>
int read_queries(const AttentionCall& call, const Part& part, int kv_head, int n, Queries& queries) {
    int heads = call.num_heads / call.layout.num_kv_heads, head_dim = call.layout.head_dim, begin = n;
    int64_t start = call.context_lens[part.row] - call.query_starts[part.row + 1];
    const auto* query = static_cast<const typename Type::Value*>(call.query) + kv_head * heads * head_dim;
    for (int64_t token = part.first; token < part.last; ++token)
        for (int d = 0; d < heads * head_dim; d += CACHE_LINE / sizeof(typename Type::Value)) prefetch(query + token * call.query_stride + d);
    for (int64_t token = part.first; token < part.last; ++token)
        for (int head = 0; head < heads; ++head, ++n) {
            int32_t* to = queries.values + n * queries.num_units;
            to[queries.num_units - 1] = 0;
            queries.scale[n] = Type::put_query(query + token * call.query_stride + head * head_dim, head_dim, to);
            for (int d = 0; d < queries.width; d += LANES) store(queries.output + n * queries.width + d, Floats{});
            store(queries.total + n * LANES, Floats{});
            queries.base[n] = UNSEEN;
            queries.position[n] = call.causal ? start + token : call.context_lens[part.row] - 1;
        }
    return n - begin;
}

template <typename Type>
void write_output(const AttentionCall& call, const Part& part, int kv_head, int begin, const Queries& queries) {
    int heads = call.num_heads / call.layout.num_kv_heads, head_dim = call.layout.head_dim;
    int count = static_cast<int>(part.last - part.first) * heads;
    for (int n = 0; n < count; ++n) {
        int64_t row = (part.first + n / heads) * call.num_heads + kv_head * heads + n % heads;
        auto* to = static_cast<typename Type::Value*>(call.output) + row * head_dim;
        float share = 1.0f / sum_of(load(queries.total + (begin + n) * LANES));
        for (int d = 0; d < queries.width; d += LANES)
            store_part(to + d, load(queries.output + (begin + n) * queries.width + d) * share, head_dim - d);
    }
}

// Queries [begin, begin + count) meet keys; those `after` them come next.
template <typename Type>
void walk(const AttentionCall& call, const Keys& keys, const Keys& after, int begin, int count, Queries& queries, Chunk<Type>& chunk) {
    for (int64_t first = keys.first; first < keys.end; first += KEYS) {
        find<Type>(call, keys.row, keys.kv_head, first, keys.low, keys.end, chunk);
        const Keys& coming = first + KEYS < keys.end ? keys : after;
        int64_t next = first + KEYS < keys.end ? first + KEYS : after.first;
        chunk.next.template begin<Type>(call, coming.row, coming.kv_head, next, next + KEYS < coming.end ? next + KEYS : coming.end);
        bool whole = seen_by(call, queries.position[begin], first).all() && seen_by(call, queries.position[begin + count - 1], first).all();
        in_groups<QUERIES>(begin, begin + count, [&](int n, auto N) { meet<Type, N>(call, queries, n, first, whole, chunk); });
    }
}

template <typename Type>
void attend(const AttentionCall& call, const Item& item, const Keys& after, Queries& queries, Chunk<Type>& chunk) {
    int counts[MAX_QUERIES], count = 0;
    for (int p = 0; p < item.num_parts; ++p)
        count += counts[p] = read_queries<Type>(call, item.parts[p], item.kv_head, count, queries);
    Keys keys = own_keys(call, item.parts[0], item.kv_head, item.shared);
    if (item.shared > 0) walk<Type>(call, first_keys(call, item), keys, 0, count, queries, chunk);
    for (int p = 0, begin = 0; p < item.num_parts; begin += counts[p++]) {
        Keys next = p + 1 < item.num_parts ? own_keys(call, item.parts[p + 1], item.kv_head, item.shared) : after;
        walk<Type>(call, keys, next, begin, counts[p], queries, chunk);
        write_output<Type>(call, item.parts[p], item.kv_head, begin, queries);
        keys = next;
    }
}

template <typename Type>
void attention(const AttentionCall& call, const Team& team) {
    AttentionItems items(call, team.size);
    int head_dim = call.layout.head_dim, num_units = (head_dim + Type::PER_UNIT - 1) / Type::PER_UNIT;
    int width = (head_dim + LANES - 1) / LANES * LANES;
    std::vector<Line> lines(num_lines(MAX_QUERIES * (width + LANES + num_units)) + 2 * num_lines(KEYS * head_dim) + 2);
    Queries queries;
    Chunk<Type> chunk;
    queries.width = width;
    queries.num_units = num_units;
    queries.output = lines.data()->lanes;
    queries.total = queries.output + MAX_QUERIES * width;
    queries.values = reinterpret_cast<int32_t*>(queries.total + MAX_QUERIES * LANES);
    chunk.copied_keys = reinterpret_cast<typename Type::Unit*>(queries.values + MAX_QUERIES * num_units);
    chunk.copied_values = chunk.copied_keys + KEYS * num_units;
    hand_out(team, items.size(), 1, [&](int64_t i) {
        Keys after = i + 1 < items.size() ? first_keys(call, items[i + 1]) : Keys{};
        attend<Type>(call, items[i], after, queries, chunk);
    });
}

}  // namespace

void attention_float32(const AttentionCall& call, const Team& team) { attention<InFloat32>(call, team); }
void attention_bfloat16(const AttentionCall& call, const Team& team) { attention<InBFloat16>(call, team); }
void attention_float32_over_codes(const AttentionCall& call, const Team& team) { attention<KVCodes<float>>(call, team); }
void attention_bfloat16_over_codes(const AttentionCall& call, const Team& team) { attention<KVCodes<BFloat16>>(call, team); }

}  // namespace quire::QUIRE_ISA
