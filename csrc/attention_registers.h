// Attention whose queries meet keys in registers (attention_walk.h has the rest).
#pragma once

#include <type_traits>

#include "attention.h"
#include "attention_walk.h"

namespace quire::QUIRE_ISA {

// Queries, and registers of keys or of the head's values, whose sums are in registers at one time.
constexpr int QUERIES = LANES == 16 ? 6 : LANES * NUM_REGISTERS >= 128 ? 4 : 2;
constexpr int VECTORS = NUM_REGISTERS / 8;

// Of the queries that meet a chunk; then, in the same memory, the weights as units.
using Scores = float[QUERIES][KEYS];

template <int MOST, typename Function>
inline void in_groups_to(int first, int last, Function&& function) {
    for (; first + MOST <= last; first += MOST) function(first, std::integral_constant<int, MOST>());
    if constexpr (MOST > 1) in_groups_to<MOST - 1>(first, last, function);
}

template <int MOST, typename Function>
inline void in_halves(int first, int last, Function&& function) {
    for (; first + MOST <= last; first += MOST) function(first, std::integral_constant<int, MOST>());
    if constexpr (MOST > 1) in_halves<MOST / 2>(first, last, function);
}

// The words of a query, or of weights, that meet one unit.
template <typename Type, typename Function>
inline void for_words(Function&& function) {
    function(std::integral_constant<int, 0>());
    if constexpr (Type::WORDS > 1) function(std::integral_constant<int, 1>());
}

// Sums are one array and one loop, unrolled early, and the loop around it runs at least once: else GCC keeps them in memory.
constexpr int MAX_SUMS = QUERIES * VECTORS;

// Scores of N queries from `query` on for M registers of keys from `group` on, over the head's units in their order.
template <typename Type, int N, int M>
inline void score(const Queries& queries, int query, int group, Chunk<Type>& chunk, Scores& scores) {
    typename Type::Sums sums[N * M];
#pragma GCC unroll MAX_SUMS
    for (int i = 0; i < N * M; ++i) sums[i] = Type::first_scores(queries.first_score[query + i / M]);
    // Of their own: `ask` may write anything, as far as the compiler knows.
    const int64_t stride = queries.num_words, key_stride = chunk.key_stride;
    const int32_t *q = queries.values + query * stride, *end = q + stride;
    const typename Type::Unit* from[M];
#pragma GCC unroll MAX_SUMS
    for (int m = 0; m < M; ++m) from[m] = chunk.keys[group + m];
    do {
        for_words<Type>([&](auto word) __attribute__((always_inline)) {
            Ints keys[M];
#pragma GCC unroll MAX_SUMS
            for (int m = 0; m < M; ++m) keys[m] = Type::template read<word>(from[m]);
#pragma GCC unroll MAX_SUMS
            for (int i = 0; i < N * M; ++i) sums[i] = Type::add_to_scores(sums[i], keys[i % M], q[i / M * stride + word]);
        });
#pragma GCC unroll MAX_SUMS
        for (int m = 0; m < M; ++m) from[m] += key_stride;
        q += Type::WORDS;
        chunk.next.ask();
    } while (q < end);
#pragma GCC unroll MAX_SUMS
    for (int i = 0; i < N * M; ++i) {
        int n = i / M, key = (group + i % M) * LANES;
        store(scores[n] + key, Type::score(sums[i], queries.scale[query + n], chunk.key_scales + key));
    }
}

// N queries from `query` on, M registers of the output from column `d` on: the values of `units`, weighted, in the keys' order.
template <typename Type, int N, int M, bool WHOLE>
inline void add_values(const Queries& queries, int query, int d, int head_dim, Units units, Chunk<Type>& chunk, const Scores& scores) {
    typename Type::Sums sums[N * M];
    float* output = queries.output + query * queries.width + d;
    const int32_t* weights = reinterpret_cast<const int32_t*>(scores[0]);
#pragma GCC unroll MAX_SUMS
    for (int i = 0; i < N * M; ++i) sums[i] = Type::first_sums(output + i / M * queries.width + i % M * LANES);
    int unit = units.first;
    do {
        for_words<Type>([&](auto word) __attribute__((always_inline)) {
            Ints values[M];
#pragma GCC unroll MAX_SUMS
            for (int m = 0; m < M; ++m) {
                const auto* from = chunk.values[unit] + d + m * LANES;
                values[m] = WHOLE ? Type::template read<word>(from) : Type::template read<word>(from, head_dim - d - m * LANES);
            }
#pragma GCC unroll MAX_SUMS
            for (int i = 0; i < N * M; ++i)
                sums[i] = Type::add_to_output(sums[i], values[i % M], weights[i / M * KEYS + unit * Type::WORDS + word]);
        });
        chunk.next.ask();
    } while (++unit < units.last);
#pragma GCC unroll MAX_SUMS
    for (int i = 0; i < N * M; ++i) {
        float* to = output + i / M * queries.width + i % M * LANES;
        store(to, Type::last_sums(sums[i], to, queries.weight_scale[query + i / M]));
    }
}

template <typename Type, int N>
inline void add_all_values(const Queries& queries, int query, int head_dim, Units units, Chunk<Type>& chunk, const Scores& scores) {
    int d = 0;
    for (; d + VECTORS * LANES <= head_dim; d += VECTORS * LANES) add_values<Type, N, VECTORS, true>(queries, query, d, head_dim, units, chunk, scores);
    for (; d + LANES <= head_dim; d += LANES) add_values<Type, N, 1, true>(queries, query, d, head_dim, units, chunk, scores);
    if (d < head_dim) add_values<Type, N, 1, false>(queries, query, d, head_dim, units, chunk, scores);
}

// N queries from `query` on meet the chunk that begins at `first`: of its keys those that one of them sees.
template <typename Type, int N>
void meet_in_registers(const AttentionCall& call, Queries& queries, int query, int64_t first, bool whole, Chunk<Type>& chunk, Scores& scores) {
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
                       [&](int group, auto M) { score<Type, N, M>(queries, query, group, chunk, scores); });
    if (call.softcap > 0)
        for (int n = 0; n < N; ++n) cap(call, scores[n]);
    float factor = call.softcap > 0 ? LOG2_E : call.scale * LOG2_E;
    for (int n = 0; n < N; ++n) weigh<Type>(scores_under(scores[n], factor), queries, query + n, seen[n], chunk.value_scales, scores[n]);
    add_all_values<Type, N>(queries, query, call.layout.head_dim, units, chunk, scores);
}

template <typename KV>
struct InRegisters {
    // With AMX, and registers of 256 bits, that gained nothing or was not measured (docs/lab.md).
    struct Type : KV {
        static constexpr bool MAY_FILL_FIRST_CACHE = LANES == 16;
    };
    static constexpr int SPARE_QUERIES = 0;
    static constexpr bool HEADS_TOGETHER = true;

    InRegisters(const AttentionCall&, int) {}

    void meet(const AttentionCall& call, Queries& queries, int begin, int count, int64_t first, bool whole) {
        in_groups_to<QUERIES>(begin, begin + count, [&](int n, auto N) { meet_in_registers<Type, N>(call, queries, n, first, whole, chunk, scores); });
    }

    static void keep_awake() {}

    Chunk<Type> chunk;
    Scores scores = {};
};

}  // namespace quire::QUIRE_ISA
