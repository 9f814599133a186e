#include "core/interrupt.h"
#include "ops/ops.h"

#include <vector>

namespace smla {

template <>
std::span<const StageField> fields_of<smla_save_state_args>() {
    using namespace fields;
    using Args = smla_save_state_args;
    static constexpr StageField table[] = {
        cache(SMLA_FIELD(state), kStateFormats).written(),
        in(SMLA_FIELD(kv), kFloats, "T W"),
        in(SMLA_FIELD(score), kFloats, "T W"),
        in(SMLA_FIELD(ape), kFloat32Or64, "ratio W").optional(),
        in(SMLA_FIELD(positions), kInts, "T"),
        in(SMLA_FIELD(slots), kInts, "N"),
    };
    return table;
}

void SaveStateOp::check(const Args& args, const CheckContext& context) {
    SMLA_CHECK(args.reserved == 0, "args.reserved", args.reserved, "0");
    check_fields(args, context);
    const bool f64 = args.state.format == SMLA_STATE_F64;
    const uint32_t inputs = f64 ? kFloats : kFloats & ~dtype_bit(SMLA_F64);
    check_dtype("args.kv", args.kv, inputs);
    check_dtype("args.score", args.score, inputs);
    const int64_t tokens = args.kv.shape[0], width = args.kv.shape[1];
    if (present(args.ape)) {
        check_dtype("args.ape", args.ape, f64 ? kFloat32Or64 : dtype_bit(SMLA_F32));
        SMLA_CHECK(args.ape.shape[0] >= 1, "args.ape.shape[0]", args.ape.shape[0],
                   "1 or more (the compression ratio)");
    }
    SMLA_CHECK(args.slots.shape[0] <= tokens, "args.slots.shape[0]", args.slots.shape[0],
               text("at most ", tokens, " (the tokens of kv)"));
    SMLA_CHECK(args.state.width == 2 * width, "args.state.width", args.state.width,
               text(2 * width, " (kv and score of ", width, " channels each)"));
}

namespace {

template <class Real>
void save_tokens(const smla_save_state_args& args, int64_t begin, int64_t end) {
    const CacheView state(args.state);
    const int64_t width = args.kv.shape[1];
    std::vector<Real> row(size_t(2 * width)), ape(static_cast<size_t>(width));
    Real* const score = row.data() + width;
    for (int64_t t = begin; t < end; ++t) {
        stop_point();
        const int64_t slot = load_int(args.slots, t), position = load_int(args.positions, t);
        if (state.hole(slot) || position < 0) continue;
        load_row(args.kv, address(args.kv, t), width, row.data());
        load_row(args.score, address(args.score, t), width, score);
        if (present(args.ape)) {
            load_row(args.ape, address(args.ape, position % args.ape.shape[0]), width, ape.data());
            for (int64_t d = 0; d < width; ++d) score[d] += ape[size_t(d)];
        }
        state.encode(slot, row.data());
    }
}

}  // namespace

void SaveStateOp::reference(const Args& args, int64_t begin, int64_t end) {
    if (args.state.format == SMLA_STATE_F64) save_tokens<double>(args, begin, end);
    else save_tokens<float>(args, begin, end);
}

}  // namespace smla
