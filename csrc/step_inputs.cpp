#include "step_inputs.h"

#include <cstring>

namespace quire {

void StepInputs::fill(const std::vector<int64_t>& rows, const std::vector<int64_t>& starts, const std::vector<int64_t>& counts) const {
    int64_t first = query_starts[0] = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        int64_t start = starts[i], end = start + counts[i];
        std::memcpy(token_ids + first, tables.tokens + rows[i] * tables.max_tokens + start, counts[i] * sizeof *token_ids);
        for (int64_t position = start; position < end; ++position) positions[first + position - start] = position;
        for (std::size_t g = 0; g < groups.size(); ++g) {
            const int64_t* table = tables.blocks[g] + rows[i] * max_blocks;
            std::memcpy(groups[g].block_tables + i * max_blocks, table, ((end - 1) / block_size + 1) * sizeof *table);
            for (int64_t position = start; position < end; ++position)
                groups[g].slots[first + position - start] = table[position / block_size] * block_size + position % block_size;
        }
        context_lens[i] = end;
        query_starts[i + 1] = first += counts[i];
        last_tokens[i] = first - 1;
    }
}

}  // namespace quire
