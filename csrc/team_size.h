// How many threads compute together where others take the cores.
#pragma once

#include <chrono>

namespace quire {

// How many threads a program is run on. Where other processes take the cores, each kernel waits for a member that has lost its
// own, and the sum of many short kernels is several times slower than one thread alone. So a team that mostly waits, several
// times in a row, is halved for some time, if it is then faster. Results have the same bits.
class TeamSize {
public:
    int choose(int most);
    void learn(int size, std::chrono::nanoseconds waited, std::chrono::nanoseconds elapsed);

private:
    using Clock = std::chrono::steady_clock;

    int most_ = 0, size_ = 0, num_slow_ = 0;
    Clock::time_point until_{};           // it stays as it is
    std::chrono::nanoseconds rest_{0};    // for how long next time
    std::chrono::nanoseconds slow_{0};    // what the whole team took
};

}  // namespace quire
