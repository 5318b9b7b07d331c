// Activations as integers of 7 bits and a sign, with a scale for each group of inputs of each row. Where one of 32 neighbours is
// far larger than the others it has 14 bits, and then costs its neighbours nothing (docs/lab.md).
#pragma once

#include "linear_rows.h"
#include "units.h"

namespace quire::QUIRE_ISA {

constexpr float MOST = 127.0f;   // of a code
constexpr int OUTLIER = 128;     // what an outlier's second code counts
// So many times as large as the others is an outlier: of a group of one piece, which has its own scale, and of one of several.
constexpr float APART = 3.0f, APART_OF_SEVERAL = 2.0f;
constexpr int MAX_PIECES = 512;  // of a group: then sums of products are int32

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
};

// Where the parts of one row's group go: it is row `i` of `count`. Its own units are `step` apart.
struct GroupOfRow {
    int32_t *codes, *group, *outliers;
    int count, i, step;

    void put_scale(float scale, float sum, int32_t minus_zero) const {
        std::memcpy(group + i, &scale, sizeof scale);
        std::memcpy(group + count + i, &sum, sizeof sum);
        group[2 * count + i] = minus_zero;
    }
    void put_units(int64_t first, const void* units, int num_units) const {
        for (int u = 0; u < num_units; ++u)
            std::memcpy(codes + (first + u) * step, static_cast<const int32_t*>(units) + u, sizeof(int32_t));
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

// The largest of those of several pieces.
inline float scale_for_all(const int32_t* tops, const int32_t* others, int num_pieces) {
    if (num_pieces == 1) return scale_for(of_bits(*tops), of_bits(*others));
    Floats scale = {};
    for (int piece = 0; piece < num_pieces; piece += LANES) {
        Floats top = (Floats)load_units(tops + piece, num_pieces - piece), rest = (Floats)load_units(others + piece, num_pieces - piece);
        scale = max(scale, top > APART_OF_SEVERAL * rest ? max(rest / MOST, top / (MOST * OUTLIER)) : top / MOST);
    }
    return max_of(scale);
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

// A piece whose largest magnitude has the bits `top`. The sum of its codes goes to `total`, and `num_outliers` counts the group's.
template <typename T, int UNITS, bool LISTED>
inline void quantize_piece(const T* from, int32_t top, float inverse, int64_t piece, const GroupOfRow& to, Ints& total, int& num_outliers) {
    constexpr int COUNT = UNITS * UNIT / LANES;
    int8_t codes[UNITS * UNIT];
    Ints whole[COUNT];
    for (int n = 0; n < COUNT; ++n) {
        whole[n] = to_nearest(load(from + n * LANES) * inverse);
        total += whole[n];
        QuarterBytes bytes = __builtin_convertvector(whole[n], QuarterBytes);
        if constexpr (LISTED) std::memcpy(to.codes + piece * UNITS + n * LANES / UNIT, &bytes, sizeof bytes);  // units side by side
        else std::memcpy(codes + n * LANES, &bytes, sizeof bytes);
    }
    if constexpr (!LISTED) to.put_units(piece * UNITS, codes, UNITS);
    if (of_bits(top) * inverse < MOST + 0.5f) {
        if constexpr (!LISTED) to.put_outlier(piece, 0, 0);
        return;
    }
    Ints size[COUNT];
    for (int n = 0; n < COUNT; ++n) size[n] = magnitude_bits(load(from + n * LANES));
    int place = place_of(size, top), unit = place / UNIT, shift = place % UNIT * 8;
    int32_t code, units[UNITS * UNIT];
    std::memcpy(units, whole, sizeof units);
    int32_t second = (units[place] + OUTLIER / 2) >> 7;
    auto& word = to.codes[(piece * UNITS + unit) * to.step];
    code = (units[place] - second * OUTLIER) & 0xff;
    word = static_cast<int32_t>((static_cast<uint32_t>(word) & ~(0xffu << shift)) | static_cast<uint32_t>(code) << shift);
    int32_t unit_of_codes = static_cast<int32_t>(static_cast<uint32_t>(second & 0xff) << shift);
    if constexpr (LISTED) to.put_outlier(num_outliers, unit_of_codes, static_cast<int32_t>(piece) * UNITS + unit);
    else to.put_outlier(piece, unit_of_codes, unit);
    ++num_outliers;
}

// The largest magnitudes of a piece, lane by lane, and the second ones.
template <int UNITS, typename T>
inline void two_largest_of_lanes(const T* from, Ints& most, Ints& second) {
    most = second = Ints{};
    for (int n = 0; n < UNITS * UNIT; n += LANES) {
        Ints size = magnitude_bits(load(from + n));
        second = max(second, min(most, size));
        most = max(most, size);
    }
}

// Of each piece the bits of the largest magnitude, and of the largest of the others.
template <int UNITS, typename T>
inline void two_largest_of_pieces(const T* from, int num_pieces, int32_t* tops, int32_t* others) {
    constexpr int PIECE = UNITS * UNIT;
    int piece = 0;
    for (; piece + LANES <= num_pieces; piece += LANES) {
        Ints most[LANES], second[LANES];
        for (int i = 0; i < LANES; ++i) two_largest_of_lanes<UNITS>(from + (piece + i) * PIECE, most[i], second[i]);
        two_largest_of_each(most, second);
        std::memcpy(tops + piece, &most[0], sizeof most[0]);
        std::memcpy(others + piece, &second[0], sizeof second[0]);
    }
    for (; piece < num_pieces; ++piece) {
        Ints most, second;
        two_largest_of_lanes<UNITS>(from + piece * PIECE, most, second);
        auto [top, other] = two_largest(most, second);
        tops[piece] = top;
        others[piece] = other;
    }
}

// One group of one row, its pieces' largest magnitudes known. A value that is not finite makes the scale one that is not, and with it
// the row's results.
template <typename T, int UNITS, bool LISTED>
inline void quantize(const T* from, int32_t* tops, const int32_t* others, int num_pieces, int zero, const GroupOfRow& to) {
    constexpr int PIECE = UNITS * UNIT;
    constexpr int32_t INFINITE = 0x7f800000;
    static const T zeros[PIECE] = {};  // no number is no code
    float scale = scale_for_all(tops, others, num_pieces);
    int32_t most = 0;
    for (int piece = 0; piece < num_pieces; ++piece) most = largest(most, tops[piece]);
    bool is_finite = most < INFINITE;
    if (!is_finite) {
        std::memset(tops, 0, sizeof tops[0] * num_pieces);
        scale = of_bits(INFINITE) * 0.0f;
    }
    float inverse = scale > 1e-30f ? 1.0f / scale : 0.0f;  // below, it would overflow
    Ints total = {};
    int num_outliers = 0;
    for (int piece = 0; piece < num_pieces; ++piece)
        quantize_piece<T, UNITS, LISTED>(is_finite ? from + piece * PIECE : zeros, tops[piece], inverse, piece, to, total, num_outliers);
    int32_t sum = sum_of(total);
    if (LISTED && num_outliers < num_pieces) to.put_outlier(num_outliers, 0, 0);
    to.put_scale(scale, scale * static_cast<float>(sum), -zero * sum);
}

// All rows, side by side as many as are multiplied at one time: ROWS, then what is left.
template <typename T, int UNITS, int ROWS>
void quantize_rows(const LinearRows& rows, int zero, const IntegerRows& x, const Team& team) {
    int64_t group_size = x.num_inputs / x.num_groups, num_pieces = x.num_pieces;
    share(team, x.num_rows * x.num_groups, [&](int64_t item) {
        int64_t row = item / x.num_groups, group = item % x.num_groups, first = row / ROWS * ROWS;
        int count = static_cast<int>(x.num_rows - first < ROWS ? x.num_rows - first : ROWS);
        int i = static_cast<int>(row - first);
        GroupOfRow to{x.codes(first) + group * group_size / UNIT * count + i, x.groups(first) + group * IntegerRows::WORDS_OF_GROUP * count,
                      x.outliers(first) + group * num_pieces * IntegerRows::WORDS_OF_PIECE * count, count, i, count};
        const T* from = static_cast<const T*>(rows.x) + row * rows.x_stride + group * group_size;
        int32_t tops[MAX_PIECES], others[MAX_PIECES];
        two_largest_of_pieces<UNITS>(from, static_cast<int>(num_pieces), tops, others);
        quantize<T, UNITS, false>(from, tops, others, static_cast<int>(num_pieces), zero, to);
    });
}

}  // namespace quire::QUIRE_ISA
