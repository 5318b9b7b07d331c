// Activations become integers of 7 bits and a sign, with a scale for each group of inputs of each row. Where one of a group is
// far larger than the others it has 14 bits, and then costs its neighbours nothing (docs/lab.md). Sums within a group are
// exact; the groups' are added in float32 in their order. So a row's results have the same bits whatever the other rows are.
#include "quantized.h"

#include <cmath>

#include "kernels.h"
#include "linear_rows.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int ROWS = LANES == 16 ? 8 : LANES == 8 ? 2 : 1;  // whose sums are in registers at one time
constexpr float MOST = 127.0f;                              // of a code
constexpr int OUTLIER = 128;                                // what an outlier's second code counts
constexpr float APART = 1.5f;                               // so many times as large as the others is an outlier

// Of rows that stay in a core's second cache while the panels pass.
constexpr int64_t BLOCK_BYTES = 256 << 10;

// Of one row, panels that are multiplied at one time: two streams of memory and two chains of sums are faster than one.
constexpr int PANELS = 2;

typedef uint8_t Bytes __attribute__((vector_size(4 * LANES)));
typedef int8_t SignedBytes __attribute__((vector_size(LANES)));
typedef int16_t Shorts __attribute__((vector_size(4 * LANES)));

// A group of inputs of M rows: what its products with a panel are scaled by.
template <int M>
struct Group {
    float scales[M];
    float sums[M];          // of the codes, scaled
    int32_t minus_zero[M];  // what the weights' zero takes from the products
    int32_t outliers[M];    // a unit of zeros but for the outlier's second code; 0 where there is none
    int32_t outlier_units[M];
};

// Rows as integers: M by M, the units of M rows side by side, and after all of them the groups.
struct Quantized {
    int64_t num_inputs, num_groups, num_rows;
    uint8_t* memory;

    template <int M>
    int32_t* codes(int64_t row) const { return reinterpret_cast<int32_t*>(memory + row * num_inputs); }
    template <int M>
    Group<M>* groups(int64_t row) const {
        return reinterpret_cast<Group<M>*>(memory + num_rows * num_inputs + row * num_groups * sizeof(Group<1>));
    }
};

inline Bytes load_bytes(const uint8_t* from) {
    Bytes v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// Adds to each lane the sum of its four products of an unsigned and a signed byte; `x` holds the same four in each lane.
inline Ints add_products(Ints sums, Bytes weights, const int32_t& x) {
#if defined(__AVX512VNNI__)
    // As an intrinsic it costs a second instruction, which loads x (docs/lab.md).
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(x));
    return sums;
#else
    // Products of sixteen bits, two to a sum, never overflow 32 bits.
    Shorts even = (Shorts)(Ints{} + x) << 8 >> 8, odd = (Shorts)(Ints{} + x) >> 8;
    Shorts weights_even = (Shorts)weights & 0xff, weights_odd = (Shorts)((Ints)weights >> 8) & 0xff;
#if defined(__AVX512BW__)
    return sums + (Ints)_mm512_madd_epi16((__m512i)weights_even, (__m512i)even) +
           (Ints)_mm512_madd_epi16((__m512i)weights_odd, (__m512i)odd);
#elif defined(__AVX2__)
    return sums + (Ints)_mm256_madd_epi16((__m256i)weights_even, (__m256i)even) +
           (Ints)_mm256_madd_epi16((__m256i)weights_odd, (__m256i)odd);
#else
    auto low = [](Shorts v) { return (Ints)v << 16 >> 16; };
    auto high = [](Shorts v) { return (Ints)v >> 16; };
    return sums + low(weights_even) * low(even) + high(weights_even) * high(even) + low(weights_odd) * low(odd) +
           high(weights_odd) * high(odd);
#endif
#endif
}

// float16 numbers that are finite, as checkpoints' are.
inline Floats load_half(const uint8_t* from) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    Ints bits = __builtin_convertvector(halves, Ints);
    // Exponent and fraction in a float32's places, then 2^112 for the exponents' different zero points.
    Floats magnitude = (Floats)((bits & 0x7fff) << 13) * 5.192296858534828e33f;
    return (Floats)((Ints)magnitude | (bits & 0x8000) << 16);
#endif
}

template <typename T>
inline Floats load_small(const uint8_t* from) {
    typedef T Small __attribute__((vector_size(LANES)));
    Small v;
    std::memcpy(&v, from, sizeof v);
    return __builtin_convertvector(__builtin_convertvector(v, Ints), Floats);
}

// The codes of two units of a group.
template <int BITS>
inline void load_pair(const uint8_t* from, int pair, int part, Bytes& first, Bytes& second) {
    if constexpr (BITS == 4) {
        Bytes both = load_bytes(from + UNIT * (pair * PANEL + part * LANES));
        first = both & 0x0f;
        second = (Bytes)((Shorts)both >> 4) & 0x0f;
    } else {
        first = load_bytes(from + UNIT * (2 * pair * PANEL + part * LANES));
        second = load_bytes(from + UNIT * ((2 * pair + 1) * PANEL + part * LANES));
    }
}

// One unit's codes of a group, whichever.
template <int BITS>
inline Bytes codes_of_unit(const uint8_t* from, int unit, int part) {
    if constexpr (BITS == 8) return load_bytes(from + UNIT * (unit * PANEL + part * LANES));
    Bytes both = load_bytes(from + UNIT * (unit / 2 * PANEL + part * LANES));
    return (Bytes)((Shorts)both >> (unit % 2 * 4)) & 0x0f;
}

template <int BITS, int UNITS>
constexpr int CODE_BYTES = UNITS * UNIT * PANEL * BITS / 8;  // of a group, in a panel

// M rows times the weights of N panels.
template <int BITS, int UNITS, bool MINIMUM, bool BLOCKS, int M, int N>
void multiply(const QuantizedWeight& weight, const int32_t* x, const Group<M>* groups, const uint8_t* panel, const Ahead& ahead,
              Floats (&y)[M][N * PARTS]) {
    constexpr int ALL = N * PARTS;
    auto panel_of = [&](int p) { return p / PARTS * weight.panel_bytes; };
    const uint8_t* header = panel + weight.header_offset;
    int64_t num_groups = weight.num_inputs / weight.group_size;
    Floats totals[M][ALL] = {};  // of its own, not y: so it stays in registers
    for (int64_t block = 0; block < num_groups; block += weight.groups_per_block) {
        Floats d[ALL], m[ALL];
        for (int p = 0; p < ALL; ++p) d[p] = load_half(header + panel_of(p) + 2 * (p % PARTS) * LANES);
        header += 2 * PANEL;
        if constexpr (MINIMUM) {
            for (int p = 0; p < ALL; ++p) m[p] = load_half(header + panel_of(p) + 2 * (p % PARTS) * LANES);
            header += 2 * PANEL;
        }
        for (int64_t index = block; index < block + (BLOCKS ? weight.groups_per_block : 1); ++index) {
            const Group<M>& group = groups[index];
            const uint8_t* from = panel + index * CODE_BYTES<BITS, UNITS>;
            for (int n = 0; n < N; ++n) {
                const uint8_t* next = ahead.from + n * weight.panel_bytes + index * ahead.step;
                for (int64_t line = 0; line < ahead.step; line += 64) prefetch(next + line);
            }
            Ints sums[M][ALL];
            for (int i = 0; i < M; ++i)
                for (int p = 0; p < ALL; ++p) sums[i][p] = Ints{} + group.minus_zero[i];
            for (int pair = 0; pair < UNITS / 2; ++pair) {
                Bytes codes[2][ALL];
                for (int p = 0; p < ALL; ++p) load_pair<BITS>(from + panel_of(p), pair, p % PARTS, codes[0][p], codes[1][p]);
                for (int u = 0; u < 2; ++u)
                    for (int i = 0; i < M; ++i)
                        for (int p = 0; p < ALL; ++p)
                            sums[i][p] = add_products(sums[i][p], codes[u][p], x[(2 * pair + u) * M + i]);
            }
            for (int i = 0; i < M; ++i) {
                if (!group.outliers[i]) continue;
                for (int p = 0; p < ALL; ++p) {
                    Bytes codes = codes_of_unit<BITS>(from + panel_of(p), group.outlier_units[i], p % PARTS);
                    sums[i][p] += add_products(Ints{}, codes, group.outliers[i]) * OUTLIER;
                }
            }
            x += UNITS * M;
            for (int p = 0; p < ALL; ++p) {
                const uint8_t* small = header + panel_of(p) + p % PARTS * LANES;
                Floats scale = BLOCKS ? d[p] * load_small<int8_t>(small) : d[p];
                for (int i = 0; i < M; ++i)
                    totals[i][p] += __builtin_convertvector(sums[i][p], Floats) * (scale * group.scales[i]);
                if constexpr (MINIMUM) {
                    Floats minimum = BLOCKS ? m[p] * load_small<int8_t>(small + PANEL) : m[p];
                    for (int i = 0; i < M; ++i) totals[i][p] += minimum * group.sums[i];
                }
            }
            if constexpr (BLOCKS) header += MINIMUM ? 2 * PANEL : PANEL;
        }
    }
    for (int i = 0; i < M; ++i)
        for (int p = 0; p < ALL; ++p) y[i][p] = totals[i][p];
}

// The first of some values that is not less than `bound`, all others being so.
template <int COUNT>
inline int place_of(const Floats (&v)[COUNT], float bound) {
    for (int n = 0; n < COUNT; ++n) {
#if defined(__AVX512F__)
        if (unsigned found = _mm512_cmp_ps_mask((__m512)v[n], _mm512_set1_ps(bound), _CMP_GE_OQ))
            return n * LANES + __builtin_ctz(found);
#else
        for (int lane = 0; lane < LANES; ++lane)
            if (v[n][lane] >= bound) return n * LANES + lane;
#endif
    }
    return 0;
}

// One group of one of M rows. A value that is not finite makes the scale one that is not, and with it the row's results.
template <typename T, int UNITS, int M>
void quantize(const T* from, int32_t* codes, Group<M>& group, int i, int zero) {
    constexpr int COUNT = UNITS * UNIT / LANES;
    Floats v[COUNT], size[COUNT], most = {}, rest = {}, probe = {};
    for (int n = 0; n < COUNT; ++n) {
        v[n] = load(from + n * LANES);
        size[n] = max(v[n], -v[n]);
        most = max(most, size[n]);
        probe += v[n] * 0.0f;
    }
    float not_finite = sum_of(probe);  // or zero
    if (!(not_finite == 0.0f))
        for (int n = 0; n < COUNT; ++n) v[n] = size[n] = most = Floats{};
    float outlier = max_of(most);
    int place = place_of(size, outlier);
    float lanes[UNITS * UNIT];
    for (int n = 0; n < COUNT; ++n) store(lanes + n * LANES, size[n]);
    lanes[place] = 0.0f;
    for (int n = 0; n < COUNT; ++n) rest = max(rest, load(lanes + n * LANES));
    float others = max_of(rest);
    bool apart = outlier > APART * others;
    float scale = apart ? largest(others / MOST, outlier / (MOST * OUTLIER)) : outlier / MOST;
    // Adding and subtracting 1.5 * 2^23 rounds to an integer.
    constexpr float ROUND = 12582912.0f;
    float inverse = scale > 1e-30f ? 1.0f / scale : 0.0f;  // below, it would overflow
    Ints total = {};
    int8_t small[UNITS * UNIT];
    int32_t whole[UNITS * UNIT];
    for (int n = 0; n < COUNT; ++n) {
        Ints rounded = __builtin_convertvector((v[n] * inverse + ROUND) - ROUND, Ints);
        total += rounded;
        SignedBytes bytes = __builtin_convertvector(rounded, SignedBytes);
        std::memcpy(small + n * LANES, &bytes, sizeof bytes);
        std::memcpy(whole + n * LANES, &rounded, sizeof rounded);
    }
    int32_t sum = 0;
    for (int lane = 0; lane < LANES; ++lane) sum += total[lane];
    int32_t second = apart ? (whole[place] + OUTLIER / 2) >> 7 : 0;
    small[place] = static_cast<int8_t>(whole[place] - second * OUTLIER);
    for (int u = 0; u < UNITS; ++u) std::memcpy(codes + u * M, small + u * UNIT, UNIT);
    group.scales[i] = scale + not_finite;
    group.sums[i] = group.scales[i] * static_cast<float>(sum);
    group.minus_zero[i] = -zero * sum;
    group.outliers[i] = static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint8_t>(second)) << (place % UNIT * 8));
    group.outlier_units[i] = place / UNIT;
}

template <typename T, int UNITS>
void quantize_rows(const QuantizedCall& call, const Quantized& x, const Team& team) {
    share(team, x.num_rows * x.num_groups, [&](int64_t item) {
        int64_t row = item / x.num_groups, group = item % x.num_groups, first = row / ROWS * ROWS;
        const T* from = static_cast<const T*>(call.rows.x) + row * call.rows.x_stride + group * UNITS * UNIT;
        int i = static_cast<int>(row - first);
        at_once<ROWS>(first, x.num_rows - first, [&](int64_t, auto M) {
            int32_t* codes = x.codes<M>(first) + group * UNITS * M + i;
            quantize<T, UNITS, M>(from, codes, x.groups<M>(first)[group], i, call.weight.zero);
        });
    });
}

template <int BITS, int UNITS, bool MINIMUM, bool BLOCKS>
void linear(const QuantizedCall& call, const Team& team) {
    const QuantizedWeight& weight = call.weight;
    Quantized x{weight.num_inputs, weight.num_inputs / weight.group_size, call.rows.num_rows, static_cast<uint8_t*>(call.rows.scratch)};
    if (call.rows.x_bfloat16) quantize_rows<BFloat16, UNITS>(call, x, team);
    else quantize_rows<float, UNITS>(call, x, team);
    int64_t num_panels = (weight.num_outputs + PANEL - 1) / PANEL;
    team.wait({weight.panels, num_panels * weight.panel_bytes});
    int64_t row_bytes = weight.num_inputs + x.num_groups * sizeof(Group<1>);
    int64_t block = largest<int64_t>(1, BLOCK_BYTES / (row_bytes * ROWS)) * ROWS;
    auto rows_of_panels = [&](int64_t first, int64_t count, int64_t index, auto N) {
        const uint8_t* panel = weight.panels + index * weight.panel_bytes;
        Ahead ahead = next_panels(panel, N, weight.panel_bytes, x.num_groups, (count + ROWS - 1) / ROWS);
        in_groups<N == 1 ? ROWS : 1>(first, count, [&](int64_t row, auto M) {
            Floats y[M][N * PARTS];
            multiply<BITS, UNITS, MINIMUM, BLOCKS, M, N>(weight, x.codes<M>(row), x.groups<M>(row), panel, ahead, y);
            ahead.from += x.num_groups * ahead.step;
            for (int n = 0; n < N; ++n) store_rows(call.rows, weight.num_outputs, row, (index + n) * PANEL, y, n * PARTS);
        });
    };
    if (x.num_rows == 1) {
        int64_t num_groups = (num_panels + PANELS - 1) / PANELS;
        hand_out_blocks(team, 1, 1, num_groups, PANELS * weight.panel_bytes, [&](int64_t, int64_t, int64_t group) {
            at_once<PANELS>(group * PANELS, num_panels - group * PANELS, [&](int64_t panel, auto N) { rows_of_panels(0, 1, panel, N); });
        });
        return;
    }
    hand_out_blocks(team, x.num_rows, block, num_panels, weight.panel_bytes, [&](int64_t first, int64_t count, int64_t panel) {
        rows_of_panels(first, count, panel, std::integral_constant<int, 1>());
    });
}

using Linear = void (*)(const QuantizedCall&, const Team&);

template <int BITS, int UNITS>
Linear choose(const QuantizedWeight& weight) {
    bool blocks = weight.groups_per_block > 1;
    if (weight.has_minimum) return blocks ? linear<BITS, UNITS, true, true> : linear<BITS, UNITS, true, false>;
    return blocks ? linear<BITS, UNITS, false, true> : linear<BITS, UNITS, false, false>;
}

Linear choose(const QuantizedWeight& weight) {
    if (weight.bits == 4) return choose<4, 8>(weight);
    return weight.group_size == 16 ? choose<8, 4>(weight) : choose<8, 8>(weight);
}

// One output's weights of one group: the codes of its inputs where `load_codes` finds them.
void dequantize_row(const QuantizedWeight& weight, int64_t index, float* y) {
    const uint8_t* panel = weight.panels + index / PANEL * weight.panel_bytes;
    const uint8_t* header = panel + weight.header_offset;
    int lane = index % PANEL, group_bytes = weight.group_size * PANEL * weight.bits / 8;
    auto half = [&](const uint8_t* from) {
        uint8_t lanes[2 * LANES] = {};
        std::memcpy(lanes, from + 2 * lane, 2);
        return load_half(lanes)[0];
    };
    auto small = [&](const uint8_t* from) { return static_cast<float>(reinterpret_cast<const int8_t*>(from)[lane]); };
    bool blocks = weight.groups_per_block > 1;
    for (int64_t group = 0; group < weight.num_inputs / weight.group_size;) {
        float d = half(header), m = weight.has_minimum ? half(header + 2 * PANEL) : 0.0f;
        header += weight.has_minimum ? 4 * PANEL : 2 * PANEL;
        for (int i = 0; i < weight.groups_per_block; ++i, ++group) {
            float scale = blocks ? d * small(header) : d;
            float minimum = blocks && weight.has_minimum ? m * small(header + PANEL) : m;
            if (blocks) header += weight.has_minimum ? 2 * PANEL : PANEL;
            const uint8_t* codes = panel + group * group_bytes + lane * UNIT;
            for (int k = 0; k < weight.group_size; ++k) {
                int unit = k / UNIT;
                int code = weight.bits == 8 ? codes[unit * UNIT * PANEL + k % UNIT]
                                            : codes[unit / 2 * UNIT * PANEL + k % UNIT] >> (unit % 2 * 4) & 0x0f;
                y[group * weight.group_size + k] = scale * static_cast<float>(code - weight.zero) + minimum;
            }
        }
    }
}

}  // namespace

void panel_rows(const PanelRowsCall& call, const Team& team) {
    int64_t width = call.weight.num_inputs;
    std::vector<Line> memory(num_lines(width));
    float* row = memory.data()->lanes;
    share(team, call.num_indices, [&](int64_t t) {
        dequantize_row(call.weight, call.indices[t], row);
        for (int64_t k = 0; k < width; k += LANES) {
            if (call.y_bfloat16) store(static_cast<BFloat16*>(call.y) + t * width + k, load(row + k));
            else store(static_cast<float*>(call.y) + t * width + k, load(row + k));
        }
    });
}

void quantized_linear(const QuantizedCall& call, const Team& team) { choose(call.weight)(call, team); }

}  // namespace quire::QUIRE_ISA
