#include "core/f32_range.h"
#include "core/interrupt.h"
#include "ops/norm/norm_row.h"
#include "ops/ops.h"

#include <vector>

namespace smla {

template <>
std::span<const StageField> fields_of<smla_norm_args>() {
    using namespace fields;
    using Args = smla_norm_args;
    static constexpr StageField table[] = {
        in(SMLA_FIELD(x), kFloats, "T G D"),
        in(SMLA_FIELD(weight), kFloats, "D").optional(),
        in(SMLA_FIELD(bias), kFloats, "D").optional(),
        out(SMLA_FIELD(out), kFloats, "T G D").or_in_place_of(offsetof(Args, x)),
    };
    return table;
}

void NormOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.kind == SMLA_NORM_RMS || args.kind == SMLA_NORM_LAYER, "args.kind", args.kind,
               "rms (0) or layer (1)");
    SMLA_CHECK(is_positive_f32(args.eps), "args.eps", args.eps,
               "a number that is finite and positive in f32");
    check_fields(args, context);
    SMLA_CHECK(!present(args.bias) || args.kind == SMLA_NORM_LAYER, "args.bias", "present",
               "absent for kind rms");
}

namespace {

template <class Real>
void norm_tokens(const smla_norm_args& args, int64_t begin, int64_t end) {
    const int64_t width = args.x.shape[2];
    std::vector<Real> row(static_cast<size_t>(width));
    const std::vector<Real> weight = values_of<Real>(args.weight), bias = values_of<Real>(args.bias);
    for (int64_t t = begin; t < end; ++t) {
        stop_point();
        for (int64_t g = 0; g < args.x.shape[1]; ++g) {
            load_row(args.x, address(args.x, t, g), width, row.data());
            norm_row<Real>(row, args.kind == SMLA_NORM_LAYER, args.eps, weight, bias);
            store_row(args.out, address(args.out, t, g), width, row.data());
        }
    }
}

}  // namespace

void NormOp::reference(const Args& args, int64_t begin, int64_t end) {
    if (args.out.dtype == SMLA_F64) norm_tokens<double>(args, begin, end);
    else norm_tokens<float>(args, begin, end);
}

}  // namespace smla
