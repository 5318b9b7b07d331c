// A step of a model, recorded: kernels in a row with their arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "team.h"
#include "team_size.h"

namespace quire {

// Tokens of a step, the rows that they belong to, and how many rows its program was recorded for.
struct Counts {
    int64_t tokens, rows, recorded_rows;

    // Of what a kernel was recorded for: a token each row, or all tokens.
    int64_t of(int64_t recorded) const { return recorded == recorded_rows ? rows : tokens; }
};

// Kernels in a row with their arguments, recorded once and run many times by one team: a step of a model. It is run whole, or for
// the first so many of the tokens and rows that it was recorded for.
class Program {
public:
    using Kernel = std::function<void(const Team&, const std::optional<Counts>&)>;

    // What is recorded for `num_rows` tokens is of one token each row; the number of all tokens is another one.
    explicit Program(int64_t num_rows) : num_rows_(num_rows) {}

    // `num_tokens`: of a kernel that `share`s the tokens of a step and reads of other kernels only what concerns its own.
    // Neighbours of one number need not meet: each member finds what it wrote itself. Elsewhere 0.
    // `first_tokens`: the same of a kernel that does so until its members meet within it.
    // `weight`: what the kernel `share`s and nobody changes.
    void add(Kernel kernel, int64_t num_tokens, int64_t first_tokens, Range weight);
    // On how many threads it was.
    int run(int num_threads, std::optional<Counts> counts);
    int64_t size() const { return static_cast<int64_t>(steps_.size()); }
    int64_t num_rows() const { return num_rows_; }

private:
    struct Step {
        Kernel kernel;
        int64_t num_tokens, first_tokens;
        Range weight;
        Range next;  // of the kernels after it, the first one's weight
    };
    int64_t num_rows_;
    std::vector<Step> steps_;
    TeamSize size_;
};

}  // namespace quire
