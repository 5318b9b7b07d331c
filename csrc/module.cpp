// The Python module quire._native. Addresses and sizes come from the files of quire/kernels, which check them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "amx.h"
#include "attention_pieces.h"
#include "counts.h"
#include "packing.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace nb = nanobind;
using namespace quire;

void bind_step_inputs(nb::module_& module);

namespace {

template <typename Call>
using Kernel = void (*)(const Call&, const Team&);

struct InstructionSet {
    std::string name;
    bool present, chosen;  // chosen: among those to choose from, and not only for tests
    Kernel<AttentionCall> attention_float32 = nullptr;
    Kernel<AttentionCall> attention_bfloat16 = nullptr;
    Kernel<DenseCall> dense_linear = nullptr;
    Kernel<DenseGatedCall> dense_gated = nullptr;
    Kernel<DenseMostLikelyCall> dense_most_likely = nullptr;
    Kernel<DenseRowsCall> dense_rows = nullptr;
    Kernel<PackCall> pack_panels = nullptr;
    Kernel<QuantizedCall> quantized_linear = nullptr;
    Kernel<QuantizedGatedCall> quantized_gated = nullptr;
    Kernel<QuantizedMostLikelyCall> quantized_most_likely = nullptr;
    Kernel<PanelRowsCall> panel_rows = nullptr;
    Kernel<NormCall> rms_norm = nullptr;
    Kernel<RopeCall> rope = nullptr;
    Kernel<GateCall> gated = nullptr;
    Kernel<WriteCall> write_kv_float32 = nullptr;
    Kernel<WriteCall> write_kv_bfloat16 = nullptr;
    Kernel<AddCall> add = nullptr;
    Kernel<GatherCall> gather = nullptr;
    Kernel<ScaleCall> scale = nullptr, softcap = nullptr;
    Kernel<MostLikelyCall> most_likely = nullptr;
    Kernel<DrawCall> draw = nullptr;
    Kernel<LogprobsCall> logprobs = nullptr;
    Kernel<SketchRowsCall> sketch_rows = nullptr;
    Kernel<SketchInputsCall> sketch_inputs = nullptr;
    Kernel<PanelsOfCall> panels_of = nullptr;
    Kernel<WithinReachCall> within_reach = nullptr;
    Kernel<MostLikelyOfCall> most_likely_of = nullptr;
    Kernel<NormCall> layer_norm = nullptr;
    Kernel<ActivateCall> activate = nullptr;
    Kernel<TextBlocksCall> write_texts_float32 = nullptr;
    Kernel<TextBlocksCall> write_texts_bfloat16 = nullptr;
    Kernel<AttentionCall> attention_over_codes[2] = {};  // of float32, of bfloat16
    Kernel<WriteCall> write_kv_as_codes[2] = {};
};

#define QUIRE_SET(ISA, PRESENT)                                                                      \
    InstructionSet{#ISA,             PRESENT, true,    ISA::attention_float32, ISA::attention_bfloat16,            \
     ISA::dense_linear, ISA::dense_gated, ISA::dense_most_likely, ISA::dense_rows, ISA::pack_panels, \
     ISA::quantized_linear, ISA::quantized_gated, ISA::quantized_most_likely, \
     ISA::panel_rows,  ISA::rms_norm,    ISA::rope,              ISA::gated,                         \
     ISA::write_kv_float32, ISA::write_kv_bfloat16, ISA::add,    ISA::gather, ISA::scale, ISA::softcap, ISA::most_likely, ISA::draw, ISA::logprobs, \
     ISA::sketch_rows, ISA::sketch_inputs, ISA::panels_of, ISA::within_reach, ISA::most_likely_of, \
     ISA::layer_norm,  ISA::activate,    ISA::write_texts_float32, ISA::write_texts_bfloat16, \
     {ISA::attention_float32_over_codes, ISA::attention_bfloat16_over_codes},                                      \
     {ISA::write_kv_float32_as_codes, ISA::write_kv_bfloat16_as_codes}}

#if defined(__x86_64__)
// All that x86-64-v3 is made of, which the compiler uses as it likes.
bool has_avx2() {
    unsigned a, b, c, d;
    constexpr unsigned MOVBE = 1u << 22, F16C = 1u << 29, LZCNT = 1u << 5;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & MOVBE) && (c & F16C) && __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & LZCNT);
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}

bool has_bf16() {
    return has_avx512() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}
#endif

// The rest of another set's kernels.
InstructionSet with_tiles(const InstructionSet& tiles, InstructionSet rest) {
    rest.name = tiles.name;
    rest.present = tiles.present;
    rest.chosen = tiles.chosen;
    rest.dense_linear = tiles.dense_linear;
    rest.dense_gated = tiles.dense_gated;
    rest.dense_most_likely = tiles.dense_most_likely;
    rest.quantized_linear = tiles.quantized_linear;
    rest.quantized_gated = tiles.quantized_gated;
    rest.quantized_most_likely = tiles.quantized_most_likely;
    rest.attention_bfloat16 = tiles.attention_bfloat16;
    rest.attention_over_codes[1] = tiles.attention_over_codes[1];
    return rest;
}

#define QUIRE_TILES_SET(TILES, PRESENT, CHOSEN)                                             \
    InstructionSet{.name = #TILES, .present = PRESENT, .chosen = CHOSEN,                     \
                   .attention_bfloat16 = TILES::attention_bfloat16, .dense_linear = TILES::dense_linear, \
                   .dense_gated = TILES::dense_gated,                                        \
                   .dense_most_likely = TILES::dense_most_likely,                            \
                   .quantized_linear = TILES::quantized_linear,                              \
                   .quantized_gated = TILES::quantized_gated,                                \
                   .quantized_most_likely = TILES::quantized_most_likely,                    \
                   .attention_over_codes = {nullptr, TILES::attention_bfloat16_over_codes}}

// The fastest first.
const std::vector<InstructionSet>& instruction_sets() {
    static const std::vector<InstructionSet> sets = {
#if defined(__x86_64__)
        with_tiles(QUIRE_TILES_SET(amx, has_bf16() && has_amx(), true), QUIRE_SET(avx512_bf16, true)),
        QUIRE_SET(avx512_bf16, has_bf16()),
        QUIRE_SET(avx512_vnni, has_avx512() && __builtin_cpu_supports("avx512vnni")),
        QUIRE_SET(avx512, has_avx512()),
        QUIRE_SET(avx2, has_avx2()),
#endif
        QUIRE_SET(portable, true),
        with_tiles(QUIRE_TILES_SET(emulated_tiles, true, false), QUIRE_SET(portable, true)),
#if defined(QUIRE_EMULATE_AMX)
        with_tiles(QUIRE_TILES_SET(emulated_amx, has_bf16(), false), QUIRE_SET(avx512_bf16, true)),
#endif
    };
    return sets;
}

std::vector<std::string> names(bool chosen) {
    std::vector<std::string> found;
    for (const InstructionSet& set : instruction_sets())
        if (set.present && set.chosen == chosen) found.push_back(set.name);
    return found;
}

const InstructionSet& set_named(const std::string& name) {
    for (const InstructionSet& set : instruction_sets())
        if (set.present && set.name == name) return set;
    throw std::invalid_argument("This CPU lacks the instruction set " + name + ".");
}

template <typename T>
T* at(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

// Into the program, or at once where there is none. `num_tokens`, `weight` and `first_tokens` are Program::add's.
template <typename Call>
void submit(Program* program, int num_threads, Kernel<Call> kernel, const Call& call, int64_t num_tokens = 0,
            Range weight = {nullptr, 0}, int64_t first_tokens = 0) {
    auto part = [kernel, call](const Team& team, const std::optional<Counts>& counts) {
        Call sized = call;
        if (counts) resize(sized, *counts);
        kernel(sized, team);
    };
    if (program) return program->add(part, num_tokens, first_tokens, weight);
    nb::gil_scoped_release released;
    run_on_team(num_threads, [&](const Team& team) { kernel(call, team); });
}

void run(Program& program, int num_threads, std::optional<std::pair<int64_t, int64_t>> counts) {
    program.run(num_threads, counts ? std::optional(Counts{counts->first, counts->second, program.num_rows()}) : std::nullopt);
}

// What a second thread is worth: waking it takes as long as some thousand values.
int threads_for(int64_t num_values, int num_threads) { return num_values < 16384 ? 1 : num_threads; }

// Bytes after the codes of a token's K or V of one head, where the cache holds codes.
int scale_size(bool codes) { return codes ? sizeof(float) : 0; }

void attend(Program* program, const std::string& isa, bool bfloat16, bool codes, uintptr_t query, int64_t query_stride, uintptr_t key,
            uintptr_t value, uintptr_t output, uintptr_t block_tables, int64_t max_blocks, uintptr_t query_starts,
            uintptr_t context_lens, int64_t num_rows, int64_t block_size, int num_heads, int num_kv_heads, int head_dim,
            float scale, float softcap, int64_t window, bool causal, uintptr_t scratch, int64_t scratch_floats, int num_threads) {
    AttentionCall call{at<void>(query),
                       at<void>(key),
                       at<void>(value),
                       at<void>(output),
                       at<int64_t>(block_tables),
                       at<int64_t>(query_starts),
                       at<int64_t>(context_lens),
                       query_stride,
                       num_rows,
                       max_blocks,
                       {block_size, num_kv_heads, head_dim, scale_size(codes)},
                       num_heads,
                       scale,
                       softcap,
                       window,
                       causal,
                       at<float>(scratch),
                       scratch_floats};
    const InstructionSet& set = set_named(isa);
    auto kernel = bfloat16 ? set.attention_bfloat16 : set.attention_float32;
    submit(program, num_threads, codes ? set.attention_over_codes[bfloat16] : kernel, call);
}

// What so many threads divide attention into: of rows of one token, or without an order, that share no blocks.
int64_t num_attention_pieces(const std::vector<int64_t>& query_starts, const std::vector<int64_t>& context_lens, int num_heads,
                             int num_kv_heads, int64_t window, int64_t scratch_floats, int num_threads) {
    AttentionCall call{};
    call.query_starts = query_starts.data();
    call.context_lens = context_lens.data();
    call.num_rows = static_cast<int64_t>(context_lens.size());
    call.num_heads = num_heads;
    call.layout.num_kv_heads = num_kv_heads;
    call.layout.head_dim = 1;
    call.window = window;
    call.scratch_floats = scratch_floats;
    return AttentionPieces(call, num_threads).size();
}

// A row's address and its stride in elements, and whether it is bfloat16.
using Rows = std::tuple<uintptr_t, int64_t, bool>;

// Of rows that are normalized as they are read: the weight's address, and eps.
using Norm = std::pair<uintptr_t, float>;

LinearRows linear_rows(const Rows& x, const Rows& bias, const Rows& y, uintptr_t scratch, int64_t num_rows, bool adds = false, uintptr_t panels = 0) {
    LinearRows rows{at<void>(std::get<0>(x)), at<void>(std::get<0>(bias)), at<void>(std::get<0>(y)), at<void>(scratch), num_rows,
                    std::get<1>(x),           std::get<1>(y),              std::get<2>(x),           std::get<2>(bias), std::get<2>(y)};
    rows.adds = adds;
    rows.panels = at<int64_t>(panels);
    return rows;
}

int64_t whole(int64_t count, int64_t size) { return (count + size - 1) / size; }

Range memory_of(const DenseWeight& weight) {
    int64_t num_units = weight.bfloat16 ? whole(weight.num_inputs, 2) : weight.num_inputs;
    return {weight.panels, whole(weight.num_outputs, PANEL) * PANEL * num_units * UNIT};
}

Range memory_of(const QuantizedWeight& weight) {
    return {weight.panels, whole(weight.num_outputs, PANEL) * weight.panel_bytes};
}

void dense_linear(Program* program, const std::string& isa, const DenseWeight& weight, const Rows& x, const Rows& bias,
                  const Rows& y, bool adds, uintptr_t scratch, int64_t num_rows, uintptr_t panels, int num_threads) {
    submit(program, num_threads, set_named(isa).dense_linear, DenseCall{weight, linear_rows(x, bias, y, scratch, num_rows, adds, panels)}, 0,
           panels ? Range{nullptr, 0} : memory_of(weight));
}

GateCall gate_of_halves(const Rows& both, uintptr_t y, int64_t num_rows, int64_t width, Activation activation) {
    auto [address, stride, bfloat16] = both;
    Vectors gate{at<void>(address), stride, 0}, up{at<uint8_t>(address) + width * (bfloat16 ? 2 : 4), stride, 0};
    return {gate, up, {at<void>(y), width, 0}, num_rows, width, activation, bfloat16};
}

void dense_gated(Program* program, const std::string& isa, const DenseWeight& weight, const Rows& x, const Rows& both, uintptr_t y,
                 uintptr_t scratch, int64_t num_rows, Activation activation, int num_threads) {
    DenseGatedCall call{{weight, linear_rows(x, {0, 0, false}, both, scratch, num_rows)},
                        gate_of_halves(both, y, num_rows, weight.num_outputs / 2, activation)};
    submit(program, num_threads, set_named(isa).dense_gated, call, 0, memory_of(weight));
}

LinearRows normalized(LinearRows rows, const Norm& norm) {
    rows.norm_weight = at<float>(norm.first);
    rows.norm_eps = norm.second;
    return rows;
}

void quantized_gated(Program* program, const std::string& isa, const QuantizedWeight& weight, const Rows& x, const Norm& norm,
                     const Rows& both, uintptr_t y, uintptr_t scratch, int64_t num_rows, Activation activation, int num_threads) {
    QuantizedGatedCall call{{weight, normalized(linear_rows(x, {0, 0, false}, both, scratch, num_rows), norm)},
                            gate_of_halves(both, y, num_rows, weight.num_outputs / 2, activation)};
    submit(program, num_threads, set_named(isa).quantized_gated, call, 0, memory_of(weight), weight.rotated ? num_rows : 0);
}

// With nowhere to write to: what keeps the largest says so itself.
MostLikelyCall largest_of(uintptr_t token_ids, uintptr_t largest, uintptr_t scratch, int64_t num_rows, int64_t num_outputs) {
    return {nullptr, at<int64_t>(token_ids), at<float>(largest), at<void>(scratch), num_rows, num_outputs};
}

void dense_most_likely(Program* program, const std::string& isa, const DenseWeight& weight, const Rows& x, uintptr_t token_ids,
                       uintptr_t largest, uintptr_t scratch, uintptr_t members, int64_t num_rows, int num_threads) {
    DenseMostLikelyCall call{{weight, linear_rows(x, {0, 0, false}, {0, 0, false}, scratch, num_rows)},
                             largest_of(token_ids, largest, members, num_rows, weight.num_outputs)};
    submit(program, num_threads, set_named(isa).dense_most_likely, call, 0, memory_of(weight));
}

void quantized_most_likely(Program* program, const std::string& isa, const QuantizedWeight& weight, const Rows& x, uintptr_t token_ids,
                           uintptr_t largest, uintptr_t scratch, uintptr_t members, int64_t num_rows, int num_threads) {
    QuantizedMostLikelyCall call{{weight, linear_rows(x, {0, 0, false}, {0, 0, false}, scratch, num_rows)},
                                 largest_of(token_ids, largest, members, num_rows, weight.num_outputs)};
    submit(program, num_threads, set_named(isa).quantized_most_likely, call, 0, memory_of(weight), weight.rotated ? num_rows : 0);
}

void dense_rows(Program* program, const std::string& isa, const DenseWeight& weight, uintptr_t indices, int64_t num_indices,
                uintptr_t y, int num_threads) {
    DenseRowsCall call{weight, at<int64_t>(indices), at<void>(y), num_indices};
    submit(program, threads_for(num_indices * weight.num_inputs, num_threads), set_named(isa).dense_rows, call);
}

void pack_panels(const std::string& isa, uintptr_t memory, int64_t num_panels, int64_t num_units, int num_threads) {
    PackCall call{at<void>(memory), num_panels, num_units};
    submit(nullptr, packing_threads(num_panels * num_units * PANEL, num_threads), set_named(isa).pack_panels, call);
}

void quantized_linear(Program* program, const std::string& isa, const QuantizedWeight& weight, const Rows& x, const Norm& norm,
                      const Rows& bias, const Rows& y, bool adds, uintptr_t scratch, int64_t num_rows, uintptr_t panels, int num_threads) {
    submit(program, num_threads, set_named(isa).quantized_linear,
           QuantizedCall{weight, normalized(linear_rows(x, bias, y, scratch, num_rows, adds, panels), norm)}, 0, panels ? Range{nullptr, 0} : memory_of(weight),
           weight.rotated ? num_rows : 0);
}

void panel_rows(Program* program, const std::string& isa, const QuantizedWeight& weight, uintptr_t indices,
                int64_t num_indices, uintptr_t y, bool y_bfloat16, int num_threads) {
    PanelRowsCall call{weight, at<int64_t>(indices), at<void>(y), num_indices, y_bfloat16};
    submit(program, threads_for(num_indices * weight.num_inputs, num_threads), set_named(isa).panel_rows, call);
}

// A tensor [T, H, D] with the last dimension contiguous: address and strides.
using Strided = std::tuple<uintptr_t, int64_t, int64_t>;

Vectors vectors(const Strided& strided) {
    return {at<void>(std::get<0>(strided)), std::get<1>(strided), std::get<2>(strided)};
}

void rms_norm(Program* program, const std::string& isa, const Strided& x, uintptr_t weight, const Strided& y, bool adds,
              int64_t num_tokens, int64_t num_heads, int64_t width, float eps, bool bfloat16, int num_threads) {
    NormCall call{vectors(x), vectors(y), at<void>(weight), nullptr, num_tokens, num_heads, width, eps, bfloat16, adds};
    submit(program, threads_for(num_tokens * num_heads * width, num_threads), set_named(isa).rms_norm, call, num_tokens);
}

void layer_norm(Program* program, const std::string& isa, const Strided& x, uintptr_t weight, uintptr_t bias, const Strided& y,
                int64_t num_tokens, int64_t num_heads, int64_t width, float eps, bool bfloat16, int num_threads) {
    NormCall call{vectors(x), vectors(y), at<void>(weight), at<void>(bias), num_tokens, num_heads, width, eps, bfloat16};
    submit(program, threads_for(num_tokens * num_heads * width, num_threads), set_named(isa).layer_norm, call, num_tokens);
}

void activate(Program* program, const std::string& isa, const Strided& x, const Strided& y, int64_t num_tokens, int64_t width,
              Activation activation, bool bfloat16, int num_threads) {
    ActivateCall call{vectors(x), vectors(y), num_tokens, width, activation, bfloat16};
    submit(program, threads_for(4 * num_tokens * width, num_threads), set_named(isa).activate, call, num_tokens);
}

void rope(Program* program, const std::string& isa, const Strided& x, uintptr_t cos, uintptr_t sin, int64_t num_tokens,
          int64_t num_heads, int64_t half, bool bfloat16, int num_threads) {
    RopeCall call{vectors(x), at<void>(cos), at<void>(sin), num_tokens, num_heads, half, bfloat16};
    submit(program, threads_for(num_tokens * num_heads * 2 * half, num_threads), set_named(isa).rope, call, num_tokens);
}

void gated(Program* program, const std::string& isa, const Strided& gate, const Strided& up, const Strided& y,
           int64_t num_tokens, int64_t width, Activation activation, bool bfloat16, int num_threads) {
    GateCall call{vectors(gate), vectors(up), vectors(y), num_tokens, width, activation, bfloat16};
    submit(program, threads_for(4 * num_tokens * width, num_threads), set_named(isa).gated, call, num_tokens);
}

// Queries [T, H, D] and how many heads; cosines and sines [T, S] and S.
using Rotation = std::tuple<Strided, int64_t, uintptr_t, uintptr_t, int64_t>;

void write_kv(Program* program, const std::string& isa, bool bfloat16, bool codes, uintptr_t key, int64_t key_stride, uintptr_t value,
              int64_t value_stride, uintptr_t key_cache, uintptr_t value_cache, uintptr_t slots, int64_t num_tokens,
              int64_t block_size, int num_kv_heads, int head_dim, const std::optional<Rotation>& rotation, int num_threads) {
    WriteCall call{at<void>(key),      at<void>(value), at<void>(key_cache), at<void>(value_cache),
                   at<int64_t>(slots), key_stride,      value_stride,        num_tokens,
                   {block_size, num_kv_heads, head_dim, scale_size(codes)}, {}, {}};
    if (rotation) {
        auto [query, num_heads, cos, sin, half] = *rotation;
        call.query_rope = {vectors(query), at<void>(cos), at<void>(sin), num_tokens, num_heads, half, bfloat16};
        call.key_rope = {{at<void>(key), key_stride, head_dim}, at<void>(cos), at<void>(sin), num_tokens, num_kv_heads, half, bfloat16};
    }
    const InstructionSet& set = set_named(isa);
    auto kernel = bfloat16 ? set.write_kv_bfloat16 : set.write_kv_float32;
    submit(program, threads_for(2 * num_tokens * num_kv_heads * head_dim, num_threads),
           codes ? set.write_kv_as_codes[bfloat16] : kernel, call, num_tokens);
}

void write_texts(Program* program, const std::string& isa, bool bfloat16, uintptr_t key, int64_t key_stride, uintptr_t value,
                 int64_t value_stride, uintptr_t key_blocks, uintptr_t value_blocks, uintptr_t starts, int64_t num_blocks,
                 int64_t block_size, int num_kv_heads, int head_dim, int num_threads) {
    TextBlocksCall call{at<void>(key),       at<void>(value), at<void>(key_blocks), at<void>(value_blocks),
                        at<int64_t>(starts), key_stride,      value_stride,         num_blocks,
                        {block_size, num_kv_heads, head_dim}};
    const InstructionSet& set = set_named(isa);
    submit(program, threads_for(2 * num_blocks * block_size * num_kv_heads * head_dim, num_threads),
           bfloat16 ? set.write_texts_bfloat16 : set.write_texts_float32, call);
}

void add(Program* program, const std::string& isa, const Strided& x, const Strided& z, const Strided& y,
         int64_t num_tokens, int64_t width, bool bfloat16, int num_threads) {
    AddCall call{vectors(x), vectors(z), vectors(y), num_tokens, width, bfloat16};
    submit(program, threads_for(num_tokens * width, num_threads), set_named(isa).add, call, num_tokens);
}

void softcap(Program* program, const std::string& isa, const Strided& x, const Strided& y, int64_t num_tokens, int64_t width,
             float cap, bool bfloat16, int num_threads) {
    ScaleCall call{vectors(x), vectors(y), num_tokens, width, cap, bfloat16};
    submit(program, threads_for(4 * num_tokens * width, num_threads), set_named(isa).softcap, call, num_tokens);
}

void most_likely(Program* program, const std::string& isa, uintptr_t logits, uintptr_t token_ids, uintptr_t largest,
                 uintptr_t scratch, int64_t num_rows, int64_t num_tokens, int num_threads) {
    MostLikelyCall call{at<float>(logits), at<int64_t>(token_ids), at<float>(largest), at<void>(scratch), num_rows, num_tokens};
    submit(program, threads_for(num_rows * num_tokens, num_threads), set_named(isa).most_likely, call);
}

// A row of logits is one member's.
int threads_for_rows(std::size_t num_rows, int64_t vocab_size, int num_threads) {
    return threads_for(num_rows * vocab_size, std::min(num_threads, static_cast<int>(num_rows)));
}

// A row's logits, and its uniform number, temperature, min_p, top_p, top_k.
std::vector<int64_t> draw(const std::string& isa, const std::vector<std::tuple<uintptr_t, double, double, double, double, int64_t>>& rows,
                          int64_t vocab_size, int num_threads) {
    std::vector<DrawnRow> drawn;
    for (auto [logits, uniform, temperature, min_p, top_p, top_k] : rows)
        drawn.push_back({at<float>(logits), uniform, temperature, min_p, top_p, top_k});
    std::vector<int64_t> token_ids(rows.size());
    DrawCall call{&drawn, token_ids.data(), vocab_size};
    submit(nullptr, threads_for_rows(rows.size(), vocab_size, num_threads), set_named(isa).draw, call);
    return token_ids;
}

// A row's logits, its token and how many of the most likely tokens; returns token ids and logprobs, row after row, and each token's rank.
std::tuple<std::vector<int64_t>, std::vector<float>, std::vector<int64_t>> logprobs(
    const std::string& isa, const std::vector<std::tuple<uintptr_t, int64_t, int64_t>>& rows, int64_t vocab_size, int num_threads) {
    std::vector<LogprobsRow> wanted;
    int64_t size = 0;
    for (auto [logits, token_id, num_top] : rows) {
        wanted.push_back({at<float>(logits), token_id, num_top, size});
        size += 1 + num_top;
    }
    std::vector<int64_t> token_ids(size), ranks(rows.size());
    std::vector<float> found(size);
    LogprobsCall call{&wanted, token_ids.data(), found.data(), ranks.data(), vocab_size};
    submit(nullptr, threads_for_rows(rows.size(), vocab_size, num_threads), set_named(isa).logprobs, call);
    return {token_ids, found, ranks};
}

void sketch_rows(const std::string& isa, uintptr_t rows, bool bfloat16, uintptr_t columns, uintptr_t panels, int64_t panel_bytes,
                 int64_t header_offset, uintptr_t lacks, uintptr_t sizes, int64_t num_rows, int64_t num_inputs, int64_t num_columns,
                 int num_threads) {
    SketchRowsCall call{at<void>(rows), at<int64_t>(columns), at<uint8_t>(panels), at<float>(lacks), at<float>(sizes), panel_bytes,
                        header_offset,  num_rows,             num_inputs,          num_columns,      bfloat16};
    submit(nullptr, threads_for(num_rows * num_inputs, num_threads), set_named(isa).sketch_rows, call);
}

void sketch_inputs(Program* program, const std::string& isa, uintptr_t x, int64_t x_stride, bool bfloat16, uintptr_t columns,
                   uintptr_t y, uintptr_t bounds, int64_t num_tokens, int64_t num_inputs, int64_t num_columns, int64_t group_size,
                   bool rotated, int num_threads) {
    SketchInputsCall call{at<void>(x), at<int64_t>(columns), at<float>(y), at<float>(bounds), num_tokens, x_stride,
                          num_inputs,  num_columns,          group_size,   bfloat16,          rotated};
    submit(program, threads_for(num_tokens * num_columns, num_threads), set_named(isa).sketch_inputs, call);
}

void panels_of(Program* program, const std::string& isa, uintptr_t token_ids, uintptr_t panels, int64_t num_tokens) {
    submit(program, 1, set_named(isa).panels_of, PanelsOfCall{at<int64_t>(token_ids), at<int64_t>(panels), num_tokens});
}

void within_reach(Program* program, const std::string& isa, uintptr_t estimates, uintptr_t logits, uintptr_t lacks, uintptr_t sizes,
                  uintptr_t bounds, uintptr_t known, uintptr_t panels, uintptr_t scratch, int64_t num_tokens, int64_t vocab_size,
                  int num_threads) {
    WithinReachCall call{at<float>(estimates), at<float>(logits),    at<float>(lacks),     at<float>(sizes), at<float>(bounds),
                         at<int64_t>(known),   at<int64_t>(panels), at<int64_t>(scratch), num_tokens,       vocab_size};
    submit(program, threads_for(num_tokens * vocab_size, num_threads), set_named(isa).within_reach, call);
}

void most_likely_of(Program* program, const std::string& isa, uintptr_t logits, uintptr_t panels, uintptr_t token_ids,
                    uintptr_t largest, int64_t num_tokens, int64_t vocab_size) {
    MostLikelyOfCall call{at<float>(logits), at<int64_t>(panels), at<int64_t>(token_ids), at<float>(largest), num_tokens, vocab_size};
    submit(program, 1, set_named(isa).most_likely_of, call);
}

void gather(Program* program, const std::string& isa, uintptr_t table, int64_t stride, uintptr_t indices, uintptr_t y, int64_t num_tokens,
            int64_t width, bool bfloat16, int num_threads) {
    GatherCall call{at<void>(table), stride, at<int64_t>(indices), at<void>(y), num_tokens, width, bfloat16};
    submit(program, threads_for(num_tokens * width, num_threads), set_named(isa).gather, call);
}

void scale(Program* program, const std::string& isa, const Strided& x, const Strided& y, int64_t num_tokens, int64_t width,
           float factor, bool bfloat16, int num_threads) {
    ScaleCall call{vectors(x), vectors(y), num_tokens, width, factor, bfloat16};
    submit(program, threads_for(num_tokens * width, num_threads), set_named(isa).scale, call, num_tokens);
}

bool pack_blocks_to_panels(const std::string& type, uintptr_t blocks, int64_t row_bytes, uintptr_t rows, int64_t num_rows,
                           int64_t num_blocks, uintptr_t panels, int64_t panel_bytes, int64_t header_offset, int num_threads) {
    nb::gil_scoped_release released;
    return pack_blocks(type, {at<uint8_t>(blocks), row_bytes, at<int64_t>(rows), num_rows, num_blocks},
                       {at<uint8_t>(panels), panel_bytes, header_offset}, num_threads);
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "Native CPU kernels; quire.kernels.native is their face.";
    nb::class_<Program>(module, "Program")
        .def(nb::init<int64_t>(), nb::arg("num_rows"))
        .def("run", &run, nb::arg("num_threads"), nb::arg("counts").none(), nb::call_guard<nb::gil_scoped_release>())
        .def("__len__", &Program::size);
    nb::enum_<Activation>(module, "Activation")
        .value("silu", Activation::silu)
        .value("gelu", Activation::gelu)
        .value("gelu_tanh", Activation::gelu_tanh)
        .value("relu", Activation::relu);
    module.def("instruction_sets", [] { return names(true); });
    module.def("emulated_sets", [] { return names(false); });
    module.def("attend", &attend, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("bfloat16"), nb::arg("codes"),
               nb::arg("query"), nb::arg("query_stride"), nb::arg("key"), nb::arg("value"), nb::arg("output"),
               nb::arg("block_tables"), nb::arg("max_blocks"), nb::arg("query_starts"), nb::arg("context_lens"),
               nb::arg("num_rows"), nb::arg("block_size"), nb::arg("num_heads"), nb::arg("num_kv_heads"),
               nb::arg("head_dim"), nb::arg("scale"), nb::arg("softcap"), nb::arg("window"), nb::arg("causal"),
               nb::arg("scratch"), nb::arg("scratch_floats"), nb::arg("num_threads"));
    module.def("attention_scratch", &attention_scratch, nb::kw_only(), nb::arg("num_queries"), nb::arg("head_dim"), nb::arg("window"),
               nb::arg("max_context"), nb::arg("num_threads"), "floats");
    module.def("num_attention_pieces", &num_attention_pieces, nb::kw_only(), nb::arg("query_starts"), nb::arg("context_lens"),
               nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("window"), nb::arg("scratch_floats"), nb::arg("num_threads"));
    module.attr("ATTENTION_SECTION") = SECTION;
    nb::class_<DenseWeight>(module, "DenseWeight")
        .def("__init__",
             [](DenseWeight* self, uintptr_t panels, int64_t num_inputs, int64_t num_outputs, bool bfloat16) {
                 new (self) DenseWeight{at<void>(panels), num_inputs, num_outputs, bfloat16};
             },
             nb::kw_only(), nb::arg("panels"), nb::arg("num_inputs"), nb::arg("num_outputs"), nb::arg("bfloat16"));
    nb::class_<QuantizedWeight>(module, "QuantizedWeight")
        .def("__init__",
             [](QuantizedWeight* self, uintptr_t panels, int64_t panel_bytes, int64_t header_offset, int64_t num_inputs,
                int64_t num_outputs, int bits, int group_size, int groups_per_block, int zero, bool has_minimum, bool rotated) {
                 new (self) QuantizedWeight{at<uint8_t>(panels), panel_bytes,      header_offset, num_inputs,  num_outputs, bits,
                                            group_size,          groups_per_block, zero,          has_minimum, rotated};
             },
             nb::kw_only(), nb::arg("panels"), nb::arg("panel_bytes"), nb::arg("header_offset"), nb::arg("num_inputs"),
             nb::arg("num_outputs"), nb::arg("bits"), nb::arg("group_size"), nb::arg("groups_per_block"), nb::arg("zero"),
             nb::arg("has_minimum"), nb::arg("rotated"));
    module.def("dense_linear", &dense_linear, nb::arg("program").none(), nb::arg("isa"), nb::arg("weight"), nb::arg("x"),
               nb::arg("bias"), nb::arg("y"), nb::arg("adds"), nb::arg("scratch"), nb::arg("num_rows"), nb::arg("panels"),
               nb::arg("num_threads"));
    module.def("dense_gated", &dense_gated, nb::arg("program").none(), nb::arg("isa"), nb::arg("weight"), nb::arg("x"),
               nb::arg("both"), nb::arg("y"), nb::arg("scratch"), nb::arg("num_rows"), nb::arg("activation"), nb::arg("num_threads"));
    module.def("quantized_linear", &quantized_linear, nb::arg("program").none(), nb::arg("isa"), nb::arg("weight"),
               nb::arg("x"), nb::arg("norm"), nb::arg("bias"), nb::arg("y"), nb::arg("adds"), nb::arg("scratch"), nb::arg("num_rows"), nb::arg("panels"),
               nb::arg("num_threads"));
    module.def("quantized_gated", &quantized_gated, nb::arg("program").none(), nb::arg("isa"), nb::arg("weight"), nb::arg("x"), nb::arg("norm"),
               nb::arg("both"), nb::arg("y"), nb::arg("scratch"), nb::arg("num_rows"), nb::arg("activation"), nb::arg("num_threads"));
    module.def("dense_most_likely", &dense_most_likely, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("weight"),
               nb::arg("x"), nb::arg("token_ids"), nb::arg("largest"), nb::arg("scratch"), nb::arg("members"), nb::arg("num_rows"),
               nb::arg("num_threads"));
    module.def("quantized_most_likely", &quantized_most_likely, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("weight"),
               nb::arg("x"), nb::arg("token_ids"), nb::arg("largest"), nb::arg("scratch"), nb::arg("members"), nb::arg("num_rows"),
               nb::arg("num_threads"));
    module.attr("LARGEST_OF_ROW_BYTES") = LARGEST_OF_ROW_BYTES;
    module.def("dense_rows", &dense_rows, nb::arg("program").none(), nb::arg("isa"), nb::arg("weight"), nb::arg("indices"),
               nb::arg("num_indices"), nb::arg("y"), nb::arg("num_threads"));
    module.def("panel_rows", &panel_rows, nb::arg("program").none(), nb::arg("isa"), nb::arg("weight"), nb::arg("indices"),
               nb::arg("num_indices"), nb::arg("y"), nb::arg("y_bfloat16"), nb::arg("num_threads"));
    module.def("pack_panels", &pack_panels, nb::arg("isa"), nb::arg("memory"), nb::arg("num_panels"), nb::arg("num_units"),
               nb::arg("num_threads"));
    module.def("pack_blocks", &pack_blocks_to_panels, nb::kw_only(), nb::arg("type"), nb::arg("blocks"), nb::arg("row_bytes"),
               nb::arg("rows"), nb::arg("num_rows"), nb::arg("num_blocks"), nb::arg("panels"), nb::arg("panel_bytes"),
               nb::arg("header_offset"), nb::arg("num_threads"));
    module.def("rms_norm", &rms_norm, nb::arg("program").none(), nb::arg("isa"), nb::arg("x"), nb::arg("weight"),
               nb::arg("y"), nb::arg("adds"), nb::arg("num_tokens"), nb::arg("num_heads"), nb::arg("width"), nb::arg("eps"),
               nb::arg("bfloat16"), nb::arg("num_threads"));
    module.def("layer_norm", &layer_norm, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("x"),
               nb::arg("weight"), nb::arg("bias"), nb::arg("y"), nb::arg("num_tokens"), nb::arg("num_heads"),
               nb::arg("width"), nb::arg("eps"), nb::arg("bfloat16"), nb::arg("num_threads"));
    module.def("activate", &activate, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("x"), nb::arg("y"),
               nb::arg("num_tokens"), nb::arg("width"), nb::arg("activation"), nb::arg("bfloat16"), nb::arg("num_threads"));
    module.def("rope", &rope, nb::arg("program").none(), nb::arg("isa"), nb::arg("x"), nb::arg("cos"), nb::arg("sin"),
               nb::arg("num_tokens"), nb::arg("num_heads"), nb::arg("half"), nb::arg("bfloat16"), nb::arg("num_threads"));
    module.def("gated", &gated, nb::arg("program").none(), nb::arg("isa"), nb::arg("gate"), nb::arg("up"), nb::arg("y"),
               nb::arg("num_tokens"), nb::arg("width"), nb::arg("activation"), nb::arg("bfloat16"), nb::arg("num_threads"));
    module.def("write_kv", &write_kv, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("bfloat16"), nb::arg("codes"),
               nb::arg("key"), nb::arg("key_stride"), nb::arg("value"), nb::arg("value_stride"), nb::arg("key_cache"),
               nb::arg("value_cache"), nb::arg("slots"), nb::arg("num_tokens"), nb::arg("block_size"),
               nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("rotation").none(), nb::arg("num_threads"));
    module.def("write_texts", &write_texts, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("bfloat16"),
               nb::arg("key"), nb::arg("key_stride"), nb::arg("value"), nb::arg("value_stride"), nb::arg("key_blocks"),
               nb::arg("value_blocks"), nb::arg("starts"), nb::arg("num_blocks"), nb::arg("block_size"),
               nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("num_threads"));
    module.def("add", &add, nb::arg("program").none(), nb::arg("isa"), nb::arg("x"), nb::arg("z"), nb::arg("y"),
               nb::arg("num_tokens"), nb::arg("width"), nb::arg("bfloat16"), nb::arg("num_threads"));
    module.def("gather", &gather, nb::arg("program").none(), nb::arg("isa"), nb::arg("table"), nb::arg("stride"), nb::arg("indices"),
               nb::arg("y"), nb::arg("num_tokens"), nb::arg("width"), nb::arg("bfloat16"), nb::arg("num_threads"));
    module.def("scale", &scale, nb::arg("program").none(), nb::arg("isa"), nb::arg("x"), nb::arg("y"),
               nb::arg("num_tokens"), nb::arg("width"), nb::arg("factor"), nb::arg("bfloat16"), nb::arg("num_threads"));
    module.def("most_likely", &most_likely, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("logits"),
               nb::arg("token_ids"), nb::arg("largest"), nb::arg("scratch"), nb::arg("num_rows"), nb::arg("num_tokens"),
               nb::arg("num_threads"));
    module.def("most_likely_scratch", [](int64_t num_tokens) { return parts_of(num_tokens) * sizeof(Largest); }, "bytes a row");
    module.def("draw", &draw, nb::kw_only(), nb::arg("isa"), nb::arg("rows"), nb::arg("vocab_size"), nb::arg("num_threads"));
    module.def("logprobs", &logprobs, nb::kw_only(), nb::arg("isa"), nb::arg("rows"), nb::arg("vocab_size"), nb::arg("num_threads"));
    module.def("sketch_rows", &sketch_rows, nb::kw_only(), nb::arg("isa"), nb::arg("rows"), nb::arg("bfloat16"), nb::arg("columns"),
               nb::arg("panels"), nb::arg("panel_bytes"), nb::arg("header_offset"), nb::arg("lacks"), nb::arg("sizes"),
               nb::arg("num_rows"), nb::arg("num_inputs"), nb::arg("num_columns"), nb::arg("num_threads"));
    module.def("sketch_inputs", &sketch_inputs, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("x"),
               nb::arg("x_stride"), nb::arg("bfloat16"), nb::arg("columns"), nb::arg("y"), nb::arg("bounds"), nb::arg("num_tokens"),
               nb::arg("num_inputs"), nb::arg("num_columns"), nb::arg("group_size"), nb::arg("rotated"), nb::arg("num_threads"));
    module.def("panels_of", &panels_of, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("token_ids"),
               nb::arg("panels"), nb::arg("num_tokens"));
    module.def("within_reach", &within_reach, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("estimates"),
               nb::arg("logits"), nb::arg("lacks"), nb::arg("sizes"), nb::arg("bounds"), nb::arg("known"), nb::arg("panels"),
               nb::arg("scratch"), nb::arg("num_tokens"), nb::arg("vocab_size"), nb::arg("num_threads"));
    module.def("most_likely_of", &most_likely_of, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("logits"),
               nb::arg("panels"), nb::arg("token_ids"), nb::arg("largest"), nb::arg("num_tokens"), nb::arg("vocab_size"));
    bind_step_inputs(module);
    module.def("softcap", &softcap, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("x"), nb::arg("y"),
               nb::arg("num_tokens"), nb::arg("width"), nb::arg("cap"), nb::arg("bfloat16"), nb::arg("num_threads"));
}
