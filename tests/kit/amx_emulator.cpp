#include "kit/amx_emulator.h"

#if defined(__x86_64__) && defined(__linux__)

#include "core/cpu_features.h"
#include "kit/amx_multiply.h"

#include <ucontext.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>

namespace smla::kit {

namespace {

constexpr int kTiles = 8;

struct TileConfig {  // in the layout of ldtilecfg
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

struct Tile {
    alignas(64) TileRows rows;
};

struct TileState {
    TileConfig config;
    Tile tiles[kTiles];
};
thread_local TileState state;

struct sigaction previous;

[[noreturn]] void stop(const char* why) {
    for (const char* text : {"AMX emulator: ", why, "\n"})
        if (write(STDERR_FILENO, text, std::strlen(text)) < 0) break;
    std::abort();
}

void need(bool holds, const char* why) {
    if (!holds) stop(why);
}

using Registers = greg_t[NGREG];

uint64_t general_register(const Registers& registers, int number) {
    constexpr int order[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                             REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return uint64_t(registers[order[number]]);
}

// An instruction of VEX.128.0F38.W0 with a ModRM byte.
struct Instruction {
    enum Prefix : int { none, op_size, rep, repne };  // VEX.pp
    int opcode, prefix, third;                        // third: VEX.vvvv
    int reg, rm;                                      // ModRM
    bool in_memory, has_sib;
    int64_t base;    // address without the index
    int64_t stride;  // index << scale, 0 without an index
    const uint8_t* end;
    int64_t address() const { return base + stride; }
};

template <class Int>
int64_t displacement(const uint8_t*& at) {
    Int value;
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
}

void decode_address(int mod, bool index_bit, bool base_bit, const Registers& registers, Instruction& in) {
    const uint8_t*& at = in.end;
    in.base = in.stride = 0;
    int base = in.rm & 7;
    in.has_sib = base == 4;
    if (in.has_sib) {
        const int sib = *at++;
        const int index = (sib >> 3 & 7) | index_bit << 3;
        base = sib & 7;
        if (index != 4) in.stride = int64_t(general_register(registers, index) << (sib >> 6));
    }
    const bool no_base = mod == 0 && base == 5;
    if (!no_base) in.base = int64_t(general_register(registers, base | base_bit << 3));
    if (mod == 1) in.base += displacement<int8_t>(at);
    if (mod == 2 || no_base) in.base += displacement<int32_t>(at);
    if (no_base && !in.has_sib) in.base += reinterpret_cast<int64_t>(at);  // relative to the next instruction
}

bool decode(const Registers& registers, Instruction& in) {
    const auto* at = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
    if (at[0] != 0xc4 || (at[1] & 0x1f) != 2 || (at[2] & 0x84) != 0) return false;
    const bool reg_bit = !(at[1] & 0x80), index_bit = !(at[1] & 0x40), base_bit = !(at[1] & 0x20);
    in.third = ~at[2] >> 3 & 15;
    in.prefix = at[2] & 3;
    in.opcode = at[3];
    if (in.opcode != 0x49 && in.opcode != 0x4b && in.opcode != 0x5c) return false;
    const int mod = at[4] >> 6;
    in.reg = (at[4] >> 3 & 7) | reg_bit << 3;
    in.rm = (at[4] & 7) | base_bit << 3;
    in.end = at + 5;
    in.in_memory = mod != 3;
    in.has_sib = false;
    if (in.in_memory) decode_address(mod, index_bit, base_bit, registers, in);
    return true;
}

void release() { std::memset(&state, 0, sizeof state); }

void load_config(const void* from) {
    TileConfig config;
    std::memcpy(&config, from, sizeof config);
    release();
    if (config.palette == 0) return;
    need(config.palette == 1, "ldtilecfg: the palette must be 0 or 1");
    need(config.start_row == 0, "ldtilecfg: only a start row of 0 is emulated");
    for (const uint8_t byte : config.reserved) need(byte == 0, "ldtilecfg: a reserved byte is not zero");
    for (int t = 0; t < 16; ++t) {
        const int rows = config.rows[t], bytes = config.row_bytes[t];
        need(t < kTiles || (rows == 0 && bytes == 0), "ldtilecfg: there are 8 tiles");
        need(rows <= kRows && bytes <= kRowBytes, "ldtilecfg: a tile has at most 16 rows of 64 bytes");
        need((rows == 0) == (bytes == 0), "ldtilecfg: rows without bytes, or bytes without rows");
    }
    state.config = config;
}

// Returns a configured tile; a tile without rows is an undefined operation.
Tile& tile(int number) {
    need(state.config.palette == 1, "a tile is used without a configuration");
    need(number < kTiles, "there are 8 tiles");
    need(state.config.rows[number] > 0, "a tile without rows is used");
    return state.tiles[number];
}

void load_tile(int number, const Instruction& in) {
    Tile loaded{};
    tile(number);
    for (int row = 0; row < state.config.rows[number]; ++row)
        std::memcpy(loaded.rows[row], reinterpret_cast<const char*>(in.base + row * in.stride),
                    state.config.row_bytes[number]);
    state.tiles[number] = loaded;
}

void store_tile(int number, const Instruction& in) {
    const Tile& from = tile(number);
    for (int row = 0; row < state.config.rows[number]; ++row)
        std::memcpy(reinterpret_cast<char*>(in.base + row * in.stride), from.rows[row],
                    state.config.row_bytes[number]);
}

void multiply(int sum, int a, int b) {
    const TileConfig& config = state.config;
    Tile &sums = tile(sum), &left = tile(a), &right = tile(b);
    need(sum != a && sum != b && a != b, "tdpbf16ps: one tile is named twice");
    for (const int t : {sum, a, b}) need(config.row_bytes[t] % 4 == 0, "tdpbf16ps: half a pair in a row");
    need(config.rows[sum] == config.rows[a], "tdpbf16ps: rows of the sum and of the left tile differ");
    need(config.row_bytes[sum] == config.row_bytes[b],
         "tdpbf16ps: columns of the sum and of the right tile differ");
    need(config.row_bytes[a] / 4 == config.rows[b],
         "tdpbf16ps: the left tile's pairs are not the right one's rows");
    multiply_tiles(sums.rows, left.rows, right.rows, config.rows[sum], config.rows[b], config.row_bytes[sum]);
}

bool perform(const Instruction& in) {
    using I = Instruction;
    if (in.opcode == 0x5c) {
        if (in.prefix != I::rep || in.in_memory) return false;
        multiply(in.reg, in.rm, in.third);
        return true;
    }
    if (in.third != 0) return false;
    if (in.opcode == 0x4b) {
        if (in.prefix == I::none || !in.in_memory) return false;
        need(in.has_sib, "tileloadd, tilestored: the address needs a SIB byte");
        in.prefix == I::rep ? store_tile(in.reg, in) : load_tile(in.reg, in);
        return true;
    }
    if (in.in_memory) {
        if (in.reg != 0) return false;
        if (in.prefix == I::none) load_config(reinterpret_cast<const void*>(in.address()));
        else if (in.prefix == I::op_size)
            std::memcpy(reinterpret_cast<void*>(in.address()), &state.config, sizeof state.config);
        else return false;
        return true;
    }
    if (in.prefix == I::repne && in.rm == 0) tile(in.reg) = Tile{};
    else if (in.prefix == I::none && in.reg == 0 && in.rm == 0) release();
    else return false;
    return true;
}

void on_illegal_instruction(int, siginfo_t*, void* context) {
    Registers& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    Instruction in;
    if (decode(registers, in) && perform(in)) registers[REG_RIP] = reinterpret_cast<greg_t>(in.end);
    else sigaction(SIGILL, &previous, nullptr);  // the signal occurs again and is not for this handler
}

}  // namespace

bool install_amx_emulator() {
    static const bool installed = [] {
        __builtin_cpu_init();
        if (!__builtin_cpu_supports("avx512f") || best_isa() == SMLA_ISA_AMX) return false;
        struct sigaction action {};
        action.sa_sigaction = on_illegal_instruction;
        action.sa_flags = SA_SIGINFO;
        sigemptyset(&action.sa_mask);
        return sigaction(SIGILL, &action, &previous) == 0;
    }();
    return installed;
}

const char* emulate_amx() {
    static const std::string why = []() -> std::string {
        if (best_isa() == SMLA_ISA_AMX) {
            const std::string refusal = why_no_tiles();
            if (!refusal.empty()) return refusal;
        } else if (best_isa() != SMLA_ISA_AVX512_BF16) {
            return std::string("its kernels need avx512_bf16 too, this machine has ") + isa_name(best_isa());
        } else if (!__builtin_cpu_supports("gfni")) {
            return "its kernels need GFNI too, which this machine has not";
        } else if (!install_amx_emulator()) {
            return "no handler of SIGILL could be installed";
        }
        assume_tiles();
        return "";
    }();
    return why.c_str();
}

}  // namespace smla::kit

#else

namespace smla::kit {
const char* emulate_amx() { return "AMX is emulated on Linux on x86-64"; }
bool install_amx_emulator() { return false; }
}  // namespace smla::kit

#endif
