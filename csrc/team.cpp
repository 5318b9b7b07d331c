#include "team.h"

#include <algorithm>
#include <chrono>

#include "meeting.h"

namespace quire {
namespace {

// Some tens of microseconds: kernels end together, but for a member that lost its core. Then it is better to sleep than to
// yield: who is woken gets its core back at once from whatever else runs on it (docs/lab.md).
constexpr int SPINS = 10000;
constexpr int64_t LINE = 64;
constexpr int64_t MOST_WHILE_WAITING = 256 << 10;  // of a second cache of 512 KiB and more

}  // namespace

Ahead::Ahead(const Team& team, Range range, int64_t most)
    : next_(static_cast<const char*>(range.begin) + range.num_bytes / range.streams * team.thread / team.size),
      left_(std::min(range.num_bytes / team.size, most)), stream_bytes_(range.num_bytes / range.streams), streams_(range.streams) {}

void Ahead::ask(int64_t num_bytes) {
    for (; num_bytes > 0 && left_ > 0; next_ += LINE)
        for (int stream = 0; stream < streams_; ++stream, num_bytes -= LINE, left_ -= LINE)
            __builtin_prefetch(next_ + stream * stream_bytes_, 0, 2);
}

void Team::wait(Range next) const {
    int round = meeting->round.load(std::memory_order_acquire);
    if (size == 1) return meeting->round.store(round + 1, std::memory_order_relaxed);
    if (meeting->num_waiting.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
        meeting->num_waiting.store(0, std::memory_order_relaxed);
        meeting->round.store(round + 1);
        if (meeting->num_asleep.load() > 0) meeting->round.notify_all();
        return;
    }
    Ahead ahead(*this, next, MOST_WHILE_WAITING);
    auto spin_until_over = [&](int spins) {
        for (int spin = 0; spin < spins; ++spin) {
            if (meeting->round.load(std::memory_order_acquire) != round) return true;
            ahead.ask(LINE);
            pause();
        }
        return false;
    };
    if (spin_until_over(SPINS_PER_LOOK)) return;
    auto since = std::chrono::steady_clock::now();
    if (!spin_until_over(SPINS)) {
        meeting->num_asleep.fetch_add(1);
        meeting->round.wait(round);
        meeting->num_asleep.fetch_sub(1);
    }
    std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - since;
    meeting->nanoseconds_waited.fetch_add(waited.count(), std::memory_order_relaxed);
}

Slice Team::take(int64_t count, int64_t grain, int64_t fewest_of_others) const {
    // A round does not end before all members are through with it: it is the same wherever this is called.
    uint64_t round = static_cast<uint64_t>(meeting->round.load(std::memory_order_relaxed)) << 32;
    for (int i = 0; i < size; ++i) {
        int owner = thread + i < size ? thread + i : thread + i - size;
        int64_t begin = count * owner / size, length = count * (owner + 1) / size - begin;
        std::atomic<uint64_t>& taken = meeting->taken[owner].value;
        for (uint64_t value = taken.load(std::memory_order_relaxed);;) {
            int64_t first = value >= round ? static_cast<int64_t>(value - round) : 0;
            if (length - first < (i == 0 ? 1 : fewest_of_others)) break;
            int64_t last = std::min(first + grain, length);
            if (taken.compare_exchange_weak(value, round + static_cast<uint64_t>(last), std::memory_order_relaxed))
                return {begin + first, begin + last};
        }
    }
    return {count, count};
}

}  // namespace quire
