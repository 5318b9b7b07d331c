#include "attention_jobs.h"

#include <algorithm>

namespace quire {
namespace {

constexpr int64_t JOBS_A_MEMBER = 4;  // an item that is a smaller part of a member's work is not split
constexpr int64_t MOST_SUMS = 4096;   // of queries and sections, in scratch: what there is no room for is not split

int64_t num_sections(int64_t num_keys) { return (num_keys + SECTION - 1) / SECTION; }

Keys keys_of(const AttentionCall& call, const Item& item, int stage) {
    if (stage > 0) return own_keys(call, item.parts[stage - 1], item.kv_heads, item.shared);
    return {item.parts[0].row, 0, 0, item.shared, item.kv_heads};
}

Sections sections_of(const AttentionCall& call, const Item& item) {
    int64_t first = item.shared > 0 ? 0 : keys_of(call, item, 1).first, end = 0;
    for (int stage = 1; stage <= item.num_parts; ++stage) end = std::max(end, keys_of(call, item, stage).end);
    return {first / SECTION, num_sections(end)};
}

// Products of queries and keys. What tokens before others do not see is counted too.
int64_t work_of(const AttentionCall& call, const Item& item) {
    int64_t heads = call.num_heads / call.layout.num_kv_heads * item.kv_heads.count, work = item.num_queries * item.shared;
    for (int p = 0; p < item.num_parts; ++p) {
        Keys own = keys_of(call, item, p + 1);
        work += (item.parts[p].last - item.parts[p].first) * heads * std::max<int64_t>(0, own.end - own.first);
    }
    return work;
}

int64_t work_of(const AttentionCall& call, const AttentionItems& items) {
    int64_t work = 0;
    for (int64_t i = 0; i < items.size(); ++i) work += work_of(call, items[i]);
    return work;
}

}  // namespace

Keys keys_of(const AttentionCall& call, const Item& item, int64_t section, int stage) {
    Keys keys = keys_of(call, item, stage);
    keys.first = std::max(keys.first, section * SECTION);
    keys.end = std::min(keys.end, (section + 1) * SECTION);
    return keys;
}

Keys next_keys(const AttentionCall& call, const Item& item, int64_t section, int stage, const Keys& after) {
    for (; stage <= item.num_parts; ++stage) {
        Keys keys = keys_of(call, item, section, stage);
        if (keys.first < keys.end) return keys;
    }
    return after;
}

int64_t floats_of_sums(int head_dim) {
    constexpr int64_t LINE = 16;
    return (head_dim + LINE - 1) / LINE * LINE + 2 * LINE;
}

int64_t attention_scratch(int64_t num_queries, int head_dim, int64_t window, int64_t max_context, int num_threads) {
    if (num_threads == 1 || max_context <= SECTION) return 0;
    int64_t sections = num_sections(max_context), queries = std::min<int64_t>(num_queries, JOBS_A_MEMBER * num_threads * MAX_QUERIES);
    if (window) sections = std::min(sections, num_sections(window + MAX_QUERIES) + 1);
    return std::min(queries * sections, MOST_SUMS) * floats_of_sums(head_dim);
}

AttentionJobs::AttentionJobs(const AttentionCall& call, int num_threads, bool heads_together) : items_(call, num_threads, heads_together) {
    jobs_.reserve(items_.size());
    splits_.reserve(JOBS_A_MEMBER * num_threads);  // no more have so much work; jobs point to them
    bool any_sections = std::any_of(call.context_lens, call.context_lens + call.num_rows, [](int64_t context) { return context > SECTION; });
    int64_t room = any_sections && num_threads > 1 ? call.scratch_floats / floats_of_sums(call.layout.head_dim) : 0, first_sums = 0;
    int64_t most_work = room > 0 ? work_of(call, items_) / (JOBS_A_MEMBER * num_threads) : 0;
    for (int64_t i = 0; i < items_.size(); ++i) {
        const Item& item = items_[i];
        Sections sections = any_sections ? sections_of(call, item) : Sections{0, 1};
        int64_t num_sums = (sections.last - sections.first) * item.num_queries;
        if (sections.last - sections.first == 1 || num_sums > room - first_sums || work_of(call, item) <= most_work) {
            jobs_.push_back({&item, sections, nullptr});
            continue;
        }
        splits_.push_back({&item, sections, first_sums});
        for (int64_t s = sections.first; s < sections.last; ++s) jobs_.push_back({&item, {s, s + 1}, &splits_.back()});
        first_sums += num_sums;
    }
}
AttentionJobs::~AttentionJobs() = default;
int64_t AttentionJobs::size() const { return static_cast<int64_t>(jobs_.size()); }
const Job& AttentionJobs::operator[](int64_t i) const { return jobs_[i]; }
int64_t AttentionJobs::num_splits() const { return static_cast<int64_t>(splits_.size()); }
const Split& AttentionJobs::split(int64_t i) const { return splits_[i]; }
int AttentionJobs::most_queries() const { return items_.most_queries(); }
bool AttentionJobs::adds_up() const {
    return std::any_of(jobs_.begin(), jobs_.end(), [](const Job& job) { return job.sections.last - job.sections.first > 1; });
}

}  // namespace quire
