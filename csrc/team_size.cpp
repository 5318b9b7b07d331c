#include "team_size.h"

#include <algorithm>

namespace quire {
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

}  // namespace quire
