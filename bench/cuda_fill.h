// Random values made on the GPU, for problems too large to make on the host.
#pragma once

#include <smla/types.h>

namespace smla::bench {

// n values of N(0,1) times `factor` in f32, bf16, f16 or e4m3; e2m1 and e8m0 get random codes near 1.
void fill_normal(void* data, smla_dtype dtype, int64_t n, float factor, uint32_t seed);
// Keys of N(0,1) in every record of an index cache.
void fill_keys(const smla_cache& cache, uint32_t seed);
// data[i] = base + (i * step) % modulus
void fill_i32(int32_t* data, int64_t n, int32_t base, int32_t step, int32_t modulus);

}  // namespace smla::bench
