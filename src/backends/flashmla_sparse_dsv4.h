// The base of the V4 backends: metadata of a window cache and a compressed one, cache shape, and a forward
// that attends to both in one softmax.
#pragma once

#include "backends/metadata.h"
#include "formats/format.h"

namespace smla {

constexpr int64_t kPrefillChunkRequests = 4;  // of the published prefill loops

class HybridMetadata : public Metadata {
public:
    // Prefill attends in parts of so many requests.
    HybridMetadata(const BackendInstance& on, int64_t requests_per_part);

protected:
    StepFields host_step() const override;
    HybridMetadata(const BackendInstance& on, int64_t requests_per_part, bool complete);
    void fill(const PlanBatch& batch) override;
    void fill_there(const GpuMetadata& gpu, smla_stream stream) override;
    void finish();

private:
    void fill_window(const PlanBatch& batch);
    void fill_main(const PlanBatch& batch);
    void list_prefill_entries();

    int32_t ratio_, window_, page_tokens_, window_page_tokens_;
    int64_t requests_per_part_;
    Tensor *token_to_req_, *is_valid_, *decode_rows_, *decode_lens_, *prefill_rows_, *prefill_lens_;
    Tensor *prefill_seq_lens_, *prefill_gather_lens_, *window_table_, *window_slots_;
    int32_t *window_block_size_, *window_size_, *topk_tokens_ = nullptr;
    int32_t *num_decodes_, *num_prefills_, *num_decode_tokens_, *num_prefill_tokens_;
    // of the compressed cache; null for a layer without one
    Tensor *slot_mapping_ = nullptr, *block_table_ = nullptr, *req_id_per_token_ = nullptr;
    int32_t* block_size_ = nullptr;
    // ratio 128 alone
    Tensor *entry_rows_ = nullptr, *entry_lens_ = nullptr, *prefill_entries_ = nullptr;
    std::vector<int32_t> listed_;  // entries that each row of prefill_entries_ holds
    int64_t written_decode_lens_ = 0, written_entry_lens_ = 0;
};

// Checked tensors of a call, cut to the step's tokens.
struct HybridCall {
    StepFields fields;
    HybridStep step{};
};
HybridCall hybrid_call(const BackendInstance& on, const Metadata* metadata, const ForwardArgs& args);
// Heads of `out` behind those of q become 0; nothing else is done here that the step does not.
void run_hybrid_call(Runner& run, const HybridCall& call, const ForwardArgs& args);

void forward_hybrid(Runner& run, const BackendInstance& on, const Metadata* metadata,
                    const ForwardArgs& args);
std::unique_ptr<Metadata> hybrid_metadata(const BackendInstance& on);

// "fp8" is the page-packed record of 584 bytes here; queries of f64 need the reference engine's rows.
inline constexpr CacheType kHybridCacheTypes[] = {
    {"auto", SMLA_FP8_584}, {"fp8_ds_mla", SMLA_FP8_584}, {"fp8", SMLA_FP8_584}, {"bfloat16", SMLA_ROW_BF16}};
constexpr uint32_t kHybridFormats = kRowFormats | formats(SMLA_FP8_584);
inline constexpr smla_dtype kHybridDtypes[] = {SMLA_BF16};
inline constexpr const char* kHybridPublishedTypes[] = {"auto", "bfloat16", "fp8_ds_mla", "fp8"};
inline constexpr int32_t kHybridHeadSizes[] = {512};

}  // namespace smla
