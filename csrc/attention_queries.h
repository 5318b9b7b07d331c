// The queries of an item and what they have seen so far; scores become weights here, whatever multiplies them.
#pragma once

#include "attention_chunk.h"
#include "attention_jobs.h"
#include "functions.h"

namespace quire::QUIRE_ISA {

// What an item keeps, of one section at a time.
struct Queries {
    int width;                    // head_dim, rounded up to whole vectors
    int num_words;                // of a query, 32 bits each
    int count;                    // behind them is nobody's
    int32_t* values;              // [MAX_QUERIES, num_words], each query's times its `scale`
    float* output;                // [MAX_QUERIES, width], not yet divided by `total`
    float* total;                 // [MAX_QUERIES, LANES], whose sum is that of 2^(score - base)
    float base[MAX_QUERIES];      // a whole number
    float scale[MAX_QUERIES];
    int32_t first_score[MAX_QUERIES];  // a score is a sum from here on
    float weight_scale[MAX_QUERIES];  // what the last chunk's weights, as units, have to be multiplied by
    int64_t position[MAX_QUERIES];  // of the last key that is seen
};

constexpr float UNSEEN = -1e30f;  // a score, and the base before there is one: 2^UNSEEN is 0
// Powers of two by which a score, or a lane's sum of weights, may be above the base: far from what float32 holds, and many, for without a
// prompt's first key, which often has by far the largest score, a section's first keys say little of those that follow.
constexpr float HEADROOM = 32;
constexpr float LARGEST_SUM = 4294967296.0f;  // 2^HEADROOM: beyond, the base follows

// Sums under another base: by a whole power of two, so that nothing is rounded.
inline void rebase(Queries& queries, int n, float base) {
    float kept = whole_power_of_two(queries.base[n] - base), *output = queries.output + n * queries.width, *total = queries.total + n * LANES;
    for (int d = 0; d < queries.width; d += LANES) store(output + d, load(output + d) * kept);
    store(total, load(total) * kept);
    queries.base[n] = base;
}

// Scores under a base, in powers of two: `score_under(group, base)`.
template <typename ScoreUnder>
inline void put_under(float base, ScoreUnder&& score_under, Seen seen, Floats (&v)[GROUPS]) {
    for (int group = 0; group < GROUPS; ++group) v[group] = score_under(group, fill(base));
    if (!seen.all())
        for (int group = 0; group < GROUPS; ++group) v[group] = seen.holds(group) ? v[group] : fill(UNSEEN);
}

template <typename ScoreUnder>
inline float whole_top(ScoreUnder&& score_under, Seen seen) {
    Floats v[GROUPS];
    put_under(0, score_under, seen, v);
    Floats most = v[0];
    for (int group = 1; group < GROUPS; ++group) most = max(most, v[group]);
    return largest(__builtin_ceilf(max_of(most)), UNSEEN);  // which may be minus infinity
}

// Of scores times `factor`.
inline auto scores_under(const float* scores, float factor) {
    return [=](int group, Floats base) { return multiply_subtract(load(scores + group * LANES), fill(factor), base); };
}

inline void cap(const AttentionCall& call, float* scores) {
    for (int key = 0; key < KEYS; key += LANES) store(scores + key, soft_capped(load(scores + key) * call.scale, call.softcap));
}

// Of a chunk's keys, and by lane their sum.
template <int DEGREE>
inline Floats put_weights(Floats (&v)[GROUPS]) {
    for (int group = 0; group < GROUPS; ++group) v[group] = power_of_two<DEGREE>(v[group]);
    Floats sum = v[0], other = v[1];
    for (int group = 2; group < GROUPS; group += 2) sum += v[group], other += v[group + 1];
    return sum + other;
}

// From scores to weights, which are 2^(score - base). The base is no largest score: it follows that only when a score is far above
// it (as in FlashAttention-4), which the weights' sum tells, so that most chunks need not know theirs and leave the sums as they are.
// When it does follow is up to the query's own scores. Weights that are whole numbers are under the chunk's own largest score.
template <typename Type, typename ScoreUnder, typename To>
[[gnu::always_inline]] inline void weigh(ScoreUnder&& score_under, Queries& queries, int n, Seen seen, const ValueScales& value_scales, To to) {
    Floats v[GROUPS], sum;
    float shrunk = 1.0f, *total = queries.total + n * LANES;
    if constexpr (Type::WHOLE_WEIGHTS) {
        float under = whole_top(score_under, seen);
        if (under > queries.base[n] + HEADROOM) rebase(queries, n, under);
        put_under(under, score_under, seen, v);
        sum = put_weights<Type::WEIGHT_DEGREE>(v);
        shrunk = whole_power_of_two(under - queries.base[n]);
    } else {
        if (queries.base[n] == UNSEEN) queries.base[n] = whole_top(score_under, seen);  // no sums yet that would follow
        put_under(queries.base[n], score_under, seen, v);
        sum = put_weights<Type::WEIGHT_DEGREE>(v);
        if (any_above(sum, LARGEST_SUM)) {
            float under = whole_top(score_under, seen);
            rebase(queries, n, under);
            put_under(under, score_under, seen, v);
            sum = put_weights<Type::WEIGHT_DEGREE>(v);
        }
    }
    queries.weight_scale[n] = Type::put_weights(v, value_scales, seen, to) * shrunk;
    store(total, load(total) + sum * shrunk);
}

inline Seen seen_by(const AttentionCall& call, int64_t position, int64_t first) {
    int64_t newest = position - first, oldest = call.window ? newest - call.window + 1 : 0;
    return {static_cast<int>(oldest < 0 ? 0 : oldest < KEYS ? oldest : KEYS), static_cast<int>(newest < KEYS ? newest : KEYS - 1)};
}

// The last one that a token of the part sees.
inline int64_t position_of(const AttentionCall& call, const Part& part, int64_t token) {
    int64_t context = call.context_lens[part.row];
    return call.causal ? context - call.query_starts[part.row + 1] + token : context - 1;
}

// Each query of a part in its order: its token and its head, counted from the first of the first KV head.
template <typename Function>
inline void for_queries(const Part& part, Heads kv_heads, int of_kv_head, Function&& function) {
    for (int first = 0; first < kv_heads.count * of_kv_head; first += of_kv_head)
        for (int64_t token = part.first; token < part.last; ++token)
            for (int head = first; head < first + of_kv_head; ++head) function(token, head);
}

// As if the query had seen nothing.
inline void forget(Queries& queries, int n) {
    for (int d = 0; d < queries.width; d += LANES) store(queries.output + n * queries.width + d, Floats{});
    store(queries.total + n * LANES, Floats{});
    queries.base[n] = UNSEEN;
}

constexpr int AWAKE = 8;  // queries that are read until what multiplies them is kept awake again

// The queries of one part, KV head by KV head, from the place `n` on; returns how many.
template <typename Way, typename Type = typename Way::Type>
int read_queries(const AttentionCall& call, const Part& part, Heads kv_heads, int n, Queries& queries) {
    int of_kv_head = call.num_heads / call.layout.num_kv_heads, head_dim = call.layout.head_dim, begin = n;
    const auto* query = static_cast<const typename Type::Value*>(call.query) + kv_heads.first * of_kv_head * head_dim;
    for (int64_t token = part.first; token < part.last; ++token)
        for (int d = 0; d < kv_heads.count * of_kv_head * head_dim; d += CACHE_LINE / sizeof(typename Type::Value)) prefetch(query + token * call.query_stride + d);
    for_queries(part, kv_heads, of_kv_head, [&](int64_t token, int head) {
        if (n % AWAKE == 0) Way::keep_awake();
        int32_t* to = queries.values + n * queries.num_words;
        for (int word = 1; word <= Type::WORDS; ++word) to[queries.num_words - word] = 0;
        queries.scale[n] = Type::put_query(query + token * call.query_stride + head * head_dim, head_dim, to);
        queries.first_score[n] = Type::first_score(to, queries.num_words);
        forget(queries, n);
        queries.position[n++] = position_of(call, part, token);
    });
    return n - begin;
}

}  // namespace quire::QUIRE_ISA
