// Conversion of stored weights to the element type that stages read.
#pragma once

#include "model/safetensors.h"

namespace smla {

bool is_contiguous(const Tensor& tensor);
// Returns a contiguous copy of a host tensor of any strides.
HostTensor packed(const HostTensor& stored);

// Returns the tensor itself if it already has that dtype, else a contiguous copy: f64, f32, bf16 or f16 to
// f64, f32 or bf16.
HostTensor convert_weight(const HostTensor& stored, smla_dtype dtype);

// Returns the index of the first NaN or infinity in a contiguous f64, f32 or bf16 tensor; -1 if none.
int64_t first_not_finite(const Tensor& values);

struct BlockSize {
    int64_t rows = 128, columns = 128;
};
// Returns the rows and columns of a matrix's scale; the last block may be partial.
BlockSize scale_shape(const Tensor& codes, BlockSize block);

// Returns W[r,c] = codes[r,c] * scale[r / rows, c / columns] for e4m3 codes. The product is exact in f64;
// otherwise it is rounded to f32 (exact for powers of two) and, for bf16, again to bf16.
HostTensor dequantise(const Tensor& codes, const Tensor& scale, BlockSize block, smla_dtype dtype);

}  // namespace smla
