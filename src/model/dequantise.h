// Stored weights into the element type that stages read.
#pragma once

#include "model/safetensors.h"

namespace smla {

bool is_contiguous(const Tensor& tensor);
// A contiguous copy of a host tensor of any strides.
HostTensor packed(const HostTensor& stored);

// The tensor itself if it has that dtype already, else a contiguous copy: f64, f32, bf16 or f16 to f64, f32
// or bf16.
HostTensor convert_weight(const HostTensor& stored, smla_dtype dtype);

// Index of the first element of a contiguous f64, f32 or bf16 tensor that is NaN or infinite; -1 if none is.
int64_t first_not_finite(const Tensor& values);

struct BlockSize {
    int64_t rows = 128, columns = 128;
};
// Rows and columns of the scale of a matrix; the last block may be partial.
BlockSize scale_shape(const Tensor& codes, BlockSize block);

// W[r,c] = codes[r,c] * scale[r / rows, c / columns] for e4m3 codes. The product is rounded to f32 (exact for
// scales that are powers of two) and then to bf16 if that is wanted; in f64 it is exact.
HostTensor dequantise(const Tensor& codes, const Tensor& scale, BlockSize block, smla_dtype dtype);

}  // namespace smla
