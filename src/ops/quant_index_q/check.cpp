#include "core/hadamard.h"
#include "ops/quant_index_q/quant_index_q.h"

#include <cmath>

namespace smla {

void QuantIndexQOp::check(const Args& args) {
    SMLA_CHECK(args.hadamard == 0 || args.hadamard == 1, "args.hadamard", args.hadamard, "0 or 1");
    SMLA_CHECK(args.amax_floor >= 0 && std::isfinite(args.amax_floor), "args.amax_floor", args.amax_floor,
               "0 (the default, 1e-4) or a finite number above 0");
    SMLA_CHECK(args.factor > 0 && std::isfinite(args.factor), "args.factor", args.factor,
               "a finite number above 0: Hi^-0.5 * D^-0.5");
    check_tensor("args.q", args.q, kFloats, {kAny, kAny, kAny});
    check_rows("args.q", args.q);
    const int64_t tokens = args.q.shape[0], heads = args.q.shape[1], width = args.q.shape[2];
    const bool f64 = args.q.dtype == SMLA_F64;
    SMLA_CHECK(width >= 1, "args.q.shape[2]", width, "1 or more");
    if (args.hadamard)
        SMLA_CHECK(is_power_of_two(width), "args.q.shape[2]", width,
                   "a power of two, for the Hadamard rotation");
    check_tensor("args.w", args.w, kFloats, {tokens, heads});
    SMLA_CHECK((args.w.dtype == SMLA_F64) == f64, "args.w.dtype", dtype_name(args.w.dtype),
               text("f64 with f64, else no f64; q is ", dtype_name(args.q.dtype)));
    const uint32_t plain = f64 ? dtype_bit(SMLA_F64) : dtypes(SMLA_F32, SMLA_BF16);
    check_output_rows("args.q_out", args.q_out, plain | dtypes(SMLA_E4M3, SMLA_E2M1), {tokens, heads, width});
    if (args.q_out.dtype == SMLA_E2M1) {
        SMLA_CHECK(width % 32 == 0, "args.q.shape[2]", width,
                   "a multiple of 32: one e8m0 scale per 32 values");
        check_even_strides("args.q_out", args.q_out);
        check_output_rows("args.scales", args.scales, dtype_bit(SMLA_E8M0), {tokens, heads, width / 32});
    } else {
        SMLA_CHECK(!present(args.scales), "args.scales", "present", "absent unless q_out is e2m1");
    }
    check_output("args.w_out", args.w_out, f64 ? dtype_bit(SMLA_F64) : dtype_bit(SMLA_F32), {tokens, heads});
}

void check_even_strides(const char* field, const Tensor& tensor) {
    for (int i = 0; i + 1 < tensor.ndim; ++i)
        SMLA_CHECK(tensor.stride_elems[i] % 2 == 0, text(field, ".stride_elems[", i, "]"),
                   tensor.stride_elems[i], "even: two e2m1 values share a byte");
}

}  // namespace smla
