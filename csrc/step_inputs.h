// What a step's program reads, filled from the worker's tables: R rows that compute one token each.
#pragma once

#include <cstdint>
#include <vector>

namespace quire {

struct StepInputs {
    // Where one KV group keeps the rows: [R, max_blocks], and the slot of each row's token.
    struct Group {
        int64_t* block_tables;
        int64_t* slots;
    };

    // Where the worker keeps all rows: [rows, max_tokens], and for each group [rows, max_blocks].
    struct Tables {
        const int64_t* tokens;
        int64_t max_tokens;
        std::vector<const int64_t*> blocks;
    };

    int64_t *token_ids, *positions, *context_lens;  // [R]
    std::vector<Group> groups;
    int64_t max_blocks, block_size;
    Tables tables{};

    // Row i computes token starts[i] of row rows[i] of the tables. Of a block table only what the row has is copied.
    void fill(const std::vector<int64_t>& rows, const std::vector<int64_t>& starts) const;
};

}  // namespace quire
