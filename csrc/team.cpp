#include "team.h"

#include "seats.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <signal.h>
#endif

namespace quire {
namespace {

// Some tens of microseconds: kernels end together, but for a member that lost its core. Then it is better to sleep than to
// yield: who is woken gets its core back at once from whatever else runs on it (docs/lab.md).
constexpr int SPINS = 10000;
constexpr int SPINS_PER_LOOK = 64;  // at the clock

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

constexpr int64_t LINE = 64;
constexpr int64_t MOST_WHILE_WAITING = 256 << 10;  // of a second cache of 512 KiB and more

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

Slice Team::take(int64_t count, int64_t grain) const {
    // A round does not end before all members are through with it: it is the same wherever this is called.
    uint64_t round = static_cast<uint64_t>(meeting->round.load(std::memory_order_relaxed)) << 32;
    for (int i = 0; i < size; ++i) {
        int owner = thread + i < size ? thread + i : thread + i - size;
        int64_t begin = count * owner / size, length = count * (owner + 1) / size - begin;
        std::atomic<uint64_t>& taken = meeting->taken[owner].value;
        for (uint64_t value = taken.load(std::memory_order_relaxed);;) {
            int64_t first = value >= round ? static_cast<int64_t>(value - round) : 0;
            if (first >= length) break;
            int64_t last = std::min(first + grain, length);
            if (taken.compare_exchange_weak(value, round + static_cast<uint64_t>(last), std::memory_order_relaxed))
                return {begin + first, begin + last};
        }
    }
    return {count, count};
}

namespace {

// Between two calls. Python calls kernels some tens of microseconds apart, and programs about a millisecond; to wake who
// sleeps takes as long as the shorter of the two.
constexpr auto LONGEST_SPIN = std::chrono::milliseconds(2);

// Until `value` is no longer `old`.
void wait_while(const std::atomic<int>& value, int old) {
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
        std::atomic<int> call{0};
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
        for (int answered = 0;; ++answered) {
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

namespace {

// Of the members' time: a team that waits no longer is left alone. It is never more than all members' but one's.
constexpr double MOST_WAITED = 0.375;
// So many times in a row: a member that loses its core for a moment is no reason.
constexpr int ENOUGH = 3;
// A team is halved first for some steps only, and while that goes on for longer and longer.
constexpr auto SHORTEST_REST = std::chrono::milliseconds(20);
constexpr auto LONGEST_REST = std::chrono::milliseconds(1000);

}  // namespace

int TeamSize::choose(int most) {
    if (most != most_ || Clock::now() >= until_) size_ = most;
    most_ = most;
    return size_;
}

void TeamSize::learn(int size, std::chrono::nanoseconds waited, std::chrono::nanoseconds elapsed) {
    auto now = Clock::now();
    auto rest = [&](int next) {
        size_ = next;
        rest_ = std::clamp<std::chrono::nanoseconds>(2 * rest_, SHORTEST_REST, LONGEST_REST);
        until_ = now + rest_;
    };
    if (size < most_) {
        if (elapsed > slow_) rest(most_);
    } else if (now >= until_) {
        if (waited.count() <= MOST_WAITED * size * elapsed.count()) {
            rest_ = {};
            num_slow_ = 0;
        } else if (++num_slow_ == ENOUGH) {
            num_slow_ = 0;
            slow_ = elapsed;
            rest((size + 1) / 2);
        }
    }
}

void Program::add(Kernel kernel, int64_t num_tokens, int64_t first_tokens, Range weight) {
    for (auto step = steps_.rbegin(); step != steps_.rend() && !step->next.begin; ++step) step->next = weight;
    steps_.push_back({std::move(kernel), num_tokens, num_tokens > 0 ? num_tokens : first_tokens, weight, {nullptr, 0}});
}

int Program::run(int num_threads, std::optional<Counts> counts) {
    int size = size_.choose(num_threads);
    auto begin = std::chrono::steady_clock::now();
    auto waited = run_on_team(size, [&](const Team& team) {
        for (std::size_t i = 0; i < steps_.size(); ++i) {
            steps_[i].kernel(team, counts);
            if (i + 1 == steps_.size()) return;
            bool own = steps_[i].num_tokens > 0 && steps_[i].num_tokens == steps_[i + 1].first_tokens;
            if (!own) team.wait(steps_[i].next);
        }
    }, size < num_threads);
    size_.learn(size, waited, std::chrono::steady_clock::now() - begin);
    return size;
}

}  // namespace quire
