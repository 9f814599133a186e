// attend in f32 for any processor: 4 lanes that the compiler maps to SSE2, NEON or plain code.
#include "engines/cpu/attend/table_of_micro.h"

#include "core/numbers.h"

#include <cstring>

namespace smla::cpu_attend {

namespace {

struct Scalar {
    typedef float Vec __attribute__((vector_size(16)));
    typedef int32_t Int __attribute__((vector_size(16)));
    static constexpr int lanes = 4, value_vectors = 2, value_heads = 4, values_per_word = 1,
                         order_vectors = 1, row_words = 0;
    static constexpr BlockKeys block = kVectorBlock;

    static SMLA_INLINE Vec zero() { return Vec{}; }
    static SMLA_INLINE Vec load(const float* at) {
        Vec v;
        std::memcpy(&v, at, sizeof v);
        return v;
    }
    static SMLA_INLINE void store(float* at, Vec v) { std::memcpy(at, &v, sizeof v); }
    static SMLA_INLINE Vec load_words(const uint32_t* at) { return load(reinterpret_cast<const float*>(at)); }
    static SMLA_INLINE Vec broadcast(float v) { return Vec{v, v, v, v}; }
    static SMLA_INLINE Vec broadcast_word(const uint32_t* at) {
        float value;
        std::memcpy(&value, at, sizeof value);
        return broadcast(value);
    }
    static SMLA_INLINE Vec add(Vec a, Vec b) { return a + b; }
    static SMLA_INLINE Vec sub(Vec a, Vec b) { return a - b; }
    static SMLA_INLINE Vec mul(Vec a, Vec b) { return a * b; }
    static SMLA_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
    static SMLA_INLINE Vec dot(Vec sum, Vec a, Vec b) { return a * b + sum; }
    static SMLA_INLINE Vec select(Int mask, Vec yes, Vec no) {
        return Vec((mask & Int(yes)) | (~mask & Int(no)));
    }
    static SMLA_INLINE Vec max(Vec a, Vec b) { return select(a > b, a, b); }  // b if either is NaN
    // adding 3 * 2^22 leaves no bits for a fraction; good for |v| < 2^22
    static SMLA_INLINE Vec round(Vec v) { return (v + broadcast(0x1.8p23f)) - broadcast(0x1.8p23f); }
    // v * 2^n, 0 below the smallest normal number; the integer n is in the low bits of n + 3 * 2^22
    static SMLA_INLINE Vec scale_by_power(Vec v, Vec n) {
        const Int bits = Int(n + broadcast(0x1.8p23f)) - Int(broadcast(0x1.8p23f));
        const Vec power = Vec((bits + 127) << 23);
        return select(n < broadcast(-126.f), zero(), v * power);
    }
    static SMLA_INLINE bool all_one(Vec v) {
        const Int same = v == broadcast(1.f);
        return (same[0] & same[1] & same[2] & same[3]) != 0;
    }
    static SMLA_INLINE void store_ordered(float* at, const Vec* v) { store(at, v[0]); }
    template <class Convert>
    static SMLA_INLINE void store_halves(char* at, Vec v, Convert convert) {
        uint16_t halves[lanes];
        for (int i = 0; i < lanes; ++i) halves[i] = convert(v[i]);
        std::memcpy(at, halves, sizeof halves);
    }
    static SMLA_INLINE void store_bf16(char* at, Vec v) { store_halves(at, v, f32_to_bf16); }
    static SMLA_INLINE void store_f16(char* at, Vec v) { store_halves(at, v, f32_to_f16); }
};

constexpr Micro make() {
    Micro micro = micro_of<Scalar>([](smla_format, int) { return Decoder{}; });
    micro.group_vectors = 2;
    set_score<Scalar, 1, 8>(micro);
    set_score<Scalar, 2, 4>(micro);
    return micro;
}

}  // namespace

constexpr Micro kScalarF32 = make();

}  // namespace smla::cpu_attend
