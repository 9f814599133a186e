#include "core/interrupt.h"
#include "ops/ops.h"

#include <algorithm>
#include <vector>

namespace smla {

template <>
std::span<const StageField> fields_of<smla_project_args>() {
    using namespace fields;
    using Args = smla_project_args;
    static constexpr StageField table[] = {
        in(SMLA_FIELD(x), kFloats, "T G K").rows(),
        in(SMLA_FIELD(w), kFloats, "G N K"),
        out(SMLA_FIELD(out), kFloats, "T G N").rows(),
    };
    return table;
}

void ProjectOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.reserved == 0, "args.reserved", args.reserved, "0");
    check_fields(args, context);
    SMLA_CHECK(args.w.stride_elems[1] == 1 || args.w.stride_elems[2] == 1 || args.w.shape[2] <= 1 ||
                   args.w.shape[1] <= 1,
               "args.w.stride_elems", text(args.w.stride_elems[1], ", ", args.w.stride_elems[2]),
               "1 for one of the last two dimensions");
}

namespace {

constexpr int64_t kTokens = 16;  // tokens that share one read of a weight row

template <class Real>
void project_tokens(const smla_project_args& args, int64_t begin, int64_t end) {
    const int64_t groups = args.w.shape[0], outer = args.w.shape[1], inner = args.w.shape[2];
    std::vector<Real> w(static_cast<size_t>(inner)), x(size_t(kTokens * inner));
    for (int64_t g = 0; g < groups; ++g) {
        for (int64_t first = begin; first < end; first += kTokens) {
            const int64_t count = std::min(kTokens, end - first);
            for (int64_t t = 0; t < count; ++t)
                load_row(args.x, address(args.x, first + t, g), inner, x.data() + t * inner);
            for (int64_t n = 0; n < outer; ++n) {
                stop_point();
                load_row(args.w, address(args.w, g, n), inner, w.data());
                for (int64_t t = 0; t < count; ++t) {
                    Real sum = 0;
                    for (int64_t k = 0; k < inner; ++k) sum += x[size_t(t * inner + k)] * w[size_t(k)];
                    store_row(args.out, address(args.out, first + t, g, n), 1, &sum);
                }
            }
        }
    }
}

}  // namespace

void ProjectOp::reference(const Args& args, int64_t begin, int64_t end) {
    if (args.out.dtype == SMLA_F64) project_tokens<double>(args, begin, end);
    else project_tokens<float>(args, begin, end);
}

}  // namespace smla
