#include "packing.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>

#include "linear.h"
#include "crew.h"

namespace quire {
namespace {

constexpr int MOST_VALUES = 256;
constexpr int MOST_GROUPS = 16;

// Its codes are in `words` as a panel has them: four of 8 bits, or, of 4 bits, four in the lower halves of the bytes and the
// next four in the upper halves.
struct Block {
    uint32_t words[MOST_VALUES / UNIT];
    uint16_t scale, minimum;
    uint8_t group_scale[MOST_GROUPS], group_minimum[MOST_GROUPS];
};

struct Type {
    const char* name;
    int num_bytes, num_values, bits, num_groups;  // groups that have integers of their own
    bool has_minimum;
    void (*read)(const uint8_t*, Block&);
};

uint16_t half(const uint8_t* from) {
    uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return bits;
}

// Values of BITS bits: a run's lowest bits are so many values in a row, the next bits the following ones. With a SHIFT they
// are joined to what is there, as its bits from there on.
template <int BITS, int RUN, int NUM_BYTES, int SHIFT = 0>
void unpack(const uint8_t* packed, uint8_t* codes) {
    for (int first = 0; first < NUM_BYTES; first += RUN)
        for (int at = 0; at < 8; at += BITS, codes += RUN)
            for (int i = 0; i < RUN; ++i) {
                uint8_t bits = ((packed[first + i] >> at) & ((1 << BITS) - 1)) << SHIFT;
                codes[i] = SHIFT ? codes[i] | bits : bits;
            }
}

void fifth_bits(const uint8_t* packed, uint8_t* codes) {
    for (int i = 0; i < 32; ++i) codes[i] |= ((packed[i / 8] >> (i % 8)) & 1) << 4;
}

uint8_t* codes_of_8_bits(Block& block) { return reinterpret_cast<uint8_t*>(block.words); }

template <int NUM_CODES>
void words_of_4_bits(const uint8_t* codes, Block& to) {
    for (int i = 0; i < NUM_CODES / (2 * UNIT); ++i) {
        uint32_t low, high;  // no code has more than the lower half of its byte
        std::memcpy(&low, codes + i * 2 * UNIT, UNIT);
        std::memcpy(&high, codes + (i * 2 + 1) * UNIT, UNIT);
        to.words[i] = low | high << 4;
    }
}

// 32 codes in 16 bytes, the second half of them in the upper halves: as `unpack` and `words_of_4_bits`, without the codes.
void words_of_nibbles(const uint8_t* packed, Block& to) {
    constexpr uint32_t LOWER = 0x0f0f0f0f;
    uint32_t four[4];
    std::memcpy(four, packed, sizeof four);
    to.words[0] = (four[0] & LOWER) | (four[1] & LOWER) << 4;
    to.words[1] = (four[2] & LOWER) | (four[3] & LOWER) << 4;
    to.words[2] = (four[0] >> 4 & LOWER) | (four[1] & ~LOWER);
    to.words[3] = (four[2] >> 4 & LOWER) | (four[3] & ~LOWER);
}

void q4_0(const uint8_t* from, Block& to) {
    to.scale = half(from);
    words_of_nibbles(from + 2, to);
}

void q4_1(const uint8_t* from, Block& to) {
    to.scale = half(from);
    to.minimum = half(from + 2);
    words_of_nibbles(from + 4, to);
}

void q5_0(const uint8_t* from, Block& to) {
    to.scale = half(from);
    unpack<4, 16, 16>(from + 6, codes_of_8_bits(to));
    fifth_bits(from + 2, codes_of_8_bits(to));
}

void q5_1(const uint8_t* from, Block& to) {
    to.scale = half(from);
    to.minimum = half(from + 2);
    unpack<4, 16, 16>(from + 8, codes_of_8_bits(to));
    fifth_bits(from + 4, codes_of_8_bits(to));
}

void q8_0(const uint8_t* from, Block& to) {
    to.scale = half(from);
    std::memcpy(to.words, from + 2, 32);
    for (int i = 0; i < 8; ++i) to.words[i] ^= 0x80808080;
}

// Eight scales and minima of six bits in 12 bytes.
void k_scales(const uint8_t* from, Block& to) {
    to.scale = half(from);
    to.minimum = half(from + 2) ^ 0x8000;
    const uint8_t* packed = from + 4;
    for (int i = 0; i < 4; ++i) {
        to.group_scale[i] = packed[i] & 63;
        to.group_minimum[i] = packed[4 + i] & 63;
        to.group_scale[4 + i] = (packed[8 + i] & 15) | (packed[i] >> 6 << 4);
        to.group_minimum[4 + i] = (packed[8 + i] >> 4) | (packed[4 + i] >> 6 << 4);
    }
}

void q4_k(const uint8_t* from, Block& to) {
    k_scales(from, to);
    uint8_t codes[256];
    unpack<4, 32, 128>(from + 16, codes);
    words_of_4_bits<256>(codes, to);
}

void q5_k(const uint8_t* from, Block& to) {
    k_scales(from, to);
    unpack<4, 32, 128>(from + 48, codes_of_8_bits(to));
    unpack<1, 32, 32, 4>(from + 16, codes_of_8_bits(to));
}

void q6_k(const uint8_t* from, Block& to) {
    to.scale = half(from + 208);
    std::memcpy(to.group_scale, from + 192, 16);
    unpack<4, 64, 128>(from, codes_of_8_bits(to));
    unpack<2, 32, 64, 4>(from + 128, codes_of_8_bits(to));
}

constexpr Type TYPES[] = {
    {"Q4_0", 18, 32, 4, 0, false, q4_0},  {"Q4_1", 20, 32, 4, 0, true, q4_1},   {"Q5_0", 22, 32, 8, 0, false, q5_0},
    {"Q5_1", 24, 32, 8, 0, true, q5_1},   {"Q8_0", 34, 32, 8, 0, false, q8_0},  {"Q4_K", 144, 256, 4, 8, true, q4_k},
    {"Q5_K", 176, 256, 8, 8, true, q5_k}, {"Q6_K", 210, 256, 8, 16, false, q6_k},
};

const Type& type_named(const std::string& name) {
    for (const Type& type : TYPES)
        if (name == type.name) return type;
    throw std::invalid_argument("There are no panels for the type " + name + ".");
}

bool finite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// One block of one output to its places in the panel.
void place(const Type& type, const Block& block, int64_t number, int output, uint8_t* panel, int64_t header_offset) {
    int num_words = type.num_values * type.bits / 8 / UNIT;
    uint8_t* to = panel + number * num_words * PANEL * UNIT + output * UNIT;
    for (int word = 0; word < num_words; ++word, to += PANEL * UNIT) std::memcpy(to, block.words + word, UNIT);
    int kinds = type.has_minimum ? 2 : 1;
    uint8_t* header = panel + header_offset + number * (2 + type.num_groups) * PANEL * kinds;
    std::memcpy(header + 2 * output, &block.scale, 2);
    if (type.has_minimum) std::memcpy(header + 2 * PANEL + 2 * output, &block.minimum, 2);
    uint8_t* groups = header + 2 * PANEL * kinds;
    for (int group = 0; group < type.num_groups; ++group) {
        groups[group * kinds * PANEL + output] = block.group_scale[group];
        if (type.has_minimum) groups[(group * kinds + 1) * PANEL + output] = block.group_minimum[group];
    }
}

}  // namespace

int packing_threads(int64_t num_values, int num_threads) {
    return static_cast<int>(std::clamp<int64_t>(num_values / (int64_t{4} << 20), 1, num_threads));
}

bool pack_blocks(const std::string& name, const BlockRows& from, const Panels& to, int num_threads) {
    const Type& type = type_named(name);
    std::atomic<bool> all_finite{true};
    int64_t num_panels = (from.num_rows + PANEL - 1) / PANEL;
    run_on_team(packing_threads(from.num_rows * from.num_blocks * type.num_values, num_threads), [&](const Team& team) {
        for (Slice slice = team.take(num_panels, 1); slice.first < slice.last; slice = team.take(num_panels, 1)) {
            int64_t panel = slice.first;
            uint8_t* memory = to.memory + panel * to.panel_bytes;
            if ((panel + 1) * PANEL > from.num_rows) std::memset(memory, 0, to.panel_bytes);
            Block block;
            for (int output = 0; output < PANEL && panel * PANEL + output < from.num_rows; ++output) {
                const uint8_t* blocks = from.blocks + from.rows[panel * PANEL + output] * from.row_bytes;
                for (int64_t number = 0; number < from.num_blocks; ++number) {
                    block.minimum = 0;
                    type.read(blocks + number * type.num_bytes, block);
                    if (!finite(block.scale) || !finite(block.minimum)) all_finite.store(false, std::memory_order_relaxed);
                    place(type, block, number, output, memory, to.header_offset);
                }
            }
        }
    });
    return all_finite.load();
}

}  // namespace quire
