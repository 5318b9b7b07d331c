// What is done to each token, in the Python module.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>

#include "bindings/submit.h"
#include "row_ops.h"

namespace nb = nanobind;
using namespace quire;

namespace {

void rms_norm(Program* program, const std::string& isa, const Strided& x, uintptr_t weight, const Strided& y, bool adds,
              int64_t num_tokens, int64_t num_heads, int64_t width, float eps, bool bfloat16, int num_threads) {
    NormCall call{vectors(x), vectors(y), at<void>(weight), nullptr, num_tokens, num_heads, width, eps, bfloat16, adds};
    submit(program, threads_for(num_tokens * num_heads * width, num_threads), instruction_set(isa).rms_norm, call, num_tokens);
}

void layer_norm(Program* program, const std::string& isa, const Strided& x, uintptr_t weight, uintptr_t bias, const Strided& y,
                int64_t num_tokens, int64_t num_heads, int64_t width, float eps, bool bfloat16, int num_threads) {
    NormCall call{vectors(x), vectors(y), at<void>(weight), at<void>(bias), num_tokens, num_heads, width, eps, bfloat16};
    submit(program, threads_for(num_tokens * num_heads * width, num_threads), instruction_set(isa).layer_norm, call, num_tokens);
}

void activate(Program* program, const std::string& isa, const Strided& x, const Strided& y, int64_t num_tokens, int64_t width,
              Activation activation, bool bfloat16, int num_threads) {
    ActivateCall call{vectors(x), vectors(y), num_tokens, width, activation, bfloat16};
    submit(program, threads_for(4 * num_tokens * width, num_threads), instruction_set(isa).activate, call, num_tokens);
}

void rope(Program* program, const std::string& isa, const Strided& x, uintptr_t cos, uintptr_t sin, int64_t num_tokens,
          int64_t num_heads, int64_t half, bool bfloat16, int num_threads) {
    RopeCall call{vectors(x), at<void>(cos), at<void>(sin), num_tokens, num_heads, half, bfloat16};
    submit(program, threads_for(num_tokens * num_heads * 2 * half, num_threads), instruction_set(isa).rope, call, num_tokens);
}

void gated(Program* program, const std::string& isa, const Strided& gate, const Strided& up, const Strided& y,
           int64_t num_tokens, int64_t width, Activation activation, bool bfloat16, int num_threads) {
    GateCall call{vectors(gate), vectors(up), vectors(y), num_tokens, width, activation, bfloat16};
    submit(program, threads_for(4 * num_tokens * width, num_threads), instruction_set(isa).gated, call, num_tokens);
}

void add(Program* program, const std::string& isa, const Strided& x, const Strided& z, const Strided& y,
         int64_t num_tokens, int64_t width, bool bfloat16, int num_threads) {
    AddCall call{vectors(x), vectors(z), vectors(y), num_tokens, width, bfloat16};
    submit(program, threads_for(num_tokens * width, num_threads), instruction_set(isa).add, call, num_tokens);
}

void gather(Program* program, const std::string& isa, uintptr_t table, int64_t stride, uintptr_t indices, uintptr_t y, int64_t num_tokens,
            int64_t width, bool bfloat16, int num_threads) {
    GatherCall call{at<void>(table), stride, at<int64_t>(indices), at<void>(y), num_tokens, width, bfloat16};
    submit(program, threads_for(num_tokens * width, num_threads), instruction_set(isa).gather, call);
}

void scale(Program* program, const std::string& isa, const Strided& x, const Strided& y, int64_t num_tokens, int64_t width,
           float factor, bool bfloat16, int num_threads) {
    ScaleCall call{vectors(x), vectors(y), num_tokens, width, factor, bfloat16};
    submit(program, threads_for(num_tokens * width, num_threads), instruction_set(isa).scale, call, num_tokens);
}

void softcap(Program* program, const std::string& isa, const Strided& x, const Strided& y, int64_t num_tokens, int64_t width,
             float cap, bool bfloat16, int num_threads) {
    ScaleCall call{vectors(x), vectors(y), num_tokens, width, cap, bfloat16};
    submit(program, threads_for(4 * num_tokens * width, num_threads), instruction_set(isa).softcap, call, num_tokens);
}

}  // namespace

void bind_row_ops(nb::module_& module) {
    nb::enum_<Activation>(module, "Activation")
        .value("silu", Activation::silu)
        .value("gelu", Activation::gelu)
        .value("gelu_tanh", Activation::gelu_tanh)
        .value("relu", Activation::relu);
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
    module.def("add", &add, nb::arg("program").none(), nb::arg("isa"), nb::arg("x"), nb::arg("z"), nb::arg("y"),
               nb::arg("num_tokens"), nb::arg("width"), nb::arg("bfloat16"), nb::arg("num_threads"));
    module.def("gather", &gather, nb::arg("program").none(), nb::arg("isa"), nb::arg("table"), nb::arg("stride"), nb::arg("indices"),
               nb::arg("y"), nb::arg("num_tokens"), nb::arg("width"), nb::arg("bfloat16"), nb::arg("num_threads"));
    module.def("scale", &scale, nb::arg("program").none(), nb::arg("isa"), nb::arg("x"), nb::arg("y"),
               nb::arg("num_tokens"), nb::arg("width"), nb::arg("factor"), nb::arg("bfloat16"), nb::arg("num_threads"));
    module.def("softcap", &softcap, nb::arg("program").none(), nb::kw_only(), nb::arg("isa"), nb::arg("x"), nb::arg("y"),
               nb::arg("num_tokens"), nb::arg("width"), nb::arg("cap"), nb::arg("bfloat16"), nb::arg("num_threads"));
}
