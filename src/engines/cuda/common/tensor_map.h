// Tensor maps of sm_90 and later, with which a bulk copy loads a swizzled box of a tensor.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace smla::cuda {

// Bytes [depth][rows][128] in global memory, copied in boxes of [box_depth][box_rows][128], each row swizzled
// by 128 bytes (ptx/wgmma.cuh). Bytes outside of the tensor are copied as zeros. `data` and the strides are
// multiples of 16.
struct ByteTensor {
    const void* data;
    int64_t rows, depth;
    int64_t row_stride_bytes, depth_stride_bytes;
    int box_rows, box_depth;
};
CUtensorMap make_tensor_map(const ByteTensor& tensor);

}  // namespace smla::cuda
