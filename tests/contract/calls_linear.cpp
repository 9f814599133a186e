#include "calls.h"

#include <cmath>

namespace contract {

namespace {

template <smla_norm_kind Kind>
std::unique_ptr<Call> norm(int64_t tokens) {
    auto call = std::make_unique<CallOf<smla_norm_args>>("", SMLA_STAGE_NORM, smla_norm);
    auto& a = call->with;
    a.kind = Kind;
    a.eps = 1e-6;
    call->add_normal(a.x, SMLA_BF16, {tokens, 3, 40}, 8, 2);
    call->add_normal(a.weight, SMLA_F32, {40});
    if (Kind == SMLA_NORM_LAYER) call->add_normal(a.bias, SMLA_BF16, {40});
    call->add(a.out, SMLA_F16, {tokens, 3, 40}, 8, 3);
    call->choices = {{"args.kind", &a.kind, 0, 1}};
    call->positives = {{"args.eps", &a.eps}};
    return call;
}

template <smla_stage Stage, smla_rope_style Style, bool Elsewhere>
std::unique_ptr<Call> rope(int64_t tokens) {
    auto call = std::make_unique<CallOf<smla_rope_args>>(
        "", Stage, Stage == SMLA_STAGE_ROPE ? smla_rope : smla_inverse_rope);
    auto& a = call->with;
    a.style = Style;
    a.inverse = Stage == SMLA_STAGE_INVERSE_ROPE;
    a.first = 8;
    call->add_normal(a.x, SMLA_BF16, {tokens, 3, 40});
    fill_int(call->add(a.positions, Elsewhere ? SMLA_I32 : SMLA_I64, {tokens}, 0, 2),
             [](int64_t t, int64_t) { return 1000 * t + 7; });
    call->add(a.frequencies, SMLA_F64, {12});
    for (int64_t i = 0; i < 12; ++i) set(a.frequencies, i, 0, 0, std::pow(10000., -double(i) / 12));
    if (Elsewhere) call->add(a.out, SMLA_F32, {tokens, 3, 24});
    else call->memory.allow(a.x);
    call->choices = {
        {"args.style", &a.style, 0, 1}, {"args.inverse", &a.inverse, 0, 1}, {"args.first", &a.first, 0, 16}};
    return call;
}

template <smla_stage Stage, smla_dtype Weight, bool Transposed, smla_dtype X = SMLA_BF16>
std::unique_ptr<Call> project(int64_t tokens) {
    constexpr CallOf<smla_project_args>::Function functions[] = {smla_project, smla_absorb, smla_up_project,
                                                                 smla_out_project};
    const auto function = functions[Stage == SMLA_STAGE_PROJECT      ? 0
                                    : Stage == SMLA_STAGE_ABSORB     ? 1
                                    : Stage == SMLA_STAGE_UP_PROJECT ? 2
                                                                     : 3];
    auto call = std::make_unique<CallOf<smla_project_args>>("", Stage, function);
    auto& a = call->with;
    call->add_normal(a.x, X, {tokens, 2, 24});
    if (Transposed) {
        call->add_normal(a.w, Weight, {2, 24, 17});
        std::swap(a.w.shape[1], a.w.shape[2]);
        std::swap(a.w.stride_elems[1], a.w.stride_elems[2]);
    } else {
        call->add_normal(a.w, Weight, {2, 17, 24});
    }
    call->add(a.out, SMLA_F32, {tokens, 2, 17});
    call->choices = {{"args.reserved", &a.reserved, 0, 0}};
    call->through_blas = true;
    return call;
}

}  // namespace

std::vector<NamedMaker> linear_calls() {
    return {
        {"norm_rms", norm<SMLA_NORM_RMS>},
        {"norm_layer", norm<SMLA_NORM_LAYER>},
        {"rope", rope<SMLA_STAGE_ROPE, SMLA_ROPE_INTERLEAVED, false>},
        {"rope_elsewhere", rope<SMLA_STAGE_ROPE, SMLA_ROPE_HALF, true>},
        {"inverse_rope", rope<SMLA_STAGE_INVERSE_ROPE, SMLA_ROPE_INTERLEAVED, false>},
        {"project", project<SMLA_STAGE_PROJECT, SMLA_BF16, false>},
        {"project_f32", project<SMLA_STAGE_PROJECT, SMLA_BF16, false, SMLA_F32>},
        {"project_f32_by_f32", project<SMLA_STAGE_PROJECT, SMLA_F32, false, SMLA_F32>},
        {"absorb", project<SMLA_STAGE_ABSORB, SMLA_BF16, true>},
        {"up_project", project<SMLA_STAGE_UP_PROJECT, SMLA_F32, false>},
        {"out_project", project<SMLA_STAGE_OUT_PROJECT, SMLA_F16, false>},
    };
}

}  // namespace contract
