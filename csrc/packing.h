// From the blocks of a GGUF file to panels (quantized.h), nothing rounded. The twin is tests/twins/block_codes.py, with panels.py.
#pragma once

#include <cstdint>
#include <string>

namespace quire {

// R rows of N blocks each, by their places in the file; the last panel's missing rows become zeros.
struct BlockRows {
    const uint8_t* blocks;
    int64_t row_bytes;
    const int64_t* rows;  // [R]
    int64_t num_rows, num_blocks;
};

struct Panels {
    uint8_t* memory;
    int64_t panel_bytes, header_offset;
};

// A thread for every four million values, which are some milliseconds: for less, waiting for one that has lost its core costs
// more than it takes over.
int packing_threads(int64_t num_values, int num_threads);

// Whether all scales and minima are finite. `type` is one of GGUF's names; others are refused with std::invalid_argument.
bool pack_blocks(const std::string& type, const BlockRows& from, const Panels& to, int num_threads);

}  // namespace quire
