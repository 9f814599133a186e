// A layer's whole decode step, plan and all, captured once and replayed with other batches: block tables,
// lengths and hidden states change in place between replays. At random replays the same step is run eagerly.
#include "engines/plan.h"
#include "gpu/graph.h"
#include "gpu/needs_gpu.h"
#include "gpu/soak.h"
#include "layers/cache_layout.h"
#include "layers/random_layer.h"

#include <numeric>

namespace smla::layers_test {
namespace {

using gpu::must;

constexpr int64_t kHidden = 64, kRequests = 5;
constexpr int32_t kLongest = 300;  // tokens of a request

// One cache group, full of values, and the table of its pages.
struct CacheMemory {
    CacheMemory(Device& device, const CacheNeed& need, std::mt19937& random)
        : need(need),
          columns(ceil_div(std::max<int64_t>(need.rows(kLongest), 1), need.page_rows)),
          pages(size_t(kRequests * columns)),
          memory(device, pages.size() * need.page_bytes()),
          before(device, memory.bytes()),
          table(device, pages.size() * sizeof(int32_t)) {
        std::iota(pages.begin(), pages.end(), 0);
        std::vector<float> values(memory.bytes() / sizeof(float));  // rows and states of f32
        for (float& value : values) value = float(random() % 2048) / 1024 - 1;
        device.upload(memory.data(), values.data(), values.size() * sizeof(float), nullptr);
    }
    CacheGroup group(Device& device, const Tensor& slots) const {
        smla_cache cache{};
        cache.format = need.format;
        cache.width = find_format(need.format)->width ? 0 : need.width;
        cache.page_tokens = need.page_rows;
        cache.pages = int64_t(pages.size());
        cache.data = memory.data();
        cache.device_type = device.type();
        cache.device_index = device.index();
        return {cache, table_view(device), slots};
    }
    Tensor table_view(Device& device) const {
        Tensor out = make_tensor(table.data(), SMLA_I32, {kRequests, columns});
        out.device_type = device.type();
        out.device_index = device.index();
        return out;
    }

    CacheNeed need;
    int64_t columns;
    std::vector<int32_t> pages;
    DeviceBuffer memory, before, table;
};

// A layer with everything that a step of it reads, at addresses that stay.
class Decode {
public:
    Decode(Context& context, const KindOfLayer& kind)
        : context_(context),
          device_(context.device()),
          weights_(kind.config(kHidden), kind.layer),
          layer_(open_layer(weights_.checkpoint(), weights_.config, weights_.layer, {}, device_)),
          hidden_(device_, kRequests * kHidden * sizeof(float)),
          out_(device_, hidden_.bytes()),
          starts_(device_, (kRequests + 1) * sizeof(int32_t)),
          lengths_(device_, kRequests * sizeof(int32_t)),
          workspace_(context) {
        CacheChoice choice;
        choice.page_tokens = 4;
        PlanMaxima maxima{};
        maxima.struct_size = sizeof maxima;
        for (const CacheNeed& need : cache_needs(layer_->config(), layer_->layer_index(), choice)) {
            caches_.emplace_back(device_, need, random_);
            maxima.groups |= need.group;
        }
        maxima.max_tokens = maxima.max_requests = int32_t(kRequests);
        maxima.max_seq_len = kLongest;
        const AttentionConfig& config = layer_->config();
        maxima.window = config.hybrid ? int32_t(config.hybrid->window) : 0;
        maxima.ratio = int32_t(config.compress_ratio(layer_->layer_index()));
        maxima.list_entries = layer_->kind() == LayerKind::heavily_compressed;
        plan_ = std::make_unique<Plan>(maxima, plan_place(context));
        next_batch();
        plan_->build(batch(nullptr));  // shapes of the step
        scratch_ = workspace_.at_least(layer_workspace(*layer_, context.env({}), step(), 0, nullptr));
    }

    // Queues one step.
    void run(cudaStream_t stream) {
        plan_->build(batch(stream));
        run_layer(*layer_, context_.env({}, stream), step(), scratch_, 0, nullptr, nullptr);
    }

    // Other lengths, pages and hidden states; now and then fewer requests, the rest padding.
    void next_batch() {
        live_ = random_() % 3 ? kRequests : int64_t(random_() % uint64_t(kRequests));
        std::vector<int32_t> starts(kRequests + 1), lengths(kRequests);
        for (int64_t r = 0; r < kRequests; ++r) {
            starts[size_t(r) + 1] = starts[size_t(r)] + (r < live_);
            lengths[size_t(r)] = int32_t(1 + random_() % uint64_t(kLongest));
        }
        std::vector<float> hidden(kRequests * kHidden);
        for (float& value : hidden) value = float(random_() % 4096) / 1024 - 2;
        send(starts_, starts.data());
        send(lengths_, lengths.data());
        send(hidden_, hidden.data());
        for (CacheMemory& cache : caches_) {
            std::shuffle(cache.pages.begin(), cache.pages.end(), random_);
            send(cache.table, cache.pages.data());
        }
    }
    void keep_caches() {
        for (CacheMemory& cache : caches_) copy(cache.before, cache.memory);
    }
    void restore_caches() {
        for (CacheMemory& cache : caches_) copy(cache.memory, cache.before);
    }
    // Everything that a step writes; `out` is NaN afterwards.
    std::vector<std::vector<char>> results() {
        std::vector<std::vector<char>> all{bytes_of(out_)};
        for (const CacheMemory& cache : caches_) all.push_back(bytes_of(cache.memory));
        device_.fill(out_.data(), 0xff, out_.bytes(), nullptr);
        return all;
    }
    // Expects the outputs of live requests to be finite and not all 0.
    void expect_sane(const std::vector<char>& out) const {
        const float* const values = reinterpret_cast<const float*>(out.data());
        for (int64_t r = 0; r < live_; ++r) {
            float sum = 0;
            for (int64_t i = 0; i < kHidden; ++i) sum += std::abs(values[r * kHidden + i]);
            EXPECT_TRUE(sum > 0 && std::isfinite(sum)) << "request " << r << ": " << sum;
        }
    }

private:
    Tensor view(const DeviceBuffer& memory, smla_dtype dtype, std::initializer_list<int64_t> shape) const {
        Tensor out = make_tensor(memory.data(), dtype, shape);
        out.device_type = device_.type();
        out.device_index = device_.index();
        return out;
    }
    void send(const DeviceBuffer& to, const void* from) {
        device_.upload(to.data(), from, to.bytes(), nullptr);
    }
    static void copy(const DeviceBuffer& to, const DeviceBuffer& from) {
        must(cudaMemcpy(to.data(), from.data(), from.bytes(), cudaMemcpyDeviceToDevice));
        must(cudaDeviceSynchronize());
    }
    std::vector<char> bytes_of(const DeviceBuffer& memory) const {
        std::vector<char> out(memory.bytes());
        device_.download(out.data(), memory.data(), out.size(), nullptr);
        return out;
    }
    PlanBatch batch(cudaStream_t stream) const {
        PlanBatch out{};
        out.struct_size = sizeof out;
        out.tokens = int32_t(kRequests);
        out.query_start_loc = view(starts_, SMLA_I32, {kRequests + 1});
        out.seq_lens = view(lengths_, SMLA_I32, {kRequests});
        out.stream = stream;
        for (const CacheMemory& cache : caches_) {
            PlanGroup group{};
            group.block_table = cache.table_view(device_);
            group.page_tokens = cache.need.page_rows;
            switch (cache.need.group) {
                case SMLA_GROUP_PRIMARY: out.primary = group; break;
                case SMLA_GROUP_WINDOW: out.window = group; break;
                case SMLA_GROUP_COMPRESSED: out.compressed = group; break;
                case SMLA_GROUP_INDEX: out.index = group; break;
                case SMLA_GROUP_STATE: out.state = group; break;
                case SMLA_GROUP_INDEX_STATE: out.index_state = group; break;
            }
        }
        return out;
    }
    LayerStep step() const {
        const auto group = [&](int32_t bit, const Tensor& slots) {
            for (const CacheMemory& cache : caches_)
                if (cache.need.group == bit) return cache.group(device_, slots);
            return CacheGroup{};
        };
        const int64_t ratio = std::max<int64_t>(layer_->config().compress_ratio(layer_->layer_index()), 1);
        LayerStep out = planned_step(
            plan_->fields(), [](const Tensor& field) { return field; }, group, kLongest / ratio);
        out.hidden = view(hidden_, SMLA_F32, {kRequests, kHidden});
        out.out = view(out_, SMLA_F32, {kRequests, kHidden});
        return out;
    }

    Context& context_;
    Device& device_;
    RandomWeights weights_;
    std::unique_ptr<Layer> layer_;
    DeviceBuffer hidden_, out_, starts_, lengths_;
    OwnedWorkspace workspace_;
    Workspace scratch_;
    std::vector<CacheMemory> caches_;
    std::unique_ptr<Plan> plan_;
    std::mt19937 random_{23};
    int64_t live_ = 0;
};

TEST(GpuSoak, ReplaysOfADecodeStep) {
    SMLA_NEEDS_GPU();
    std::mt19937 random(5);
    for (const KindOfLayer& kind : kKinds) {
        if (std::string(kind.name).ends_with("shared")) continue;  // brings no selection of its own
        SCOPED_TRACE(kind.name);
        Context context = make_context(SMLA_ENGINE_CUDA);
        Decode decode(context, kind);
        decode.run(nullptr);  // products are prepared outside of the capture
        must(cudaDeviceSynchronize());
        const gpu::Graph graph([&](cudaStream_t stream) { decode.run(stream); });
        ASSERT_FALSE(testing::Test::HasFatalFailure());
        gpu::ConstantMemory memory;
        int64_t replays = 0, compared = 0;
        for (const gpu::Deadline deadline(0.25); replays < 20 || !deadline.passed(); ++replays) {
            if (replays == 1) memory.begin();
            memory.settle(deadline);
            decode.next_batch();
            const bool compare = replays < 5 || random() % 100 == 0;
            if (compare) decode.keep_caches();
            graph.replay();
            if (!compare) continue;
            const auto replayed = decode.results();
            decode.restore_caches();
            decode.run(nullptr);
            must(cudaDeviceSynchronize());
            ASSERT_TRUE(replayed == decode.results()) << "replay " << replays;
            decode.expect_sane(replayed.front());
            ++compared;
            if (HasFailure()) return;
        }
        memory.expect_unchanged();
        std::printf("%s: %ld replays, %ld of them compared\n", kind.name, long(replays), long(compared));
    }
}

}  // namespace
}  // namespace smla::layers_test
