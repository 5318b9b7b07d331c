#include "rotation.h"

#include <type_traits>

namespace quire::QUIRE_ISA {
namespace {

// The first stages know how far apart their values are: else half of their time would go to where these lie.
using FirstStride = std::integral_constant<int64_t, ROTATION_STRIDE>;

// Minus a reflection of N values, which takes (2 / N) of their sum from each: it is its own inverse. For 4 it is a Hadamard matrix, and
// for up to 7 no value keeps more than 5 / 7 of itself.
template <int N>
inline void reflect(Floats (&v)[N]) {
    if constexpr (N > 1) {
        Floats sum = v[0] + v[1];
        if constexpr (N == 4) sum += v[2] + v[3];
        else for (int i = 2; i < N; ++i) sum += v[i];
        for (int i = 0; i < N; ++i) v[i] = multiply_subtract(sum, fill(2.0f / N), v[i]);
    }
}

// Sum and difference of lanes STEP apart.
template <int STEP, std::size_t... LANE>
inline Floats sums_and_differences(Floats v, std::index_sequence<LANE...>) {
    constexpr Floats SIGNS = {(LANE & STEP ? -1.0f : 1.0f)...};
    return multiply_add(v, SIGNS, __builtin_shufflevector(v, v, (LANE ^ STEP)...));
}

// A Hadamard matrix of each four neighbours, which makes them NEIGHBOURS_GAIN times as large.
inline Floats meet_neighbours(Floats v) {
    constexpr auto ALL = std::make_index_sequence<LANES>();
    return sums_and_differences<2>(sums_and_differences<1>(v, ALL), ALL);
}

// What a row's scale follows from: by lane the largest magnitude, but for NaN; and NaN where a value is not finite.
struct LargestMagnitude {
    Floats magnitude = {}, times_zero = {};

    // Those of N values first: one after the other each would wait for the one before.
    template <int N>
    void add(const Floats (&v)[N]) {
        Floats most = v[0];
        for (int i = 1; i < N; ++i) most = larger(most, v[i]);
        magnitude = larger(magnitude, most);
    }
    static Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
        constexpr int LARGER_MAGNITUDE = 0b1011;
        return (Floats)_mm512_maskz_range_ps(0xffff, (__m512)a, (__m512)b, LARGER_MAGNITUDE);
#else
        return (Floats)max(magnitude_bits(a), magnitude_bits(b));
#endif
    }
    void add_finite(Floats v) { times_zero = multiply_add(v, Floats{}, times_zero); }
    float value() const { return sum_of(times_zero) == 0.0f ? of_bits(max_of((Ints)magnitude)) : __builtin_nanf(""); }
};

// What the first stages read, a register from the row's `k`th value on; `a` counts neighbouring ones.
template <typename T>
struct PlainRow {
    const T* x;

    Floats read(int64_t k, int) const { return load(x + k); }
};

// Times the weight of a norm, whose scale is found meanwhile: it is for who has rotated the row.
template <typename T>
struct WeightedRow {
    static constexpr int SUMS = 4;  // side by side: one would wait for each addition

    const T* x;
    const float* weight;
    Floats squares[SUMS] = {};

    Floats read(int64_t k, int a) {
        Floats v = load(x + k);
        squares[a % SUMS] = multiply_add(v, v, squares[a % SUMS]);
        return v * load(weight + k);
    }
    float sum_of_squares() const {
        Floats all = squares[0];
        for (int i = 1; i < SUMS; ++i) all += squares[i];
        return sum_of(all);
    }
};

// Two stages at once, A values `stride` apart and B of these groups. The last ones do what is left: neighbours meet, and `largest` is
// told of all values. One that is not finite is in all that it met.
template <int A, int B, bool LAST, typename Row, typename Stride>
void rotate_stages(Row& row, int64_t count, Stride stride, float* to, LargestMagnitude& largest) {
    LargestMagnitude of_all = largest;  // of its own, as is what is read, so that it stays in registers
    Row from = row;
    for (int64_t block = 0; block < count; block += stride * A * B)
        for (int64_t first = block; first < block + stride; first += LANES) {
            Floats v[B][A];
#pragma GCC unroll 8
            for (int b = 0; b < B; ++b) {
#pragma GCC unroll 8
                for (int a = 0; a < A; ++a) v[b][a] = from.read(first + (b * A + a) * stride, a);
                reflect(v[b]);
            }
#pragma GCC unroll 8
            for (int a = 0; a < A; ++a) {
                Floats across[B];
#pragma GCC unroll 8
                for (int b = 0; b < B; ++b) across[b] = v[b][a];
                reflect(across);
                if constexpr (LAST) of_all.add_finite(across[0]);
#pragma GCC unroll 8
                for (int b = 0; b < B; ++b) {
                    if constexpr (LAST) across[b] = meet_neighbours(across[b]);
                    store(to + first + (b * A + a) * stride, across[b]);
                }
                if constexpr (LAST) of_all.add(across);
            }
        }
    largest = of_all;
    row = from;
}

template <int A, bool LAST, typename Row, typename Stride>
void rotate_stages(int b, Row& from, int64_t count, Stride stride, float* to, LargestMagnitude& largest) {
    switch (b) {
        case 3: return rotate_stages<A, 3, LAST>(from, count, stride, to, largest);
        case 4: return rotate_stages<A, 4, LAST>(from, count, stride, to, largest);
        case 5: return rotate_stages<A, 5, LAST>(from, count, stride, to, largest);
        case 6: return rotate_stages<A, 6, LAST>(from, count, stride, to, largest);
        case 7: return rotate_stages<A, 7, LAST>(from, count, stride, to, largest);
        default: return rotate_stages<A, 1, LAST>(from, count, stride, to, largest);
    }
}

template <bool LAST, typename Row, typename Stride>
void rotate_stages(bool four, int b, Row& from, int64_t count, Stride stride, float* to, LargestMagnitude& largest) {
    if (four) rotate_stages<4, LAST>(b, from, count, stride, to, largest);
    else rotate_stages<1, LAST>(b, from, count, stride, to, largest);
}

// The stages from `stride` on, of a row that lies where it goes; returns what RotatedRow says.
float rotate_from(int64_t stride, float* row, int64_t count) {
    for (PlainRow<float> from{row};;) {
        LargestMagnitude largest;
        int64_t left = count / stride;
        bool four = left % 4 == 0;
        if (four) left /= 4;
        int radix = next_radix(left);
        if (next_radix(left / radix) == 1) {
            rotate_stages<true>(four, radix, from, count, stride, row, largest);
            return largest.value();
        }
        rotate_stages<false>(four, radix, from, count, stride, row, largest);
        stride *= (four ? 4 : 1) * radix;
    }
}

struct Windows {
    int radix;
    int64_t size, count, stride;  // parts of `stride` values

    // Where the last one begins, and where the others end.
    int64_t last(int64_t num_values) const { return num_values - size * stride; }
    int64_t others() const { return (count - 1) * size * stride; }

    // Of those that are possible the ones whose last reaches back least, of its length: what meets twice is partly as it was before.
    static Windows of(int64_t parts, int64_t num_values) {
        Windows best{};
        for (int radix : {4, 3, 5, 6, 7, 1}) {
            int64_t size = 4 * radix;
            Windows found{radix, size, (parts + size - 1) / size, num_values / parts};
            if (size > parts) continue;
            int64_t twice = found.count * size - parts, least = best.count * best.size - parts;
            if (best.size == 0 || twice * best.size < least * size) best = found;
        }
        return best;
    }
};

void rotate_in_windows(const Windows& windows, float* row, int64_t count) {
    PlainRow<float> from{row};
    LargestMagnitude of_nobody;
    rotate_stages<4, false>(windows.radix, from, count, windows.stride, row, of_nobody);
}

void rotate_last_window(const Windows& windows, float* row, int64_t count) {
    rotate_in_windows(windows, row + windows.last(count), windows.size * windows.stride);
}

// Many parts meet in windows, two stages in each: of 4, and 3 to 7 of these groups. The last window reaches back over the one before.
constexpr int64_t FEW_PARTS = 2;

void rotate_windows(float* row, int64_t count, int64_t parts) {
    Windows windows = Windows::of(parts, count);
    rotate_in_windows(windows, row, windows.others());
    rotate_last_window(windows, row, count);
}

// In the other order, which undoes them.
void rotate_windows_back(float* row, int64_t count, int64_t parts) {
    Windows windows = Windows::of(parts, count);
    rotate_last_window(windows, row, count);
    rotate_in_windows(windows, row, windows.others());
}

template <typename Row>
void copy(Row& row, int64_t count, float* to) {
    Row from = row;  // of its own, so that it stays in registers
    for (int64_t k = 0; k < count; k += ROTATION_STRIDE)
        for (int i = 0; i < ROTATION_STRIDE / LANES; ++i) store(to + k + i * LANES, from.read(k + i * LANES, static_cast<int>(k / ROTATION_STRIDE)));
    row = from;
}

// Later stages read what the first have put to `to`. Those are compiled for every kind of row, so only for rows whose values meet by fours: a row that
// has not as many, or has windows, is put there as it is.
template <typename Row>
float rotate(Row& row, int64_t count, int64_t parts, float* to) {
    if (parts > FEW_PARTS || count % (4 * ROTATION_STRIDE)) {
        copy(row, count, to);
        if (parts > FEW_PARTS) rotate_windows(to, count, parts);
        return rotate_from(ROTATION_STRIDE, to, count);
    }
    int64_t left = count / (4 * ROTATION_STRIDE);
    int radix = next_radix(left);
    if (next_radix(left / radix) == 1) radix = 1;  // the rest is for the last stages, which tell how large values are
    LargestMagnitude of_nobody;
    rotate_stages<4, false>(radix, row, count, FirstStride(), to, of_nobody);
    return rotate_from(4 * ROTATION_STRIDE * radix, to, count);
}

template <typename T>
RotatedRow rotate(const RowToRotate& row) {
    const T* x = static_cast<const T*>(row.x);
    if (!row.weight) {
        PlainRow<T> plain{x};
        return {rotate(plain, row.count, row.parts, row.to), 0.0f};
    }
    WeightedRow<T> weighted{x, row.weight};
    float most = rotate(weighted, row.count, row.parts, row.to);
    return {most, weighted.sum_of_squares()};
}

}  // namespace

RotatedRow rotate(const RowToRotate& row) { return row.bfloat16 ? rotate<BFloat16>(row) : rotate<float>(row); }

// But for the windows all is its own inverse.
void rotate_back(float* row, int64_t count) {
    rotate_from(ROTATION_STRIDE, row, count);
    if (int64_t parts = parts_left_apart(count); parts > FEW_PARTS) rotate_windows_back(row, count, parts);
    for (int64_t k = 0; k < count; k += LANES) store(row + k, load(row + k) / NEIGHBOURS_GAIN);
}

}  // namespace quire::QUIRE_ISA
