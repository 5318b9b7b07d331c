// The kernels of each instruction set, to choose from at run time.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace quire {

template <typename Call>
using Kernel = void (*)(const Call&, const Team&);

struct InstructionSet {
    std::string name;
    bool present;  // on this processor
    bool chosen;   // among those to choose from, and not only for tests
#define QUIRE_MEMBER(kernel, Call) Kernel<Call> kernel = nullptr;
    QUIRE_KERNELS(QUIRE_MEMBER)
#undef QUIRE_MEMBER
};

// Those that are present, the fastest first.
std::vector<std::string> instruction_sets(bool chosen);

// Throws std::invalid_argument where this processor lacks it.
const InstructionSet& instruction_set(const std::string& name);

}  // namespace quire
