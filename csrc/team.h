// The threads that compute together: each runs the same kernels, and takes its part of each. Every kernel's file reads this one, so it includes
// next to nothing: what the standard library has for threads and time took longer to compile than most kernels.
#pragma once

#include <cstdint>

namespace quire {

struct Meeting;

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
    // own share, from its begin on; then of others' shares, who are slower, while they have at least so many left. Empty when none
    // are. `count` and `grain` are the same in each member.
    Slice take(int64_t count, int64_t grain, int64_t fewest_of_others = 1) const;
};

}  // namespace quire
