// What each kernel of a program takes. Programs that are recorded while the clock is on have their kernels wrapped; others pay nothing.
#pragma once

#include <cstdint>
#include <string>
#include <typeinfo>
#include <vector>

#include "program.h"

namespace quire {

// One run of a kernel by a team's first member, within it waits for others too. Tokens and rows are the step's; -1 where its program was run whole.
struct KernelTime {
    int64_t num_tokens, num_rows;
    double seconds;
};

// A kernel of a program.
struct ClockedKernel {
    std::string name;      // of its call's type
    int64_t place;         // in its program
    int64_t weight_bytes;  // that it reads; 0 where it has none
    std::vector<KernelTime> times;
};

// On or off for what is recorded from now on. What has been measured is forgotten, and programs recorded before are measured no longer.
void clock_kernels(bool on);

// The kernel itself while the clock is off.
Program::Kernel clocked(Program::Kernel kernel, const std::type_info& call, int64_t place, const Range& weight);

// In the order of recording. Not while a program runs.
std::vector<ClockedKernel> clocked_kernels();

}  // namespace quire
