// On which cores the threads of a team compute.
#pragma once

#include <thread>
#include <vector>

namespace quire {

// The CPUs of one core: as many as it has hardware threads.
using Core = std::vector<int>;

// All cores that this process may use. Until they are known no thread is kept anywhere.
void use_cores(std::vector<Core> cores);

// A helper that is moved leaves its cache behind, and every other member waits for it: so helpers of a team of all cores stay on one
// each. The caller does not: it is the user's thread, and those that it starts would stay where it is. It has the core that is
// left, and where it has come to be on another one, that one's helper makes room. A smaller team goes where there is room,
// and so does one whose cores others take.
class Seats {
public:
    using Helper = std::thread::native_handle_type;

    // Before a team of the calling thread and the first `team_size` - 1 of these computes. `crowded`: it is smaller than it might
    // be, for others take the cores.
    void assign(const std::vector<Helper>& helpers, int team_size, bool crowded);

private:
    void leave();

    const std::vector<Core>* cores_ = nullptr;
    std::vector<Helper> seated_;
    std::vector<int> core_of_member_;  // the caller's, then those of the helpers that are seated
};

}  // namespace quire
