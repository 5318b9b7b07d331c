// The threads of a process, and work that is run on them.
#pragma once

#include <chrono>
#include <functional>

#include "team.h"

namespace quire {

// Runs `work` on so many threads, the caller's among them, or on fewer where the system has no more to give. The others are
// started when they are first wanted and then kept: they wait, and after some time sleep. Callers that come while a team
// computes wait until it is done: two teams on the same cores would take turns in being in each other's way. A forked child
// computes with threads of its own, also when its parent's were computing. (What it may not do is use torch's: the threads of
// GNU OpenMP are not there after a fork, and are waited for.)
// `crowded`: on fewer than there might be, because others take the cores. Returns how long members have waited for others, all together.
std::chrono::nanoseconds run_on_team(int num_threads, const std::function<void(const Team&)>& work, bool crowded = false);

}  // namespace quire
