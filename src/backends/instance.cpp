#include "backends/instance.h"

#include "backends/forward/forward.h"
#include "backends/gate.h"
#include "backends/metadata/metadata.h"
#include "formats/format.h"

namespace smla {

namespace {

constexpr auto kForwardPlaces = [] {
    using Args = ForwardArgs;
    return std::array{SMLA_PLACE(q),
                      SMLA_PLACE(q_pe),
                      SMLA_PLACE(k_c),
                      SMLA_PLACE(k_pe),
                      SMLA_PLACE(topk_indices),
                      SMLA_PLACE(w_uk_t),
                      SMLA_PLACE(w_uv),
                      SMLA_PLACE(sink),
                      fields::out(SMLA_FIELD(out), 0, {}),
                      fields::out(SMLA_FIELD(lse), 0, {}),
                      fields::cache(SMLA_FIELD(kv_cache), 0),
                      fields::cache(SMLA_FIELD(swa_cache), 0)};
}();

constexpr auto kFieldPlaces = [] {
    using Args = StepFields;
    return join_fields(std::array{SMLA_PLACE(row_limit)}, fields_inside(kBatchPlaces, offsetof(Args, batch)),
                       fields_inside(kGroupPlaces, offsetof(Args, kv)),
                       fields_inside(kWindowPlaces, offsetof(Args, window)),
                       fields_inside(kEntriesPlaces, offsetof(Args, entries)));
}();

// Clears tensors that the step does not read; they may have any content and impossible shapes.
void leave_out_unread(const BackendConfig& config, ForwardArgs& args) {
    if (config.kind() == LayerKind::sliding) args.kv_cache = {};
    if (config.hybrid() && !reads_selection(config.kind())) args.topk_indices = {};
    const bool writes_rope = present(args.k_c) && config.args.rope_dim;
    if (!config.hybrid() && !writes_rope) args.k_pe = {};
}

}  // namespace

std::span<const StageField> forward_places() { return kForwardPlaces; }

BackendInstance::BackendInstance(const Backend& which, const BackendConfig& given)
    : backend(&which),
      config(given),
      format(cache_format(which, given)),
      entry_format(smla::entry_format(which, given)) {
    const std::string reasons = joined(why_not(which, given), "; ");
    if (!reasons.empty()) fail(SMLA_UNSUPPORTED, which.name, reasons, "arguments that the backend supports");
    const double scale = config.args.kv_scale;
    const std::string wanted = scale == 0 ? "" : why_not_scale(*find_format(format), float(scale));
    SMLA_CHECK(wanted.empty(), "args.kv_scale", scale, wanted);
    if (config.args.page_tokens == 0) config.args.page_tokens = which.page_tokens;
    SMLA_CHECK(!config.hybrid() || !config.args.ratio || config.args.page_tokens % config.args.ratio == 0,
               "args.page_tokens", config.args.page_tokens,
               text("a multiple of the ratio (", config.args.ratio, ")"));
}

smla_cache_shape BackendInstance::cache_shape(int32_t group, int64_t pages) const {
    const bool hybrid = config.hybrid(), compressed = group == SMLA_GROUP_COMPRESSED;
    SMLA_CHECK(group == SMLA_GROUP_PRIMARY
                   ? !hybrid
                   : hybrid && (group == SMLA_GROUP_WINDOW || (compressed && config.args.ratio)),
               "group", group,
               hybrid ? config.args.ratio ? "WINDOW or COMPRESSED" : "WINDOW (the only group of the layer)"
                      : "PRIMARY");
    const Format& record = *find_format(compressed ? entry_format : format);
    const int64_t tokens = !hybrid      ? config.args.page_tokens
                           : compressed ? config.args.page_tokens / config.args.ratio
                                        : config.args.window_page_tokens;
    constexpr int64_t kMaxRows = int64_t(1) << 31;  // int32 row numbers; bytes fit int64
    SMLA_CHECK(pages >= 0 && pages <= kMaxRows / tokens, "pages", pages,
               text("0 to ", kMaxRows / tokens, " (row numbers must fit in int32)"));
    const bool bytes = record.scale != ScaleKind::none && record.scale != ScaleKind::per_tensor;
    smla_cache_shape out{};
    out.struct_size = sizeof out;
    out.dtype = bytes                                   ? SMLA_U8
                : record.scale == ScaleKind::per_tensor ? SMLA_E4M3
                : record.id == SMLA_ROW_F64             ? SMLA_F64
                : record.id == SMLA_ROW_F32             ? SMLA_F32
                                                        : SMLA_BF16;
    out.shape[0] = pages;
    out.shape[1] = tokens;
    out.shape[2] = bytes ? int64_t(record.record_bytes(config.head_size())) : config.head_size();
    out.page_stride_bytes = int64_t(record.page_bytes(config.head_size(), tokens));
    out.bytes = pages * out.page_stride_bytes;
    return out;
}

std::unique_ptr<Metadata> BackendInstance::metadata() const { return std::make_unique<Metadata>(*this); }

void BackendInstance::forward(Runner& run, const Metadata* metadata, const ForwardArgs& args) const {
    if (config.hybrid()) forward_hybrid(run, *this, metadata, args);
    else forward_dsa(run, *this, metadata, args);
}

size_t BackendInstance::workspace(const Env& env, const ForwardArgs& args) const {
    Runner sizing(env, args.stage_budget, nullptr);
    forward(sizing, nullptr, args);
    return sizing.total_bytes();
}

void BackendInstance::run(const Env& env, const Metadata* metadata, const ForwardArgs& args,
                          Workspace workspace, StageRecords* records) const {
    if (!metadata) {
        check_tensor("args.out", args.out, kFloats,
                     args.out.ndim == 2 ? std::initializer_list<int64_t>{kAny, kAny}
                                        : std::initializer_list<int64_t>{kAny, kAny, kAny},
                     env.checks());
        check_rows("args.out", args.out);
        check_apart("args.out", args.out);
        return zero_rows(env, args.out, args.out.shape[0]);
    }
    metadata->check_for(*this);
    const StepFields fields = metadata->step();
    PlanKey key(PlanUse::step, id, args.stage_budget, env);
    key.add_address(workspace.data);
    ForwardArgs described = args;
    described.metadata = nullptr;  // identified by its fields
    leave_out_unread(config, described);
    key.add(described, kForwardPlaces);
    key.add(fields, kFieldPlaces);
    const bool keeps = key.add_numbers(fields.batch.parts);
    run_step(env, keeps ? &key : nullptr, args.stage_budget, workspace, records, nullptr, [&](Runner& run) {
        // Stages check only their own arguments, some after other stages have written.
        if (!run.sizing()) check_own_memory(kForwardPlaces, &described, workspace);
        forward(run, metadata, args);
    });
}

}  // namespace smla
