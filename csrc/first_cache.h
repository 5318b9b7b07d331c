// What processors of the same instructions do not have in common, and measuring alone tells (docs/lab.md).
#pragma once

namespace quire {

// Whether what is asked for ahead may come into a core's first cache: elsewhere this has few places for lines on their way, and loads of
// the moment wait for one.
bool first_cache_has_room();

}  // namespace quire
