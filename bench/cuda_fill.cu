#include "cuda_fill.h"

#include "engines/cuda/common/check.h"
#include "engines/cuda/common/records.cuh"

namespace smla::bench {

namespace {

__device__ uint32_t hash(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
    return uint32_t((x ^ (x >> 32)) >> 16);
}
__device__ float normal(uint64_t i, uint32_t seed) {
    const uint64_t at = i + (uint64_t(seed) << 40);
    const float u = (float(hash(2 * at) >> 8) + 1) * 0x1p-24f, v = float(hash(2 * at + 1) >> 8) * 0x1p-24f;
    return sqrtf(-2 * logf(u)) * cospif(2 * v);
}

__global__ void normals(uint8_t* data, smla_dtype dtype, int64_t n, float factor, uint32_t seed) {
    const int64_t step = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
        const float x = normal(uint64_t(i), seed) * factor;
        switch (dtype) {
            case SMLA_F32: reinterpret_cast<float*>(data)[i] = x; break;
            case SMLA_BF16: reinterpret_cast<uint16_t*>(data)[i] = f32_to_bf16(x); break;
            case SMLA_F16: reinterpret_cast<uint16_t*>(data)[i] = f32_to_f16(x); break;
            case SMLA_E4M3: data[i] = f32_to_e4m3(x); break;
            case SMLA_E8M0: data[i] = uint8_t(125 + hash(uint64_t(i)) % 4); break;
            default: data[i] = uint8_t(hash(uint64_t(i) + seed)); break;
        }
    }
}

__global__ void keys(const __grid_constant__ cuda::DeviceCache cache, uint32_t seed) {
    __shared__ float rows[8][1024];
    float* const row = rows[threadIdx.x / 32];
    const int64_t step = int64_t(gridDim.x) * 8;
    for (int64_t r = int64_t(blockIdx.x) * 8 + threadIdx.x / 32; r < cache.capacity; r += step) {
        if (cache.hole(r)) continue;
        for (int d = int(threadIdx.x % 32); d < cache.width; d += 32)
            row[d] = normal(uint64_t(r * cache.width + d), seed);
        __syncwarp();
        cuda::encode({}, cache, r, row);
        __syncwarp();
    }
}

__global__ void integers(int32_t* data, int64_t n, int32_t base, int32_t step, int32_t modulus) {
    const int64_t stride = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride)
        data[i] = base + int32_t(i * step % modulus);
}

}  // namespace

void fill_normal(void* data, smla_dtype dtype, int64_t n, float factor, uint32_t seed) {
    normals<<<1024, 256>>>(static_cast<uint8_t*>(data), dtype, dtype == SMLA_E2M1 ? n / 2 : n, factor, seed);
    SMLA_CUDA_CALL(cudaGetLastError());
}

void fill_keys(const smla_cache& cache, uint32_t seed) {
    keys<<<1024, 256>>>(cuda::DeviceCache(cache), seed);
    SMLA_CUDA_CALL(cudaGetLastError());
}

void fill_i32(int32_t* data, int64_t n, int32_t base, int32_t step, int32_t modulus) {
    integers<<<1024, 256>>>(data, n, base, step, modulus);
    SMLA_CUDA_CALL(cudaGetLastError());
}

}  // namespace smla::bench
