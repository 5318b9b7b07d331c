#include "kernel_clock.h"

#include <cxxabi.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

namespace quire {
namespace {

struct Clock {
    std::mutex mutex;
    bool on = false;
    std::vector<std::shared_ptr<ClockedKernel>> kernels;
};

Clock& the_clock() {
    static Clock clock;
    return clock;
}

// QuantizedGated of quire::QuantizedGatedCall.
std::string name_of(const std::type_info& call) {
    std::unique_ptr<char, void (*)(void*)> readable(abi::__cxa_demangle(call.name(), nullptr, nullptr, nullptr), std::free);
    std::string name = readable ? readable.get() : call.name();
    if (auto scope = name.rfind("::"); scope != std::string::npos) name.erase(0, scope + 2);
    if (name.size() > 4 && name.compare(name.size() - 4, 4, "Call") == 0) name.resize(name.size() - 4);
    return name;
}

}  // namespace

void clock_kernels(bool on) {
    std::lock_guard lock(the_clock().mutex);
    the_clock().on = on;
    the_clock().kernels.clear();
}

Program::Kernel clocked(Program::Kernel kernel, const std::type_info& call, int64_t place, const Range& weight) {
    std::lock_guard lock(the_clock().mutex);
    if (!the_clock().on) return kernel;
    auto found = std::make_shared<ClockedKernel>(ClockedKernel{name_of(call), place, weight.begin ? weight.num_bytes : 0, {}});
    the_clock().kernels.push_back(found);
    return [kernel = std::move(kernel), kept = std::weak_ptr(found)](const Team& team, const std::optional<Counts>& counts) {
        auto found = team.thread == 0 ? kept.lock() : nullptr;
        if (!found) return kernel(team, counts);
        auto begin = std::chrono::steady_clock::now();
        kernel(team, counts);
        std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
        found->times.push_back({counts ? counts->tokens : -1, counts ? counts->rows : -1, taken.count()});
    };
}

std::vector<ClockedKernel> clocked_kernels() {
    std::lock_guard lock(the_clock().mutex);
    std::vector<ClockedKernel> copies;
    for (const auto& kernel : the_clock().kernels) copies.push_back(*kernel);
    return copies;
}

}  // namespace quire
