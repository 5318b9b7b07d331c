#include "step_inputs.h"

#include <cstring>

namespace quire {

void StepInputs::fill(const std::vector<int64_t>& rows, const std::vector<int64_t>& starts) const {
    for (std::size_t i = 0; i < rows.size(); ++i) {
        int64_t start = starts[i], block = start / block_size;
        token_ids[i] = tables.tokens[rows[i] * tables.max_tokens + start];
        positions[i] = start;
        context_lens[i] = start + 1;
        for (std::size_t g = 0; g < groups.size(); ++g) {
            const int64_t* table = tables.blocks[g] + rows[i] * max_blocks;
            std::memcpy(groups[g].block_tables + i * max_blocks, table, (block + 1) * sizeof *table);
            groups[g].slots[i] = table[block] * block_size + start % block_size;
        }
    }
}

}  // namespace quire
