// Faults that a caller may make in a field, kept to those for which the caller's memory is still large
// enough.
#include "world.h"

#include <cmath>
#include <cstring>

namespace smla::fuzz {

void World::spoil(Tensor& tensor) {
    const int dim = int(choose.below(SMLA_MAX_NDIM));
    constexpr int64_t absurd[] = {-1, INT64_MIN, INT64_MAX, int64_t(1) << 50};
    switch (choose.below(7)) {
        case 0: {
            const smla_dtype dtype = smla_dtype(choose.below(14)) - 1;
            const bool known = dtype >= SMLA_F64 && dtype <= SMLA_I64;
            if (!known || dtype_bits(dtype) <= dtype_bits(tensor.dtype)) tensor.dtype = dtype;
            break;
        }
        case 1: tensor.ndim = int32_t(choose.below(8)) - 1; break;
        case 2:
            tensor.shape[dim] = choose.flag() ? absurd[choose.below(4)] : choose.below(tensor.shape[dim] + 1);
            break;
        case 3:
            tensor.stride_elems[dim] =
                choose.flag() ? absurd[choose.below(4)] : choose.below(tensor.stride_elems[dim] + 1);
            break;
        case 4: tensor.data = nullptr; break;
        case 5: tensor.device_type = smla_device_type(choose.below(4)) - 1; break;
        default: tensor.device_index = int32_t(choose.below(3)) - 1; break;
    }
}

void World::spoil(smla_cache& cache) {
    switch (choose.below(8)) {
        case 0:
            cache.format =
                choose.flag() ? SMLA_FORMAT_NONE : smla_format(choose.any({-1, 19, 1000, INT32_MAX}));
            break;
        case 1: cache.width = choose.any({-1, 1, INT32_MAX, INT32_MIN}); break;
        case 2: cache.page_tokens = choose.any({-1, 0, 1, INT32_MIN}); break;
        case 3: cache.pages = choose.any<int64_t>({-1, 0, 1, INT64_MIN}); break;
        case 4: cache.scale = choose.any({0.f, -1.f, float(NAN), float(INFINITY)}); break;
        case 5: cache.page_stride_bytes = choose.any<int64_t>({-1, 1, INT64_MIN}); break;
        case 6: cache.row_stride_bytes = choose.any<int64_t>({-1, 1, INT64_MIN}); break;
        default: cache.data = nullptr; break;
    }
}

// The tensors and caches are found in the arguments by their bytes, whatever the struct.
bool World::spoil(void* args, size_t bytes) {
    const size_t count = tensors_.size() + caches_.size();
    const size_t chosen = size_t(choose.below(int64_t(count)));
    const bool is_tensor = chosen < tensors_.size();
    const size_t size = is_tensor ? sizeof(Tensor) : sizeof(smla_cache);
    const void* made = is_tensor ? static_cast<const void*>(&tensors_[chosen])
                                 : static_cast<const void*>(&caches_[chosen - tensors_.size()]);
    char* at = static_cast<char*>(args);
    for (size_t offset = 0; offset + size <= bytes; offset += alignof(Tensor)) {
        if (std::memcmp(at + offset, made, size) != 0) continue;
        if (is_tensor) spoil(*reinterpret_cast<Tensor*>(at + offset));
        else spoil(*reinterpret_cast<smla_cache*>(at + offset));
        return true;
    }
    return false;
}

}  // namespace smla::fuzz
