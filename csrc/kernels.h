// Every kernel: its name, and what it is called with. The files that define them are compiled once an instruction set (CMakeLists.txt).
#pragma once

#include "attention.h"
#include "dense.h"
#include "most_likely.h"
#include "penalties.h"
#include "quantized.h"
#include "rounding.h"
#include "row_ops.h"
#include "sampling.h"
#include "sketch.h"
#include "team.h"
#include "text_blocks.h"

#define QUIRE_KERNELS(KERNEL) \
    KERNEL(attention_float32, AttentionCall)               \
    KERNEL(attention_bfloat16, AttentionCall)              \
    KERNEL(attention_float32_over_codes, AttentionCall)    \
    KERNEL(attention_bfloat16_over_codes, AttentionCall)   \
    KERNEL(dense_linear, DenseCall)                        \
    KERNEL(dense_gated, DenseGatedCall)                    \
    KERNEL(dense_most_likely, DenseMostLikelyCall)         \
    KERNEL(dense_rows, DenseRowsCall)                      \
    KERNEL(pack_panels, PackCall)                          \
    KERNEL(round_rows, RoundRowsCall)                      \
    KERNEL(quantized_linear, QuantizedCall)                \
    KERNEL(quantized_gated, QuantizedGatedCall)            \
    KERNEL(quantized_most_likely, QuantizedMostLikelyCall) \
    KERNEL(most_likely, MostLikelyCall)                    \
    KERNEL(penalize, PenalizeCall)                         \
    KERNEL(draw, DrawCall)                                 \
    KERNEL(logprobs, LogprobsCall)                         \
    KERNEL(panel_rows, PanelRowsCall)                      \
    KERNEL(sketch_rows, SketchRowsCall)                    \
    KERNEL(sketch_inputs, SketchInputsCall)                \
    KERNEL(panels_of, PanelsOfCall)                        \
    KERNEL(within_reach, WithinReachCall)                  \
    KERNEL(most_likely_of, MostLikelyOfCall)               \
    KERNEL(rms_norm, NormCall)                             \
    KERNEL(layer_norm, NormCall)                           \
    KERNEL(rope, RopeCall)                                 \
    KERNEL(gated, GateCall)                                \
    KERNEL(activate, ActivateCall)                         \
    KERNEL(write_kv_float32, WriteCall)                    \
    KERNEL(write_kv_bfloat16, WriteCall)                   \
    KERNEL(write_kv_float32_as_codes, WriteCall)           \
    KERNEL(write_kv_bfloat16_as_codes, WriteCall)          \
    KERNEL(write_texts_float32, TextBlocksCall)            \
    KERNEL(write_texts_bfloat16, TextBlocksCall)           \
    KERNEL(add, AddCall)                                   \
    KERNEL(gather, GatherCall)                             \
    KERNEL(scale, ScaleCall)                               \
    KERNEL(softcap, ScaleCall)

// What tiles change (tiles.h): the rest is that of another set.
#define QUIRE_TILE_KERNELS(KERNEL) \
    KERNEL(dense_linear, DenseCall)                        \
    KERNEL(dense_gated, DenseGatedCall)                    \
    KERNEL(dense_most_likely, DenseMostLikelyCall)         \
    KERNEL(attention_bfloat16, AttentionCall)              \
    KERNEL(attention_bfloat16_over_codes, AttentionCall)   \
    KERNEL(quantized_linear, QuantizedCall)                \
    KERNEL(quantized_gated, QuantizedGatedCall)            \
    KERNEL(quantized_most_likely, QuantizedMostLikelyCall)

// Instruction sets, each with the kernels that are compiled for it.
#if defined(__x86_64__)
#define QUIRE_X86_SETS(SET)           \
    SET(avx2, QUIRE_KERNELS)          \
    SET(avx512, QUIRE_KERNELS)        \
    SET(avx512_vnni, QUIRE_KERNELS)   \
    SET(avx512_bf16, QUIRE_KERNELS)   \
    SET(amx, QUIRE_TILE_KERNELS)
#else
#define QUIRE_X86_SETS(SET)
#endif
#if defined(QUIRE_EMULATE_AMX)
#define QUIRE_TEST_SETS(SET) SET(emulated_amx, QUIRE_TILE_KERNELS)
#else
#define QUIRE_TEST_SETS(SET)
#endif
#define QUIRE_SETS(SET)                     \
    SET(portable, QUIRE_KERNELS)            \
    SET(emulated_tiles, QUIRE_TILE_KERNELS) \
    QUIRE_X86_SETS(SET)                     \
    QUIRE_TEST_SETS(SET)

#define QUIRE_DECLARE(kernel, Call) void kernel(const Call&, const Team&);
#define QUIRE_DECLARE_SET(set, KERNELS) \
    namespace quire::set {              \
    KERNELS(QUIRE_DECLARE)              \
    }
QUIRE_SETS(QUIRE_DECLARE_SET)
#undef QUIRE_DECLARE_SET
#undef QUIRE_DECLARE
