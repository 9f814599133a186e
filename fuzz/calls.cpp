#include "calls.h"

#include <cstring>

namespace smla::fuzz {

namespace {

constexpr StageRow kStages[] = {
#define SMLA_ROW(name, type)                                                                      \
    {[](smla_context* context, const void* args, smla_workspace workspace) {                      \
         return smla_##name(context, static_cast<const type*>(args), workspace, nullptr);         \
     },                                                                                           \
     [](const void* args, const Env& env) {                                                       \
         return run_stage<Stage::name>(*static_cast<const type*>(args), env);                     \
     },                                                                                           \
     [](const void* args, const Env& env, size_t budget) {                                        \
         return stage_workspace<Stage::name>(*static_cast<const type*>(args), env, budget);       \
     },                                                                                           \
     [](void* args, kit::DeviceCopies& copies) { kit::move(*static_cast<type*>(args), copies); }, \
     sizeof(type)},
    SMLA_STAGES(SMLA_ROW)
#undef SMLA_ROW
};

}  // namespace

const StageRow& row_of(Stage stage) { return kStages[size_t(stage)]; }

Placed::Placed(Stage stage, const void* args, Where where)
    : where_(where), args_(args), copies_(nullptr, where == Where::gpu) {
    if (where == Where::here) return;
    const StageRow& row = row_of(stage);
    there_.resize(ceil_div(int64_t(row.bytes), sizeof(std::max_align_t)));
    std::memcpy(there_.data(), args, row.bytes);
    row.move(there_.data(), copies_);
    copies_.send();
    args_ = there_.data();
}

Device& Placed::device() const { return where_ == Where::gpu ? kit::gpu() : host_device(); }

void Placed::fetch() const {
    if (where_ != Where::here) copies_.fetch();
}

}  // namespace smla::fuzz
