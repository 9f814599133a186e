// A warp's 32 keys of a tile, from the cache to registers, as the first operand of wgmma.
//
// Lane 4 g + t loads, of keys g, g + 8, g + 16 and g + 24, the 16-byte pieces t and t + 4: a quad of lanes
// reads whole sectors, and each lane multiplies what it has loaded. Which values meet in a k-step does not
// matter as long as queries are ordered alike (queries.cuh). Keys g and g + 8 are rows of the first bank, the
// others of the second.
#pragma once

#include "engines/cuda/score/sm90/config.h"

namespace smla::cuda::sm90 {

// 16 bytes that no other block is likely to find in this multiprocessor's L1; zeros if `from` is null.
__device__ inline void load_piece(uint32_t* out, uint64_t from) {
    asm volatile(
        "{.reg .pred here;\n setp.ne.u64 here, %4, 0;\n"
        "mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
        "@here ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];}"
        : "=&r"(out[0]), "=&r"(out[1]), "=&r"(out[2]), "=&r"(out[3])
        : "l"(from));
}

template <Products P>
struct KeyOperand;
template <>
struct KeyOperand<Products::e4m3> {
    static constexpr int steps = 4;
    uint32_t a[steps][4];
    // Of two rows: words 2 s and 2 s + 1 are bytes 4 t .. and 16 + 4 t .. of k-step s.
    // zero: an instruction that the compiler cannot drop. Without it products read the registers that the
    // next loads write, and it makes each product wait for the one before.
    __device__ void set(const uint32_t (&rows)[2][8], uint32_t zero) {
#pragma unroll
        for (int s = 0; s < steps; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                asm volatile("xor.b32 %0, %1, %2;"
                             : "=r"(a[s][i])
                             : "r"(rows[i % 2][2 * s + i / 2]), "r"(zero));
    }
};
template <>
struct KeyOperand<Products::f16> {
    static constexpr int steps = 8;
    uint32_t a[steps][4];
    __device__ void set(const uint32_t (&rows)[2][8], uint32_t) {
#pragma unroll
        for (int s = 0; s < steps; ++s)
#pragma unroll
            for (int i = 0; i < 2; ++i) e4m3_to_f16(rows[i][s], a[s][i], a[s][2 + i]);
    }
};

class KeyRows {
    using Layout = layout::IndexFp8_132;

public:
    __device__ KeyRows(const KeySource& keys, KeyColumns::Pages pages, Window window)
        : keys_(keys),
          pages_(pages),
          window_(window),
          own_(int(threadIdx.x / 32 * 32 + threadIdx.x % 32 / 4 + threadIdx.x % 4 * 8)) {}

    // Column of a tile whose key this lane looks up and whose logits it stores.
    __device__ int own_column(int tile) const { return tile * kKeys + own_; }
    __device__ float factor() const { return scale_; }
    __device__ bool hole() const { return hole_; }

    // Starts the look-up of the page of this lane's key. Columns outside of the window are not looked up.
    __device__ void look(int tile) {
        const int column = own_column(tile);
        page_ = -1;
        if (!window_.has(column)) return;
        const KeyColumns& place = keys_.place;
        const uint32_t block = uint32_t(column) / place.divisor;
        offset_ = uint32_t(column) - block * place.divisor;
        if (pages_.blocks) {
            if (block < pages_.count) page_ = __ldg(pages_.blocks + block * pages_.stride);
        } else if (column < place.capacity && offset_ < place.page_tokens) {
            page_ = int(block);
        }
    }
    // Starts the loads of the keys that look() found.
    __device__ void fetch() {
        next_hole_ = page_ < 0 || page_ >= keys_.place.pages;
        const char* const page = keys_.data + page_ * keys_.page_stride;
        const auto row = next_hole_ ? 0 : reinterpret_cast<uint64_t>(page + Layout::row_at(offset_));
        if (!next_hole_)
            next_scale_ = __ldg(
                reinterpret_cast<const float*>(page + Layout::scale_at(keys_.place.page_tokens, offset_)));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint64_t owner = __shfl_sync(~0u, row, (threadIdx.x & 28) + i);
            const uint64_t from = owner ? owner + threadIdx.x % 4 * 16 : 0;
            load_piece(raw_[i / 2][i % 2], from);
            load_piece(raw_[i / 2][i % 2] + 4, owner ? from + 64 : 0);
        }
    }
    // The loaded keys of a bank become an operand.
    template <Products P>
    __device__ void take(int bank, KeyOperand<P>& out, uint32_t zero) const {
        out.set(raw_[bank], zero);
    }
    // Once both banks are taken and the logits of the tile before are stored.
    __device__ void next() { hole_ = next_hole_, scale_ = next_scale_; }

private:
    const KeySource& keys_;
    KeyColumns::Pages pages_;
    Window window_;
    int own_, page_ = -1;
    uint32_t offset_ = 0;
    bool hole_ = true, next_hole_ = true;
    float scale_ = 0, next_scale_ = 0;
    uint32_t raw_[2][2][8];
};

}  // namespace smla::cuda::sm90
