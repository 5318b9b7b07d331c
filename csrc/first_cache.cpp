#include "first_cache.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace quire {
namespace {

#if defined(__x86_64__)
// AMD's processors from Zen 5 on.
constexpr unsigned VENDOR = signature_AMD_ebx, FIRST_FAMILY = 0x1a;

bool find() {
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d) || b != VENDOR || !__get_cpuid(1, &a, &b, &c, &d)) return false;
    unsigned base = a >> 8 & 0xf, extended = a >> 20 & 0xff;
    return base == 0xf && base + extended >= FIRST_FAMILY;
}
#else
bool find() { return false; }
#endif

}  // namespace

bool first_cache_has_room() {
    static const bool found = find();
    return found;
}

}  // namespace quire
