#include "rounding.h"

#include <cmath>
#include <optional>
#include <vector>

#include "kernels.h"
#include "panel_place.h"
#include "rotation.h"
#include "weight_codes.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int STEP = 16;  // values a sum takes at a time, whatever the registers are, so that its order is the same
constexpr int REGISTERS = STEP / LANES;
// Tried for 4 bits: a few values beyond the ends may cost less than coarser steps for all others.
constexpr double SHARES_OF_THE_RANGE[] = {1.0, 0.95, 0.9, 0.85};
constexpr int SHARES = 4, MOST_OFFERS = 2 * SHARES;
constexpr float INFINITE = HUGE_VALF;

// An expression of its own, so that nothing is added to it before it is rounded (CMakeLists.txt, FUSING).
inline Floats product(Floats a, Floats b) { return a * b; }

// The float16 numbers next to these, ties to even, and as floats again.
inline Ints half_bits(Floats v) {
    constexpr int32_t SMALLEST_NORMAL = 113 << 23, BEYOND = 0x477ff000, INFINITE_HALF = 0x7c00;
    Ints magnitude = magnitude_bits(v);
    Ints normal = ((magnitude + 0xfff + ((magnitude >> 13) & 1)) >> 13) - (112 << 10);
    Floats above_half = (Floats)magnitude + 0.5f;  // whose last place is the smallest float16
    Ints near = magnitude < SMALLEST_NORMAL ? (Ints)above_half - (126 << 23) : normal;
    return (magnitude < BEYOND ? near : Ints{} + INFINITE_HALF) | (((Ints)v >> 16) & 0x8000);
}
inline Floats of_half_bits(Ints bits) {
    Halves halves = __builtin_convertvector(bits, Halves);
    Floats finite = load_half(reinterpret_cast<const uint8_t*>(&halves));
    return (bits & 0x7fff) == 0x7c00 ? fill(INFINITE) : finite;
}
inline Floats inverse_or_zero(Floats scale) { return scale != 0.0f ? 1.0f / scale : Floats{}; }

// Scales, and minima, of which a group takes the one with the least squared error.
struct Offers {
    alignas(64) float scale[STEP], inverse[STEP], minimum[STEP];
    alignas(64) int32_t scale_bits[STEP], minimum_bits[STEP];
    float lowest, highest;

    // Of STEP numbers each, the first MOST_OFFERS of which may be offered.
    void take(const float* scales, const float* minima) {
        for (int i = 0; i < STEP; i += LANES) {
            Ints bits = half_bits(load(scales + i)), of_minima = half_bits(load(minima + i));
            Floats whole = of_half_bits(bits);
            store(scale + i, whole);
            store(inverse + i, inverse_or_zero(whole));
            store(minimum + i, of_half_bits(of_minima));
            std::memcpy(scale_bits + i, &bits, sizeof bits);
            std::memcpy(minimum_bits + i, &of_minima, sizeof of_minima);
        }
    }
    Floats code(Floats v, int offer) const {
        Floats whole = __builtin_convertvector(to_nearest((v - minimum[offer]) * inverse[offer]), Floats);
        return min(max(whole, fill(lowest)), fill(highest));
    }
    float squared_error(const float* values, int64_t size, int offer) const {
        Floats sums[REGISTERS] = {};
        for (int64_t k = 0; k < size; k += STEP)
            for (int i = 0; i < REGISTERS; ++i) {
                Floats v = load(values + k + i * LANES);
                Floats lack = (code(v, offer) * scale[offer] + minimum[offer]) - v;  // the product is exact
                sums[i] += product(lack, lack);
            }
        for (int half = REGISTERS / 2; half > 0; half /= 2)
            for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
        return sum_of(sums[0]);
    }
    // None where nothing is a number.
    std::optional<int> best(const float* values, int64_t size, int count) const {
        std::optional<int> found;
        float least = INFINITE;
        for (int offer = 0; offer < count; ++offer) {
            float error = squared_error(values, size, offer);
            if (error < least) least = error, found = offer;
        }
        return found;
    }
};

void to_8_bits(const float* values, int64_t size, int64_t group, uint8_t* codes, const PanelPlace& place) {
    constexpr float MOST = 127, ZERO = 128;
    Ints most = {};
    for (int64_t k = 0; k < size; k += LANES) most = max(most, magnitude_bits(load(values + k)));
    Ints bits = half_bits(fill(of_bits(max_of(most)) / MOST));
    Floats inverse = inverse_or_zero(of_half_bits(bits));
    for (int64_t k = 0; k < size; k += LANES) {
        Floats whole = __builtin_convertvector(to_nearest(load(values + k) * inverse), Floats);
        UnsignedQuarterBytes bytes = __builtin_convertvector(to_nearest(min(max(whole, fill(-MOST)), fill(MOST)) + ZERO), UnsignedQuarterBytes);
        std::memcpy(codes + k, &bytes, sizeof bytes);
    }
    place.put_scale(group, static_cast<uint16_t>(bits[0]));
}

// Of several ranges around the group's middle.
int offer_ranges(const float* values, int64_t size, Offers& offers) {
    Floats high = load(values), low = high;
    for (int64_t k = LANES; k < size; k += LANES) high = max(high, load(values + k)), low = min(low, load(values + k));
    float top = max_of(high), bottom = folded(low, [](auto a, auto b) { return a < b ? a : b; });
    float middle = (bottom + top) / 2, half = (top - bottom) / 2;
    float scales[STEP] = {}, minima[STEP] = {};
    for (int i = 0; i < SHARES; ++i) {
        scales[i] = static_cast<float>(2 * SHARES_OF_THE_RANGE[i]) * half / 15;
        minima[i] = middle - product(fill(static_cast<float>(SHARES_OF_THE_RANGE[i])), fill(half))[0];
    }
    offers.take(scales, minima);
    offers.lowest = 0, offers.highest = 15;
    return SHARES;
}

// Codes from -8 to 7: of several scales of either sign.
int offer_scales(const float* values, int64_t size, Offers& offers) {
    Ints most = {};
    for (int64_t k = 0; k < size; k += LANES) most = max(most, magnitude_bits(load(values + k)));
    float extreme = of_bits(max_of(most));
    int64_t first = 0;
    while (first + 1 < size && std::fabs(values[first]) != extreme) ++first;
    extreme = values[first];
    float scales[STEP] = {}, minima[STEP] = {};
    for (int i = 0; i < SHARES; ++i) {
        float share = static_cast<float>(SHARES_OF_THE_RANGE[i]) * extreme;
        scales[2 * i] = share / -8;
        scales[2 * i + 1] = share / 7;
    }
    offers.take(scales, minima);
    offers.lowest = -8, offers.highest = 7;
    return MOST_OFFERS;
}

void to_4_bits(const float* values, int64_t size, int64_t group, uint8_t* codes, const PanelPlace& place) {
    Offers offers;
    int count = place.has_minimum ? offer_ranges(values, size, offers) : offer_scales(values, size, offers);
    std::optional<int> best = offers.best(values, size, count);
    float zero = -offers.lowest;
    for (int64_t k = 0; k < size; k += LANES) {
        Floats code = best ? offers.code(load(values + k), *best) + zero : fill(zero);
        UnsignedQuarterBytes bytes = __builtin_convertvector(to_nearest(code), UnsignedQuarterBytes);
        std::memcpy(codes + k, &bytes, sizeof bytes);
    }
    if (best) place.put_scale(group, static_cast<uint16_t>(offers.scale_bits[*best]), static_cast<uint16_t>(offers.minimum_bits[*best]));
    else place.put_scale(group, 0);
}

const float* rotated(const float* row, int64_t count, float* to) {
    QUIRE_ROTATION::rotate({row, false, nullptr, count, parts_left_apart(count), to});
    for (int64_t k = 0; k < count; k += LANES) store(to + k, load(to + k) / NEIGHBOURS_GAIN);
    return to;
}

}  // namespace

void round_rows(const RoundRowsCall& call, const Team& team) {
    std::vector<Line> memory(2 * num_lines(call.num_inputs));
    float* of_row = memory.data()->lanes;
    uint8_t* codes = reinterpret_cast<uint8_t*>(memory[num_lines(call.num_inputs)].lanes);
    share(team, (call.num_rows + PANEL - 1) / PANEL, [&](int64_t panel) {
        uint8_t* to = call.panels + panel * call.panel_bytes;
        std::memset(to, 0, call.panel_bytes);
        for (int lane = 0; lane < PANEL && panel * PANEL + lane < call.num_rows; ++lane) {
            PanelPlace place{to, to + call.header_offset, lane, call.has_minimum};
            const float* row = call.rows + (panel * PANEL + lane) * call.num_inputs;
            if (call.rotated) row = rotated(row, call.num_inputs, of_row);
            for (int64_t k = 0; k < call.num_inputs; k += call.group_size)
                (call.bits == 8 ? to_8_bits : to_4_bits)(row + k, call.group_size, k / call.group_size, codes + k, place);
            if (call.bits == 8) place.put_8_bits(codes, 0, call.num_inputs);
            else place.put_4_bits(codes, 0, call.num_inputs);
        }
    });
}

}  // namespace quire::QUIRE_ISA
