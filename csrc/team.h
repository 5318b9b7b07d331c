// The threads that compute together: each runs the same kernels, and takes its part of each.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

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

// Memory that is read soon, a part of it by each member; or of each of several `streams` that are read side by side.
struct Range {
    const void* begin;
    int64_t num_bytes;
    int streams = 1;
};

// Neighbours among the numbers that a kernel hands out: [first, last).
struct Slice {
    int64_t first, last;
};

struct Team;

// A member's part of a range, `most` bytes of it at most, asked for little by little while memory has nothing else to do.
class Ahead {
public:
    Ahead(const Team& team, Range range, int64_t most);
    void ask(int64_t num_bytes);

private:
    const char* next_;
    int64_t left_, stream_bytes_;
    int streams_;
};

// One member. Compiled once, for every processor: nothing here may be inlined into an instruction set's files.
struct Team {
    int thread, size;
    Meeting* meeting;

    // Until all have come. What one wrote before is what the others read after. Who comes early asks for its part of
    // `next` meanwhile: memory is what a decoding step waits for.
    void wait(Range next = {nullptr, 0}) const;
    // Up to `grain` neighbours among `count` numbers, below 2^31, that nobody has taken since the last `wait`: of the member's
    // own share, from its begin on; then of others' shares, who are slower. Empty when none are left. `count` and `grain` are
    // the same in each member.
    Slice take(int64_t count, int64_t grain) const;
};

// Runs `work` on so many threads, the caller's among them, or on fewer where the system has no more to give. The others are
// started when they are first wanted and then kept: they wait, and after some time sleep. Callers that come while a team
// computes wait until it is done: two teams on the same cores would take turns in being in each other's way. A forked child
// computes with threads of its own, also when its parent's were computing. (What it may not do is use torch's: the threads of
// GNU OpenMP are not there after a fork, and are waited for.)
// `crowded`: on fewer than there might be, because others take the cores. Returns how long members have waited for others, all together.
std::chrono::nanoseconds run_on_team(int num_threads, const std::function<void(const Team&)>& work, bool crowded = false);

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
