// The processor's tiles (Intel AMX): eight of up to 16 rows of up to 64 bytes. Or the same in plain C++, so that what is built on
// them can be tested on any machine.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace quire::QUIRE_TILES {

constexpr int TILE_ROWS = 16;
constexpr int TILE_BYTES = 64;  // of a row

// Of one tile. Fewer rows are loaded, multiplied and stored sooner.
struct TileShape {
    int rows = TILE_ROWS, bytes = TILE_BYTES;
};

#if defined(QUIRE_REAL_TILES)

// What the instruction wants: palette 1, and of each tile the bytes of a row and the rows.
struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Instructions are written out: the compiler's own functions do not say that they read memory, and GCC 12 then drops the
// stores before them.
inline void begin_tiles(const TileShape (&shapes)[8] = {}) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
        config.row_bytes[tile] = static_cast<uint16_t>(shapes[tile].bytes);
        config.rows[tile] = static_cast<uint8_t>(shapes[tile].rows);
    }
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

// The same, of what is not wanted again soon: what lies in the first cache stays there.
template <int TILE>
inline void load_passing_tile(const void* from, int64_t stride) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
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

// The same of integers: x [16 rows, 16 units] of four bytes, weights [16 units, 16 outputs] of four, sums of int32.
template <int SUMS, int X, int WEIGHTS, typename XByte = int8_t, typename WeightByte = uint8_t>
inline void multiply_tiles_of_bytes() {
    constexpr bool X_SIGNED = std::is_signed_v<XByte>, WEIGHTS_SIGNED = std::is_signed_v<WeightByte>;
    static_assert(X_SIGNED || WEIGHTS_SIGNED);
    if constexpr (!WEIGHTS_SIGNED) asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(X), "i"(WEIGHTS));
    else if constexpr (X_SIGNED) asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(X), "i"(WEIGHTS));
    else asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(X), "i"(WEIGHTS));
}

// What multiplies falls asleep after 400 ns without a product, and takes 290 to wake up (docs/lab.md): one now and then costs less, of
// whatever is in two tiles that fit and for a tile that nobody needs.
template <int SUMS, int X, int WEIGHTS>
inline void keep_awake() {
    multiply_tiles_of_bytes<SUMS, X, WEIGHTS>();
}

#else

inline thread_local uint32_t tiles[8][TILE_ROWS][TILE_BYTES / 4];
inline thread_local TileShape tile_shapes[8];

inline void begin_tiles(const TileShape (&shapes)[8] = {}) {
    std::memset(tiles, 0, sizeof tiles);
    std::memcpy(tile_shapes, shapes, sizeof tile_shapes);
}

inline void end_tiles() {}

template <int TILE>
void zero_tile() {
    std::memset(tiles[TILE], 0, sizeof tiles[TILE]);
}

template <int TILE>
void load_tile(const void* from, int64_t stride) {
    for (int row = 0; row < tile_shapes[TILE].rows; ++row)
        std::memcpy(tiles[TILE][row], static_cast<const uint8_t*>(from) + row * stride, tile_shapes[TILE].bytes);
}

template <int TILE>
void load_passing_tile(const void* from, int64_t stride) {
    load_tile<TILE>(from, stride);
}

template <int TILE>
void store_tile(void* to, int64_t stride) {
    for (int row = 0; row < tile_shapes[TILE].rows; ++row)
        std::memcpy(static_cast<uint8_t*>(to) + row * stride, tiles[TILE][row], tile_shapes[TILE].bytes);
}

inline float as_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// function(sum, x, weights) for each unit of each row and output.
template <int SUMS, int X, int WEIGHTS, typename Function>
void multiply_units(Function&& function) {
    for (int row = 0; row < tile_shapes[SUMS].rows; ++row)
        for (int unit = 0; unit < tile_shapes[X].bytes / 4; ++unit)
            for (int output = 0; output < tile_shapes[SUMS].bytes / 4; ++output)
                function(tiles[SUMS][row][output], tiles[X][row][unit], tiles[WEIGHTS][unit][output]);
}

template <int SUMS, int X, int WEIGHTS>
void multiply_tiles() {
    multiply_units<SUMS, X, WEIGHTS>([](uint32_t& sum_bits, uint32_t x, uint32_t weight) {
        float sum = as_float(sum_bits);
        sum += as_float(x << 16) * as_float(weight << 16);
        sum += as_float(x & 0xffff0000) * as_float(weight & 0xffff0000);
        std::memcpy(&sum_bits, &sum, sizeof sum);
    });
}

template <int SUMS, int X, int WEIGHTS, typename XByte = int8_t, typename WeightByte = uint8_t>
void multiply_tiles_of_bytes() {
    multiply_units<SUMS, X, WEIGHTS>([](uint32_t& sum, uint32_t x, uint32_t weight) {
        for (int shift = 0; shift < 32; shift += 8)
            sum += static_cast<uint32_t>(static_cast<int32_t>(static_cast<XByte>(x >> shift)) * static_cast<WeightByte>(weight >> shift));
    });
}

template <int SUMS, int X, int WEIGHTS>
void keep_awake() {}

#endif

// Of the four tiles that all kernels have their sums in.
inline void zero_sums() {
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
    zero_tile<3>();
}

}  // namespace quire::QUIRE_TILES
