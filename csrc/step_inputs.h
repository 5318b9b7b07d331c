// What a step's program reads, filled from the worker's tables: T tokens of R rows, row after row.
#pragma once

#include <cstdint>
#include <vector>

namespace quire {

struct StepInputs {
    // Where one KV group keeps the rows.
    struct Group {
        int64_t* block_tables;  // [R, max_blocks]
        int64_t* slots;         // [T]
    };

    // Where the worker keeps all rows: [rows, max_tokens], and for each group [rows, max_blocks].
    struct Tables {
        const int64_t* tokens;
        int64_t max_tokens;
        std::vector<const int64_t*> blocks;
    };

    int64_t *token_ids, *positions;       // [T]
    int64_t* query_starts;                // [R + 1]
    int64_t *context_lens, *last_tokens;  // [R]
    std::vector<Group> groups;
    int64_t max_blocks, block_size;
    Tables tables{};

    // Row i computes counts[i] tokens from starts[i] on of row rows[i] of the tables. Of a block table only what the row has is
    // copied.
    void fill(const std::vector<int64_t>& rows, const std::vector<int64_t>& starts, const std::vector<int64_t>& counts) const;
};

}  // namespace quire
