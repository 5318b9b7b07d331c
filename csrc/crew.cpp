#include "crew.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "meeting.h"
#include "seats.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <signal.h>
#endif

namespace quire {
namespace {

// A row's bits do not depend on who computes it: all members round, and treat the smallest numbers, as the caller does.
#if defined(__x86_64__)
using FloatingPointMode = unsigned;
FloatingPointMode mode_of_this_thread() { return __builtin_ia32_stmxcsr(); }
void use_mode(FloatingPointMode mode) { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
using FloatingPointMode = uint64_t;
FloatingPointMode mode_of_this_thread() {
    FloatingPointMode mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
void use_mode(FloatingPointMode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
struct FloatingPointMode {};
FloatingPointMode mode_of_this_thread() { return {}; }
void use_mode(FloatingPointMode) {}
#endif

// Between two calls. Python calls kernels some tens of microseconds apart, and programs about a millisecond; to wake who
// sleeps takes as long as the shorter of the two.
constexpr auto LONGEST_SPIN = std::chrono::milliseconds(2);

// Until `value` is no longer `old`.
template <typename Number>
void wait_while(const std::atomic<Number>& value, Number old) {
    auto end = std::chrono::steady_clock::now() + LONGEST_SPIN;
    do {
        for (int spin = 0; spin < SPINS_PER_LOOK; ++spin) {
            if (value.load(std::memory_order_acquire) != old) return;
            pause();
        }
    } while (std::chrono::steady_clock::now() < end);
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

// A new thread gets no signals: they are for the threads that expect them.
class SignalsBlocked {
public:
#if defined(__unix__) || defined(__APPLE__)
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_;
#endif
};

// The threads of a process. Never destroyed once it has any: they sleep until the process ends.
class Crew {
public:
    std::chrono::nanoseconds run(int num_threads, const std::function<void(const Team&)>& work, bool crowded) {
        std::lock_guard<std::mutex> alone(mutex_);
        hire(num_threads - 1);
        int num_others = std::min(num_threads - 1, static_cast<int>(helpers_.size()));
        Meeting meeting(num_others + 1);
        meeting_ = &meeting;
        work_ = &work;
        mode_ = mode_of_this_thread();
        team_size_ = num_others + 1;
        seats_.assign(handles_, team_size_, crowded);
        num_busy_.store(num_others, std::memory_order_relaxed);
        for (int i = 0; i < num_others; ++i) {
            helpers_[i]->call.fetch_add(1, std::memory_order_release);
            helpers_[i]->call.notify_one();
        }
        compute({0, team_size_, &meeting});
        for (int busy; (busy = num_busy_.load(std::memory_order_acquire)) > 0;) wait_while(num_busy_, busy);
        return std::chrono::nanoseconds(meeting.nanoseconds_waited.load());
    }

private:
    // On a cache line of its own: each helper watches only its own call.
    struct alignas(64) Helper {
        std::atomic<unsigned> call{0};  // which a server of some weeks passes the end of
    };

    void hire(int count) {
        while (static_cast<int>(helpers_.size()) < count) {
            auto helper = std::make_unique<Helper>();
            int thread = static_cast<int>(helpers_.size()) + 1;
            try {
                SignalsBlocked blocked;
                std::thread started([this, helper = helper.get(), thread] { serve(*helper, thread); });
                handles_.push_back(started.native_handle());
                started.detach();
            } catch (const std::system_error&) {
                return;
            }
            helpers_.push_back(std::move(helper));
        }
    }

    // Others would wait for a member that threw, in memory that is gone.
    void compute(const Team& team) const noexcept { (*work_)(team); }

    [[noreturn]] void serve(const Helper& helper, int thread) {
        for (unsigned answered = 0;; ++answered) {
            wait_while(helper.call, answered);
            use_mode(mode_);
            compute({thread, team_size_, meeting_});
            if (num_busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_busy_.notify_one();
        }
    }

    std::mutex mutex_;
    std::vector<std::unique_ptr<Helper>> helpers_;
    std::vector<Seats::Helper> handles_;
    Seats seats_;
    const std::function<void(const Team&)>* work_ = nullptr;
    Meeting* meeting_ = nullptr;
    FloatingPointMode mode_{};
    int team_size_ = 0;
    std::atomic<int> num_busy_{0};
};

std::atomic<Crew*> current_crew{nullptr};

#if defined(__unix__) || defined(__APPLE__)
// A forked child has none of its parent's threads, and begins anew: whatever those held when it was forked is let be.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { current_crew.store(nullptr); });
#endif

Crew& crew() {
    Crew* found = current_crew.load();
    if (found) return *found;
    auto made = std::make_unique<Crew>();
    // The first of several threads that come at the same time is right.
    return current_crew.compare_exchange_strong(found, made.get()) ? *made.release() : *found;
}

}  // namespace

std::chrono::nanoseconds run_on_team(int num_threads, const std::function<void(const Team&)>& work, bool crowded) {
    if (num_threads > 1) return crew().run(num_threads, work, crowded);
    Meeting meeting(1);
    work({0, 1, &meeting});
    return std::chrono::nanoseconds(0);
}

}  // namespace quire
