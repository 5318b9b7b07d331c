// A rotation of rows, under which values that are far larger than the others are shared out among many inputs: then integers of 8 bits with
// one scale are enough for all of them (QuaRot: Ashkboos et al. 2024). A weight's rows were rotated alike before they were rounded, so
// that products stay what they were. But for its last stage it works between registers, not within them.
#pragma once

#include "vectors.h"

// The set whose rotation this one has: its own, or that of one whose instructions for floats are the same (CMakeLists.txt).
#if !defined(QUIRE_ROTATION)
#define QUIRE_ROTATION QUIRE_ISA
#endif

namespace quire {

// Neighbours of which only four meet, whatever the instruction set's registers are.
constexpr int64_t ROTATION_STRIDE = 16;

// Each four neighbours meet by a Hadamard matrix, which makes them as many times as large.
constexpr float NEIGHBOURS_GAIN = 2;

// `count` values, whole strides, float32 or bfloat16, and where they go, NEIGHBOURS_GAIN times as large: it may be where they come from. Its
// `parts` are those of all rows of a call: they are found by divisions, once. Times the `weight` of a norm, or null.
struct RowToRotate {
    const void* x;
    bool bfloat16;
    const float* weight;
    int64_t count, parts;
    float* to;
};

// The largest magnitude, or NaN where a value is not finite; and, where there was a weight, the sum of squares of what was rotated without it.
struct RotatedRow {
    float most, squares;
};

}  // namespace quire

namespace quire::QUIRE_ISA {

// How many values meet in the next stage, where `left` are: 1 when there is none. A lone factor 2 is left out, larger ones have windows.
inline int next_radix(int64_t left) {
    for (int radix : {4, 6, 3, 5, 7})
        if (left % radix == 0) return radix;
    return 1;
}

// How many parts of a row the stages leave apart from each other: a factor of 11 or more, with a lone 2.
inline int64_t parts_left_apart(int64_t count) {
    int64_t left = count / ROTATION_STRIDE;
    for (int radix = next_radix(left); radix > 1; radix = next_radix(left)) left /= radix;
    return left;
}

}  // namespace quire::QUIRE_ISA

namespace quire::QUIRE_ROTATION {

RotatedRow rotate(const RowToRotate& row);

// A rotated row, which did not become larger, as it was before.
void rotate_back(float* row, int64_t count);

}  // namespace quire::QUIRE_ROTATION
