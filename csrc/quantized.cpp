// Activations become 8-bit integers, a scale for each group of inputs of each row. Sums within a group are exact; the
// groups' are added in float32 in their order. So a row's results have the same bits whatever the other rows are.
#include <cmath>
#include <type_traits>
#include <vector>

#include "kernels.h"
#include "vectors.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int PARTS = PANEL / LANES;  // registers that hold a number of each output of a panel
constexpr int AT_ONCE = LANES == 16 ? 8 : LANES == 8 ? 2 : 1;  // rows whose sums are in registers at one time

// Memory is asked for this much before it is needed: the processor's own guesses end with each page.
constexpr int AHEAD = 2048;

typedef uint8_t Bytes __attribute__((vector_size(4 * LANES)));
typedef int8_t SignedBytes __attribute__((vector_size(4 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(4 * LANES)));

// The rows of x as integers: what the multiplication reads.
struct Quantized {
    int64_t num_inputs, num_groups;
    int8_t* codes;   // [R, K]
    float* scales;   // [R, G]
    int32_t* sums;   // [R, G], of the codes
};

inline Bytes load_bytes(const uint8_t* from) {
    Bytes v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// Adds to each lane the sum of its four products of an unsigned and a signed byte; `quad` holds the same four in each lane.
inline Ints add_products(Ints sums, Bytes weights, int32_t quad) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, _mm512_set1_epi32(quad));
#else
    // Products of sixteen bits, two to a sum, never overflow 32 bits.
    Shorts even = (Shorts)(Ints{} + quad) << 8 >> 8, odd = (Shorts)(Ints{} + quad) >> 8;
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

// One group of one panel: the codes of its inputs, a register a quad and part, and its scales.
template <int BITS, int QUADS>
inline void load_codes(const uint8_t* from, Bytes (&codes)[QUADS][PARTS]) {
    if constexpr (BITS == 4) {
        for (int pair = 0; pair < QUADS / 2; ++pair)
            for (int p = 0; p < PARTS; ++p) {
                Bytes both = load_bytes(from + pair * QUAD * PANEL + p * QUAD * LANES);
                codes[2 * pair][p] = both & 0x0f;
                codes[2 * pair + 1][p] = (Bytes)((Shorts)both >> 4) & 0x0f;
            }
    } else {
        for (int q = 0; q < QUADS; ++q)
            for (int p = 0; p < PARTS; ++p) codes[q][p] = load_bytes(from + q * QUAD * PANEL + p * QUAD * LANES);
    }
}

// M rows of x from `row` on times the weights of one panel.
template <int BITS, int QUADS, bool MINIMUM, bool BLOCKS, int M>
void multiply(const QuantizedWeight& weight, const Quantized& x, int64_t row, const uint8_t* panel, Floats (&y)[M][PARTS]) {
    constexpr int CODE_BYTES = QUADS * QUAD * PANEL * BITS / 8;
    const uint8_t* header = panel + weight.header_offset;
    const int8_t* x_codes = x.codes + row * x.num_inputs;
    for (int64_t block = 0; block < x.num_groups; block += weight.groups_per_block) {
        Floats d[PARTS], m[PARTS];
        for (int p = 0; p < PARTS; ++p) d[p] = load_half(header + 2 * p * LANES);
        header += 2 * PANEL;
        if constexpr (MINIMUM) {
            for (int p = 0; p < PARTS; ++p) m[p] = load_half(header + 2 * p * LANES);
            header += 2 * PANEL;
        }
        for (int64_t group = block; group < block + (BLOCKS ? weight.groups_per_block : 1); ++group) {
            Floats scale[PARTS], minimum[PARTS];
            for (int p = 0; p < PARTS; ++p) {
                scale[p] = BLOCKS ? d[p] * load_small<int8_t>(header + p * LANES) : d[p];
                if constexpr (MINIMUM) minimum[p] = BLOCKS ? m[p] * load_small<int8_t>(header + PANEL + p * LANES) : m[p];
            }
            if constexpr (BLOCKS) header += MINIMUM ? 2 * PANEL : PANEL;
            Bytes codes[QUADS][PARTS];
            const uint8_t* from = panel + group * CODE_BYTES;
            if constexpr (M == 1)
                for (int line = 0; line < CODE_BYTES; line += 64) __builtin_prefetch(from + AHEAD + line);
            load_codes<BITS>(from, codes);
            for (int i = 0; i < M; ++i) {
                int64_t at = (row + i) * x.num_groups + group;
                int32_t quads[QUADS];
                std::memcpy(quads, x_codes + i * x.num_inputs + group * QUADS * QUAD, sizeof quads);
                for (int p = 0; p < PARTS; ++p) {
                    Ints sums = Ints{} - weight.zero * x.sums[at];
                    for (int q = 0; q < QUADS; ++q) sums = add_products(sums, codes[q][p], quads[q]);
                    y[i][p] += __builtin_convertvector(sums, Floats) * scale[p] * x.scales[at];
                    if constexpr (MINIMUM) y[i][p] += minimum[p] * (x.scales[at] * static_cast<float>(x.sums[at]));
                }
            }
        }
    }
}

// A value that is not finite makes the group's scale one that is not, and with it the row's results.
template <typename T>
void quantize_row(const T* from, int group_size, int64_t row, const Quantized& x) {
    for (int64_t group = 0; group < x.num_groups; ++group) {
        const T* values = from + group * group_size;
        Floats most = {}, probe = {};
        for (int k = 0; k < group_size; k += LANES) {
            Floats v = load(values + k);
            most = max(most, max(v, -v));
            probe += v * 0.0f;
        }
        float largest_value = max_of(most);
        float scale = largest_value / 127.0f;
        Floats inverse = fill(largest_value > 1e-30f ? 127.0f / largest_value : 0.0f);  // below, it would overflow
        typedef uint32_t Counts __attribute__((vector_size(4 * LANES)));
        Counts sums = {};  // which may wrap where a value is not finite
        for (int k = 0; k < group_size; k += LANES) {
            // Adding and subtracting 1.5 * 2^23 rounds to an integer.
            Floats rounded = (load(values + k) * inverse + 12582912.0f) - 12582912.0f;
            Ints codes = __builtin_convertvector(rounded, Ints);
            typedef int8_t Small __attribute__((vector_size(LANES)));
            Small small = __builtin_convertvector(codes, Small);
            std::memcpy(x.codes + row * x.num_inputs + group * group_size + k, &small, sizeof small);
            sums += (Counts)codes;
        }
        uint32_t sum = 0;
        for (int lane = 0; lane < LANES; ++lane) sum += sums[lane];
        float checked = scale + sum_of(probe);
        x.scales[row * x.num_groups + group] = checked;
        x.sums[row * x.num_groups + group] = checked == checked ? static_cast<int32_t>(sum) : 0;
    }
}

template <int M>
void store_rows(const QuantizedCall& call, int64_t row, int64_t output, const Floats (&y)[M][PARTS]) {
    for (int i = 0; i < M; ++i)
        for (int p = 0; p < PARTS; ++p) {
            int64_t n = output + p * LANES;
            int count = static_cast<int>(call.weight.num_outputs - n);
            if (count <= 0) continue;
            Floats v = y[i][p];
            if (call.bias && call.bias_bfloat16) v += load_part(static_cast<const BFloat16*>(call.bias) + n, count);
            else if (call.bias) v += load_part(static_cast<const float*>(call.bias) + n, count);
            int64_t at = (row + i) * call.y_stride + n;
            if (call.y_bfloat16) store_part(static_cast<BFloat16*>(call.y) + at, v, count);
            else store_part(static_cast<float*>(call.y) + at, v, count);
        }
}

template <int N = AT_ONCE, typename Function>
void in_groups(int64_t first, int64_t count, Function&& function) {
    for (; first + N <= count; first += N) function(first, std::integral_constant<int, N>());
    if constexpr (N > 1) in_groups<N - 1>(first, count, function);
}

template <int BITS, int QUADS, bool MINIMUM, bool BLOCKS>
void multiply_panel(const QuantizedCall& call, const Quantized& x, int64_t index) {
    const uint8_t* panel = call.weight.panels + index * call.weight.panel_bytes;
    in_groups(0, call.num_rows, [&](int64_t row, auto M) {
        Floats y[M][PARTS] = {};
        multiply<BITS, QUADS, MINIMUM, BLOCKS>(call.weight, x, row, panel, y);
        store_rows(call, row, index * PANEL, y);
    });
}

using PanelFunction = void (*)(const QuantizedCall&, const Quantized&, int64_t);

template <int BITS, int QUADS>
PanelFunction choose(const QuantizedWeight& weight) {
    bool blocks = weight.groups_per_block > 1;
    if (weight.has_minimum) return blocks ? multiply_panel<BITS, QUADS, true, true> : multiply_panel<BITS, QUADS, true, false>;
    return blocks ? multiply_panel<BITS, QUADS, false, true> : multiply_panel<BITS, QUADS, false, false>;
}

PanelFunction choose(const QuantizedWeight& weight) {
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
            const uint8_t* codes = panel + group * group_bytes + lane * QUAD;
            for (int k = 0; k < weight.group_size; ++k) {
                int quad = k / QUAD;
                int code = weight.bits == 8 ? codes[quad * QUAD * PANEL + k % QUAD]
                                            : codes[quad / 2 * QUAD * PANEL + k % QUAD] >> (quad % 2 * 4) & 0x0f;
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

void quantized_linear(const QuantizedCall& call, const Team& team) {
    const QuantizedWeight& weight = call.weight;
    Quantized x{weight.num_inputs, weight.num_inputs / weight.group_size, nullptr, nullptr, nullptr};
    x.scales = static_cast<float*>(call.scratch);
    x.sums = reinterpret_cast<int32_t*>(x.scales + call.num_rows * x.num_groups);
    x.codes = reinterpret_cast<int8_t*>(x.sums + call.num_rows * x.num_groups);
    share(team, call.num_rows, [&](int64_t row) {
        int64_t at = row * call.x_stride;
        if (call.x_bfloat16) quantize_row(static_cast<const BFloat16*>(call.x) + at, weight.group_size, row, x);
        else quantize_row(static_cast<const float*>(call.x) + at, weight.group_size, row, x);
    });
    team.wait();
    PanelFunction multiply_one = choose(weight);
    share(team, (weight.num_outputs + PANEL - 1) / PANEL, [&](int64_t panel) { multiply_one(call, x, panel); });
}

}  // namespace quire::QUIRE_ISA
