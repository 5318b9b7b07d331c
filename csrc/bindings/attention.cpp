// Attention and the cache in the Python module.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bindings/submit.h"
#include "attention_jobs.h"

namespace nb = nanobind;
using namespace quire;

namespace {

// Bytes after the codes of a token's K or V of one head, where the cache holds codes.
int scale_size(bool codes) { return codes ? sizeof(uint16_t) : 0; }

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
    const InstructionSet& set = instruction_set(isa);
    auto kernel = bfloat16 ? set.attention_bfloat16 : set.attention_float32;
    auto over_codes = bfloat16 ? set.attention_bfloat16_over_codes : set.attention_float32_over_codes;
    submit(program, num_threads, codes ? over_codes : kernel, call);
}

// What so many threads divide attention into. Without tables, of rows of one token, or without an order, that share no blocks.
int64_t num_attention_jobs(const std::vector<int64_t>& query_starts, const std::vector<int64_t>& context_lens,
                           const std::vector<std::vector<int64_t>>& block_tables, int64_t block_size, int num_heads, int num_kv_heads,
                           int64_t window, int64_t scratch_floats, int num_threads, bool heads_together) {
    AttentionCall call{};
    std::vector<int64_t> blocks;
    for (const auto& table : block_tables) blocks.insert(blocks.end(), table.begin(), table.end());
    call.causal = !block_tables.empty();
    call.block_tables = blocks.data();
    call.max_blocks = call.causal ? static_cast<int64_t>(block_tables[0].size()) : 0;
    call.layout.block_size = block_size;
    call.query_starts = query_starts.data();
    call.context_lens = context_lens.data();
    call.num_rows = static_cast<int64_t>(context_lens.size());
    call.num_heads = num_heads;
    call.layout.num_kv_heads = num_kv_heads;
    call.layout.head_dim = 1;
    call.window = window;
    call.scratch_floats = scratch_floats;
    return AttentionJobs(call, num_threads, heads_together).size();
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
    const InstructionSet& set = instruction_set(isa);
    auto kernel = bfloat16 ? set.write_kv_bfloat16 : set.write_kv_float32;
    auto as_codes = bfloat16 ? set.write_kv_bfloat16_as_codes : set.write_kv_float32_as_codes;
    submit(program, threads_for(2 * num_tokens * num_kv_heads * head_dim, num_threads), codes ? as_codes : kernel, call, num_tokens);
}

void write_texts(Program* program, const std::string& isa, bool bfloat16, uintptr_t key, int64_t key_stride, uintptr_t value,
                 int64_t value_stride, uintptr_t key_blocks, uintptr_t value_blocks, uintptr_t starts, int64_t num_blocks,
                 int64_t block_size, int num_kv_heads, int head_dim, int num_threads) {
    TextBlocksCall call{at<void>(key),       at<void>(value), at<void>(key_blocks), at<void>(value_blocks),
                        at<int64_t>(starts), key_stride,      value_stride,         num_blocks,
                        {block_size, num_kv_heads, head_dim}};
    const InstructionSet& set = instruction_set(isa);
    submit(program, threads_for(2 * num_blocks * block_size * num_kv_heads * head_dim, num_threads),
           bfloat16 ? set.write_texts_bfloat16 : set.write_texts_float32, call);
}

}  // namespace

void bind_attention(nb::module_& module) {
    module.def("attend", &attend, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("bfloat16"), nb::arg("codes"),
               nb::arg("query"), nb::arg("query_stride"), nb::arg("key"), nb::arg("value"), nb::arg("output"),
               nb::arg("block_tables"), nb::arg("max_blocks"), nb::arg("query_starts"), nb::arg("context_lens"),
               nb::arg("num_rows"), nb::arg("block_size"), nb::arg("num_heads"), nb::arg("num_kv_heads"),
               nb::arg("head_dim"), nb::arg("scale"), nb::arg("softcap"), nb::arg("window"), nb::arg("causal"),
               nb::arg("scratch"), nb::arg("scratch_floats"), nb::arg("num_threads"));
    module.def("attention_scratch", &attention_scratch, nb::kw_only(), nb::arg("num_queries"), nb::arg("head_dim"), nb::arg("window"),
               nb::arg("max_context"), nb::arg("num_threads"), "floats");
    module.def("num_attention_jobs", &num_attention_jobs, nb::kw_only(), nb::arg("query_starts"), nb::arg("context_lens"),
               nb::arg("block_tables"), nb::arg("block_size"), nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("window"),
               nb::arg("scratch_floats"), nb::arg("num_threads"), nb::arg("heads_together"));
    module.attr("ATTENTION_SECTION") = SECTION;
    module.def("write_kv", &write_kv, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("bfloat16"), nb::arg("codes"),
               nb::arg("key"), nb::arg("key_stride"), nb::arg("value"), nb::arg("value_stride"), nb::arg("key_cache"),
               nb::arg("value_cache"), nb::arg("slots"), nb::arg("num_tokens"), nb::arg("block_size"),
               nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("rotation").none(), nb::arg("num_threads"));
    module.def("write_texts", &write_texts, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("bfloat16"),
               nb::arg("key"), nb::arg("key_stride"), nb::arg("value"), nb::arg("value_stride"), nb::arg("key_blocks"),
               nb::arg("value_blocks"), nb::arg("starts"), nb::arg("num_blocks"), nb::arg("block_size"),
               nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("num_threads"));
}
