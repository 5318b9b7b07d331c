// Activations as integers of 7 bits and a sign, with a scale for each group of inputs of each row. Where one of 32 neighbours is
// far larger than the others it has 14 bits, and then costs its neighbours nothing (docs/lab.md). Rotated rows have none that are.
#pragma once

#include <vector>

#include "linear_rows.h"
#include "norms.h"
#include "quantized.h"
#include "rotation.h"
#include "two_largest.h"
#include "units.h"

namespace quire::QUIRE_ISA {

constexpr float MOST = 127.0f;   // of a code
constexpr int OUTLIER = 128;     // what an outlier's second code counts
// So many times as large as the others is an outlier: of a group of one piece, which has its own scale, and of one of several.
constexpr float APART = 3.0f, APART_OF_SEVERAL = 2.0f;
constexpr int MAX_PIECES = LARGEST_GROUP / 32;  // of a group that has outliers

// A group of inputs of M rows: what its products with a panel are scaled by.
template <int M>
struct Group {
    float scales[M];
    float sums[M];          // of the codes, scaled
    int32_t minus_zero[M];  // what the weights' zero takes from the products
};

// Of a piece of a group of M rows. Or, LISTED, one of each row's outliers in that group, up to where there is none.
template <int M>
struct Outliers {
    int32_t codes[M];  // a unit of zeros but for the second code; 0 where there is none
    int32_t units[M];  // of the piece; or of the group
};

// Rows as integers, as many side by side as are multiplied at one time: unit by unit the rows' codes; behind all of them the
// groups, and then the outliers.
struct IntegerRows {
    int64_t num_inputs, num_groups, num_pieces, num_rows;  // pieces are of a group
    uint8_t* memory;

    int32_t* codes(int64_t row) const { return reinterpret_cast<int32_t*>(memory + row * num_inputs); }
    int32_t* groups(int64_t row) const { return codes(num_rows) + row * num_groups * WORDS_OF_GROUP; }
    int32_t* outliers(int64_t row) const { return groups(num_rows) + row * num_groups * num_pieces * WORDS_OF_PIECE; }
    int64_t row_bytes() const { return num_inputs + num_groups * (WORDS_OF_GROUP + num_pieces * WORDS_OF_PIECE) * 4; }

    static constexpr int WORDS_OF_GROUP = sizeof(Group<1>) / 4, WORDS_OF_PIECE = sizeof(Outliers<1>) / 4;
    // GROUP_BYTES and PIECE_BYTES of kernels/native_linear.py, which makes the memory.
    static_assert(sizeof(Group<1>) == 12 && sizeof(Outliers<1>) == 8);
};

// Where the parts of one row's group go: it is row `i` of `count`. Its own units are `step` apart; or, LISTED, runs of RUN neighbours.
struct GroupOfRow {
    int32_t *codes, *group, *outliers;
    int count, i;
    int64_t step;

    static constexpr int RUN = 64 / UNIT;

    template <bool LISTED>
    int32_t* unit(int64_t index) const { return codes + (LISTED ? index / RUN * step + index % RUN : index * step); }
    void put_scale(float scale, float sum, int32_t minus_zero) const {
        std::memcpy(group + i, &scale, sizeof scale);
        std::memcpy(group + count + i, &sum, sizeof sum);
        group[2 * count + i] = minus_zero;
    }
    void put_units(int64_t first, const void* units, int num_units) const {
        if (step == 1) std::memcpy(codes + first, units, num_units * sizeof(int32_t));
        else for (int u = 0; u < num_units; ++u)
            std::memcpy(codes + (first + u) * step, static_cast<const int32_t*>(units) + u, sizeof(int32_t));
    }
    // To the next group, `num_units` further on.
    void advance(int64_t num_units, int num_pieces) {
        codes += num_units;
        group += IntegerRows::WORDS_OF_GROUP * count;
        outliers += IntegerRows::WORDS_OF_PIECE * num_pieces * count;
    }
    void put_outlier(int64_t piece, int32_t unit_of_codes, int32_t unit) const {
        outliers[2 * piece * count + i] = unit_of_codes;
        outliers[(2 * piece + 1) * count + i] = unit;
    }
};

// The scale for a piece alone, its largest magnitude known, and the largest of the others.
inline float scale_for(float outlier, float others) {
    return outlier > APART * others ? largest(others / MOST, outlier / (MOST * OUTLIER)) : outlier / MOST;
}

inline int32_t largest_of(const int32_t* tops, int num_pieces) {
    if (num_pieces == 1) return *tops;
    Ints most = {};
    for (int piece = 0; piece < num_pieces; piece += LANES) most = max(most, load_units(tops + piece, num_pieces - piece));
    return max_of(most);
}

// The largest of those of several pieces.
inline float scale_for_all(const int32_t* tops, const int32_t* others, int num_pieces) {
    if (num_pieces == 1) return scale_for(of_bits(*tops), of_bits(*others));
    Floats most = {};  // of what MOST codes have to reach
    for (int piece = 0; piece < num_pieces; piece += LANES) {
        Floats top = (Floats)load_units(tops + piece, num_pieces - piece), rest = (Floats)load_units(others + piece, num_pieces - piece);
        most = max(most, top > APART_OF_SEVERAL * rest ? max(rest, top / OUTLIER) : top);
    }
    return max_of(most) / MOST;
}

template <int COUNT>
inline int place_of(const Ints (&v)[COUNT], int32_t value) {
    for (int n = 0; n < COUNT; ++n) {
#if defined(__AVX512F__)
        if (unsigned found = _mm512_cmpeq_epi32_mask((__m512i)v[n], _mm512_set1_epi32(value))) return n * LANES + __builtin_ctz(found);
#else
        for (int lane = 0; lane < LANES; ++lane)
            if (v[n][lane] == value) return n * LANES + lane;
#endif
    }
    return 0;
}

// Returns the sum of the codes as they are stored, by lane.
template <int COUNT>
inline Ints store_codes(int8_t* to, const Ints (&whole)[COUNT]) {
#if defined(__AVX2__)
    if constexpr (COUNT == 4) {
        // What does not fit is an outlier, whose code is put in its place later.
        auto both = [&](int n) { return packed(whole[n], whole[n + 1]); };
#if defined(__AVX512BW__)
        __m512i quarters = _mm512_packs_epi16(both(0), both(2));
        store_quarters(to, quarters);
#if defined(__AVX512VNNI__)
        return (Ints)_mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), quarters);
#endif
#else
        store_quarters(to, _mm256_packs_epi16(both(0), both(2)));
#endif
        return (whole[0] + whole[1]) + (whole[2] + whole[3]);
    }
#endif
    Ints sum = {};
    for (int n = 0; n < COUNT; ++n) {
        QuarterBytes bytes = __builtin_convertvector(whole[n], QuarterBytes);
        std::memcpy(to + n * LANES, &bytes, sizeof bytes);
        sum += whole[n];
    }
    return sum;
}

// The codes of COUNT registers' values, of which the first is input `first` of the group. Their sum goes to `total`: that of all, or,
// where all FIT into a byte, the same sooner.
template <int COUNT, bool LISTED, bool FIT, typename T>
inline void quantize_values(const T* from, float inverse, int64_t first, const GroupOfRow& to, Ints& total) {
    Ints whole[COUNT], sum;
    for (int n = 0; n < COUNT; ++n) whole[n] = to_nearest(load(from + n * LANES) * inverse);
    if constexpr (LISTED) {  // what is stored at one time lies in one run
        sum = store_codes(reinterpret_cast<int8_t*>(to.template unit<true>(first / UNIT)), whole);
    } else {
        int8_t codes[COUNT * LANES];
        sum = store_codes(codes, whole);
        to.put_units(first / UNIT, codes, COUNT * LANES / UNIT);
    }
    if constexpr (FIT) total += sum;
    else for (int n = 0; n < COUNT; ++n) total += whole[n];
}

// Bits of those of up to LANES pieces that have an outlier, whose largest magnitudes are in `tops`.
inline uint32_t pieces_with_outliers(const int32_t* tops, int count, float inverse) {
    if (count == 1) return of_bits(*tops) * inverse < MOST + 0.5f ? 0 : 1;
    Ints none = (Floats)load_units(tops, count) * inverse < MOST + 0.5f;
#if defined(__AVX512F__)
    return static_cast<uint16_t>(~_mm512_movepi32_mask((__m512i)none));
#elif defined(__AVX2__)
    return ~_mm256_movemask_ps((__m256)none) & 0xff;
#else
    uint32_t found = 0;
    for (int lane = 0; lane < LANES; ++lane) found |= none[lane] ? 0u : 1u << lane;
    return found;
#endif
}

// The outlier of a piece whose largest magnitude has the bits `top`: it is the group's `index`th.
template <int UNITS, bool LISTED, typename T>
inline void put_outlier(const T* from, int32_t top, float inverse, int64_t piece, int index, const GroupOfRow& to) {
    Ints size[UNITS * UNIT / LANES];
    for (int n = 0; n < UNITS * UNIT / LANES; ++n) size[n] = magnitude_bits(load(from + n * LANES));
    int place = place_of(size, top), unit = place / UNIT, shift = place % UNIT * 8;
    int32_t whole = to_nearest(load(from + place / LANES * LANES) * inverse)[place % LANES];
    int32_t second = (whole + OUTLIER / 2) >> 7;
    auto& word = *to.template unit<LISTED>(piece * UNITS + unit);
    int32_t code = (whole - second * OUTLIER) & 0xff;
    word = static_cast<int32_t>((static_cast<uint32_t>(word) & ~(0xffu << shift)) | static_cast<uint32_t>(code) << shift);
    int32_t unit_of_codes = static_cast<int32_t>(static_cast<uint32_t>(second & 0xff) << shift);
    if constexpr (LISTED) to.put_outlier(index, unit_of_codes, static_cast<int32_t>(piece) * UNITS + unit);
    else to.put_outlier(piece, unit_of_codes, unit);
}

constexpr float NOT_FINITE = __builtin_nanf("");  // the scale of what has such a value, and with it the row's results

inline float inverse_of(float scale) { return scale > LEAST_SCALE ? 1.0f / scale : 0.0f; }

// The codes of a group's values; returns their sum.
template <bool LISTED, bool FIT, typename T>
inline int32_t put_codes(const T* from, int64_t num_values, float inverse, const GroupOfRow& to) {
    constexpr int AT_ONCE = 4;
    int64_t first = 0;
    Ints total = {};
    for (; first + AT_ONCE * LANES <= num_values; first += AT_ONCE * LANES) quantize_values<AT_ONCE, LISTED, FIT>(from + first, inverse, first, to, total);
    at_once<AT_ONCE - 1>(first, (num_values - first) / LANES, [&](int64_t, auto N) {
        if constexpr (N > 0) quantize_values<N, LISTED, FIT>(from + first, inverse, first, to, total);
    });
    return sum_of(total);
}

// Instead of those that are no numbers.
template <bool LISTED>
inline void put_zeros(int64_t num_values, const GroupOfRow& to) {
    static const float zeros[LANES] = {};
    Ints total = {};
    for (int64_t first = 0; first < num_values; first += LANES) quantize_values<1, LISTED, true>(zeros, 0.0f, first, to, total);
}

// One group of one row, its pieces' largest magnitudes known.
template <typename T, int UNITS, bool LISTED>
inline void quantize(const T* from, int32_t* tops, const int32_t* others, int num_pieces, int zero, const GroupOfRow& to) {
    constexpr int PIECE = UNITS * UNIT;
    int64_t num_values = static_cast<int64_t>(num_pieces) * PIECE;
    float scale = scale_for_all(tops, others, num_pieces), inverse = inverse_of(scale);
    int32_t sum = 0;
    if (largest_of(tops, num_pieces) < INFINITE) {
        sum = put_codes<LISTED, false>(from, num_values, inverse, to);
    } else {
        put_zeros<LISTED>(num_values, to);
        std::memset(tops, 0, sizeof tops[0] * num_pieces);
        scale = NOT_FINITE;
    }
    if constexpr (!LISTED)
        for (int piece = 0; piece < num_pieces; ++piece) to.put_outlier(piece, 0, 0);
    int num_outliers = 0;
    for (int group = 0; group < num_pieces; group += LANES)
        for (uint32_t left = pieces_with_outliers(tops + group, num_pieces - group, inverse); left; left &= left - 1) {
            int piece = group + __builtin_ctz(left);
            put_outlier<UNITS, LISTED>(from + piece * PIECE, tops[piece], inverse, piece, num_outliers++, to);
        }
    if (LISTED && num_outliers < num_pieces) to.put_outlier(num_outliers, 0, 0);
    to.put_scale(scale, scale * static_cast<float>(sum), -zero * sum);
}

// Of a rotated row: its largest magnitude, or NaN where a value is not finite; and how many times as large it ought to be.
struct Rotated {
    float most, scale;
};

// A rotated row that is one group.
template <bool LISTED>
inline void put_rotated(const float* memory, Rotated row, int64_t num_values, int zero, const GroupOfRow& to) {
    float step = row.most / MOST, scale = step * row.scale;
    int32_t sum = 0;
    if (step == step) sum = put_codes<LISTED, true>(memory, num_values, inverse_of(step), to);
    else put_zeros<LISTED>(num_values, to);
    to.put_scale(scale, scale * static_cast<float>(sum), -zero * sum);
}

// Groups of a row that are looked at together: MAX_PIECES are enough for them, and where rows are few each member has some.
struct Runs {
    int64_t groups, count;

    Runs(const IntegerRows& x, const Team& team) : groups(MAX_PIECES / x.num_pieces) {
        if (int64_t share = (x.num_groups + team.size - 1) / team.size; x.num_rows < team.size && share < groups) groups = share;
        count = (x.num_groups + groups - 1) / groups;
    }
    int groups_of(const IntegerRows& x, int64_t run) const {
        return static_cast<int>(x.num_groups - run * groups < groups ? x.num_groups - run * groups : groups);
    }
};

// All rows, side by side as many as are multiplied at one time: ROWS, then what is left.
template <typename T, int UNITS, int ROWS>
void quantize_rows(const LinearRows& rows, int zero, const IntegerRows& x, const Team& team) {
    int64_t group_size = x.num_inputs / x.num_groups;
    int num_pieces = static_cast<int>(x.num_pieces);
    Runs runs(x, team);
    share(team, x.num_rows * runs.count, [&](int64_t item) {
        int64_t row = item / runs.count, group = item % runs.count * runs.groups, first = row / ROWS * ROWS;
        int num_groups = runs.groups_of(x, item % runs.count), i = static_cast<int>(row - first);
        int count = static_cast<int>(x.num_rows - first < ROWS ? x.num_rows - first : ROWS);
        GroupOfRow to{x.codes(first) + group * group_size / UNIT * count + i, x.groups(first) + group * IntegerRows::WORDS_OF_GROUP * count,
                      x.outliers(first) + group * num_pieces * IntegerRows::WORDS_OF_PIECE * count, count, i, count};
        const T* from = static_cast<const T*>(rows.x) + row * rows.x_stride + group * group_size;
        int32_t tops[MAX_PIECES], others[MAX_PIECES];
        two_largest_of_pieces<UNITS>(from, num_groups * num_pieces, tops, others);
        for (int g = 0; g < num_groups; ++g) {
            quantize<T, UNITS, false>(from + g * group_size, tops + g * num_pieces, others + g * num_pieces, num_pieces, zero, to);
            to.advance(group_size / UNIT * count, num_pieces);
        }
    });
}

// How rows are rotated: not at all where they come so, else with so many `parts` (rotation.h).
struct RowRotation {
    bool is_done;
    int64_t parts;

    explicit RowRotation(const QuantizedWeight& weight)
        : is_done(weight.inputs_rotated), parts(is_done ? 0 : parts_left_apart(weight.num_inputs)) {}
};

// `count` values as they are, whole registers; returns what `rotate` does. (Bits tell of all values whether they are finite, without sums that
// wait for each other.)
template <typename T>
inline float copy_and_find_largest(const T* from, int64_t count, float* to) {
    Ints most = {};
    for (int64_t k = 0; k < count; k += LANES) {
        Floats v = load(from + k);
        store(to + k, v);
        most = max(most, magnitude_bits(v));
    }
    int32_t largest = max_of(most);
    return largest < INFINITE ? of_bits(largest) : __builtin_nanf("");
}

// What a row becomes when it is rotated, normalized before where the rows say so: by its scale alone, for integers are the same.
template <typename T>
inline Rotated rotate_row(const LinearRows& rows, int64_t row, int64_t num_inputs, const RowRotation& rotation, float* to) {
    const T* from = static_cast<const T*>(rows.x) + row * rows.x_stride;
    if (rotation.is_done) return {copy_and_find_largest(from, num_inputs, to), 1.0f};
    RotatedRow rotated = QUIRE_ROTATION::rotate({from, sizeof(T) == sizeof(BFloat16), rows.norm_weight, num_inputs, rotation.parts, to});
    return {rotated.most, (rows.norm_weight ? rms_scale(rotated.squares, num_inputs, rows.norm_eps) : 1.0f) / NEIGHBOURS_GAIN};
}

// Meanwhile as many bytes of panels are asked for as a row's integers times this: about what memory gives in that time.
constexpr int64_t ASKED_PER_INPUT = 4;

// The same of rows that are rotated.
template <typename T, int ROWS>
void quantize_rotated_rows(const LinearRows& rows, const RowRotation& rotation, int zero, const IntegerRows& x, Ahead panels, const Team& team) {
    std::vector<Line> rotated(num_lines(x.num_inputs));
    share(team, x.num_rows, [&](int64_t row) {
        int64_t first = row / ROWS * ROWS;
        int count = static_cast<int>(x.num_rows - first < ROWS ? x.num_rows - first : ROWS), i = static_cast<int>(row - first);
        GroupOfRow to{x.codes(first) + i, x.groups(first), nullptr, count, i, count};
        Rotated found = rotate_row<T>(rows, row, x.num_inputs, rotation, rotated.data()->lanes);
        put_rotated<false>(rotated.data()->lanes, found, x.num_inputs, zero, to);
        panels.ask(ASKED_PER_INPUT * x.num_inputs);
    });
}

}  // namespace quire::QUIRE_ISA
