// What the backends of V3.2 and GLM-5.x share: metadata over one cache, and a forward that absorbs, writes,
// maps, attends and projects up.
#pragma once

#include "backends/metadata.h"
#include "formats/format.h"

namespace smla {

class LatentMetadata : public Metadata {
public:
    explicit LatentMetadata(const BackendInstance& on) : LatentMetadata(on, true) {}

protected:
    StepFields host_step() const override;
    // A backend with fields of its own declares them, then calls finish().
    LatentMetadata(const BackendInstance& on, bool complete);
    void fill(const PlanBatch& batch) override;
    void finish();

private:
    int32_t *block_size_, *topk_tokens_;
    Tensor *req_id_per_token_, *slot_mapping_, *block_table_;
    int32_t page_tokens_;
};

// "fp8" is the record of 656 bytes here, not a plain cast; without rope it is that of 528. The plain cast is
// "fp8_e4m3", which none of these backends has where it was published.
inline constexpr CacheType kLatentCacheTypes[] = {{"auto", SMLA_ROW_BF16},
                                                  {"bfloat16", SMLA_ROW_BF16},
                                                  {"fp8_ds_mla", SMLA_FP8_656, SMLA_FP8_528},
                                                  {"fp8", SMLA_FP8_656, SMLA_FP8_528},
                                                  {"fp8_e4m3", SMLA_FP8_576, SMLA_FP8_512}};
constexpr uint32_t kLatentFormats =
    kRowFormats | formats(SMLA_FP8_656, SMLA_FP8_528, SMLA_FP8_576, SMLA_FP8_512);

void forward_latent(Runner& run, const BackendInstance& on, const Metadata* metadata,
                    const ForwardArgs& args);

// The smallest of a kernel's head counts that holds `heads`; itself above the largest.
int32_t padded_to(int32_t heads, std::initializer_list<int32_t> sizes);

}  // namespace smla
