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

// Of numbers that are float32 in registers, whatever they are stored as.
#define QUIRE_FLOAT_KERNELS(KERNEL)                        \
    KERNEL(attention_float32, AttentionCall)               \
    KERNEL(attention_float32_over_codes, AttentionCall)    \
    KERNEL(round_rows, RoundRowsCall)                      \
    KERNEL(most_likely, MostLikelyCall)                    \
    KERNEL(penalize, PenalizeCall)                         \
    KERNEL(draw, DrawCall)                                 \
    KERNEL(logprobs, LogprobsCall)                         \
    KERNEL(sketch_rows, SketchRowsCall)                    \
    KERNEL(sketch_inputs, SketchInputsCall)                \
    KERNEL(panels_of, PanelsOfCall)                        \
    KERNEL(within_reach, WithinReachCall)                  \
    KERNEL(most_likely_of, MostLikelyOfCall)

// What instructions for bfloat16 change: they multiply it, or round to it at every end.
#define QUIRE_BFLOAT16_KERNELS(KERNEL)                     \
    KERNEL(attention_bfloat16, AttentionCall)              \
    KERNEL(dense_linear, DenseCall)                        \
    KERNEL(dense_gated, DenseGatedCall)                    \
    KERNEL(dense_most_likely, DenseMostLikelyCall)         \
    KERNEL(dense_rows, DenseRowsCall)                      \
    KERNEL(pack_panels, PackCall)                          \
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

#define QUIRE_QUANTIZED_KERNELS(KERNEL)                    \
    KERNEL(quantized_linear, QuantizedCall)                \
    KERNEL(quantized_gated, QuantizedGatedCall)            \
    KERNEL(quantized_most_likely, QuantizedMostLikelyCall) \
    KERNEL(panel_rows, PanelRowsCall)

// What instructions for products of bytes change.
#define QUIRE_BYTES_KERNELS(KERNEL)                        \
    QUIRE_QUANTIZED_KERNELS(KERNEL)                        \
    KERNEL(attention_bfloat16_over_codes, AttentionCall)

#define QUIRE_KERNELS(KERNEL)      \
    QUIRE_FLOAT_KERNELS(KERNEL)    \
    QUIRE_BFLOAT16_KERNELS(KERNEL) \
    QUIRE_BYTES_KERNELS(KERNEL)

// Of avx512_bf16, whose attention over codes is that of VNNI.
#define QUIRE_BFLOAT16_AND_QUANTIZED_KERNELS(KERNEL) \
    QUIRE_BFLOAT16_KERNELS(KERNEL)                   \
    QUIRE_QUANTIZED_KERNELS(KERNEL)

// What tiles change (tiles.h).
#define QUIRE_TILE_KERNELS(KERNEL) \
    KERNEL(dense_linear, DenseCall)                        \
    KERNEL(dense_gated, DenseGatedCall)                    \
    KERNEL(dense_most_likely, DenseMostLikelyCall)         \
    KERNEL(attention_bfloat16, AttentionCall)              \
    KERNEL(attention_bfloat16_over_codes, AttentionCall)   \
    KERNEL(quantized_linear, QuantizedCall)                \
    KERNEL(quantized_gated, QuantizedGatedCall)            \
    KERNEL(quantized_most_likely, QuantizedMostLikelyCall)

// Instruction sets, each with the kernels that are compiled for it, and the set that it has the others from.
#if defined(__x86_64__)
#define QUIRE_X86_SETS(SET)                                            \
    SET(avx2, QUIRE_KERNELS, no_set)                                   \
    SET(avx_vnni, QUIRE_BYTES_KERNELS, avx2)                           \
    SET(avx512, QUIRE_KERNELS, no_set)                                 \
    SET(avx512_vnni, QUIRE_BYTES_KERNELS, avx512)                      \
    SET(avx512_bf16, QUIRE_BFLOAT16_AND_QUANTIZED_KERNELS, avx512_vnni) \
    SET(amx, QUIRE_TILE_KERNELS, avx512_bf16)
#else
#define QUIRE_X86_SETS(SET)
#endif
#if defined(__aarch64__) && defined(__linux__)
#define QUIRE_ARM_SETS(SET) SET(dotprod, QUIRE_QUANTIZED_KERNELS, portable)
#else
#define QUIRE_ARM_SETS(SET)  // all of Apple's processors have it: there it is part of what portable code is compiled for
#endif
// For tests alone, where CMake's QUIRE_EMULATE names them.
#if defined(QUIRE_EMULATE_TILES)
#define QUIRE_EMULATED_TILES(SET) SET(emulated_tiles, QUIRE_TILE_KERNELS, portable)
#else
#define QUIRE_EMULATED_TILES(SET)
#endif
#if defined(QUIRE_EMULATE_AMX)
#define QUIRE_EMULATED_AMX(SET) SET(emulated_amx, QUIRE_TILE_KERNELS, avx512_bf16)
#else
#define QUIRE_EMULATED_AMX(SET)
#endif
#if defined(QUIRE_EMULATE_AVX_VNNI)
#define QUIRE_EMULATED_AVX_VNNI(SET) SET(emulated_avx_vnni, QUIRE_BYTES_KERNELS, avx2)
#else
#define QUIRE_EMULATED_AVX_VNNI(SET)
#endif
#define QUIRE_SETS(SET)                  \
    SET(portable, QUIRE_KERNELS, no_set) \
    QUIRE_X86_SETS(SET)                  \
    QUIRE_ARM_SETS(SET)                  \
    QUIRE_EMULATED_TILES(SET)            \
    QUIRE_EMULATED_AMX(SET)              \
    QUIRE_EMULATED_AVX_VNNI(SET)

namespace quire::no_set {}
// `set::kernel` is what the set has, be it compiled for it or for another one.
#define QUIRE_DECLARE(kernel, Call) void kernel(const Call&, const Team&);
#define QUIRE_DECLARE_SET(set, KERNELS, others) \
    namespace quire::set {                      \
    using namespace others;                     \
    KERNELS(QUIRE_DECLARE)                      \
    }
QUIRE_SETS(QUIRE_DECLARE_SET)
#undef QUIRE_DECLARE_SET
#undef QUIRE_DECLARE
