#include "team.h"

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

}  // namespace

void Team::wait() const {
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
    for (int spin = 0; spin < SPINS; ++spin) {
        if (meeting->round.load(std::memory_order_acquire) != round) return;
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

void Program::run(int num_threads) const {
    run_on_team(num_threads, [this](const Team& team) {
        for (std::size_t i = 0; i < steps_.size(); ++i) {
            steps_[i].kernel(team);
            bool own = i + 1 < steps_.size() && steps_[i].num_tokens > 0 && steps_[i].num_tokens == steps_[i + 1].num_tokens;
            if (!own) team.wait();
        }
    });
}

}  // namespace quire
