#include "core/f32_range.h"
#include "core/hadamard.h"
#include "ops/quant_index_q/quant_index_q.h"
#include "ops/rope/rope.h"

namespace smla {

template <>
std::span<const StageField> fields_of<smla_quant_index_q_args>() {
    using namespace fields;
    using Args = smla_quant_index_q_args;
    static constexpr StageField table[] = {
        in(SMLA_FIELD(q), kFloats, "T Hi D").rows(),
        in(SMLA_FIELD(w), kFloats, "T Hi").as_double_as(offsetof(Args, q)),
        out(SMLA_FIELD(q_out), kFloats | dtypes(SMLA_E4M3, SMLA_E2M1), "T Hi D").rows(),
        out(SMLA_FIELD(scales), dtype_bit(SMLA_E8M0), "T Hi D/32")
            .rows()
            .exactly_if(offsetof(Args, q_out), SMLA_E2M1),
        out(SMLA_FIELD(w_out), kFloat32Or64, "T Hi")
            .as_double_as(offsetof(Args, q))
            .or_in_place_of(offsetof(Args, w)),
        in(SMLA_FIELD(positions), kInts, "T").optional(),
        in(SMLA_FIELD(frequencies), dtype_bit(SMLA_F64), "n").rows().exactly_if(offsetof(Args, positions)),
        out(SMLA_FIELD(rotated), kFloats, "T Hi D").optional(),
    };
    return table;
}

void QuantIndexQOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.hadamard == 0 || args.hadamard == 1, "args.hadamard", args.hadamard, "0 or 1");
    SMLA_CHECK(args.amax_floor == 0 || is_positive_f32(args.amax_floor), "args.amax_floor", args.amax_floor,
               "0 (the default, 1e-4) or a finite number above 0, also in f32");
    SMLA_CHECK(is_positive_f32(args.factor), "args.factor", args.factor,
               "a finite number above 0, also in f32: Hi^-0.5 * D^-0.5");
    check_rope_style("args.rope_style", args.rope_style);
    check_fields(args, context);
    const int64_t width = args.q.shape[2];
    check_rotation("args.rope_first", args.rope_first, args.frequencies, width);
    const bool f64 = args.q.dtype == SMLA_F64;
    SMLA_CHECK(width >= 1, "args.q.shape[2]", width, "1 or more");
    if (args.hadamard)
        SMLA_CHECK(is_power_of_two(width), "args.q.shape[2]", width,
                   "a power of two, for the Hadamard rotation");
    const uint32_t plain = f64 ? dtype_bit(SMLA_F64) : dtypes(SMLA_F32, SMLA_BF16);
    if (present(args.rotated) && !f64)
        check_dtype("args.rotated", args.rotated, kFloats & ~dtype_bit(SMLA_F64));
    check_dtype("args.q_out", args.q_out, plain | dtypes(SMLA_E4M3, SMLA_E2M1));
    if (args.q_out.dtype == SMLA_E2M1) {
        SMLA_CHECK(width % 32 == 0, "args.q.shape[2]", width,
                   "a multiple of 32: one e8m0 scale per 32 values");
        check_even_strides("args.q_out", args.q_out);
    }
}

void check_even_strides(const char* field, const Tensor& tensor) {
    for (int i = 0; i + 1 < tensor.ndim; ++i)
        SMLA_CHECK(tensor.stride_elems[i] % 2 == 0, text(field, ".stride_elems[", i, "]"),
                   tensor.stride_elems[i], "even: two e2m1 values share a byte");
}

}  // namespace smla
