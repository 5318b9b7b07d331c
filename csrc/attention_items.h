// How the attention of a step is divided among the members of a team.
//
// Compiled once, for every processor: nothing here may be inlined into an instruction set's files.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"

namespace quire {

constexpr int KEYS = 64;         // of a chunk
constexpr int MAX_QUERIES = 64;  // of an item, one for each token and head

// Tokens [first, last) of one row of the step.
struct Part {
    int64_t row, first, last;
};

// KV heads [first, first + count).
struct Heads {
    int first, count;
};

// Neighbouring parts, all of which see the `shared` keys that their rows begin with; or one part for several KV heads, whose queries follow
// each other head by head.
struct Item {
    const Part* parts;
    int num_parts;
    Heads kv_heads;
    int num_queries;
    int64_t shared;
};

// Keys [low, end) of a row for some KV heads, in chunks from `first` on.
struct Keys {
    int64_t row, first, low, end;
    Heads kv_heads;
};

// What a part's tokens see after the `shared` keys.
Keys own_keys(const AttentionCall& call, const Part& part, Heads kv_heads, int64_t shared);

class AttentionItems {
public:
    // `heads_together`: whether items may be of several KV heads.
    AttentionItems(const AttentionCall& call, int num_threads, bool heads_together);
    AttentionItems(const AttentionItems&) = delete;
    ~AttentionItems();

    int64_t size() const;
    int most_queries() const;  // of an item
    const Item& operator[](int64_t i) const;

private:
    std::vector<Part> parts_;
    std::vector<Item> items_;
};

}  // namespace quire
