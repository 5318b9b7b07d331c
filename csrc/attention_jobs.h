// How the keys of an item are cut, so that a few items keep all members of a team busy.
//
// What a query sees of a section is summed by itself, and then its sections are added up in the order of their positions, whoever has
// computed them (attention_sections.h): the bits are the same where an item is cut and where it is not.
//
// Compiled once, for every processor: nothing here may be inlined into an instruction set's files.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_items.h"

namespace quire {

constexpr int SECTION = 1024;  // keys, from a multiple of this on
static_assert(SECTION % KEYS == 0);

// [first, last)
struct Sections {
    int64_t first, last;
};

// Keys of an item in one section: at the stage 0 those that all its queries see, after it each part's own. There may be none.
Keys keys_of(const AttentionCall& call, const Item& item, int64_t section, int stage);

// From a stage on the first ones that there are; or those `after` them.
Keys next_keys(const AttentionCall& call, const Item& item, int64_t section, int stage, const Keys& after);

// An item whose sections are computed each by itself. Sums of its queries lie in the call's scratch, section by section.
struct Split {
    const Item* item;
    Sections sections;
    int64_t first_sums;
};

// Sections of an item. `split` where others compute the rest of them, else null.
struct Job {
    const Item* item;
    Sections sections;
    const Split* split;
};

// Floats of a query's sums in scratch: those of the output, of each lane and their base, on cache lines of their own.
int64_t floats_of_sums(int head_dim);

// Floats of scratch for a call with up to so many queries, whose rows have up to `max_context` keys.
int64_t attention_scratch(int64_t num_queries, int head_dim, int64_t window, int64_t max_context, int num_threads);

class AttentionJobs {
public:
    AttentionJobs(const AttentionCall& call, int num_threads, bool heads_together);
    AttentionJobs(const AttentionJobs&) = delete;
    ~AttentionJobs();

    int64_t size() const;
    const Job& operator[](int64_t i) const;
    int64_t num_splits() const;
    const Split& split(int64_t i) const;
    int most_queries() const;  // of an item
    bool adds_up() const;      // whether one of them has several sections

private:
    AttentionItems items_;
    std::vector<Split> splits_;
    std::vector<Job> jobs_;
};

}  // namespace quire
