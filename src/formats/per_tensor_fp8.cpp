// fp8_576 and fp8_512: values above 448 * scale saturate.
#include "formats/codec.h"

namespace smla {

namespace {

template <class Of>
struct PerTensorFp8 {
    using Layout = Of;
    static constexpr Packing packing = Packing::row;
    static constexpr ScaleKind scale = ScaleKind::per_tensor;
    static constexpr uint32_t alignment = 1;

    template <class Real>
    static void encode(const RecordAt& at, const Real* values) {
        fp8::encode(values, Layout::width, at.scale, fp8::bytes(at.row()));
    }
    template <class Real>
    static void decode(const RecordAt& at, Real* values) {
        fp8::decode(fp8::bytes(at.row()), Layout::width, at.scale, values);
    }
};

}  // namespace

// fp8_576 (V3.2, as TRTLLM-gen kernels read it): 512 latent values and 64 rope values.
constexpr Format kFp8_576 = format_of<PerTensorFp8<layout::Fp8_576>>(SMLA_FP8_576, "fp8_576");

// fp8_512 (contiguous caches of V4): 448 values and 64 rope values.
constexpr Format kFp8_512 = format_of<PerTensorFp8<layout::Fp8_512>>(SMLA_FP8_512, "fp8_512");

}  // namespace smla
