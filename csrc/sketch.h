// A table's sketch: its rows in 4 bits, and how far a logit can be from what the sketch says. Whoever wants only the largest
// logit of each row reads the sketch, and then those few panels of the table that can hold it.
//
// The inputs of the FINE columns with the largest weights are there twice: what 4 bits leave of them has 4 bits more. Let w be an
// output's weights and e what the sketch lacks of them; x a row of activations as it is multiplied with the table, and x' with the
// sketch, where it is rounded in another way. Then by the inequality of Cauchy and Schwarz
//     |logit - estimate| <= |e| |x'| + |w| |x - x'| + roundings
// where in |e| |x'| fine columns count FINE_PART times as much in |e| and so much less in |x'|, whose largest values they often meet.
#pragma once

#include <cstdint>

namespace quire {

constexpr int64_t FINE = 32;
constexpr float FINE_PART = 16.0f;
constexpr int64_t SKETCH_GROUP = 32;

// Rows of a table become panels of its sketch (quantized.h: 4 bits, groups of SKETCH_GROUP, zero 8), 16 to each.
struct SketchRowsCall {
    const void* rows;        // [R, K]
    const int64_t* columns;  // [W]: which input each of the sketch's is; the last FINE the same as those before
    uint8_t* panels;
    float* lacks;  // [R]: |e|
    float* sizes;  // [R]: |w|
    int64_t panel_bytes, header_offset;
    int64_t num_rows, num_inputs, num_columns;
    bool bfloat16;
};

// Activations in the sketch's order, and what of them bounds the difference.
struct SketchInputsCall {
    const void* x;           // [T, K]
    const int64_t* columns;  // [W]
    float* y;                // [T, W]
    float* bounds;           // [T, 2]: |x'|, and what |w| is multiplied with
    int64_t num_tokens, x_stride, num_inputs, num_columns;
    int64_t group_size;  // of the table, for whose products activations become integers (integer_rows.h); 0 where they do not
    bool bfloat16, rotated;  // rotated, before they do (rotation.h)
};

// The panels that hold these tokens, in order, each once.
struct PanelsOfCall {
    const int64_t* token_ids;  // [T]
    int64_t* panels;           // [1 + T]: how many, and which
    int64_t num_tokens;
};

// The panels that can hold a row's largest logit, which is no less than those that are known.
struct WithinReachCall {
    const float* estimates;  // [T, V]
    const float* logits;     // [T, V], of the panels that are known
    const float* lacks;      // [V]
    const float* sizes;      // [V]
    const float* bounds;     // [T, 2]
    const int64_t* known;    // [1 + n]
    int64_t* panels;         // [1 + whole panels]
    int64_t* scratch;        // [whole panels + threads]: what each found, and how many
    int64_t num_tokens, vocab_size;
};

// The largest of each row's logits in some panels.
struct MostLikelyOfCall {
    const float* logits;    // [T, V]
    const int64_t* panels;  // [1 + n], in order
    int64_t* token_ids;     // [T], as MostLikelyCall's
    float* largest;         // [T]
    int64_t num_tokens, vocab_size;
};

}  // namespace quire
