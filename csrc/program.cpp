#include "program.h"

#include <chrono>
#include <utility>

#include "crew.h"

namespace quire {

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
