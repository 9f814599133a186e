// Fills the table of one instruction set from its traits.
#pragma once

#include "engines/cpu/attend/softmax.h"

#include <utility>

namespace smla::cpu_attend {

// Converts one row of f32 to the output type; n is a multiple of Isa::lanes.
template <class Isa>
void narrow_row(const float* row, int n, smla_dtype dtype, char* out) {
    int i = 0;
    for (; i + Isa::lanes <= n; i += Isa::lanes) {
        const auto v = Isa::load(row + i);
        if (dtype == SMLA_F32) Isa::store(reinterpret_cast<float*>(out) + i, v);
        else if (dtype == SMLA_BF16) Isa::store_bf16(out + 2 * i, v);
        else Isa::store_f16(out + 2 * i, v);
    }
}

template <class Isa, int V, int N>
constexpr void set_score(Micro& micro) {
    static_assert(Isa::block.usual % N == 0 && Isa::block.last % N == 0 && Isa::block.part % N == 0);
    micro.score[V - 1] = score_keys<Isa, V, N>;
    micro.key_tile[V - 1] = N;
}

template <class Isa, int N, int Padding>
constexpr void set_score_few(Micro& micro) {
    static_assert(Isa::block.part % N == 0 && N % Padding == 0);
    micro.score_few = score_few_keys<Isa, N, Padding>;
    micro.key_tile_few = N;
    micro.key_padding_few = Padding;
}

// KeyTiles are the keys that the score kernels multiply at a time, for one vector of heads, for two, ...
template <class Isa, int... KeyTiles>
constexpr Micro micro_of(Decoder (*decoder)(smla_format, int)) {
    Micro micro{};
    micro.group_vectors = sizeof...(KeyTiles);
    [&]<int... V>(std::integer_sequence<int, V...>) { (set_score<Isa, V + 1, KeyTiles>(micro), ...); }
    (std::make_integer_sequence<int, sizeof...(KeyTiles)>());
    micro.lanes = Isa::lanes;
    micro.values_per_word = Isa::values_per_word;
    micro.value_tile = Isa::value_vectors * Isa::lanes;
    micro.row_words = Isa::row_words;
    micro.block = Isa::block;
    micro.fetch = fetch<Isa>;
    micro.softmax = softmax_block<Isa>;
    micro.values = value_tile<Isa>;
    micro.finish = finish_head<Isa>;
    micro.narrow = narrow_row<Isa>;
    micro.transpose = lanes::transpose<Isa>;
    micro.decoder = decoder;
    return micro;
}

}  // namespace smla::cpu_attend
