// Decodes cached rows into words of bf16: row-major for the scores, two keys interleaved for the values.
#pragma once

#include "engines/cpu/attend/products.h"
#include "engines/cpu/lanes_avx512_bf16.h"
#include "formats/layouts.h"

#include <type_traits>

namespace smla::cpu_attend {

namespace {

using namespace lanes;

// Traits of the vector kernel, which the kernel on tiles extends.
struct Avx512Bf16 : AttendLanes<lanes::Avx512Bf16, 4, 6> {
    static constexpr int value_words = block.last / 2 * value_vectors * lanes;
    static constexpr bool pads_values = false;
    static SMLA_INLINE void keep_awake() {}  // keeps the multiplication unit active during decoding
    // Unpacked pairs have dims 0-3, 8-11, 16-19, 24-27 in one vector and 4-7, 12-15, 20-23, 28-31 in the
    // next.
    static SMLA_INLINE void store_ordered(float* at, const Vec* v) {
        const __m512d low = _mm512_castps_pd(v[0]), high = _mm512_castps_pd(v[1]);
        const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
        const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
        store(at, _mm512_castpd_ps(_mm512_permutex2var_pd(low, first, high)));
        store(at + 16, _mm512_castpd_ps(_mm512_permutex2var_pd(low, second, high)));
    }
};

SMLA_INLINE Words plain(const char* at) { return {_mm512_loadu_si512(at), _mm512_loadu_si512(at + 64)}; }

SMLA_INLINE __m512i scaled(__m512i words, __m512 scale) {
    const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(int(0xffff0000u))));
    return pair_words(_mm512_mul_ps(even, scale), _mm512_mul_ps(odd, scale));
}
SMLA_INLINE Words scaled(Words words, float scale) {
    const __m512 factor = _mm512_set1_ps(scale);
    return {scaled(words.first, factor), scaled(words.second, factor)};
}

// e4m3 values are 2^-9 to 2^8 in magnitude, so their products with 2^(e - 127) are normal numbers if e is in
// these bounds.
constexpr uint32_t kLowestExponent = 10, kHighestExponent = 246;

// Multiplies by 2^(exponent - 127): adds to the exponent field, except for zeros and NaN.
SMLA_INLINE Words times_e8m0(Words words, __mmask64 numbers, uint8_t exponent) {
    if (exponent >= kLowestExponent && exponent <= kHighestExponent) {
        const __m512i delta = _mm512_set1_epi16(short((int(exponent) - 127) * 128));
        return {_mm512_mask_add_epi16(words.first, __mmask32(numbers), words.first, delta),
                _mm512_mask_add_epi16(words.second, __mmask32(numbers >> 32), words.second, delta)};
    }
    return scaled(words, e8m0(exponent));
}
// Returns which of 64 codes are neither zero (0x00, 0x80) nor NaN (0x7f, 0xff).
SMLA_INLINE __mmask64 number_codes(const char* at) {
    const __m512i codes = _mm512_loadu_si512(at), twice = _mm512_add_epi8(codes, codes);
    return _mm512_cmplt_epu8_mask(_mm512_sub_epi8(twice, _mm512_set1_epi8(2)), _mm512_set1_epi8(char(252)));
}

SMLA_INLINE bool adds_exactly(float scale) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, scale);
    return (bits & 0x7fffffu) == 0 && (bits >> 23) - kLowestExponent <= kHighestExponent - kLowestExponent;
}

SMLA_INLINE Words codes_times_e8m0(const E4m3Table& table, const char* at, uint8_t exponent) {
    const __m512i codes = _mm512_loadu_si512(at);
    if (exponent >= kLowestExponent && exponent <= kHighestExponent && normal_e4m3(codes))
        return normal_e4m3_words(at, exponent);
    return times_e8m0(table.decode(codes), number_codes(at), exponent);
}

template <Scaling S>
SMLA_INLINE Words scaled_codes(const E4m3Table& table, const char* at, float scale) {
    if (S == Scaling::exponent)
        return codes_times_e8m0(table, at, uint8_t(__builtin_bit_cast(uint32_t, scale) >> 23));
    const Words words = table.decode(_mm512_loadu_si512(at));
    return S == Scaling::product ? words : scaled(words, scale);
}

// Readers return 64 values of a row at a time, and the row's scales.
template <class Layout>
struct LatentReader {
    static constexpr int chunks = Layout::width / 64, tiles = Layout::tiles;
    static SMLA_INLINE float scale(const KeyAddress& key, const DecodeArgs&, int tile) {
        return f32_at(key.row + Layout::scales_at + 4 * tile);
    }
    template <Scaling S>
    static SMLA_INLINE Words chunk(const E4m3Table& table, const KeyAddress& key, const DecodeArgs& args,
                                   int c) {
        if (c * 64 >= Layout::codes) return plain(key.row + Layout::rope_at + 2 * (c * 64 - Layout::codes));
        return scaled_codes<S>(table, key.row + c * 64, scale(key, args, c * 64 / Layout::tile));
    }
};
template <class Layout>
struct PerTensorReader {
    static constexpr int chunks = Layout::width / 64, tiles = 1;
    static SMLA_INLINE float scale(const KeyAddress&, const DecodeArgs& args, int) { return args.scale; }
    template <Scaling S>
    static SMLA_INLINE Words chunk(const E4m3Table& table, const KeyAddress& key, const DecodeArgs& args,
                                   int c) {
        return scaled_codes<S>(table, key.row + c * 64, args.scale);
    }
};
struct PagePackedReader {
    using Layout = layout::Fp8_584;
    static constexpr int chunks = Layout::width / 64, tiles = 0;
    static_assert(Layout::tile == 64);
    static SMLA_INLINE float scale(const KeyAddress&, const DecodeArgs&, int) { return 1.f; }
    template <Scaling>
    static SMLA_INLINE Words chunk(const E4m3Table& table, const KeyAddress& key, const DecodeArgs&, int c) {
        if (c * 64 >= Layout::codes) return plain(key.row + Layout::rope_at + 2 * (c * 64 - Layout::codes));
        return codes_times_e8m0(table, key.row + c * 64, uint8_t(key.scales[c]));
    }
};
// Width 0 means any multiple of 64 up to kWidest.
template <int Width>
struct PlainReader {
    static constexpr int chunks = (Width ? Width : kWidest) / 64, tiles = 0;
    static SMLA_INLINE float scale(const KeyAddress&, const DecodeArgs&, int) { return 1.f; }
    template <Scaling>
    static SMLA_INLINE Words chunk(const E4m3Table&, const KeyAddress& key, const DecodeArgs&, int c) {
        return plain(key.row + c * 128);
    }
};

// Stores value words of 64 dims of two keys in the order of the unpacks, which store_ordered() undoes at the
// end. The last 32 dims go to `second`.
SMLA_INLINE void store_pairs(uint32_t* at, uint32_t* second, Words even, Words odd) {
    _mm512_storeu_si512(at, _mm512_unpacklo_epi16(even.first, odd.first));
    _mm512_storeu_si512(at + 16, _mm512_unpackhi_epi16(even.first, odd.first));
    _mm512_storeu_si512(second, _mm512_unpacklo_epi16(even.second, odd.second));
    _mm512_storeu_si512(second + 16, _mm512_unpackhi_epi16(even.second, odd.second));
}
// Stores chunk `c` of the pair of keys whose words start at `pairs` in each tile of values.
template <class Isa>
SMLA_INLINE void store_chunk(uint32_t* pairs, int c, Words even, Words odd) {
    constexpr int kWords = Isa::value_vectors * Isa::lanes, kTile = Isa::value_words;
    static_assert(kWords == 64 || kWords == 32);
    if constexpr (kWords == 64) {
        store_pairs(pairs + c * kTile, pairs + c * kTile + 32, even, odd);
    } else {
        store_pairs(pairs + 2 * c * kTile, pairs + (2 * c + 1) * kTile, even, odd);
    }
}

template <class Reader>
SMLA_INLINE bool powers_of_two(const DecodeArgs& args, int key) {
    bool all = true;
    for (int t = 0; t < Reader::tiles; ++t) all &= adds_exactly(Reader::scale(args.keys[key], args, t));
    return all;
}

// Isa defines the keys of a block, and whether its products read the values of padded keys.
template <class Isa, class Reader, Scaling S>
bool decode_rows(const DecodeArgs& args) {
    constexpr int kAhead = 4;                                   // keys whose lines are fetched ahead
    constexpr int kPairStep = Isa::value_vectors * Isa::lanes;  // words of a pair in a value tile
    static_assert(Reader::tiles <= kMaxTiles);
    constexpr int kTiles = S == Scaling::product ? Reader::tiles : 0, kLast = Isa::block.last;
    const int width = std::is_same_v<Reader, PlainReader<0>> ? args.width : Reader::chunks * 64;
    const E4m3Table table;
    const Words zeros{_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int k = 0; k < args.count; k += 2) {
        for (int i = k + kAhead; i < k + kAhead + 2 && i < args.count; ++i)
            for (int line = 0; line < args.row_lines; ++line)
                __builtin_prefetch(args.keys[i].row + 64 * line);
        fetch<Isa>(*args.prefetch, args.prefetch->per_pair);
        Isa::keep_awake();
        const bool odd = k + 1 < args.count;
        if (S == Scaling::exponent &&
            !(powers_of_two<Reader>(args, k) && (!odd || powers_of_two<Reader>(args, k + 1))))
            return false;
        uint32_t* rows = args.keys_out + k * args.row_words;
        uint32_t* pairs = args.values_out + k / 2 * kPairStep;
        SMLA_UNROLL
        for (int c = 0; c < Reader::chunks; ++c) {
            if (c * 64 >= width) break;
            const Words a = Reader::template chunk<S>(table, args.keys[k], args, c);
            const Words b = odd ? Reader::template chunk<S>(table, args.keys[k + 1], args, c) : zeros;
            store_words(rows + c * 32, a);
            store_words(rows + args.row_words + c * 32, b);
            if (c * 64 < args.value_tiles * kPairStep) store_chunk<Isa>(pairs, c, a, b);
        }
        for (int t = 0; t < kTiles; ++t) {
            args.tile_scales[t * kLast + k] = Reader::scale(args.keys[k], args, t);
            args.tile_scales[t * kLast + k + 1] = odd ? Reader::scale(args.keys[k + 1], args, t) : 0.f;
        }
    }
    for (int k = args.count + (args.count & 1); k < args.padded; ++k) {
        for (int c = 0; c * 64 < width; ++c) store_words(args.keys_out + k * args.row_words + c * 32, zeros);
        if (Isa::pads_values && k % 2 == 0)
            for (int c = 0; c * 64 < args.value_tiles * kPairStep; ++c)
                store_chunk<Isa>(args.values_out + k / 2 * kPairStep, c, zeros, zeros);
        for (int t = 0; t < kTiles; ++t) args.tile_scales[t * kLast + k] = 0.f;
    }
    return true;
}

template <class Isa, class Reader>
bool decode_scaled(const DecodeArgs& args) {
    switch (args.scaling) {
        case Scaling::exponent: return decode_rows<Isa, Reader, Scaling::exponent>(args);
        case Scaling::product: return decode_rows<Isa, Reader, Scaling::product>(args);
        default: return decode_rows<Isa, Reader, Scaling::words>(args);
    }
}

template <class Isa, class Reader>
constexpr Decoder plain_decoder() {
    return {decode_rows<Isa, Reader, Scaling::words>, false};
}
template <class Isa, class Reader>
constexpr Decoder scaled_decoder() {
    return {decode_scaled<Isa, Reader>, true};
}

template <class Isa>
Decoder bf16_decoder(smla_format format, int width) {
    switch (format) {
        case SMLA_ROW_BF16:
            return width == 576   ? plain_decoder<Isa, PlainReader<576>>()
                   : width == 512 ? plain_decoder<Isa, PlainReader<512>>()
                                  : plain_decoder<Isa, PlainReader<0>>();
        case SMLA_FP8_656: return scaled_decoder<Isa, LatentReader<layout::Fp8_656>>();
        case SMLA_FP8_528: return scaled_decoder<Isa, LatentReader<layout::Fp8_528>>();
        case SMLA_FP8_576: return scaled_decoder<Isa, PerTensorReader<layout::Fp8_576>>();
        case SMLA_FP8_512: return scaled_decoder<Isa, PerTensorReader<layout::Fp8_512>>();
        case SMLA_FP8_584: return plain_decoder<Isa, PagePackedReader>();
        default: return {};
    }
}

}  // namespace

}  // namespace smla::cpu_attend
