#include "seats.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace quire {
namespace {

std::atomic<const std::vector<Core>*> known_cores{nullptr};

}  // namespace

// Who computes meanwhile may still read those before: there are as few of them as calls.
void use_cores(std::vector<Core> cores) { known_cores.store(new std::vector<Core>(std::move(cores))); }

#if defined(__linux__)
namespace {

// The core on which the calling thread is now; none where it may not use all of them, or others too.
std::optional<int> current_core(const std::vector<Core>& cores) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return std::nullopt;
    int current = sched_getcpu();
    std::optional<int> found;
    for (std::size_t i = 0; i < cores.size(); ++i)
        for (int cpu : cores[i]) {
            if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed)) return std::nullopt;
            if (cpu == current) found = static_cast<int>(i);
        }
    return found;
}

bool keep_on(Seats::Helper helper, const Core& core) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (int cpu : core) CPU_SET(cpu, &cpus);
    return pthread_setaffinity_np(helper, sizeof cpus, &cpus) == 0;
}

}  // namespace

void Seats::assign(const std::vector<Helper>& helpers, int team_size, bool crowded) {
    const auto* cores = known_cores.load();
    if (crowded || cores != cores_) leave();
    cores_ = cores;
    // A small kernel between two of all cores is computed by those who are there.
    if (crowded || !cores || static_cast<std::size_t>(team_size) != cores->size()) return;
    std::optional<int> here = current_core(*cores);
    if (!here) return leave();
    if (seated_.empty()) {
        seated_.assign(helpers.begin(), helpers.begin() + team_size - 1);
        core_of_member_.resize(cores->size());
        std::iota(core_of_member_.begin(), core_of_member_.end(), 0);
        std::swap(core_of_member_[0], core_of_member_[*here]);
        for (std::size_t i = 0; i < seated_.size(); ++i)
            if (!keep_on(seated_[i], (*cores)[core_of_member_[i + 1]])) return leave();
    } else if (core_of_member_[0] != *here) {
        auto member = std::find(core_of_member_.begin(), core_of_member_.end(), *here) - core_of_member_.begin();
        std::swap(core_of_member_[0], core_of_member_[member]);
        if (!keep_on(seated_[member - 1], (*cores)[core_of_member_[member]])) leave();
    }
}

// Helpers go where the caller may.
void Seats::leave() {
    cpu_set_t allowed;
    if (seated_.empty() || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    for (Helper helper : seated_) pthread_setaffinity_np(helper, sizeof allowed, &allowed);
    seated_.clear();
}
#else
void Seats::assign(const std::vector<Helper>&, int, bool) {}
void Seats::leave() {}
#endif

}  // namespace quire
