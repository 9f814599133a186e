// AMX instructions on tiles of bf16, and 2 x 2 tiles of sums, for files named *_amx.cpp.
#pragma once

#include <cstdint>

namespace smla::amx {

constexpr int kTile = 16;  // rows of a tile, and words in a row

// The asm has a memory operand, because the intrinsics of g++ 12 (amxtileintrin.h) have none.
template <int T>
[[gnu::always_inline]] inline void load_tile(const void* at, int64_t stride_words) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(at), "r"(stride_words * 4) : "memory");
}
// Loads rows that are read once with tileloaddt1, which keeps the other contents of L1.
template <int T>
[[gnu::always_inline]] inline void stream_tile(const void* at, int64_t stride_words) {
    asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(at), "r"(stride_words * 4) : "memory");
}
template <int T>
[[gnu::always_inline]] inline void store_tile(void* at, int64_t stride_words) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(at), "r"(stride_words * 4) : "memory");
}
template <int T>
[[gnu::always_inline]] inline void zero_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int Sum, int A, int B>
[[gnu::always_inline]] inline void multiply_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
}

struct alignas(64) TileConfig {  // ldtilecfg configuration with whole tiles
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {kTile, kTile, kTile, kTile, kTile, kTile, kTile, kTile};
};
inline constexpr TileConfig kConfig;

// Enclose a thread's unit of work, because configuring takes 200 cycles.
inline void enter() { asm volatile("ldtilecfg %0" ::"m"(kConfig)); }
inline void leave() { asm volatile("tilerelease" ::); }

// Operand of a product that passes through L1 once; the other operand stays in L1.
enum class Stream { none, rows, columns };

// One or two tiles of an operand: rows `stride` words apart, the second tile `next` words later.
struct Operand {
    const uint32_t* at;
    int64_t stride, next;
};

// Sums of one or two rows of tiles by one or two columns. Tiles 0 to 3 are sums (rows 0 and 1 of column 0,
// then of column 1), 4 and 5 are rows, 6 and 7 columns.
template <bool TwoRows, bool TwoColumns, Stream S = Stream::none>
struct Sums {
    [[gnu::always_inline]] static inline void clear() {
        zero_tile<0>();
        if (TwoRows) zero_tile<1>();
        if (TwoColumns) zero_tile<2>();
        if (TwoRows && TwoColumns) zero_tile<3>();
    }
    [[gnu::always_inline]] static inline void store(float* at, int64_t stride) {
        store_tile<0>(at, stride);
        if (TwoRows) store_tile<1>(at + kTile * stride, stride);
        if (TwoColumns) store_tile<2>(at + kTile, stride);
        if (TwoRows && TwoColumns) store_tile<3>(at + kTile * stride + kTile, stride);
    }
    // Before each product, turn<T>() may store sum T of the previous pass and begin sum T of this one. Tiles
    // are not renamed, so sums that are stored after a pass and loaded before the next one stall its
    // products: 32 products of 512 cycles and such sums in L2 take 815 cycles, with turns 693. All operands
    // are loaded first, because if another thread shares the core, tile instructions do not overlap and loads
    // between products take 7 % longer; otherwise the order does not matter (docs/kernels/log/cpu.md).
    template <class Turn>
    [[gnu::always_inline]] static inline void add(const Operand& rows, const Operand& columns,
                                                  const Turn& turn) {
        operand<4, Stream::rows>(rows.at, rows.stride);
        operand<6, Stream::columns>(columns.at, columns.stride);
        if constexpr (TwoRows) operand<5, Stream::rows>(rows.at + rows.next, rows.stride);
        if constexpr (TwoColumns) operand<7, Stream::columns>(columns.at + columns.next, columns.stride);
        turn.template operator()<0>();
        multiply_tiles<0, 4, 6>();
        if constexpr (TwoRows) {
            turn.template operator()<1>();
            multiply_tiles<1, 5, 6>();
        }
        if constexpr (TwoColumns) {
            turn.template operator()<2>();
            multiply_tiles<2, 4, 7>();
        }
        if constexpr (TwoRows && TwoColumns) {
            turn.template operator()<3>();
            multiply_tiles<3, 5, 7>();
        }
    }
    [[gnu::always_inline]] static inline void add(const Operand& rows, const Operand& columns) {
        add(rows, columns, []<int>() __attribute__((always_inline)){});
    }

private:
    template <int T, Stream Own>
    [[gnu::always_inline]] static inline void operand(const uint32_t* at, int64_t stride) {
        if constexpr (S == Own) stream_tile<T>(at, stride);
        else load_tile<T>(at, stride);
    }
};

}  // namespace smla::amx
