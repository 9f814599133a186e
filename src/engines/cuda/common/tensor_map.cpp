#include "engines/cuda/common/tensor_map.h"

#include "engines/cuda/common/check.h"

namespace smla::cuda {

namespace {

// The library does not link libcuda, so that it loads without a driver.
decltype(&cuTensorMapEncodeTiled) encoder() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    SMLA_CUDA_CALL(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                    cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess)
        fail(SMLA_DEVICE_ERROR, "the driver", "a driver without cuTensorMapEncodeTiled",
             "a driver for CUDA 12.0 or later");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

CUtensorMap make_tensor_map(const ByteTensor& tensor) {
    static const auto encode = encoder();
    const cuuint64_t sizes[3] = {128, cuuint64_t(tensor.rows), cuuint64_t(tensor.depth)};
    const cuuint64_t strides[2] = {cuuint64_t(tensor.row_stride_bytes),
                                   cuuint64_t(tensor.depth_stride_bytes)};
    const cuuint32_t box[3] = {128, cuuint32_t(tensor.box_rows), cuuint32_t(tensor.box_depth)};
    const cuuint32_t steps[3] = {1, 1, 1};
    CUtensorMap map;
    const CUresult result =
        encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<void*>(tensor.data), sizes, strides, box,
               steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        fail(SMLA_DEVICE_ERROR, "cuTensorMapEncodeTiled", text("error ", int(result)), "success");
    return map;
}

}  // namespace smla::cuda
