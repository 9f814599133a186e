// The specification of quant_index_q: plain loops, one (token, head) row at a time, in float or double.
#include "core/f32_range.h"
#include "core/hadamard.h"
#include "core/interrupt.h"
#include "formats/scale_rules.h"
#include "ops/quant_index_q/quant_index_q.h"
#include "ops/rope/rope.h"
#include "ops/rope/rotate.h"

#include <cmath>
#include <vector>

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
               "0 (the default, 1e-4) or a number that is finite and positive in f32");
    SMLA_CHECK(is_positive_f32(args.factor), "args.factor", args.factor,
               "a number that is finite and positive in f32, usually Hi^-0.5 * D^-0.5");
    check_rope_style("args.rope_style", args.rope_style);
    check_fields(args, context);
    const int64_t width = args.q.shape[2];
    check_rotation("args.rope_first", args.rope_first, args.frequencies, width);
    const bool f64 = args.q.dtype == SMLA_F64;
    SMLA_CHECK(width >= 1, "args.q.shape[2]", width, "1 or more");
    if (args.hadamard)
        SMLA_CHECK(is_power_of_two(width), "args.q.shape[2]", width,
                   "a power of two (required by the Hadamard rotation)");
    const uint32_t plain = f64 ? dtype_bit(SMLA_F64) : dtypes(SMLA_F32, SMLA_BF16);
    if (present(args.rotated) && !f64)
        check_dtype("args.rotated", args.rotated, kFloats & ~dtype_bit(SMLA_F64));
    check_dtype("args.q_out", args.q_out, plain | dtypes(SMLA_E4M3, SMLA_E2M1));
    if (args.q_out.dtype == SMLA_E2M1) {
        SMLA_CHECK(width % 32 == 0, "args.q.shape[2]", width,
                   "a multiple of 32 (each e8m0 scale applies to 32 values)");
        check_even_strides("args.q_out", args.q_out);
    }
}

void check_even_strides(const char* field, const Tensor& tensor) {
    for (int i = 0; i + 1 < tensor.ndim; ++i)
        SMLA_CHECK(tensor.stride_elems[i] % 2 == 0, text(field, ".stride_elems[", i, "]"),
                   tensor.stride_elems[i], "an even number (two e2m1 values share a byte)");
}

namespace {

template <class Real>
Real largest(const Real* row, int64_t n) {  // ignores NaN, whose code is NaN for any scale
    Real amax = 0;
    for (int64_t d = 0; d < n; ++d) amax = std::fmax(amax, std::fabs(row[d]));
    return amax;
}

template <class Real>
Real quantize_e4m3(const Real* row, int64_t width, double floor, uint8_t* codes) {
    const uint8_t code = scale_rule::e8m0(largest(row, width), Real(floor > 0 ? floor : scale_rule::kFloor));
    const Real scale = Real(e8m0_to_f32(code));
    for (int64_t d = 0; d < width; ++d) codes[d] = f32_to_e4m3(float(row[d] / scale));
    return scale;
}

template <class Real>
void quantize_e2m1(const Real* row, int64_t width, uint8_t* bytes, uint8_t* scales) {
    for (int64_t group = 0; group < width / kQueryScaleGroup; ++group) {
        const Real* in = row + group * kQueryScaleGroup;
        const uint8_t code = scale_rule::mxfp4(largest(in, kQueryScaleGroup));
        const Real scale = Real(e8m0_to_f32(code));
        uint8_t* out = bytes + group * kQueryScaleGroup / 2;
        bool nan = false;
        for (int64_t d = 0; d < kQueryScaleGroup; d += 2) {
            nan = nan || std::isnan(in[d]) || std::isnan(in[d + 1]);
            out[d / 2] =
                uint8_t(f32_to_e2m1(float(in[d] / scale)) | f32_to_e2m1(float(in[d + 1] / scale)) << 4);
        }
        scales[group] = nan ? 255 : code;  // e2m1 has no NaN, so the scale encodes it
    }
}

template <class Real>
void quantize_tokens(const smla_quant_index_q_args& args, int64_t begin, int64_t end) {
    const int64_t heads = args.q.shape[1], width = args.q.shape[2];
    std::vector<Real> row(static_cast<size_t>(width));
    Rotation<Real> rotation;
    for (int64_t t = begin; t < end; ++t) {
        stop_point();
        if (present(args.positions))
            rotation.set(static_cast<const double*>(args.frequencies.data), args.frequencies.shape[0],
                         load_int(args.positions, t), false);
        for (int64_t h = 0; h < heads; ++h) {
            load_row(args.q, address(args.q, t, h), width, row.data());
            if (args.rope_style == SMLA_ROPE_HALF) rotation.half(row.data() + args.rope_first);
            else rotation.interleaved(row.data() + args.rope_first);
            if (present(args.rotated))
                store_row(args.rotated, address(args.rotated, t, h), width, row.data());
            if (args.hadamard) hadamard(row.data(), width);
            char* out = address(args.q_out, t, h);
            Real scale = 1;
            if (args.q_out.dtype == SMLA_E4M3)
                scale = quantize_e4m3(row.data(), width, args.amax_floor, reinterpret_cast<uint8_t*>(out));
            else if (args.q_out.dtype == SMLA_E2M1)
                quantize_e2m1(row.data(), width, reinterpret_cast<uint8_t*>(out),
                              reinterpret_cast<uint8_t*>(address(args.scales, t, h)));
            else store_row(args.q_out, out, width, row.data());
            const Real w = load_one<Real>(args.w, t, h) * Real(args.factor) * scale;
            store_row(args.w_out, address(args.w_out, t, h), 1, &w);
        }
    }
}

}  // namespace

void QuantIndexQOp::reference(const Args& args, int64_t begin, int64_t end) {
    if (args.q.dtype == SMLA_F64) quantize_tokens<double>(args, begin, end);
    else quantize_tokens<float>(args, begin, end);
}

}  // namespace smla
