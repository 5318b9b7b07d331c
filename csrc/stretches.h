// Rows of many inputs, a stretch of these at a time (linear.h, num_stretches). Sums begin each stretch as the one before left them, so
// they are added in the same order as all at once and have the same bits. (Depth blocks of Goto and van de Geijn, Anatomy of
// High-Performance Matrix Multiplication, 2008.)
#pragma once

#include "linear_rows.h"

namespace quire::QUIRE_ISA {

// What is kept in between: of each panel the sums of all rows, float32 or int32.
class KeptSums {
public:
    static constexpr int64_t ROW = PANEL * 4;  // bytes

    KeptSums() = default;
    KeptSums(void* memory, int64_t num_rows) : memory_(static_cast<uint8_t*>(memory)), num_rows_(num_rows) {}

    uint8_t* at(int64_t row, int64_t panel) const { return memory_ + (panel * num_rows_ + row) * ROW; }

    // Those of M rows and a few neighbouring panels, in P registers a row.
    template <int M, int P, typename Vector>
    void load(int64_t row, int64_t panel, Vector* sums) const {
#pragma GCC unroll 64
        for (int s = 0; s < M * P; ++s) std::memcpy(sums + s, place(row + s / P, panel, s % P), sizeof(Vector));
    }
    template <int M, int P, typename Vector>
    void store(int64_t row, int64_t panel, const Vector* sums) const {
#pragma GCC unroll 64
        for (int s = 0; s < M * P; ++s) std::memcpy(place(row + s / P, panel, s % P), sums + s, sizeof(Vector));
    }

private:
    uint8_t* place(int64_t row, int64_t panel, int p) const { return at(row, panel + p / PARTS) + p % PARTS * sizeof(Floats); }

    uint8_t* memory_ = nullptr;
    int64_t num_rows_ = 0;  // in whole tiles
};

// `count` units of each output's weights, from `first` on.
struct Stretch {
    int64_t first, count;
    bool begins, ends;  // whether sums begin as zeros, and whether they are whole behind it
    KeptSums kept;
};

// In whole tiles of units, but for the last.
class Stretches {
public:
    Stretches(const LinearRows& rows, int64_t num_units, int64_t num_inputs, int64_t num_outputs)
        : num_units_(num_units), count_(rows.keeps_largest || rows.panels ? 1 : num_stretches(rows.num_rows, num_units * UNIT, num_inputs, num_outputs)),
          kept_(rows.scratch, (rows.num_rows + TILE - 1) / TILE * TILE),
          scratch_(static_cast<uint8_t*>(rows.scratch) + bytes_of_kept_sums(rows.num_rows, num_units * UNIT, num_inputs, num_outputs)) {}
    // All at once.
    Stretches(const LinearRows& rows, int64_t num_units) : num_units_(num_units), count_(1), scratch_(static_cast<uint8_t*>(rows.scratch)) {}

    uint8_t* scratch() const { return scratch_; }  // for everything else
    bool one() const { return count_ == 1; }

    // function(stretch): who has done its part of one waits for the others.
    template <typename Function>
    void each(const Team& team, Function&& function) const {
        int64_t length = one() ? num_units_ : ((num_units_ + count_ - 1) / count_ + TILE - 1) / TILE * TILE, first = 0;
        for (; first + length < num_units_; first += length) {
            function(Stretch{first, length, first == 0, false, kept_});
            team.wait();
        }
        function(Stretch{first, num_units_ - first, first == 0, true, kept_});
    }

private:
    static constexpr int64_t TILE = 16;  // rows, and units

    int64_t num_units_, count_;
    KeptSums kept_;
    uint8_t* scratch_;
};

}  // namespace quire::QUIRE_ISA
