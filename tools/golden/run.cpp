#include "golden/run.h"

#include <chrono>
#include <limits>

namespace smla::golden {

namespace {

// Collects rows of step tokens into their place in the batch.
class Collector {
public:
    Collector(const Golden& golden, const GoldenLayer& layer) : golden_(golden) {
        const int64_t ratio = std::max<int64_t>(layer.config.compress_ratio(layer.index), 1);
        columns_ = golden.tokens / ratio;
    }

    void begin_step(int64_t first, int64_t tokens) {
        first_ = first;
        tokens_ = tokens;
    }

    void add(const std::string& name, const Tensor& tensor) {
        Rows& rows = seen[name];
        const bool scores =
            name == "index_score";  // only as wide as the step requires; padded to the width of the batch
        int64_t width = 1;
        for (int i = 1; i < tensor.ndim; ++i) width *= tensor.shape[i];
        const int64_t kept = scores ? columns_ : width;
        if (rows.values.empty()) {
            rows.shape.assign(tensor.shape + 1, tensor.shape + tensor.ndim);
            if (scores) rows.shape = {columns_};
            const double fill =
                scores ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
            rows.values.assign(size_t(golden_.batch * golden_.tokens * kept), fill);
        }
        std::vector<double> row(static_cast<size_t>(width));
        for (int64_t i = 0; i < golden_.batch * tokens_; ++i) {
            read(tensor, i, row.data());
            const int64_t token = i / tokens_ * golden_.tokens + first_ + i % tokens_;
            std::copy_n(row.begin(), std::min(kept, width), rows.values.begin() + token * kept);
        }
    }

    std::map<std::string, Rows> seen;

private:
    static void read(const Tensor& tensor, int64_t i, double* out) {
        if (tensor.dtype == SMLA_I32) {
            for (int64_t j = 0; j < tensor.shape[1]; ++j) out[j] = double(load_int(tensor, i, j));
        } else if (tensor.ndim == 2) {
            load_row(tensor, address(tensor, i), tensor.shape[1], out);
        } else {
            for (int64_t j = 0; j < tensor.shape[1]; ++j)
                load_row(tensor, address(tensor, i, j), tensor.shape[2], out + j * tensor.shape[2]);
        }
    }

    const Golden& golden_;
    int64_t columns_ = 0, first_ = 0, tokens_ = 0;
};

// Rows [first, first + n) of every sequence of a [B,S,...] tensor, one sequence after the other.
template <class T>
std::vector<T> step_rows(const std::vector<double>& all, const Golden& golden, int64_t first, int64_t n) {
    const int64_t width = int64_t(all.size()) / (golden.batch * golden.tokens);
    std::vector<T> out;
    out.reserve(size_t(golden.batch * n * width));
    for (int64_t b = 0; b < golden.batch; ++b)
        for (int64_t i = 0; i < n * width; ++i)
            out.push_back(T(all[size_t((b * golden.tokens + first) * width + i)]));
    return out;
}

struct Running {
    const GoldenLayer& golden;
    std::unique_ptr<Layer> layer;
    std::unique_ptr<Session> session;
    std::unique_ptr<Collector> collector;
    std::vector<double> hidden, topk;  // of the file
    LayerResult result;
};

std::vector<Running> open_layers(Context& context, const Golden& golden, const RunOptions& options,
                                 int32_t longest_step) {
    std::vector<Running> out;
    LayerPrecision precision = options.precision;
    precision.weight_prefix = kWeightPrefix;
    for (const GoldenLayer& each : golden.layers) {
        Running running{.golden = each};
        running.layer = open_layer(golden.weights, each.config, each.index, precision, context.device());
        SessionOptions session;
        session.caches = options.caches;
        session.max_requests = int32_t(golden.batch);
        session.max_tokens = int32_t(golden.tokens);
        session.max_step_tokens = int32_t(golden.batch) * longest_step;
        session.page_seed = options.page_seed;
        session.stage_budget = options.stage_budget;
        const int64_t writer = each.config.sources(each.index).entries;
        for (Running& earlier : out)
            if (writer != each.index && earlier.golden.index == writer)
                session.entries_of = earlier.session->place();
        running.session = std::make_unique<Session>(context, *running.layer, session);
        running.collector = std::make_unique<Collector>(golden, each);
        running.hidden = golden.values("in.hidden" + each.suffix);
        running.result.y.resize(running.hidden.size());
        if (options.force_topk && golden.has("mid.topk" + each.suffix))
            running.topk = golden.values("mid.topk" + each.suffix);
        out.push_back(std::move(running));
    }
    return out;
}

// Results that earlier layers of the step have published.
struct Published {
    Tensor topk{}, candidates{};
};

void run_step(const Golden& golden, const RunOptions& options, Running& running, const Published& earlier,
              int64_t first, int64_t n) {
    const int64_t tokens = golden.batch * n, width = running.golden.config.common.hidden_size;
    const bool f64 = options.precision.activations == SMLA_F64;
    std::vector<float> hidden = step_rows<float>(running.hidden, golden, first, n);
    std::vector<char> out(static_cast<size_t>(tokens * width * (f64 ? 8 : 4)));
    std::vector<int32_t> positions, topk;
    std::vector<StepRequest> requests;
    for (int32_t b = 0; b < golden.batch; ++b) requests.push_back({b, int32_t(n)});
    Session::Step step;
    step.requests = requests;
    step.hidden = make_tensor(hidden.data(), SMLA_F32, {tokens, width});
    step.out = make_tensor(out.data(), f64 ? SMLA_F64 : SMLA_F32, {tokens, width});
    if (golden.has("in.position_ids")) {
        positions = step_rows<int32_t>(golden.values("in.position_ids"), golden, first, n);
        step.rope_positions = make_tensor(positions.data(), SMLA_I32, {tokens});
    }
    const LayerSources sources = running.golden.config.sources(running.golden.index);
    const bool shared = sources.selection >= 0 && sources.selection != running.golden.index;
    if (!running.topk.empty()) {
        topk = step_rows<int32_t>(running.topk, golden, first, n);
        step.forced_topk = make_tensor(topk.data(), SMLA_I32, {tokens, int64_t(topk.size()) / tokens});
    } else if (shared) {
        step.forced_topk = earlier.topk;
    }
    if (sources.candidates >= 0 && sources.candidates != running.golden.index)
        step.candidates = earlier.candidates;
    running.collector->begin_step(first, n);
    Tap tap;
    if (options.intermediates)
        tap.tensor = [&](const char* name, const Tensor& tensor) { running.collector->add(name, tensor); };
    tap.attend = options.on_attend;
    step.tap = &tap;
    const auto start = std::chrono::steady_clock::now();
    running.session->forward(step);
    if (options.intermediates && shared && running.topk.empty()) running.collector->add("topk", earlier.topk);
    running.result.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::vector<double> row(static_cast<size_t>(width));
    for (int64_t i = 0; i < tokens; ++i) {
        load_row(step.out, address(step.out, i), width, row.data());
        std::copy(row.begin(), row.end(),
                  running.result.y.begin() + (i / n * golden.tokens + first + i % n) * width);
    }
}

}  // namespace

int64_t Rows::width() const {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    return n;
}

std::vector<LayerResult> run_golden(Context& context, const Golden& golden, const RunOptions& options) {
    std::vector<int32_t> chunks = options.chunks;
    if (chunks.empty()) chunks.push_back(int32_t(golden.tokens));
    std::vector<Running> layers =
        open_layers(context, golden, options, *std::max_element(chunks.begin(), chunks.end()));
    int64_t first = 0;
    for (const int32_t n : chunks) {
        Published earlier;
        for (Running& running : layers) {
            run_step(golden, options, running, earlier, first, n);
            if (const Tensor own = running.session->topk(); present(own)) earlier.topk = own;
            if (const Tensor own = running.session->candidates(); present(own)) earlier.candidates = own;
        }
        first += n;
    }
    std::vector<LayerResult> out;
    for (Running& running : layers) {
        running.result.seen = std::move(running.collector->seen);
        running.result.records = running.session->records;
        running.result.cache_bytes = running.session->cache_bytes();
        out.push_back(std::move(running.result));
    }
    return out;
}

}  // namespace smla::golden
