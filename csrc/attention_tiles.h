// What attention by tiles has in common: 16 queries at a time meet a chunk of keys. A tile's rows do not know of each other, so that
// rows of other queries, or of nobody, may be in it: their results are thrown away.
#pragma once

#include "attention_walk.h"
#include "tiles.h"

namespace quire::QUIRE_TILES {

using namespace quire::QUIRE_ISA;

constexpr int COLUMNS = TILE_BYTES / 4;  // of keys or of a head's dimensions
constexpr int PANELS = KEYS / COLUMNS;   // tiles of scores of a chunk
constexpr int ASKS = 4;  // between two products: a chunk that is met 16 queries at a time asks for all of the next one

// `count` queries from `first` on: which of a chunk's keys they see, one of them and all together.
struct TileQueries {
    int first, count, oldest, newest;
    bool whole;
    Seen seen[TILE_ROWS];  // where not all see the whole chunk

    // The chunk begins at the key `first_key`.
    void begin(const AttentionCall& call, const Queries& queries, int first_query, int num_queries, int64_t first_key, bool all_see_all) {
        first = first_query, count = num_queries, whole = all_see_all, oldest = whole ? 0 : KEYS, newest = whole ? KEYS - 1 : -1;
        for (int i = 0; !whole && i < count; ++i) {
            seen[i] = QUIRE_ISA::seen_by(call, queries.position[first + i], first_key);
            if (seen[i].oldest < oldest) oldest = seen[i].oldest;
            if (seen[i].newest > newest) newest = seen[i].newest;
        }
    }
    bool sees_any() const { return oldest <= newest; }
    Seen seen_by(int i) const { return whole ? Seen{0, KEYS - 1} : seen[i]; }
};

}  // namespace quire::QUIRE_TILES
