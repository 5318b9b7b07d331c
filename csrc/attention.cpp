// Flash attention (Dao et al. 2022) over paged KV (Kwon et al. 2023): any mix of prefill chunks and decodes.
//
// One item of work is a few queries of one row and one KV head. It walks over the keys in chunks of KEYS, whose borders
// depend on positions alone, with scores, sums and output in float32. Every query's additions have one order, whatever
// else is in its item, its step or its thread: the bits of a row do not depend on the batch or on how a prompt was cut.
#include <cmath>
#include <type_traits>
#include <vector>

#include "kernels.h"
#include "vectors.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int KEYS = 32;
constexpr int GROUPS = KEYS / LANES;
constexpr int AT_ONCE = LANES == 16 ? 4 : LANES == 8 ? 2 : 1;  // queries whose sums are in registers at one time
constexpr int MAX_QUERIES = 64;
constexpr int CACHE_LINE = 64;
constexpr float NEGATIVE_INFINITY = -INFINITY;

struct Item {
    int64_t row, first, last;  // tokens of the step
    int kv_head;
};

// What an item keeps: its queries, scaled, and what they have seen so far.
struct Queries {
    int count, width;             // width: head_dim, rounded up to whole vectors
    float* values;                // [count, width]
    float* output;                // [count, width], not yet divided by `total`
    float most[MAX_QUERIES];      // the largest score
    float total[MAX_QUERIES];     // sum of e^(score - most)
    int64_t position[MAX_QUERIES];
};

struct Chunk {
    float* keys;                        // [width, KEYS]
    float* values;                      // [KEYS, width]
    const float* zeros;                 // [width]
    float weights[MAX_QUERIES][KEYS];   // scores, then e^(score - most)
};

// Where the K and V of a chunk's positions lie; zeros outside [low, high). They are on their way when it is their turn.
template <typename T>
struct Places {
    const T* zeros;  // [head_dim]
    const T* keys[KEYS];
    const T* values[KEYS];
};

template <typename T>
void find(const AttentionCall& call, const Item& item, int64_t first, int64_t low, int64_t high, Places<T>& places) {
    const int64_t* table = call.block_tables + item.row * call.max_blocks;
    int64_t block = first / call.block_size, place = first % call.block_size;
    for (int i = 0; i < KEYS; ++i, ++place) {
        if (place == call.block_size) ++block, place = 0;
        places.keys[i] = places.values[i] = places.zeros;
        if (first + i < low || first + i >= high) continue;
        int64_t slot = table[block] * call.block_size + place;
        int64_t offset = (slot * call.num_kv_heads + item.kv_head) * call.head_dim;
        places.keys[i] = static_cast<const T*>(call.key) + offset;
        places.values[i] = static_cast<const T*>(call.value) + offset;
        for (int d = 0; d < call.head_dim; d += CACHE_LINE / sizeof(T)) {
            __builtin_prefetch(places.keys[i] + d);
            __builtin_prefetch(places.values[i] + d);
        }
    }
}

// WHOLE: head_dim is a multiple of LANES.
template <bool WHOLE, typename T>
Floats load_columns(const T* from, int count) {
    if constexpr (WHOLE) return load(from);
    else return load_part(from, count);
}

template <bool WHOLE, typename T>
void read_chunk(const Places<T>& places, int head_dim, int width, Chunk& chunk) {
    for (int d = 0; d < width; d += LANES) {
        int count = head_dim - d;
        for (int group = 0; group < KEYS; group += LANES) {
            Floats rows[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i) rows[i] = load_columns<WHOLE>(places.keys[group + i] + d, count);
            transpose(rows);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i) store(chunk.keys + (d + i) * KEYS + group, rows[i]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < KEYS; ++i)
            store(chunk.values + i * width + d, load_columns<WHOLE>(places.values[i] + d, count));
    }
}

// Scores of N queries from `first` on, one after the other over the head's values.
template <int N>
void score(const Queries& queries, int first, Chunk& chunk) {
    Floats sums[N][GROUPS] = {};
    const float* query = queries.values + first * queries.width;
    for (int d = 0; d < queries.width; ++d) {
        for (int group = 0; group < GROUPS; ++group) {
            Floats key = load(chunk.keys + d * KEYS + group * LANES);
            for (int n = 0; n < N; ++n) sums[n][group] += query[n * queries.width + d] * key;
        }
    }
    for (int n = 0; n < N; ++n)
        for (int group = 0; group < GROUPS; ++group) store(chunk.weights[first + n] + group * LANES, sums[n][group]);
}

// N queries from `first` on, M vectors of the output from column `d` on: the keys' values, weighted, in order.
template <int N, int M>
void add_values(const Queries& queries, int first, int d, const Chunk& chunk) {
    Floats sums[N][M];
    float* output = queries.output + first * queries.width + d;
    for (int n = 0; n < N; ++n)
        for (int m = 0; m < M; ++m) sums[n][m] = load(output + n * queries.width + m * LANES);
    for (int key = 0; key < KEYS; ++key) {
        const float* value = chunk.values + key * queries.width + d;
        for (int m = 0; m < M; ++m) {
            Floats v = load(value + m * LANES);
            for (int n = 0; n < N; ++n) sums[n][m] += chunk.weights[first + n][key] * v;
        }
    }
    for (int n = 0; n < N; ++n)
        for (int m = 0; m < M; ++m) store(output + n * queries.width + m * LANES, sums[n][m]);
}

template <int N>
void add_all_values(const Queries& queries, int first, const Chunk& chunk) {
    int d = 0;
    for (; d + 4 * LANES <= queries.width; d += 4 * LANES) add_values<N, 4>(queries, first, d, chunk);
    for (; d < queries.width; d += LANES) add_values<N, 1>(queries, first, d, chunk);
}

// tanh by e^-2|x|.
inline Floats soft_capped(Floats scores, float cap) {
    Floats x = scores / cap;
    Floats size = x < 0 ? -x : x;
    Floats e = exp_of_negative(-2.0f * size);
    Floats capped = cap * (1.0f - e) / (1.0f + e);
    return x < 0 ? -capped : capped;
}

// From scores to weights under the largest score so far; what was summed under a smaller one is scaled down.
void weigh(const AttentionCall& call, Queries& queries, int n, int64_t first, Chunk& chunk) {
    int64_t newest = queries.position[n] - first;  // lanes up to this one are visible,
    int64_t oldest = call.window ? newest - call.window + 1 : 0;  // from this one on
    float* weights = chunk.weights[n];
    Floats scores[GROUPS];
    Floats most = fill(NEGATIVE_INFINITY);
    for (int group = 0; group < GROUPS; ++group) {
        scores[group] = load(weights + group * LANES);
        if (call.softcap > 0) scores[group] = soft_capped(scores[group], call.softcap);
        if (newest < KEYS - 1 || oldest > 0)
            for (int lane = 0; lane < LANES; ++lane) {
                int64_t key = group * LANES + lane;
                if (key > newest || key < oldest) scores[group][lane] = NEGATIVE_INFINITY;
            }
        most = max(most, scores[group]);
    }
    float peak = largest(queries.most[n], max_of(most));
    if (peak == NEGATIVE_INFINITY) {  // nothing visible yet
        for (int group = 0; group < GROUPS; ++group) store(weights + group * LANES, Floats{});
        return;
    }
    Floats sums = {};
    for (int group = 0; group < GROUPS; ++group) {
        Floats weight = exp_of_negative(scores[group] - peak);
        store(weights + group * LANES, weight);
        sums += weight;
    }
    float kept = exp_of_negative(fill(queries.most[n] - peak))[0];
    queries.most[n] = peak;
    queries.total[n] = queries.total[n] * kept + sum_of(sums);
    if (kept == 1.0f) return;
    float* output = queries.output + n * queries.width;
    for (int d = 0; d < queries.width; d += LANES) store(output + d, load(output + d) * kept);
}

template <int N = AT_ONCE, typename Function>
void in_groups(int first, int count, Function&& function) {
    for (; first + N <= count; first += N) function(first, std::integral_constant<int, N>());
    if constexpr (N > 1) in_groups<N - 1>(first, count, function);
}

template <typename T>
void read_queries(const AttentionCall& call, const Item& item, Queries& queries) {
    int heads = call.num_heads / call.num_kv_heads;
    int64_t start = call.context_lens[item.row] - call.query_starts[item.row + 1];
    int n = 0;
    for (int64_t token = item.first; token < item.last; ++token) {
        const T* from = static_cast<const T*>(call.query) + token * call.query_stride;
        for (int head = item.kv_head * heads; head < (item.kv_head + 1) * heads; ++head, ++n) {
            for (int d = 0; d < queries.width; d += LANES) {
                Floats q = load_part(from + head * call.head_dim + d, call.head_dim - d);
                store(queries.values + n * queries.width + d, q * call.scale);
                store(queries.output + n * queries.width + d, Floats{});
            }
            queries.most[n] = NEGATIVE_INFINITY;
            queries.total[n] = 0;
            queries.position[n] = start + token;
        }
    }
    queries.count = n;
}

template <typename T>
void write_output(const AttentionCall& call, const Item& item, const Queries& queries) {
    int heads = call.num_heads / call.num_kv_heads;
    for (int n = 0; n < queries.count; ++n) {
        int64_t row = (item.first + n / heads) * call.num_heads + item.kv_head * heads + n % heads;
        T* to = static_cast<T*>(call.output) + row * call.head_dim;
        for (int d = 0; d < queries.width; d += LANES)
            store_part(to + d, load(queries.output + n * queries.width + d) / queries.total[n], call.head_dim - d);
    }
}

template <typename T>
void attend(const AttentionCall& call, const Item& item, Queries& queries, Chunk& chunk) {
    read_queries<T>(call, item, queries);
    int64_t oldest = queries.position[0], end = queries.position[queries.count - 1] + 1;
    int64_t low = call.window ? largest<int64_t>(0, oldest - call.window + 1) : 0;
    Places<T> places;
    places.zeros = reinterpret_cast<const T*>(chunk.zeros);
    find(call, item, low / KEYS * KEYS, low, end, places);
    for (int64_t first = low / KEYS * KEYS; first < end; first += KEYS) {
        if (call.head_dim == queries.width) read_chunk<true>(places, call.head_dim, queries.width, chunk);
        else read_chunk<false>(places, call.head_dim, queries.width, chunk);
        if (first + KEYS < end) find(call, item, first + KEYS, low, end, places);
        in_groups(0, queries.count, [&](int n, auto N) { score<N>(queries, n, chunk); });
        for (int n = 0; n < queries.count; ++n) weigh(call, queries, n, first, chunk);
        in_groups(0, queries.count, [&](int n, auto N) { add_all_values<N>(queries, n, chunk); });
    }
    write_output<T>(call, item, queries);
}

std::vector<Item> cut(const AttentionCall& call) {
    int tokens = largest(1, MAX_QUERIES / (call.num_heads / call.num_kv_heads));
    std::vector<Item> items;
    for (int64_t row = 0; row < call.num_rows; ++row)
        for (int64_t last = call.query_starts[row + 1]; last > call.query_starts[row]; last -= tokens)
            for (int kv_head = 0; kv_head < call.num_kv_heads; ++kv_head)
                items.push_back({row, largest(call.query_starts[row], last - tokens), last, kv_head});
    return items;
}

template <typename T>
void attention(const AttentionCall& call, const Team& team) {
    std::vector<Item> items = cut(call);
    int width = (call.head_dim + LANES - 1) / LANES * LANES;
    int64_t num_items = static_cast<int64_t>(items.size());
    std::vector<Line> lines(num_lines((2 * (MAX_QUERIES + KEYS) + 1) * width));
    Queries queries;
    Chunk chunk;
    queries.width = width;
    queries.values = lines.data()->lanes;
    queries.output = queries.values + MAX_QUERIES * width;
    chunk.keys = queries.output + MAX_QUERIES * width;
    chunk.values = chunk.keys + KEYS * width;
    chunk.zeros = chunk.values + KEYS * width;
    for (int64_t i = team.take(); i < num_items; i = team.take()) attend<T>(call, items[i], queries, chunk);
}

}  // namespace

void attention_float32(const AttentionCall& call, const Team& team) { attention<float>(call, team); }
void attention_bfloat16(const AttentionCall& call, const Team& team) { attention<BFloat16>(call, team); }

}  // namespace quire::QUIRE_ISA
