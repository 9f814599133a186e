// Kernels of attend, each in a captured graph that is replayed while its row lists and lengths change in
// place: no launch hangs, and each leaves the bits of the same call outside of a graph (soak_replays.h).
#include "gpu/attention.h"
#include "soak_replays.h"

#include <algorithm>
#include <cstring>
#include <sstream>

namespace gpu {
namespace {

struct Source {
    smla_format format = SMLA_FORMAT_NONE;
    int64_t rows = 0;  // listed for each token
};
struct Shape {
    const char *hopper, *others;  // kernels, on sm_90 and elsewhere
    int64_t tokens, heads, width;
    Source primary, extra = {};
    long launches = kShortLaunches;

    std::string name(const std::string& kernel) const {
        std::ostringstream out;
        out << kernel << "-T" << tokens << "-H" << heads << "-"
            << smla::format_info(primary.format, int32_t(width)).name << "-K" << primary.rows;
        if (extra.rows) out << "+" << extra.rows;
        return out.str();
    }
};
const Shape kShapes[] = {
    {kRaw, kMma, 128, 64, 576, {SMLA_FP8_576, 2048}},
    {kRaw, kMma, 1, 16, 576, {SMLA_FP8_656, 2048}},
    {kRaw, kMma, 8, 16, 576, {SMLA_FP8_656, 2048}},
    {kRaw, kMma, 8, 128, 576, {SMLA_FP8_656, 2048}},
    {kRaw, kMma, 128, 16, 576, {SMLA_FP8_656, 2048}},
    {kRaw, kMma, 16, 64, 576, {SMLA_FP8_576, 2048}},
    {kRaw, kMma, 128, 16, 512, {SMLA_FP8_528, 640}},
    {kSm90, kMma, 64, 64, 576, {SMLA_FP8_656, 2048}},
    {kSm90, kMma, 48, 128, 576, {SMLA_FP8_656, 2048}},
    {kSm90, kMma, 64, 128, 576, {SMLA_ROW_BF16, 2048}},
    {kSm90, kMma, 256, 64, 512, {SMLA_FP8_584, 128}, {SMLA_FP8_584, 512}},
    {kMma, kMma, 4, 64, 576, {SMLA_ROW_BF16, 2048}},
    {kMma, kMma, 4, 64, 512, {SMLA_FP8_584, 128}, {SMLA_FP8_584, 512}},
    {kSm90, kMma, 256, 128, 576, {SMLA_FP8_656, 2048}, {}, kLongLaunches},
    {kSm90, kMma, 512, 128, 576, {SMLA_ROW_BF16, 2048}, {}, kLongLaunches},
    {kSm90, kMma, 256, 128, 512, {SMLA_FP8_584, 128}, {SMLA_FP8_584, 1024}, kLongLaunches},
};

// Lists of one cache: those that the captured call reads, and others to copy over them.
class Lists {
public:
    static constexpr int kVariants = 6;
    static constexpr int64_t kCachePages = 64;
    static constexpr int32_t kPageTokens = 64;

    Lists(const Source& source, int64_t tokens, int64_t width, std::mt19937& random)
        : cache_(attend_cache(source.format, width, kCachePages, kPageTokens)),
          bytes_(SMLA_U8, {int64_t(smla::cache_bytes(cache_))}),
          rows_(SMLA_I32, {tokens, source.rows}),
          lengths_(SMLA_I32, {tokens}) {
        bytes_.set(random_records(cache_, width, random));
        for (int i = 0; i < kVariants; ++i) {
            std::vector<int32_t> list(rows_.count()), length(lengths_.count());
            for (int32_t& row : list)
                row = random() % 10 ? int32_t(random() % (kCachePages * kPageTokens)) : -1;
            // of one variant all lists are full, of another many are empty
            for (int32_t& each : length)
                each = i == 0                   ? int32_t(source.rows)
                       : i == 1 && random() % 3 ? 0
                                                : int32_t(random() % uint64_t(source.rows + 1));
            all_rows_.push_back(std::make_unique<Array<int32_t>>(SMLA_I32, std::vector{tokens, source.rows}));
            all_lengths_.push_back(std::make_unique<Array<int32_t>>(SMLA_I32, std::vector{tokens}));
            all_rows_.back()->set(list);
            all_lengths_.back()->set(length);
        }
    }
    smla_attend_source source() const {
        smla_attend_source out{};
        out.cache = cache_;
        out.cache.data = bytes_.tensor().data;
        out.cache.device_type = SMLA_CUDA;
        out.cache.device_index = bytes_.tensor().device_index;
        out.rows = rows_.tensor();
        out.lengths = lengths_.tensor();
        return out;
    }
    void take(int variant, cudaStream_t stream) const {
        copy(rows_, *all_rows_[size_t(variant)], stream);
        copy(lengths_, *all_lengths_[size_t(variant)], stream);
    }

private:
    static void copy(const Array<int32_t>& to, const Array<int32_t>& from, cudaStream_t stream) {
        must(cudaMemcpyAsync(to.tensor().data, from.tensor().data, to.count() * sizeof(int32_t),
                             cudaMemcpyDeviceToDevice, stream));
    }

    smla_cache cache_;
    Array<uint8_t> bytes_;
    Array<int32_t> rows_, lengths_;
    std::vector<std::unique_ptr<Array<int32_t>>> all_rows_, all_lengths_;
};

// A captured call of one kernel, and what each variant of its lists gives.
class Soaked {
public:
    Soaked(const Shape& shape, const std::string& kernel)
        : context_(attend_context(kernel)),
          q_(SMLA_BF16, {shape.tokens, shape.heads, shape.width}),
          out_(SMLA_BF16, {shape.tokens, shape.heads, 512}),
          lse_(SMLA_F32, {shape.tokens, shape.heads}),
          kept_(SMLA_F32, {kBatch, shape.tokens, shape.heads}) {
        lists_.push_back(std::make_unique<Lists>(shape.primary, shape.tokens, shape.width, random_));
        args_.primary = lists_[0]->source();
        if (shape.extra.rows) {
            lists_.push_back(std::make_unique<Lists>(shape.extra, shape.tokens, shape.width, random_));
            args_.extra = lists_[1]->source();
        }
        q_.set(random_queries(q_.count(), random_));
        args_.softmax_scale = 0.05;
        args_.precision = SMLA_PRECISION_ROUNDED;
        args_.q = q_.tensor(), args_.out = out_.tensor(), args_.lse = lse_.tensor();
        workspace_ = std::make_unique<Workspace>(context_, context_.workspace_size<SMLA_STAGE_ATTEND>(args_));
        for (int i = 0; i < Lists::kVariants; ++i) {
            for (const auto& each : lists_) each->take(i, nullptr);
            out_.poison(), lse_.poison();
            context_.attend(args_, workspace_->get(), nullptr);
            must(cudaDeviceSynchronize());
            wanted_out_.push_back(out_.get()), wanted_lse_.push_back(bits(lse_.get()));
        }
        graph_ = std::make_unique<Graph>(
            [&](cudaStream_t stream) { context_.attend(args_, workspace_->get(), stream); });
    }
    // So many launches, one behind the other, and what they left: lse of each, out of the last.
    long batch() {
        int variants[kBatch];
        for (int& each : variants) each = int(random_() % Lists::kVariants);
        const size_t bytes = lse_.count() * sizeof(float);
        must(cudaMemsetAsync(out_.tensor().data, 0xff, out_.count() * 2, graph_->stream()));
        for (int i = 0; i < kBatch; ++i) {
            for (const auto& each : lists_) each->take(variants[i], graph_->stream());
            must(cudaMemsetAsync(lse_.tensor().data, 0xff, bytes, graph_->stream()));
            graph_->launch();
            must(cudaMemcpyAsync(static_cast<char*>(kept_.tensor().data) + size_t(i) * bytes,
                                 lse_.tensor().data, bytes, cudaMemcpyDeviceToDevice, graph_->stream()));
        }
        must(cudaStreamSynchronize(graph_->stream()));
        const std::vector<uint32_t> kept = bits(kept_.get());
        for (int i = 0; i < kBatch; ++i)
            EXPECT_TRUE(std::equal(kept.begin() + ptrdiff_t(size_t(i) * lse_.count()),
                                   kept.begin() + ptrdiff_t(size_t(i + 1) * lse_.count()),
                                   wanted_lse_[size_t(variants[i])].begin()))
                << "lse of lists " << variants[i];
        EXPECT_TRUE(out_.get() == wanted_out_[size_t(variants[kBatch - 1])]);
        return kBatch;
    }

    static constexpr int kBatch = 50;

private:
    static std::vector<uint32_t> bits(const std::vector<float>& values) {
        std::vector<uint32_t> out(values.size());
        std::memcpy(out.data(), values.data(), values.size() * sizeof(float));
        return out;
    }

    std::mt19937 random_{31};
    smla::Context context_;
    Array<uint16_t> q_, out_;
    Array<float> lse_, kept_;
    std::vector<std::unique_ptr<Lists>> lists_;
    smla_attend_args args_{};
    std::unique_ptr<Workspace> workspace_;
    std::vector<std::vector<uint16_t>> wanted_out_;
    std::vector<std::vector<uint32_t>> wanted_lse_;
    std::unique_ptr<Graph> graph_;
};

TEST(GpuSoak, ReplaysOfAttendKernels) {
    SMLA_NEEDS_GPU();
    const bool hopper = is_hopper();
    const Deadline all;
    for (const Shape& shape : kShapes) {
        const std::string kernel = hopper ? shape.hopper : shape.others;
        soak_replays(shape.name(kernel), shape.launches, 1. / std::size(kShapes), all,
                     [&] { return std::make_unique<Soaked>(shape, kernel); });
        if (HasFatalFailure()) return;
    }
}

}  // namespace
}  // namespace gpu
