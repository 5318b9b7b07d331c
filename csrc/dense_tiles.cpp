// Linear layers of bfloat16 by tiles: a panel's 16 units are a tile of weights as they lie. Each output of each row is one sum
// over the inputs in their order, whatever the other rows are.
#include "dense_operands.h"
#include "kernels.h"
#include "put_panels.h"

namespace quire::QUIRE_TILES {
namespace {

// Sums of up to 32 rows for up to two panels: put down a few rows at a time while the next ones are multiplied. With a `gate` one
// panel's are those of gates, the other's what these let through.
template <typename Put>
class Results {
public:
    Results(const DenseCall& call, const GateCall* gate, Put put) : rows_(call.rows), num_outputs_(call.weight.num_outputs), gate_(gate), put_(put) {}

    // What was there has to be put down before.
    float (*begin(int64_t row, int64_t count, int64_t panel, int num_panels))[2 * PANEL] {
        row_ = row, next_ = 0, count_ = count, output_ = panel * PANEL, num_panels_ = num_panels;
        // Bfloat16 without a bias: one store a row.
        simple_ = (rows_.keeps_largest ? PARTS == 1 : rows_.y_bfloat16) && !rows_.bias && num_panels == 2 && output_ + 2 * PANEL <= num_outputs_;
        return sums_;
    }

    // What is left, where a row is one store: values of the caller's own, which stay in registers between products.
    class Left {
    public:
        Left(Results& results, int num_calls) : shares_(results.by_row() ? static_cast<int>(results.count_ - results.next_) : 0, num_calls), results_(results), put_(results.put_) {
            const GateCall* gate = results.gate_;
            y_stride_ = gate ? gate->y.token_stride : results.rows_.y_stride;
            auto* rows = static_cast<typename Put::Place*>(gate ? gate->y.data : results.rows_.y);
            y_ = Put::place(rows + (results.row_ + results.next_) * y_stride_, results.output_);
            put_.begin(results.output_ / PANEL);
            sums_ = results.sums_[results.next_];
        }
        [[gnu::always_inline]] void some() {
            if constexpr (PARTS == 1) shares_.some([&]() __attribute__((always_inline)) { put(); });
        }
        void rest() {
            if constexpr (PARTS == 1) shares_.rest([&] { put(); });
            if (results_.by_row()) results_.next_ = results_.count_;
        }

    private:
        [[gnu::always_inline]] void put() {
            put_(y_, load(sums_), load(sums_ + PANEL));
            sums_ += 2 * PANEL;
            y_ += y_stride_;
        }

        Shares shares_;
        Results& results_;
        Put put_;
        const float* sums_;
        typename Put::Place* y_;
        int64_t y_stride_;
    };

    bool by_row() const { return PARTS == 1 && (gate_ || simple_); }
    void put_all() { put(count_ - next_); }
    void put(int64_t most) {
        int64_t last = next_ + most < count_ ? next_ + most : count_;
        if (gate_) for (; next_ < last; ++next_) put_gated_row();
        else if (simple_) for (; next_ < last; ++next_) put_simple();
        else for (; next_ < last; ++next_) put_row();
    }

private:
    void put_simple() const {
        auto* to = static_cast<BFloat16*>(rows_.y) + (row_ + next_) * rows_.y_stride + output_;
        for (int n = 0; n < 2 * PANEL; n += 2 * LANES) {
            const float* sums = sums_[next_] + n;
            if (rows_.adds) PutSums()(to + n, load(sums), load(sums + LANES));
            else PutBoth()(to + n, load(sums), load(sums + LANES));
        }
    }
    void put_gated_row() const {
        Floats gates[1][PARTS], ups[1][PARTS];
        for (int p = 0; p < PARTS; ++p) {
            gates[0][p] = load(sums_[next_] + p * LANES);
            ups[0][p] = load(sums_[next_] + PANEL + p * LANES);
        }
        put_gated<BFloat16>(*gate_, row_ + next_, output_, gates, ups);
    }
    void put_row() const {
        Floats y[2 * PARTS];
        for (int p = 0; p < 2 * PARTS; ++p) y[p] = load(sums_[next_] + p * LANES);
        for (int n = 0; n < num_panels_; ++n) store_rows(rows_, num_outputs_, row_ + next_, 1, output_ + n * PANEL, y + n * PARTS, 2 * PARTS);
    }

    LinearRows rows_;
    int64_t num_outputs_;
    const GateCall* gate_;
    Put put_;
    int64_t row_ = 0, next_ = 0, count_ = 0, output_ = 0;
    int num_panels_ = 0;
    bool simple_ = false;
    alignas(64) float sums_[2 * TILE_ROWS][2 * PANEL] = {};
};

// Tiles: sums in 0 to 3, x in 4 and 5, weights in 6 and 7. Up to two of rows times up to two panels. Each tile of weights asks for
// `ahead`.
template <int ROW_TILES, int PANELS, typename Put>
void multiply(const DenseCall& call, const Shape& shape, int64_t row, int64_t panel, const NextPanels& ahead, Results<Put>& results) {
    Rows first = shape.rows_from(row), second = ROW_TILES == 2 ? shape.rows_from(row + TILE_ROWS) : first;
    const uint8_t* panels = static_cast<const uint8_t*>(call.weight.panels) + panel * shape.panel_bytes;
    alignas(64) uint8_t copies[2][TILE_OF_WEIGHTS];
    int64_t rows_a_tile = whole(2 * TILE_ROWS, shape.num_tiles);
    zero_sums();
    typename Results<Put>::Left left_rows(results, static_cast<int>(shape.num_tiles - 1) * 4);
    bool by_row = results.by_row();
    for (int64_t tile = 0; tile < shape.num_tiles; ++tile) {
        auto then = [&]() __attribute__((always_inline)) { if (tile > 0) left_rows.some(); };
        load_passing_tile<4>(first.x + tile * TILE_BYTES, first.bytes);
        load_tile<6>(weights_of(shape, panels, tile, copies[0]), UNIT * PANEL);
        multiply_tiles<0, 4, 6>();
        then();
        if constexpr (PANELS == 2) {
            load_tile<7>(weights_of(shape, panels + shape.partner_bytes, tile, copies[1]), UNIT * PANEL);
            multiply_tiles<1, 4, 7>();
        }
        then();
        if constexpr (ROW_TILES == 2) {
            load_passing_tile<5>(second.x + tile * TILE_BYTES, second.bytes);
            multiply_tiles<2, 5, 6>();
        }
        then();
        if constexpr (ROW_TILES == 2 && PANELS == 2) multiply_tiles<3, 5, 7>();
        then();
        if (!by_row) results.put(rows_a_tile);
        for (int n = 0; n < PANELS; ++n)
            for (int64_t line = 0; line < ahead.step; line += 64) prefetch(ahead.from + n * shape.partner_bytes + tile * ahead.step + line);
    }
    left_rows.rest();
    results.put_all();
    int64_t left = call.rows.num_rows - row;
    auto* sums = results.begin(row, left < ROW_TILES * TILE_ROWS ? left : ROW_TILES * TILE_ROWS, panel, PANELS);
    store_tile<0>(sums[0], sizeof sums[0]);
    if constexpr (PANELS == 2) store_tile<1>(sums[0] + PANEL, sizeof sums[0]);
    if constexpr (ROW_TILES == 2) store_tile<2>(sums[TILE_ROWS], sizeof sums[0]);
    if constexpr (ROW_TILES == 2 && PANELS == 2) store_tile<3>(sums[TILE_ROWS] + PANEL, sizeof sums[0]);
}

template <int PANELS, typename Put>
void multiply_rows(const DenseCall& call, const Shape& shape, int64_t first, int64_t last, int64_t panel, Results<Put>& results) {
    int64_t row = first, num_passes = whole(last - first, 2 * TILE_ROWS);
    // With a few rows the processor's own guesses at what comes next are better (docs/lab.md).
    NextPanels ahead{nullptr, 0};
    if (last - first > TILE_ROWS)
        ahead = next_panels(static_cast<const uint8_t*>(call.weight.panels) + panel * shape.panel_bytes, shape.neighbours, shape.panel_bytes, shape.num_tiles, num_passes);
    for (; row + TILE_ROWS < last; row += 2 * TILE_ROWS) {
        multiply<2, PANELS>(call, shape, row, panel, ahead, results);
        ahead.from += shape.num_tiles * ahead.step;
    }
    if (row < last) multiply<1, PANELS>(call, shape, row, panel, ahead, results);
}

// Each pair of panels for each block of rows; where it is to be gated, a panel of each half.
template <typename Put>
void multiply_all(const DenseCall& call, const GateCall* gate, const Team& team, Put put) {
    Shape shape = shape_of(call, gate);
    if (shape.first_copied < shape.num_rows) {
        copy_rows(call, shape, team);
        team.wait({call.weight.panels, call.rows.panels ? 0 : whole(call.weight.num_outputs, PANEL) * shape.panel_bytes});
    }
    int64_t num_panels = call.rows.num_panels(call.weight.num_outputs), num_pairs = whole(num_panels, 2);
    int64_t block = largest<int64_t>(1, BLOCK_BYTES / (shape.num_tiles * TILE_BYTES * 2 * TILE_ROWS)) * 2 * TILE_ROWS;
    block = rows_of_block(shape.num_rows, 2 * TILE_ROWS, FEWEST_OWN_ROWS, block, team);
    Results<Put> results(call, gate, put);
    begin_tiles();
    if (call.rows.panels) {
        hand_out_blocks(team, shape.num_rows, block, num_panels, shape.panel_bytes, [&](int64_t first, int64_t count, int64_t index) {
            multiply_rows<1>(call, shape, first, first + count, call.rows.panel(index), results);
        });
    } else hand_out_blocks(team, shape.num_rows, block, num_pairs, 2 * shape.panel_bytes, [&](int64_t first, int64_t count, int64_t pair) {
        int64_t panel = pair * shape.neighbours, last = first + count;
        if (gate || panel + 1 < num_panels) multiply_rows<2>(call, shape, first, last, panel, results);
        else multiply_rows<1>(call, shape, first, last, panel, results);
    });
    typename Results<Put>::Left(results, 1).rest();
    results.put_all();
    end_tiles();
}

void multiply_all(const DenseCall& call, const GateCall* gate, const Team& team) {
    with_put(call.rows, gate, [&](auto put) { multiply_all(call, gate, team, put); });
}

}  // namespace

void dense_linear(const DenseCall& call, const Team& team) {
    if (!call.weight.bfloat16) return QUIRE_ISA::dense_linear(call, team);
    if (Stretches(call.rows, whole(call.weight.num_inputs, 2), call.weight.num_inputs, call.weight.num_outputs).one()) multiply_all(call, nullptr, team);
    else dense_linear_in_stretches(call, team);
}

void dense_gated(const DenseGatedCall& call, const Team& team) {
    if (!call.linear.weight.bfloat16) return QUIRE_ISA::dense_gated(call, team);
    if (gates_are_panels(call.linear.weight.num_outputs)) return multiply_all(call.linear, &call.gate, team);
    dense_linear(call.linear, team);
    team.wait();
    QUIRE_ISA::gated(call.gate, team);
}

void dense_most_likely(const DenseMostLikelyCall& call, const Team& team) {
    find_largest(call.most_likely, call.linear.rows, team, [&](const LinearRows& rows) { QUIRE_TILES::dense_linear({call.linear.weight, rows}, team); });
}

}  // namespace quire::QUIRE_TILES
