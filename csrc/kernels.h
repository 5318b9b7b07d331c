// Every kernel, once an instruction set. The files that define them are compiled for each (CMakeLists.txt).
#pragma once

#include "attention.h"
#include "dense.h"
#include "most_likely.h"
#include "quantized.h"
#include "row_ops.h"
#include "sampling.h"
#include "sketch.h"
#include "team.h"
#include "text_blocks.h"

#define QUIRE_KERNELS(ISA)                                      \
    namespace quire::ISA {                                      \
    void attention_float32(const AttentionCall&, const Team&);  \
    void attention_bfloat16(const AttentionCall&, const Team&); \
    void attention_float32_over_codes(const AttentionCall&, const Team&);  \
    void attention_bfloat16_over_codes(const AttentionCall&, const Team&); \
    void dense_linear(const DenseCall&, const Team&);           \
    void dense_gated(const DenseGatedCall&, const Team&);       \
    void dense_most_likely(const DenseMostLikelyCall&, const Team&); \
    void dense_rows(const DenseRowsCall&, const Team&);         \
    void pack_panels(const PackCall&, const Team&);             \
    void quantized_linear(const QuantizedCall&, const Team&);   \
    void quantized_gated(const QuantizedGatedCall&, const Team&); \
    void quantized_most_likely(const QuantizedMostLikelyCall&, const Team&); \
    void most_likely(const MostLikelyCall&, const Team&);       \
    void draw(const DrawCall&, const Team&);                    \
    void logprobs(const LogprobsCall&, const Team&);            \
    void panel_rows(const PanelRowsCall&, const Team&);         \
    void sketch_rows(const SketchRowsCall&, const Team&);       \
    void sketch_inputs(const SketchInputsCall&, const Team&);   \
    void panels_of(const PanelsOfCall&, const Team&);           \
    void within_reach(const WithinReachCall&, const Team&);     \
    void most_likely_of(const MostLikelyOfCall&, const Team&);  \
    void rms_norm(const NormCall&, const Team&);                \
    void layer_norm(const NormCall&, const Team&);              \
    void rope(const RopeCall&, const Team&);                    \
    void gated(const GateCall&, const Team&);                   \
    void activate(const ActivateCall&, const Team&);            \
    void write_kv_float32(const WriteCall&, const Team&);       \
    void write_kv_bfloat16(const WriteCall&, const Team&);      \
    void write_kv_float32_as_codes(const WriteCall&, const Team&);  \
    void write_kv_bfloat16_as_codes(const WriteCall&, const Team&); \
    void write_texts_float32(const TextBlocksCall&, const Team&); \
    void write_texts_bfloat16(const TextBlocksCall&, const Team&); \
    void add(const AddCall&, const Team&);                      \
    void gather(const GatherCall&, const Team&);                \
    void scale(const ScaleCall&, const Team&);                  \
    void softcap(const ScaleCall&, const Team&);                \
    }

// What tiles change (tiles.h): the rest is that of another set.
#define QUIRE_TILE_KERNELS(TILES)                    \
    namespace quire::TILES {                         \
    void dense_linear(const DenseCall&, const Team&); \
    void dense_gated(const DenseGatedCall&, const Team&); \
    void dense_most_likely(const DenseMostLikelyCall&, const Team&); \
    void attention_bfloat16(const AttentionCall&, const Team&); \
    void attention_bfloat16_over_codes(const AttentionCall&, const Team&); \
    void quantized_linear(const QuantizedCall&, const Team&); \
    void quantized_gated(const QuantizedGatedCall&, const Team&); \
    void quantized_most_likely(const QuantizedMostLikelyCall&, const Team&); \
    }

QUIRE_KERNELS(portable)
QUIRE_TILE_KERNELS(emulated_tiles)
#if defined(QUIRE_EMULATE_AMX)
QUIRE_TILE_KERNELS(emulated_amx)
#endif
#if defined(__x86_64__)
QUIRE_KERNELS(avx2)
QUIRE_KERNELS(avx512)
QUIRE_KERNELS(avx512_vnni)
QUIRE_KERNELS(avx512_bf16)
QUIRE_TILE_KERNELS(amx)
#endif
