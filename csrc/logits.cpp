// Weights are widened as they are read, once for all rows; sums stay in float32. Each logit's additions have one order,
// whatever the number of rows or threads.
#include <type_traits>
#include <vector>

#include "kernels.h"
#include "vectors.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int OUTPUTS = 8;                       // weight rows widened at a time: they stay in the first cache
constexpr int AT_ONCE = LANES == 16 ? 4 : 2;     // rows of x, and outputs, whose sums are in registers at one time

template <typename T>
void widen(const LogitsCall& call, int64_t first, int count, int64_t width, float* widened) {
    for (int n = 0; n < count; ++n) {
        const T* from = static_cast<const T*>(call.weight) + (first + n) * call.num_features;
        for (int64_t k = 0; k < width; k += LANES)
            store(widened + n * width + k, load_part(from + k, static_cast<int>(call.num_features - k)));
    }
}

// M rows of x from `row` on times N widened weight rows, which are outputs from `output` on.
template <int M, int N>
void multiply(const LogitsCall& call, const float* x, int64_t width, int64_t row, const float* widened, int64_t output) {
    Floats sums[M][N] = {};
    for (int64_t k = 0; k < width; k += LANES) {
        Floats weights[N];
        for (int n = 0; n < N; ++n) weights[n] = load(widened + n * width + k);
        for (int m = 0; m < M; ++m) {
            Floats part = load(x + (row + m) * width + k);
            for (int n = 0; n < N; ++n) sums[m][n] += part * weights[n];
        }
    }
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n) call.y[(row + m) * call.num_outputs + output + n] = sum_of(sums[m][n]);
}

template <int N = AT_ONCE, typename Function>
void in_groups(int64_t first, int64_t count, Function&& function) {
    for (; first + N <= count; first += N) function(first, std::integral_constant<int, N>());
    if constexpr (N > 1) in_groups<N - 1>(first, count, function);
}

template <typename T>
void logits(const LogitsCall& call) {
    if (call.num_rows == 0) return;
    int64_t width = (call.num_features + LANES - 1) / LANES * LANES;
    std::vector<Line> padded(num_lines(call.num_rows * width));
    float* x = padded.data()->lanes;
    for (int64_t row = 0; row < call.num_rows; ++row)
        for (int64_t k = 0; k < width; k += LANES)
            store(x + row * width + k, load_part(call.x + row * call.num_features + k, static_cast<int>(call.num_features - k)));
    int64_t num_items = (call.num_outputs + OUTPUTS - 1) / OUTPUTS;
#pragma omp parallel num_threads(call.num_threads)
    {
        std::vector<Line> lines(num_lines(OUTPUTS * width));
        float* widened = lines.data()->lanes;
#pragma omp for schedule(dynamic, 64)
        for (int64_t item = 0; item < num_items; ++item) {
            int64_t first = item * OUTPUTS;
            int count = static_cast<int>(call.num_outputs - first < OUTPUTS ? call.num_outputs - first : OUTPUTS);
            widen<T>(call, first, count, width, widened);
            in_groups(0, call.num_rows, [&](int64_t row, auto M) {
                in_groups(0, count, [&](int64_t n, auto N) {
                    multiply<M, N>(call, x, width, row, widened + n * width, first + n);
                });
            });
        }
    }
}

}  // namespace

void logits_float32(const LogitsCall& call) { logits<float>(call); }
void logits_bfloat16(const LogitsCall& call) { logits<BFloat16>(call); }

}  // namespace quire::QUIRE_ISA
