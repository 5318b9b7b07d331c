// Where the members of a team meet.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace quire {

// How much of a member's share is taken in this round of the meeting: the round in the upper half, so that nobody has to set
// it back. On a cache line of its own, which only the member itself writes until another one has nothing left to do.
struct alignas(64) Taken {
    std::atomic<uint64_t> value{0};
};

// What the members of a team share.
struct Meeting {
    explicit Meeting(int size) : taken(new Taken[size]) {}

    alignas(64) std::atomic<int> num_waiting{0};
    std::atomic<int> num_asleep{0};
    std::atomic<int64_t> nanoseconds_waited{0};  // by all together, without waits too short to look at the clock
    alignas(64) std::atomic<int> round{0};
    std::unique_ptr<Taken[]> taken;
};

// While spinning: so often, then the clock is looked at.
constexpr int SPINS_PER_LOOK = 64;

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace quire
