#include "sketch.h"

#include <cmath>
#include <vector>

#include "integer_rows.h"
#include "kernels.h"
#include "panel_place.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr float ZERO = 8.0f;
constexpr float LOWEST = -8.0f, HIGHEST = 7.0f;
// So much larger than computed a bound may be: sums have roundings too, and the squares of tiny numbers are nothing.
constexpr float ABOVE = 1.0001f, TINY = 1e-16f;
constexpr float ROUNDING = 1.2e-7f;
constexpr int64_t OF_ROTATIONS = 32;  // of a row and of the weights it is multiplied by, there and back

// A float16, and the float32 that it stands for: of numbers that no float16 is near, 0.
struct Half {
    uint16_t bits;
    float value;
};

Half to_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    uint32_t magnitude = ((bits & 0x7fffffff) + 0x1000) & ~0x1fffu;
    constexpr uint32_t SMALLEST = 113u << 23, LARGEST = 143u << 23;  // 2^-14, 2^16
    if (magnitude < SMALLEST || magnitude >= LARGEST) return {0, 0.0f};
    uint32_t sign = bits & 0x80000000;
    return {static_cast<uint16_t>((sign >> 16) | ((magnitude >> 13) - (112 << 10))), of_bits(static_cast<int32_t>(sign | magnitude))};
}

// Of all groups' values the square sum, lane by lane.
struct Squares {
    Floats lanes = {};

    void add(Floats v) { lanes += v * v; }
    float root() const { return std::sqrt(sum_of(lanes)) * ABOVE + TINY; }
};

// One group in 4 bits: `values` becomes what they lack.
void round_group(float* values, int64_t group, const PanelPlace& place) {
    Floats high = {}, low = {};
    for (int64_t k = 0; k < SKETCH_GROUP; k += LANES) {
        high = max(high, load(values + k));
        low = max(low, -load(values + k));
    }
    float most = max_of(high), least = max_of(low), extreme = most > least ? most : -least;
    float inverse = extreme != 0.0f ? LOWEST / extreme : 0.0f;
    float codes[SKETCH_GROUP];
    uint8_t bytes[SKETCH_GROUP];
    Floats products = {}, squares = {};
    for (int64_t k = 0; k < SKETCH_GROUP; k += LANES) {
        Floats v = load(values + k), code = v * inverse;
        code = code > LOWEST ? code : fill(LOWEST);  // also of what is not a number
        code = __builtin_convertvector(to_nearest(code < HIGHEST ? code : fill(HIGHEST)), Floats);
        store(codes + k, code);
        UnsignedQuarterBytes of_code = __builtin_convertvector(to_nearest(code + ZERO), UnsignedQuarterBytes);
        std::memcpy(bytes + k, &of_code, sizeof of_code);
        products += code * v;
        squares += code * code;
    }
    float all = sum_of(squares);
    Half scale = to_half(all > 0.0f ? sum_of(products) / all : 0.0f);  // with which these codes lack least
    place.put_scale(group, scale.bits);
    for (int64_t k = 0; k < SKETCH_GROUP; k += LANES) store(values + k, load(values + k) - load(codes + k) * scale.value);
    place.put_4_bits(bytes, group * SKETCH_GROUP, SKETCH_GROUP);
}

void add_squares(const float* values, int64_t count, float part, Squares& squares) {
    for (int64_t k = 0; k < count; k += LANES) squares.add(load(values + k) * part);
}

// One row, in the sketch's order and without the second half of its fine columns.
void sketch_row(float* values, const SketchRowsCall& call, int64_t row, const PanelPlace& place) {
    int64_t coarse = call.num_columns - 2 * FINE;
    Squares whole, lack;
    add_squares(values, coarse + FINE, 1.0f, whole);
    for (int64_t k = 0; k < coarse + FINE; k += SKETCH_GROUP) round_group(values + k, k / SKETCH_GROUP, place);
    add_squares(values, coarse, 1.0f, lack);
    float* fine = values + coarse;
    for (int64_t k = 0; k < FINE; k += SKETCH_GROUP) round_group(fine + k, (coarse + FINE + k) / SKETCH_GROUP, place);
    add_squares(fine, FINE, FINE_PART, lack);
    call.lacks[row] = lack.root();
    call.sizes[row] = whole.root();
}

template <typename T>
void sketch_all(const SketchRowsCall& call, const Team& team) {
    std::vector<Line> memory(num_lines(call.num_inputs) + num_lines(call.num_columns));
    float *row = memory.data()->lanes, *ordered = memory[num_lines(call.num_inputs)].lanes;
    share(team, (call.num_rows + PANEL - 1) / PANEL, [&](int64_t panel) {
        uint8_t* codes = call.panels + panel * call.panel_bytes;
        std::memset(codes, 0, call.panel_bytes);
        for (int lane = 0; lane < PANEL && panel * PANEL + lane < call.num_rows; ++lane) {
            int64_t index = panel * PANEL + lane;
            const T* from = static_cast<const T*>(call.rows) + index * call.num_inputs;
            for (int64_t k = 0; k < call.num_inputs; k += LANES) store(row + k, load(from + k));
            for (int64_t k = 0; k < call.num_columns - FINE; ++k) ordered[k] = row[call.columns[k]];
            sketch_row(ordered, call, index, {codes, codes + call.header_offset, lane, false});
        }
    });
}

// A row's activations as they come back from integers with one scale for each group (integer_rows.h).
template <int UNITS>
void round_trip(const float* x, int64_t num_inputs, int64_t group_size, float* y) {
    constexpr int PIECE = UNITS * UNIT;
    int32_t tops[MAX_PIECES], others[MAX_PIECES];
    int num_pieces = static_cast<int>(group_size / PIECE);
    for (int64_t first = 0; first < num_inputs; first += group_size) {
        two_largest_of_pieces<UNITS>(x + first, num_pieces, tops, others);
        float scale = scale_for_all(tops, others, num_pieces), inverse = inverse_of(scale);
        for (int64_t k = first; k < first + group_size; k += LANES) {
            Floats v = load(x + k);
            Floats back = __builtin_convertvector(to_nearest(v * inverse), Floats) * scale;
            store(y + k, v - v == 0.0f ? back : v);  // what is not finite stays so
        }
    }
}

// The same of rows that are rotated before they become integers.
void rotated_round_trip(const float* x, int64_t num_inputs, float* y) {
    float most = QUIRE_ROTATION::rotate({x, false, nullptr, num_inputs, parts_left_apart(num_inputs), y}).most;
    float scale = most / (MOST * NEIGHBOURS_GAIN), inverse = inverse_of(most / MOST);
    if (most != most) {  // what is not finite stays so
        std::memcpy(y, x, num_inputs * sizeof *x);
        return;
    }
    for (int64_t k = 0; k < num_inputs; k += LANES) store(y + k, __builtin_convertvector(to_nearest(load(y + k) * inverse), Floats) * scale);
    QUIRE_ROTATION::rotate_back(y, num_inputs);
}

void as_multiplied(const float* x, int64_t num_inputs, int64_t group_size, float* y) {
    constexpr int WHOLE = 8;  // units of a piece, where a group is made of whole ones
    if (group_size == 0) std::memcpy(y, x, num_inputs * sizeof *x);
    else if (group_size % (WHOLE * UNIT) == 0) round_trip<WHOLE>(x, num_inputs, group_size, y);
    else round_trip<WHOLE / 2>(x, num_inputs, group_size, y);
}

template <typename T>
void order_inputs(const SketchInputsCall& call, const Team& team) {
    int64_t of_table = num_lines(call.num_inputs), of_sketch = num_lines(call.num_columns);
    std::vector<Line> memory(2 * of_table + of_sketch);
    float *row = memory.data()->lanes, *in_table = memory[of_table].lanes, *in_sketch = memory[2 * of_table].lanes;
    int64_t coarse = call.num_columns - 2 * FINE;
    share(team, call.num_tokens, [&](int64_t t) {
        const T* x = static_cast<const T*>(call.x) + t * call.x_stride;
        float* y = call.y + t * call.num_columns;
        for (int64_t k = 0; k < call.num_inputs; k += LANES) store(row + k, load(x + k));
        if (call.rotated) rotated_round_trip(row, call.num_inputs, in_table);
        else as_multiplied(row, call.num_inputs, call.group_size, in_table);
        for (int64_t k = 0; k < call.num_columns; ++k) y[k] = in_table[call.columns[k]];  // what is rounded already differs less
        as_multiplied(y, call.num_columns, SKETCH_GROUP, in_sketch);
        Squares weighed, whole, apart;
        add_squares(in_sketch, coarse, 1.0f, weighed);
        add_squares(in_sketch + coarse, FINE, 1.0f / FINE_PART, weighed);
        add_squares(in_table, call.num_inputs, 1.0f, whole);
        for (int64_t k = 0; k < coarse + FINE; ++k) in_sketch[k] -= in_table[call.columns[k]];
        add_squares(in_sketch, coarse + FINE, 1.0f, apart);
        float roundings = static_cast<float>(call.num_columns + 2 * SKETCH_GROUP + OF_ROTATIONS) * ROUNDING * whole.root();
        call.bounds[2 * t] = weighed.root();
        call.bounds[2 * t + 1] = apart.root() + roundings;
    });
}

// Whether one of a panel's tokens can have a logit of at least `least`. What is not a number can be anything.
bool reaches(const float* estimates, const float* lacks, const float* sizes, int64_t count, const float* bounds, float least) {
    for (int64_t i = 0; i < count; i += LANES) {
        int left = static_cast<int>(count - i);
        Floats most = load_part(estimates + i, left) + (load_part(lacks + i, left) * bounds[0] + load_part(sizes + i, left) * bounds[1]);
        if (any(~(most < least) & (lane_numbers() < left))) return true;
    }
    return false;
}

float largest_known(const WithinReachCall& call, int64_t row) {
    const float* logits = call.logits + row * call.vocab_size;
    float most = -HUGE_VALF;
    for (int64_t n = 0; n < call.known[0]; ++n) {
        int64_t first = call.known[1 + n] * PANEL;
        for (int64_t i = first; i < first + PANEL && i < call.vocab_size; ++i)
            if (exceeds(logits[i], most)) most = logits[i];
    }
    return most;
}

}  // namespace

void sketch_rows(const SketchRowsCall& call, const Team& team) {
    if (call.bfloat16) sketch_all<BFloat16>(call, team);
    else sketch_all<float>(call, team);
}

void sketch_inputs(const SketchInputsCall& call, const Team& team) {
    if (call.bfloat16) order_inputs<BFloat16>(call, team);
    else order_inputs<float>(call, team);
}

void panels_of(const PanelsOfCall& call, const Team& team) {
    if (team.thread != 0) return;
    int64_t count = 0, *panels = call.panels + 1;
    for (int64_t t = 0; t < call.num_tokens; ++t) {
        int64_t panel = call.token_ids[t] / PANEL, place = 0;
        while (place < count && panels[place] < panel) ++place;
        if (place < count && panels[place] == panel) continue;
        for (int64_t i = count; i > place; --i) panels[i] = panels[i - 1];
        panels[place] = panel;
        ++count;
    }
    call.panels[0] = count;
}

void within_reach(const WithinReachCall& call, const Team& team) {
    int64_t num_panels = (call.vocab_size + PANEL - 1) / PANEL, *counts = call.scratch + num_panels;
    int64_t begin = num_panels * team.thread / team.size, *found = call.scratch + begin, count = 0;
    std::vector<float> least(static_cast<std::size_t>(call.num_tokens));
    for (int64_t t = 0; t < call.num_tokens; ++t) least[t] = largest_known(call, t);
    share(team, num_panels, [&](int64_t panel) {
        int64_t first = panel * PANEL, width = call.vocab_size - first < PANEL ? call.vocab_size - first : PANEL;
        for (int64_t t = 0; t < call.num_tokens; ++t) {
            const float* estimates = call.estimates + t * call.vocab_size + first;
            if (!reaches(estimates, call.lacks + first, call.sizes + first, width, call.bounds + 2 * t, least[t])) continue;
            found[count++] = panel;
            break;
        }
    });
    counts[team.thread] = count;
    team.wait();
    int64_t before = 0, all = 0;
    for (int thread = 0; thread < team.size; ++thread) {
        if (thread < team.thread) before += counts[thread];
        all += counts[thread];
    }
    std::memcpy(call.panels + 1 + before, found, count * sizeof *found);
    if (team.thread == 0) call.panels[0] = all;
}

void most_likely_of(const MostLikelyOfCall& call, const Team& team) {
    share(team, call.num_tokens, [&](int64_t t) {
        const float* logits = call.logits + t * call.vocab_size;
        int64_t best = call.panels[1] * PANEL;
        for (int64_t n = 0; n < call.panels[0]; ++n) {
            int64_t first = call.panels[1 + n] * PANEL;
            for (int64_t i = first; i < first + PANEL && i < call.vocab_size; ++i)
                if (exceeds(logits[i], logits[best])) best = i;
        }
        call.token_ids[t] = best;
        call.largest[t] = logits[best];
    });
}

}  // namespace quire::QUIRE_ISA
