// attend over a cache of which a part lies in the host's memory: records of some tiles come many
// microseconds after those of the tiles behind them, and no kernel may take them for read before.
#include "gpu/attention.h"

#include <algorithm>
#include <cstring>

namespace gpu {
namespace {

// Memory of which a GPU reads the first bytes from the host, each time, and the rest from its own memory.
class PartlyOnHost {
public:
    PartlyOnHost(const std::vector<uint8_t>& bytes, size_t on_host) {
        must(cudaMallocManaged(&data_, bytes.size()));
        std::memcpy(data_, bytes.data(), bytes.size());
        int device = 0;
        must(cudaGetDevice(&device));
        advise(on_host, cudaMemAdviseSetPreferredLocation, cudaCpuDeviceId);
        advise(on_host, cudaMemAdviseSetAccessedBy, device);
        prefetch(static_cast<char*>(data_) + on_host, bytes.size() - on_host, device);
        must(cudaDeviceSynchronize());
    }
    ~PartlyOnHost() { cudaFree(data_); }
    PartlyOnHost(const PartlyOnHost&) = delete;
    PartlyOnHost& operator=(const PartlyOnHost&) = delete;

    void* data() const { return data_; }
    static bool exists() {
        int device = 0, concurrent = 0;
        must(cudaGetDevice(&device));
        must(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, device));
        return concurrent != 0;
    }

private:
    static cudaMemLocation location(int device) {
        return {device == cudaCpuDeviceId ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice,
                std::max(device, 0)};
    }
#if CUDART_VERSION >= 13000
    void advise(size_t bytes, cudaMemoryAdvise advice, int device) const {
        must(cudaMemAdvise(data_, bytes, advice, location(device)));
    }
    static void prefetch(void* from, size_t bytes, int device) {
        must(cudaMemPrefetchAsync(from, bytes, location(device), 0, nullptr));
    }
#else
    void advise(size_t bytes, cudaMemoryAdvise advice, int device) const {
        must(cudaMemAdvise(data_, bytes, advice, device));
    }
    static void prefetch(void* from, size_t bytes, int device) {
        must(cudaMemPrefetchAsync(from, bytes, device, nullptr));
    }
#endif

    void* data_ = nullptr;
};

struct Case {
    const char* kernel;
    smla_format format;
    int64_t tokens, heads, width;
};
const Case kCases[] = {
    {kRaw, SMLA_FP8_656, 1, 16, 576},     {kRaw, SMLA_FP8_656, 8, 8, 576},
    {kRaw, SMLA_FP8_656, 8, 16, 576},     {kRaw, SMLA_FP8_656, 140, 16, 576},
    {kRaw, SMLA_FP8_656, 8, 32, 576},     {kRaw, SMLA_FP8_656, 8, 128, 576},
    {kRaw, SMLA_FP8_656, 140, 32, 576},   {kRaw, SMLA_FP8_576, 8, 128, 576},
    {kRaw, SMLA_FP8_576, 140, 64, 576},   {kRaw, SMLA_FP8_528, 8, 32, 512},
    {kRaw, SMLA_FP8_512, 140, 128, 512},  {kSm90, SMLA_FP8_656, 64, 64, 576},
    {kSm90, SMLA_FP8_656, 64, 128, 576},  {kSm90, SMLA_ROW_BF16, 64, 64, 576},
    {kSm90, SMLA_ROW_BF16, 64, 128, 576}, {kSm90, SMLA_FP8_584, 64, 64, 512},
    {kSm90, SMLA_FP8_584, 64, 128, 512},  {kMma, SMLA_FP8_656, 8, 16, 576},
    {kMma, SMLA_ROW_BF16, 8, 128, 576},   {kMma, SMLA_FP8_584, 8, 64, 512},
};

// A call whose every eighth tile, from `late` on, has rows of the part on the host.
class Calls {
public:
    static constexpr int64_t kKeys = 2048, kTile = 64, kEvery = 8, kCachePages = 128;
    static constexpr int32_t kPageTokens = 64;
    static constexpr size_t kOnHost = size_t(2) << 20;  // whole pages of the driver's

    explicit Calls(const Case& each)
        : cache_(attend_cache(each.format, each.width, kCachePages, kPageTokens)),
          bytes_(random_records(cache_, each.width, random_)),
          here_(SMLA_U8, {int64_t(bytes_.size())}),
          partly_(bytes_, kOnHost),
          q_(SMLA_BF16, {each.tokens, each.heads, each.width}),
          rows_(SMLA_I32, {each.tokens, kKeys}),
          out_(SMLA_BF16, {each.tokens, each.heads, 512}),
          lse_(SMLA_F32, {each.tokens, each.heads}),
          context_(attend_context(each.kernel)) {
        here_.set(bytes_);
        q_.set(random_queries(q_.count(), random_));
        args_.softmax_scale = 0.05;
        args_.precision = SMLA_PRECISION_ROUNDED;
        args_.q = q_.tensor(), args_.out = out_.tensor(), args_.lse = lse_.tensor();
        args_.primary.rows = rows_.tensor();
        args_.primary.cache = cache_;
        args_.primary.cache.device_type = SMLA_CUDA;
        args_.primary.cache.device_index = here_.tensor().device_index;
        args_.primary.cache.data = here_.tensor().data;
        workspace_ = std::make_unique<Workspace>(context_, context_.workspace_size<SMLA_STAGE_ATTEND>(args_));
    }
    void list(int64_t late) {
        const int64_t page_bytes = int64_t(bytes_.size()) / kCachePages,
                      on_host = int64_t(kOnHost) / page_bytes * kPageTokens,
                      after = on_host + kPageTokens;  // past the page that lies in both
        std::vector<int32_t> list(rows_.count());
        for (size_t i = 0; i < list.size(); ++i) {
            const bool is_late = int64_t(i) % kKeys / kTile % kEvery == late;
            const int64_t first = is_late ? 0 : after,
                          count = is_late ? on_host : kCachePages * kPageTokens - after;
            list[i] = int32_t(first + int64_t(random_() % uint64_t(count)));
        }
        rows_.set(list);
    }
    void compare() {
        const auto wanted = run(here_.tensor().data), got = run(partly_.data());
        EXPECT_TRUE(got == wanted);
    }

private:
    struct Results {
        std::vector<uint16_t> out;
        std::vector<float> lse;
        bool operator==(const Results&) const = default;
    };
    Results run(void* cache) {
        args_.primary.cache.data = cache;
        out_.poison(), lse_.poison();
        context_.attend(args_, workspace_->get(), nullptr);
        must(cudaDeviceSynchronize());
        return {out_.get(), lse_.get()};
    }

    std::mt19937 random_{41};
    smla_cache cache_;
    std::vector<uint8_t> bytes_;
    Array<uint8_t> here_;
    PartlyOnHost partly_;
    Array<uint16_t> q_;
    Array<int32_t> rows_;
    Array<uint16_t> out_;
    Array<float> lse_;
    smla::Context context_;
    smla_attend_args args_{};
    std::unique_ptr<Workspace> workspace_;
};

TEST(LateRecords, AreWaitedFor) {
    SMLA_NEEDS_GPU();
    if (!PartlyOnHost::exists()) GTEST_SKIP() << "this GPU does not read managed memory of the host";
    int capability = 0;
    must(cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, 0));
    for (const Case& each : kCases) {
        if (std::strstr(each.kernel, "sm90") && capability != 9) continue;
        Calls calls(each);
        for (int64_t late = 0; late < Calls::kEvery; ++late) {
            SCOPED_TRACE(std::string(each.kernel) + " " + smla::format_info(each.format, each.width).name +
                         " T" + std::to_string(each.tokens) + " H" + std::to_string(each.heads) +
                         ", late: tile " + std::to_string(late));
            calls.list(late);
            calls.compare();
            if (HasFailure()) return;
        }
    }
}

}  // namespace
}  // namespace gpu
