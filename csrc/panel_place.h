// One output's place in its panel of codes (quantized.h), written input by input.
#pragma once

#include <cstdint>
#include <cstring>

#include "units.h"

namespace quire::QUIRE_ISA {

struct PanelPlace {
    uint8_t* codes;
    uint8_t* header;
    int lane;
    bool has_minimum;

    // Codes of `count` inputs from `first` on, one in each byte.
    void put_8_bits(const uint8_t* from, int64_t first, int64_t count) const {
        for (int64_t k = 0; k < count; k += UNIT) std::memcpy(codes + (first + k) * PANEL + lane * UNIT, from + k, UNIT);
    }
    // Of two units the second goes to the upper halves.
    void put_4_bits(const uint8_t* from, int64_t first, int64_t count) const {
        for (int64_t k = 0; k < count; k += 2 * UNIT) {
            uint32_t units[2];
            std::memcpy(units, from + k, sizeof units);
            units[0] |= units[1] << 4;
            std::memcpy(codes + (first + k) / 2 * PANEL + lane * UNIT, units, UNIT);
        }
    }
    // Float16 numbers of a block of one group.
    void put_scale(int64_t group, uint16_t scale, uint16_t minimum = 0) const {
        uint8_t* to = header + group * PANEL * (has_minimum ? 4 : 2) + lane * 2;
        std::memcpy(to, &scale, sizeof scale);
        if (has_minimum) std::memcpy(to + PANEL * 2, &minimum, sizeof minimum);
    }
};

}  // namespace quire::QUIRE_ISA
