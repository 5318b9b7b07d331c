#include "team.h"

#include <algorithm>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace quire {
namespace {

// Some tens of microseconds: kernels end together, but for a member that lost its core. Then it is better to sleep than to
// yield: who is woken gets its core back at once from whatever else runs on it (docs/lab.md).
constexpr int SPINS = 10000;

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

constexpr int64_t LINE = 64;
constexpr int64_t MOST_AHEAD = 256 << 10;  // of a second cache of 512 KiB and more

// A member's part of a range, asked for line by line.
class Ahead {
public:
    Ahead(const Team& team, Range range)
        : next_(static_cast<const char*>(range.begin) + range.num_bytes * team.thread / team.size),
          end_(next_ + std::min(range.num_bytes / team.size, MOST_AHEAD)) {}

    void ask() {
        if (next_ >= end_) return;
        __builtin_prefetch(next_, 0, 2);
        next_ += LINE;
    }

private:
    const char* next_;
    const char* end_;
};

}  // namespace

void Team::wait(Range next) const {
    if (size == 1) {
        meeting->next.store(0, std::memory_order_relaxed);
        return;
    }
    int round = meeting->round.load(std::memory_order_acquire);
    if (meeting->num_waiting.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
        meeting->num_waiting.store(0, std::memory_order_relaxed);
        meeting->next.store(0, std::memory_order_relaxed);
        meeting->round.store(round + 1);
        if (meeting->num_asleep.load() > 0) meeting->round.notify_all();
        return;
    }
    Ahead ahead(*this, next);
    for (int spin = 0; spin < SPINS; ++spin) {
        if (meeting->round.load(std::memory_order_acquire) != round) return;
        ahead.ask();
        pause();
    }
    meeting->num_asleep.fetch_add(1);
    meeting->round.wait(round);
    meeting->num_asleep.fetch_sub(1);
}

int64_t Team::take() const { return meeting->next.fetch_add(1, std::memory_order_relaxed); }

void run_on_team(int num_threads, const std::function<void(const Team&)>& work) {
    Meeting meeting;
#if defined(_OPENMP)
    if (num_threads > 1) {
#pragma omp parallel num_threads(num_threads)
        work({omp_get_thread_num(), omp_get_num_threads(), &meeting});
        return;
    }
#endif
    work({0, 1, &meeting});
}

void Program::add(Kernel kernel, int64_t num_tokens, Range weight) {
    for (auto step = steps_.rbegin(); step != steps_.rend() && !step->next.begin; ++step) step->next = weight;
    steps_.push_back({std::move(kernel), num_tokens, weight, {nullptr, 0}});
}

void Program::run(int num_threads) const {
    run_on_team(num_threads, [this](const Team& team) {
        for (std::size_t i = 0; i < steps_.size(); ++i) {
            steps_[i].kernel(team);
            bool own = i + 1 < steps_.size() && steps_[i].num_tokens > 0 && steps_[i].num_tokens == steps_[i + 1].num_tokens;
            if (!own) team.wait(steps_[i].next);
        }
    });
}

}  // namespace quire
