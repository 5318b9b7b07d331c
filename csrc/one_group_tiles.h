// Linear layers by tiles whose weights are rotated (rotation.h), so have one group: sums over all inputs are scaled once. Results of one
// block, of up to two tiles of rows and two panels, are put while the next one is multiplied.
#pragma once

#include "put_panels.h"
#include "quantized_operands.h"

namespace quire::QUIRE_TILES {

// Tiles: sums in 0 to 3, x in 4 and 5, weights in 6 and 7.
template <int ROW_TILES, int PANELS>
void store_sums(Sums (&sums)[2][2]) {
    store_tile<0>(sums[0][0], sizeof sums[0][0][0]);
    if constexpr (PANELS == 2) store_tile<1>(sums[0][1], sizeof sums[0][0][0]);
    if constexpr (ROW_TILES == 2) store_tile<2>(sums[1][0], sizeof sums[0][0][0]);
    if constexpr (ROW_TILES == 2 && PANELS == 2) store_tile<3>(sums[1][1], sizeof sums[0][0][0]);
}

// The sums of the last block, of up to two tiles of rows and two panels, until its results are put.
template <typename Put>
class Finished {
public:
    using Place = typename Put::Place;

    Finished(const Work& work, Put put) : work_(work), put_(put) {
        const LinearRows& rows = work.call.rows;
        bool plain = PARTS == 1 && !rows.bias;
        whole_ = plain && (work.gate ? work.gate->bfloat16 && Put::GATED : (rows.y_bfloat16 || rows.keeps_largest) && work.call.weight.num_outputs % PANEL == 0);
        y_ = static_cast<Place*>(work.gate ? work.gate->y.data : rows.y);
        y_stride_ = work.gate ? work.gate->y.token_stride : rows.y_stride;
    }

    template <int ROW_TILES, int PANELS>
    void take(int64_t tile, int64_t index, const Panel (&panels)[2]) {
        store_sums<ROW_TILES, PANELS>(sums_);
        tile_ = tile;
        index_ = index;
        num_panels_ = PANELS;
        for (int p = 0; p < PANELS; ++p) panels_[p] = panels[p];
        bool by_row = whole_ && PANELS == 2;
        rows_left_ = by_row ? work_.rows_of(tile) + (ROW_TILES == 2 ? work_.rows_of(tile + 1) : 0) : 0;
        tiles_left_ = by_row ? 0 : ROW_TILES;
    }

    // What is left of a block whose rows are put one by one. Its values are the caller's own, so that they stay in registers between
    // products: as those of this object they would be read and written around each.
    class Rows {
    public:
        [[gnu::always_inline]] Rows(Finished& finished, int num_calls) : finished_(finished), put_(finished.put_), shares_(finished.rows_left_, num_calls) {
            if constexpr (PARTS == 1) {
                if (shares_.left() == 0) return;
                begin_tile(finished.tile_, finished.sums_[0]);
                put_.begin(finished.index_);
                y_ = Put::place(finished.y_ + finished.tile_ * finished.work_.shape.rows * finished.y_stride_, finished.index_ * PANEL);
                y_stride_ = finished.y_stride_;
                for (int p = 0; p < 2; ++p) scales_[p] = load(finished.panels_[p].scales);
            }
        }
        [[gnu::always_inline]] void some() {
            if constexpr (PARTS == 1) shares_.some([&]() __attribute__((always_inline)) { put(); });
        }
        [[gnu::always_inline]] void finish() {
            if constexpr (PARTS == 1) shares_.rest([&]() __attribute__((always_inline)) { put(); });
            finished_.rows_left_ = 0;
        }

    private:
        [[gnu::always_inline]] void begin_tile(int64_t tile, const Sums* sums) {
            sums_ = sums;
            tile_ = tile;
            group_ = finished_.work_.groups(tile);
            row_ = 0;
            rows_ = finished_.work_.rows_of(tile);
        }
        [[gnu::always_inline]] void put() {
            Floats y[2];
            for (int p = 0; p < 2; ++p) {
                Ints whole = load_units(sums_[p][row_]) + group_->minus_zero[row_];
                y[p] = multiply_add(__builtin_convertvector(whole, Floats), scales_[p] * group_->scales[row_], Floats{});
            }
            put_(y_, y[0], y[1]);
            y_ += y_stride_;
            if (++row_ == rows_ && shares_.left() > 1) begin_tile(tile_ + 1, sums_ + 2);
        }

        Finished& finished_;
        Put put_;
        Shares shares_;
        int row_ = 0, rows_ = 0;
        int64_t tile_ = 0, y_stride_ = 0;
        const Sums* sums_ = nullptr;
        const Group<TILE_ROWS>* group_ = nullptr;
        Floats scales_[2] = {};
        Place* y_ = nullptr;
    };

    // What is left otherwise, a few rows at a time. Apart, so that it takes no registers from products.
    [[gnu::noinline]] void finish() {
        for (int t = 0; t < tiles_left_; ++t)
            in_groups<CHUNK>(0, work_.rows_of(tile_ + t), [&](int64_t first, auto M) {
                compute_rows<M>(t, static_cast<int>(first));
            });
        tiles_left_ = 0;
    }

private:
    template <int M>
    void compute_rows(int t, int first) {
        int64_t tile = tile_ + t, row = tile * work_.shape.rows + first;
        const auto* group = work_.groups(tile);
        Floats results[2][M][PARTS];
        for (int p = 0; p < num_panels_; ++p) {
            auto& y = results[p];
            for (int part = 0; part < PARTS; ++part) {
                Floats scale = load(panels_[p].scales + part * LANES);
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m) {
                    Ints whole = load_units(sums_[t][p][first + m] + part * LANES) + group->minus_zero[first + m];
                    y[m][part] = multiply_add(__builtin_convertvector(whole, Floats), scale * group->scales[first + m], Floats{});
                }
            }
            if (!work_.gate) store_rows(work_.call.rows, work_.call.weight.num_outputs, row, M, (index_ + p) * PANEL, y[0], PARTS);
        }
        if (work_.gate) put_gated<M>(*work_.gate, row, index_ * PANEL, results[0], results[1]);
    }

    const Work& work_;
    Put put_;
    alignas(64) Sums sums_[2][2];
    Panel panels_[2];
    Place* y_;
    int64_t y_stride_;
    int64_t tile_ = 0, index_ = 0;
    int num_panels_ = 1;
    int rows_left_ = 0, tiles_left_ = 0;  // of a block whose rows are put one by one, and of another
    bool whole_;                          // whether blocks of two panels are
};

template <int ROW_TILES, int PANELS, typename Put>
void multiply_whole(const Work& work, int64_t tile, const Panel (&panels)[2], int64_t index, NextPanels& ahead, Finished<Put>& finished) {
    const Shape& shape = work.shape;
    int64_t x_step = shape.x_step, weights_step = shape.units * UNIT_BYTES, last = shape.tiles_of_group - 1;
    const auto* x = reinterpret_cast<const uint8_t*>(work.x.codes(tile * shape.rows));
    const uint8_t* weights[2] = {panels[0].codes, panels[PANELS - 1].codes};
    // Every second pass begins with the last inputs: what the first cache holds of weights that do not all fit is then wanted first.
    // Sums of integers are the same in any order.
    if (tile & 2) {
        x += last * x_step;
        for (const uint8_t*& codes : weights) codes += last * weights_step;
        x_step = -x_step;
        weights_step = -weights_step;
    }
    const uint8_t* second_x = x + shape.rows * work.x.num_inputs;
    zero_sums();
    // Results' lines are asked for, a few with each step, for the second cache: the first one's few places are for x and weights.
    const LinearRows& rows = work.call.rows;
    int64_t row = tile * shape.rows, left = rows.num_rows - row, most = ROW_TILES * shape.rows, width = rows.y_bfloat16 ? 2 : 4;
    int64_t rows_left = left < most ? left : most, rows_of_step = (rows_left + shape.tiles_of_group - 1) / shape.tiles_of_group;
    int64_t y_stride = (work.gate ? work.gate->y.token_stride : rows.y_stride) * width, y_bytes = rows.keeps_largest ? 0 : (work.gate ? 1 : PANELS) * PANEL * width;
    const char* y = static_cast<const char*>(work.gate ? work.gate->y.data : rows.y) + row * y_stride + index * PANEL * width;
    int64_t partner_bytes = work.from_first_to_second() * work.call.weight.panel_bytes;
    // The last block's results are put with all steps but the first, which waits for its sums: some after each product.
    typename Finished<Put>::Rows put_rows(finished, static_cast<int>(shape.tiles_of_group - 1) * 4);
    finished.finish();
    // Each operand is loaded as soon as its tile is free, a product or more before it is wanted.
    auto first_x = [&](int64_t t) __attribute__((always_inline)) { load_passing_tile<4>(x + t * x_step, shape.x_stride); };
    auto other_x = [&](int64_t t) __attribute__((always_inline)) { load_passing_tile<5>(second_x + t * x_step, shape.x_stride); };
    auto first_weights = [&](int64_t t) __attribute__((always_inline)) { load_tile<6>(weights[0] + t * weights_step, UNIT_BYTES); };
    auto other_weights = [&](int64_t t) __attribute__((always_inline)) { load_tile<7>(weights[1] + t * weights_step, UNIT_BYTES); };
    first_x(0);
    first_weights(0);
    if constexpr (PANELS == 2) other_weights(0);
    if constexpr (ROW_TILES == 2) other_x(0);
    for (int64_t t = 0; t < shape.tiles_of_group; ++t) {
        auto then = [&]() __attribute__((always_inline)) { if (t > 0) put_rows.some(); };
        bool more = t + 1 < shape.tiles_of_group;
        multiply_tiles_of_bytes<0, 4, 6>();
        if constexpr (PANELS == 1) if (more) first_x(t + 1);
        if constexpr (ROW_TILES == 1) if (more) first_weights(t + 1);
        then();
        if constexpr (PANELS == 2) {
            multiply_tiles_of_bytes<1, 4, 7>();
            if (more) first_x(t + 1);
            if constexpr (ROW_TILES == 1) if (more) other_weights(t + 1);
        }
        then();
        if constexpr (ROW_TILES == 2) {
            multiply_tiles_of_bytes<2, 5, 6>();
            if (more) first_weights(t + 1);
            if constexpr (PANELS == 1) if (more) other_x(t + 1);
        }
        then();
        if constexpr (ROW_TILES == 2 && PANELS == 2) {
            multiply_tiles_of_bytes<3, 5, 7>();
            if (more) other_weights(t + 1);
            if (more) other_x(t + 1);
        }
        then();
        for (int p = 0; p < PANELS; ++p)
            for (int64_t line = 0; line < ahead.step; line += 64) prefetch(ahead.from + p * partner_bytes + line);
        ahead.from += ahead.step;
        for (int64_t i = 0; i < rows_of_step && rows_left > 0; ++i, --rows_left, y += y_stride)
            for (int64_t line = 0; line < y_bytes; line += 64) prefetch(y + line);
    }
    put_rows.finish();
    finished.template take<ROW_TILES, PANELS>(tile, index, panels);
}

// Another member's rows, some 200 KB of integers, are fetched from its caches first: not for its last pairs of panels. More than six gained nothing
// where cores are far apart, and where they are near none is as good (docs/lab.md, with tiles that only load).
constexpr int64_t FEWEST_PAIRS_OF_OTHERS = 6;

template <typename Put>
void one_group(const Work& work, const Team& team, Put put) {
    const QuantizedWeight& weight = work.call.weight;
    const Shape& shape = work.shape;
    int64_t block = largest<int64_t>(1, BLOCK_BYTES / (2 * work.x.row_bytes() * shape.rows)) * 2;
    block = rows_of_block(shape.num_row_tiles, 2, FEWEST_OWN_TILES, block, team);
    PanelMemory memory(weight, 4);
    Finished<Put> finished(work, put);
    int place = 0;  // the panels of what is not yet finished stay
    hand_out_blocks<FEWEST_PAIRS_OF_OTHERS>(team, shape.num_row_tiles, block, work.num_pairs(), 2 * weight.panel_bytes * 4,
                    [&](int64_t first, int64_t count, int64_t pair) {
        int64_t index = work.first_of(pair), last = first + count;
        place = 2 - place;
        Panel panels[2] = {memory.load(index, place)};
        bool two = work.has_second(pair);
        if (two) panels[1] = memory.load(index + work.from_first_to_second(), place + 1);
        NextPanels ahead = work.next_pair(pair, shape.tiles_of_group, (count + 1) / 2);
        for (int64_t tile = first; tile < last; tile += 2) {
            if (two && tile + 1 < last) multiply_whole<2, 2>(work, tile, panels, index, ahead, finished);
            else if (two) multiply_whole<1, 2>(work, tile, panels, index, ahead, finished);
            else if (tile + 1 < last) multiply_whole<2, 1>(work, tile, panels, index, ahead, finished);
            else multiply_whole<1, 1>(work, tile, panels, index, ahead, finished);
        }
    });
    typename Finished<Put>::Rows(finished, 1).finish();
    finished.finish();
}

inline void one_group(const Work& work, const Team& team) {
    with_put(work.call.rows, work.gate, [&](auto put) { one_group(work, team, put); });
}

}  // namespace quire::QUIRE_TILES
