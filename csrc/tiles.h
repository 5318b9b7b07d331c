// The processor's tiles (Intel AMX): eight of 16 rows of 64 bytes. Or the same in plain C++, so that what is built on them
// can be tested on any machine.
#pragma once

#include <cstdint>
#include <cstring>

namespace quire::QUIRE_TILES {

constexpr int TILE_ROWS = 16;
constexpr int TILE_BYTES = 64;  // of a row

#if defined(QUIRE_REAL_TILES)

// What the instruction wants: palette 1, and of each tile the bytes of a row and the rows.
struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Instructions are written out: the compiler's own functions do not say that they read memory, and GCC 12 then drops the
// stores before them.
inline void begin_tiles() {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.row_bytes[tile] = TILE_BYTES, config.rows[tile] = TILE_ROWS;
    asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

inline void end_tiles() { asm volatile("tilerelease" ::: "memory"); }

template <int TILE>
inline void zero_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}

template <int TILE>
inline void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
}

template <int TILE>
inline void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(TILE) : "memory");
}

// sums += x * weights: x [16 rows, 16 pairs], weights [16 pairs, 16 outputs], of bfloat16; sums [16 rows, 16 outputs].
template <int SUMS, int X, int WEIGHTS>
inline void multiply_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(X), "i"(WEIGHTS));
}

#else

inline thread_local uint32_t tiles[8][TILE_ROWS][TILE_BYTES / 4];

inline void begin_tiles() { std::memset(tiles, 0, sizeof tiles); }
inline void end_tiles() {}

template <int TILE>
void zero_tile() {
    std::memset(tiles[TILE], 0, sizeof tiles[TILE]);
}

template <int TILE>
void load_tile(const void* from, int64_t stride) {
    for (int row = 0; row < TILE_ROWS; ++row) std::memcpy(tiles[TILE][row], static_cast<const uint8_t*>(from) + row * stride, TILE_BYTES);
}

template <int TILE>
void store_tile(void* to, int64_t stride) {
    for (int row = 0; row < TILE_ROWS; ++row) std::memcpy(static_cast<uint8_t*>(to) + row * stride, tiles[TILE][row], TILE_BYTES);
}

inline float as_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <int SUMS, int X, int WEIGHTS>
void multiply_tiles() {
    for (int row = 0; row < TILE_ROWS; ++row)
        for (int pair = 0; pair < TILE_BYTES / 4; ++pair)
            for (int output = 0; output < TILE_BYTES / 4; ++output) {
                uint32_t x = tiles[X][row][pair], weight = tiles[WEIGHTS][pair][output];
                float sum = as_float(tiles[SUMS][row][output]);
                sum += as_float(x << 16) * as_float(weight << 16);
                sum += as_float(x & 0xffff0000) * as_float(weight & 0xffff0000);
                std::memcpy(&tiles[SUMS][row][output], &sum, sizeof sum);
            }
}

#endif

}  // namespace quire::QUIRE_TILES
