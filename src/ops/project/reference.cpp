#include "ops/project/project.h"

#include <algorithm>
#include <vector>

namespace smla {

void ProjectOp::check(const Args& args) {
    SMLA_CHECK(args.reserved == 0, "args.reserved", args.reserved, "0");
    check_tensor("args.x", args.x, kFloats, {kAny, kAny, kAny});
    check_rows("args.x", args.x);
    const int64_t tokens = args.x.shape[0], groups = args.x.shape[1], inner = args.x.shape[2];
    check_tensor("args.w", args.w, kFloats, {groups, kAny, inner});
    SMLA_CHECK(
        args.w.stride_elems[1] == 1 || args.w.stride_elems[2] == 1 || inner <= 1 || args.w.shape[1] <= 1,
        "args.w.stride_elems", text(args.w.stride_elems[1], ", ", args.w.stride_elems[2]),
        "1 in one of the last two dimensions");
    check_output_rows("args.out", args.out, kFloats, {tokens, groups, args.w.shape[1]});
}

namespace {

constexpr int64_t kTokens = 16;  // that share one reading of a weight row

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
