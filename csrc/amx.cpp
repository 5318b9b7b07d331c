#include "amx.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "crew.h"
#include "kernels.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace quire {

#if defined(__x86_64__) && defined(__linux__)

namespace {

bool has_tiles() {
    unsigned a, b, c, d;
    constexpr unsigned AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & AMX_BF16) && (d & AMX_TILE) && (d & AMX_INT8);
}

// Linux saves the tiles of a process only after it has asked for them (Documentation/arch/x86/xstate.rst).
bool ask_for_tiles() {
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

uint16_t bfloat16_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>(bits >> 16);
}

// 35 rows, 70 inputs and 40 outputs: whole tiles and parts, against plain C++.
bool multiplies_right() {
    constexpr int ROWS = 35, INPUTS = 70, OUTPUTS = 40, UNITS = INPUTS / 2;
    std::vector<uint16_t> x(ROWS * INPUTS), weights(3 * PANEL * INPUTS);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = bfloat16_of(std::sin(static_cast<float>(i)));
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = bfloat16_of(std::cos(3.0f * static_cast<float>(i)));
    auto multiply = [&](void (*dense_linear)(const DenseCall&, const Team&)) {
        std::vector<float> y(ROWS * OUTPUTS);
        std::vector<float> scratch(48 * 2 * ((UNITS + 15) / 16 * 16));
        DenseCall call{{weights.data(), INPUTS, OUTPUTS, true},
                       {x.data(), nullptr, y.data(), scratch.data(), ROWS, INPUTS, OUTPUTS, true, false, false}};
        run_on_team(1, [&](const Team& team) { dense_linear(call, team); });
        return y;
    };
    std::vector<float> found = multiply(amx::dense_linear), expected = multiply(portable::dense_linear);
    for (std::size_t i = 0; i < found.size(); ++i)
        if (!(std::fabs(found[i] - expected[i]) < 1e-3f)) return false;
    return true;
}

// The same of bytes: 96 inputs, one group of parts of tiles.
bool multiplies_bytes_right() {
    constexpr int ROWS = 35, INPUTS = 96, OUTPUTS = 40, CODES = INPUTS * PANEL, PANEL_BYTES = CODES + 64, ROW_BYTES = INPUTS + 12 + 8 * 3;
    std::vector<float> x(ROWS * INPUTS);
    std::vector<uint8_t> panels(3 * PANEL_BYTES);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i)) * (i % 89 ? 1.0f : 50.0f);
    for (int panel = 0; panel < 3; ++panel) {
        uint8_t* codes = panels.data() + panel * PANEL_BYTES;
        for (int i = 0; i < CODES; ++i) codes[i] = static_cast<uint8_t>(i * 37 + panel);
        for (int i = 0; i < PANEL; ++i) codes[CODES + 2 * i + 1] = 0x1c;  // scales of 2^-8, in float16
    }
    auto multiply = [&](void (*quantized_linear)(const QuantizedCall&, const Team&)) {
        std::vector<float> y(ROWS * OUTPUTS);
        std::vector<uint32_t> scratch(48 * ROW_BYTES / 4);
        QuantizedCall call{{panels.data(), PANEL_BYTES, CODES, INPUTS, OUTPUTS, 8, INPUTS, 1, 128, false, true},
                           {x.data(), nullptr, y.data(), scratch.data(), ROWS, INPUTS, OUTPUTS, false, false, false}};
        run_on_team(1, [&](const Team& team) { quantized_linear(call, team); });
        return y;
    };
    std::vector<float> found = multiply(amx::quantized_linear), expected = multiply(portable::quantized_linear);
    for (std::size_t i = 0; i < found.size(); ++i)
        if (!(std::fabs(found[i] - expected[i]) < 1e-3f)) return false;
    return true;
}

}  // namespace

bool has_amx() { return has_tiles() && ask_for_tiles() && multiplies_right() && multiplies_bytes_right(); }

#else

bool has_amx() { return false; }

#endif

}  // namespace quire
