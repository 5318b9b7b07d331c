#include "rotation.h"

namespace quire::QUIRE_ISA {

template float rotate(PlainRow<float>&, int64_t, FirstStride, float*);
template float rotate(PlainRow<BFloat16>&, int64_t, FirstStride, float*);
template float rotate(WeightedRow<float>&, int64_t, FirstStride, float*);
template float rotate(WeightedRow<BFloat16>&, int64_t, FirstStride, float*);

namespace {

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

template <typename Row>
void rotate_in_windows(const Windows& windows, Row& from, int64_t count, float* to) {
    LargestMagnitude of_nobody;
    rotate_stages<4, false>(windows.radix, from, count, windows.stride, to, of_nobody);
}

void rotate_last_window(const Windows& windows, float* row, int64_t count) {
    float* last = row + windows.last(count);
    PlainRow<float> from{last};
    rotate_in_windows(windows, from, windows.size * windows.stride, last);
}

template <typename Row>
float rotate_all(Row& row, int64_t count, int64_t parts, float* to) {
    Windows windows = Windows::of(parts, count);
    rotate_in_windows(windows, row, windows.others(), to);
    Row from = row;  // of its own, so that it stays in registers
    for (int64_t k = windows.others(); k < count; k += LANES) store(to + k, from.read(k, 0));
    row = from;
    rotate_last_window(windows, to, count);
    PlainRow<float> rotated{to};
    return rotate(rotated, count, FirstStride(), to);
}

}  // namespace

void rotate_windows_back(float* row, int64_t count, int64_t parts) {
    Windows windows = Windows::of(parts, count);
    rotate_last_window(windows, row, count);
    PlainRow<float> others{row};
    rotate_in_windows(windows, others, windows.others(), row);
}

float rotate_with_windows(PlainRow<float>& from, int64_t count, int64_t parts, float* to) { return rotate_all(from, count, parts, to); }
float rotate_with_windows(PlainRow<BFloat16>& from, int64_t count, int64_t parts, float* to) { return rotate_all(from, count, parts, to); }
float rotate_with_windows(WeightedRow<float>& from, int64_t count, int64_t parts, float* to) { return rotate_all(from, count, parts, to); }
float rotate_with_windows(WeightedRow<BFloat16>& from, int64_t count, int64_t parts, float* to) { return rotate_all(from, count, parts, to); }

}  // namespace quire::QUIRE_ISA
