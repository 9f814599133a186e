// score and score_select, each in a captured graph that is replayed while its block tables and the ends of
// its windows change in place: no launch hangs, and each leaves the bits of the same call outside of a graph
// (soak_replays.h). Of logits, 64 columns of every launch are compared, and all of every fiftieth; of
// selections, all.
#include "gpu/attention.h"
#include "soak_replays.h"

#include <algorithm>
#include <cstring>
#include <sstream>

namespace gpu {
namespace {

struct ScoreShape {
    int64_t tokens, rows, columns;  // rows: tokens of a request; 0: one list of keys for all, in no pages
    int64_t heads = 64;
    int32_t page_tokens = 64;
    smla_format format = SMLA_INDEX_FP8_132;
    smla_precision precision = SMLA_PRECISION_ROUNDED;
    int64_t winners = 0;  // score_select; 0: score
    long launches = kShortLaunches;

    std::string name() const {
        std::ostringstream out;
        out << (winners ? "score_select" : "score") << (rows ? "-paged" : "") << "-T" << tokens << "-H"
            << heads << "-N" << columns << '-' << smla::format_info(format).name;
        if (rows > 1) out << "-rows" << rows;
        if (page_tokens != 64) out << "-page" << page_tokens;
        if (precision == SMLA_PRECISION_EXACT) out << "-exact";
        if (winners) out << "-k" << winners;
        return out.str();
    }
};
const ScoreShape kShapes[] = {
    {.tokens = 512, .rows = 0, .columns = 4096},
    {.tokens = 500, .rows = 0, .columns = 4000, .precision = SMLA_PRECISION_EXACT},
    {.tokens = 64, .rows = 1, .columns = 8192},
    {.tokens = 64, .rows = 1, .columns = 8192, .precision = SMLA_PRECISION_EXACT},
    {.tokens = 256, .rows = 1, .columns = 8192},
    {.tokens = 64, .rows = 2, .columns = 8192},
    {.tokens = 66, .rows = 3, .columns = 8192},
    {.tokens = 60, .rows = 5, .columns = 4096, .heads = 16},
    {.tokens = 64, .rows = 1, .columns = 4096, .page_tokens = 16},
    {.tokens = 64, .rows = 1, .columns = 8192, .format = SMLA_INDEX_MXFP4_68},
    {.tokens = 256, .rows = 0, .columns = 8192, .heads = 32, .format = SMLA_INDEX_MXFP4_68},
    {.tokens = 1, .rows = 1, .columns = 65536, .winners = 2048},
    {.tokens = 16, .rows = 1, .columns = 16384, .winners = 2048},
    {.tokens = 2, .rows = 1, .columns = 196608, .winners = 512},
    {.tokens = 2048, .rows = 0, .columns = 8192, .launches = kLongLaunches},
    {.tokens = 256, .rows = 2, .columns = 65536, .launches = kLongLaunches},
    {.tokens = 256,
     .rows = 1,
     .columns = 32768,
     .precision = SMLA_PRECISION_EXACT,
     .launches = kLongLaunches},
    {.tokens = 256, .rows = 0, .columns = 65536, .winners = 2048, .launches = kLongLaunches},
};

// A captured call, and what each variant of its lists gives.
class Soaked {
public:
    static constexpr int kBatch = 50;

    explicit Soaked(const ScoreShape& shape)
        : shape_(shape),
          context_(context_of(shape)),
          q_(shape.format == SMLA_INDEX_MXFP4_68 ? SMLA_E2M1 : SMLA_E4M3, {shape.tokens, shape.heads, 128}),
          q_scales_(SMLA_E8M0, {shape.tokens, shape.heads, 4}),
          w_(SMLA_F32, {shape.tokens, shape.heads}),
          table_(SMLA_I32, {requests(), shape.columns / shape.page_tokens}),
          request_of_token_(SMLA_I32, {shape.tokens}),
          ends_(SMLA_I32, {shape.tokens}),
          out_(SMLA_F32, {shape.tokens, shape.winners ? shape.winners : shape.columns}),
          kept_(SMLA_F32, {kBatch, shape.tokens, kept_columns()}) {
        fill_queries();
        fill_keys();
        for (int i = 0; i < kVariants; ++i) add_variant(i);
        workspace_ =
            std::make_unique<Workspace>(context_, shape.winners ? context_.workspace_size<kBoth>(both())
                                                                : context_.workspace_size<kScore>(score()));
        for (int i = 0; i < kVariants; ++i) {
            take(i, nullptr);
            poison(nullptr);
            run(nullptr);
            must(cudaDeviceSynchronize());
            wanted_.push_back(out_.get());
        }
        graph_ = std::make_unique<Graph>([&](cudaStream_t stream) { run(stream); });
    }

    long batch() {
        int variants[kBatch];
        int64_t columns[kBatch];  // the first that is kept of each launch
        const cudaStream_t stream = graph_->stream();
        for (int i = 0; i < kBatch; ++i) {
            variants[i] = int(random_() % kVariants);
            columns[i] = int64_t(random_() % uint64_t(width() - kept_columns() + 1));
            take(variants[i], stream);
            poison(stream);
            graph_->launch();
            const size_t row = size_t(kept_columns()) * sizeof(float);
            must(cudaMemcpy2DAsync(at(kept_, i * shape_.tokens * kept_columns()), row, at(out_, columns[i]),
                                   size_t(width()) * sizeof(float), row, size_t(shape_.tokens),
                                   cudaMemcpyDeviceToDevice, stream));
        }
        must(cudaStreamSynchronize(stream));
        const std::vector<float> kept = kept_.get();
        for (int i = 0; i < kBatch; ++i)
            for (int64_t t = 0; t < shape_.tokens; ++t)
                EXPECT_EQ(std::memcmp(&kept[size_t((i * shape_.tokens + t) * kept_columns())],
                                      &wanted_[size_t(variants[i])][size_t(t * width() + columns[i])],
                                      size_t(kept_columns()) * sizeof(float)),
                          0)
                    << "token " << t << ", " << kept_columns() << " columns from " << columns[i]
                    << " on, lists " << variants[i];
        const std::vector<float> last = out_.get();
        EXPECT_EQ(std::memcmp(last.data(), wanted_[size_t(variants[kBatch - 1])].data(),
                              last.size() * sizeof(float)),
                  0)
            << "lists " << variants[kBatch - 1];
        return kBatch;
    }

private:
    static constexpr int kVariants = 5;
    static constexpr auto kScore = SMLA_STAGE_SCORE;
    static constexpr auto kBoth = SMLA_STAGE_SCORE_SELECT;

    static smla::Context context_of(const ScoreShape& shape) {
        smla_context_args args{};
        args.engine = SMLA_ENGINE_CUDA;
        if (is_hopper() && !shape.winners) args.kernel = "score=cuda_sm90_score";
        return smla::Context(args);
    }
    template <class T>
    static T* at(const Array<T>& array, int64_t index) {
        return static_cast<T*>(array.tensor().data) + index;
    }

    int64_t requests() const { return shape_.rows ? shape_.tokens / shape_.rows : 1; }
    int64_t width() const { return out_.tensor().shape[1]; }
    int64_t kept_columns() const { return shape_.winners ? shape_.winners : 64; }
    // Fewer pages than tables name, so that requests share them; ragged keys are in one.
    int64_t pages() const {
        return shape_.rows ? std::min<int64_t>(shape_.columns / shape_.page_tokens, 256) : 1;
    }

    void fill_queries() {
        std::vector<uint8_t> codes(q_.count()), scales(q_scales_.count());
        for (uint8_t& each : codes) each = uint8_t(random_() % 0x58 + random_() % 2 * 0x80);  // |x| <= 15
        for (uint8_t& each : scales) each = uint8_t(124 + random_() % 6);
        std::vector<float> weights(w_.count());
        for (float& each : weights) each = float(random_() % 2001) / 1000 - 1;
        q_.set(codes), q_scales_.set(scales), w_.set(weights);
        std::vector<int32_t> request(size_t(shape_.tokens));
        for (size_t t = 0; t < request.size(); ++t)
            request[t] = shape_.rows ? int32_t(t / size_t(shape_.rows)) : 0;
        request_of_token_.set(request);
    }
    void fill_keys() {
        keys_ = smla::cache(nullptr, shape_.format, pages(),
                            shape_.rows ? shape_.page_tokens : int32_t(shape_.columns));
        const std::vector<uint8_t> bytes = random_records(keys_, 128, random_);
        keys_memory_ = std::make_unique<Array<uint8_t>>(SMLA_U8, std::vector{int64_t(bytes.size())});
        keys_memory_->set(bytes);
        keys_.data = keys_memory_->tensor().data;
        keys_.device_type = SMLA_CUDA;
        keys_.device_index = keys_memory_->tensor().device_index;
    }
    // In the first variant all windows are whole, in the second many are empty.
    void add_variant(int i) {
        std::vector<int32_t> table(table_.count()), ends(ends_.count());
        for (int32_t& page : table) page = random_() % 30 ? int32_t(random_() % uint64_t(pages())) : -1;
        for (int32_t& end : ends)
            end = i == 0                    ? int32_t(shape_.columns)
                  : i == 1 && random_() % 3 ? 0
                                            : int32_t(random_() % uint64_t(shape_.columns + 1));
        tables_.push_back(std::make_unique<Array<int32_t>>(SMLA_I32, std::vector{int64_t(table.size())}));
        all_ends_.push_back(std::make_unique<Array<int32_t>>(SMLA_I32, std::vector{shape_.tokens}));
        tables_.back()->set(table), all_ends_.back()->set(ends);
    }

    smla_score_args score() const {
        smla_score_args out{};
        out.fill = 1;
        out.q = q_.tensor(), out.w = w_.tensor(), out.ends = ends_.tensor();
        if (shape_.format == SMLA_INDEX_MXFP4_68) out.q_scales = q_scales_.tensor();
        out.keys = keys_;
        if (shape_.rows) out.block_table = table_.tensor(), out.request_of_token = request_of_token_.tensor();
        out.logits = out_.tensor();
        out.precision = shape_.precision;
        return out;
    }
    smla_score_select_args both() const {
        smla_score_select_args out{};
        out.columns = int32_t(shape_.columns);
        out.score = score();
        out.score.fill = 0;
        out.score.logits = {};
        out.select.indices = out_.tensor();
        out.select.indices.dtype = SMLA_I32;
        return out;
    }
    void run(cudaStream_t stream) {
        if (shape_.winners) context_.score_select(both(), workspace_->get(), stream);
        else context_.score(score(), workspace_->get(), stream);
    }
    void poison(cudaStream_t stream) const {
        must(cudaMemsetAsync(at(out_, 0), 0xff, out_.count() * sizeof(float), stream));
    }
    void take(int variant, cudaStream_t stream) const {
        copy(table_, *tables_[size_t(variant)], stream);
        copy(ends_, *all_ends_[size_t(variant)], stream);
    }
    static void copy(const Array<int32_t>& to, const Array<int32_t>& from, cudaStream_t stream) {
        must(cudaMemcpyAsync(at(to, 0), at(from, 0), to.count() * sizeof(int32_t), cudaMemcpyDeviceToDevice,
                             stream));
    }

    ScoreShape shape_;
    std::mt19937 random_{18};
    smla::Context context_;
    Array<uint8_t> q_, q_scales_;
    Array<float> w_;
    Array<int32_t> table_, request_of_token_, ends_;
    Array<float> out_, kept_;  // out_: logits, or selected indices
    smla_cache keys_{};
    std::unique_ptr<Array<uint8_t>> keys_memory_;
    std::vector<std::unique_ptr<Array<int32_t>>> tables_, all_ends_;
    std::unique_ptr<Workspace> workspace_;
    std::vector<std::vector<float>> wanted_;
    std::unique_ptr<Graph> graph_;
};

TEST(GpuSoak, ReplaysOfScoreKernels) {
    SMLA_NEEDS_GPU();
    const Deadline all;
    for (const ScoreShape& shape : kShapes) {
        soak_replays(shape.name(), shape.launches, 1. / std::size(kShapes), all,
                     [&] { return std::make_unique<Soaked>(shape); });
        if (HasFatalFailure()) return;
    }
}

}  // namespace
}  // namespace gpu
