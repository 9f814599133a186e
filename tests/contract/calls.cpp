#include "calls.h"

#include "core/tensor.h"

#include <algorithm>

namespace contract {

smla_status Call::run_with(smla_context* context, const void* args, smla_workspace workspace) const {
    const Placed placed(*this, context, args);
    const smla_status status = call(context, placed.args(), workspace);
    placed.fetch();
    return status;
}

smla_status Call::check(smla_context* context) const {
    const Placed placed(*this, context, args());
    return smla_check_stage(context, stage, placed.args());
}

size_t Call::workspace(smla_context* context, size_t budget) const {
    const Placed placed(*this, context, args());
    size_t bytes = 0;
    EXPECT_TRUE(succeeded(smla_workspace_size(context, stage, placed.args(), budget, &bytes))) << name;
    return bytes;
}

int TensorField::token_dim() const {
    const smla::Dims& dims = field->dims;
    for (int d = 0; d < dims.count; ++d)
        if (dims.each[size_t(d)].letter == 'T') return d;
    return dims.count > 0 && dims.each[0].letter == 'N' ? 0 : -1;
}

bool Call::is_in_place(const TensorField& input) const {
    for (const smla::StageField& field : smla::fields_of_stage(smla::Stage(stage)))
        if (field.is_optional && field.in_place_of == input.field->offset)
            return std::none_of(tensors.begin(), tensors.end(),
                                [&](const TensorField& other) { return other.field == &field; });
    return false;
}

bool Call::is_free(const TensorField& field, int dim) const {
    const smla::Dim& own = field.field->dims.each[size_t(dim)];
    if (own.letter == 0) return false;
    if (own.any()) return true;
    const auto is_in = [&](const smla::StageField* other) {
        const auto& dims = other->dims;
        return std::any_of(dims.each.begin(), dims.each.begin() + dims.count,
                           [&](const smla::Dim& there) { return there.letter == own.letter; });
    };
    const auto elsewhere = [&](const auto& other) {
        return other.field != field.field && is_in(other.field);
    };
    return std::none_of(tensors.begin(), tensors.end(), elsewhere) &&
           std::none_of(caches.begin(), caches.end(), elsewhere);
}

void Call::slice_tokens(int64_t begin, int64_t end) {
    for (TensorField& field : tensors)
        if (field.token_dim() >= 0 && field.tensor->ndim > 0)
            *field.tensor = smla::slice(*field.tensor, field.token_dim(),
                                        std::min(begin, field.tensor->shape[field.token_dim()]),
                                        std::min(end, field.tensor->shape[field.token_dim()]));
}

void Call::stride_tokens(int64_t first, int64_t step) {
    slice_tokens(first, tokens);
    for (TensorField& field : tensors)
        if (const int dim = field.token_dim(); dim >= 0 && field.tensor->ndim > 0) {
            field.tensor->shape[dim] = (field.tensor->shape[dim] + step - 1) / step;
            field.tensor->stride_elems[dim] *= step;
        }
}

std::vector<NamedMaker> all_calls() {
    std::vector<NamedMaker> out;
    for (const auto& list : {linear_calls(), cache_calls(), index_calls(), attend_calls()})
        out.insert(out.end(), list.begin(), list.end());
    return out;
}

void run_exactly(const Call& call, smla_context* context, size_t budget) {
    const Scratch scratch(context, call.workspace(context, budget));
    ASSERT_TRUE(succeeded(call.run(context, scratch.get()))) << call.name;
    ASSERT_TRUE(scratch.clean()) << call.name;
}

}  // namespace contract
