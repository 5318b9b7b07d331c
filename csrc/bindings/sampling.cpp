// Most likely tokens, penalties, draws and logprobs in the Python module.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bindings/submit.h"

namespace nb = nanobind;
using namespace quire;

namespace {

void most_likely(Program* program, const std::string& isa, uintptr_t logits, uintptr_t token_ids, uintptr_t largest,
                 uintptr_t scratch, int64_t num_rows, int64_t num_tokens, int num_threads) {
    MostLikelyCall call{at<float>(logits), at<int64_t>(token_ids), at<float>(largest), at<void>(scratch), num_rows, num_tokens};
    submit(program, threads_for(num_rows * num_tokens, num_threads), instruction_set(isa).most_likely, call);
}

// A row of logits is one member's.
int threads_for_rows(std::size_t num_rows, int64_t vocab_size, int num_threads) {
    return threads_for(num_rows * vocab_size, std::min(num_threads, static_cast<int>(num_rows)));
}

// A row's logits, where they go, its tokens, their counts and how many there are, presence, frequency and repetition penalty. Returns the
// most likely tokens and their logits.
std::pair<std::vector<int64_t>, std::vector<float>> penalize(
    const std::string& isa, const std::vector<std::tuple<uintptr_t, uintptr_t, uintptr_t, uintptr_t, int64_t, double, double, double>>& rows,
    int64_t vocab_size, int num_threads) {
    std::vector<PenalizedRow> penalized;
    for (auto [logits, own, token_ids, counts, num_tokens, presence, frequency, repetition] : rows)
        penalized.push_back({at<float>(logits), at<float>(own), at<int64_t>(token_ids), at<float>(counts), num_tokens, presence, frequency,
                             repetition});
    std::vector<Largest> largest(rows.size());
    PenalizeCall call{&penalized, largest.data(), vocab_size};
    submit(nullptr, threads_for_rows(rows.size(), vocab_size, num_threads), instruction_set(isa).penalize, call);
    std::pair<std::vector<int64_t>, std::vector<float>> found;
    for (const Largest& of_row : largest) {
        found.first.push_back(of_row.token_id);
        found.second.push_back(of_row.logit);
    }
    return found;
}

// A row's logits, and its uniform number, temperature, min_p, top_p, top_k.
std::vector<int64_t> draw(const std::string& isa, const std::vector<std::tuple<uintptr_t, double, double, double, double, int64_t>>& rows,
                          int64_t vocab_size, int num_threads) {
    std::vector<DrawnRow> drawn;
    for (auto [logits, uniform, temperature, min_p, top_p, top_k] : rows)
        drawn.push_back({at<float>(logits), uniform, temperature, min_p, top_p, top_k});
    std::vector<int64_t> token_ids(rows.size());
    DrawCall call{&drawn, token_ids.data(), vocab_size};
    submit(nullptr, threads_for_rows(rows.size(), vocab_size, num_threads), instruction_set(isa).draw, call);
    return token_ids;
}

// A row's logits, its token and how many of the most likely tokens; returns token ids and logprobs, row after row, and each token's rank.
std::tuple<std::vector<int64_t>, std::vector<float>, std::vector<int64_t>> logprobs(
    const std::string& isa, const std::vector<std::tuple<uintptr_t, int64_t, int64_t>>& rows, int64_t vocab_size, int num_threads) {
    std::vector<LogprobsRow> wanted;
    int64_t size = 0;
    for (auto [logits, token_id, num_top] : rows) {
        wanted.push_back({at<float>(logits), token_id, num_top, size});
        size += 1 + num_top;
    }
    std::vector<int64_t> token_ids(size), ranks(rows.size());
    std::vector<float> found(size);
    LogprobsCall call{&wanted, token_ids.data(), found.data(), ranks.data(), vocab_size};
    submit(nullptr, threads_for_rows(rows.size(), vocab_size, num_threads), instruction_set(isa).logprobs, call);
    return {token_ids, found, ranks};
}

}  // namespace

void bind_sampling(nb::module_& module) {
    module.def("most_likely", &most_likely, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("logits"),
               nb::arg("token_ids"), nb::arg("largest"), nb::arg("scratch"), nb::arg("num_rows"), nb::arg("num_tokens"),
               nb::arg("num_threads"));
    module.def("most_likely_scratch", [](int64_t num_tokens) { return parts_of(num_tokens) * sizeof(Largest); }, "bytes a row");
    module.def("penalize", &penalize, nb::kw_only(), nb::arg("isa"), nb::arg("rows"), nb::arg("vocab_size"), nb::arg("num_threads"));
    module.def("draw", &draw, nb::kw_only(), nb::arg("isa"), nb::arg("rows"), nb::arg("vocab_size"), nb::arg("num_threads"));
    module.def("logprobs", &logprobs, nb::kw_only(), nb::arg("isa"), nb::arg("rows"), nb::arg("vocab_size"), nb::arg("num_threads"));
}
