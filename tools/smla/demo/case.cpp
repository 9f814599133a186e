#include "case.h"

#include "bench/measure.h"
#include "formats/fits.h"
#include "golden/compare.h"
#include "layer_files.h"
#include "sequences.h"

#include <fmt/format.h>

#include <cmath>

namespace smla::cli {

namespace {

// Tolerances: the golden files' for f32 and bf16; for fp8 the error predicted from the queries and rows at
// hand. kSameSelection: share of the exact selection that fp8 index keys must keep.
constexpr double kF32Max = 5e-5, kBf16L2 = 1.5e-2, kSameSelection = 0.97;

HostTensor first_sequence(HostTensor tensor) {  // [1,S,...] -> [S,...]
    for (int i = 1; i < tensor.view.ndim; ++i) {
        tensor.view.shape[i - 1] = tensor.view.shape[i];
        tensor.view.stride_elems[i - 1] = tensor.view.stride_elems[i];
    }
    tensor.view.ndim -= 1;
    return tensor;
}

bool plain(smla_format format) { return format_bit(format) & kRowFormats; }

bool fits(const AttentionConfig& config, smla_format format) {
    const bool hybrid = config.hybrid.has_value();
    const int64_t width =
        hybrid ? config.hybrid->head_dim : config.dsa->kv_lora_rank + config.common.rope_dim;
    return why_not_record(format, width, config.common.rope_dim, hybrid).empty();
}

// The first request is the whole prompt, the others are prefixes of it, so that the expected rows are known.
int64_t request_tokens(const DemoModel& model, int32_t request) {
    return std::max<int64_t>(model.tokens * (kDemoRequests - request) / kDemoRequests, 1);
}

std::vector<Sequence> make_sequences(const DemoModel& model, std::vector<std::vector<float>>& memory) {
    std::vector<Sequence> out;
    const int64_t width = model.config.common.hidden_size;
    for (int32_t r = 0; r < kDemoRequests; ++r) {
        const int64_t tokens = request_tokens(model, r);
        memory[size_t(r)].assign(size_t(tokens * width), 0);
        Sequence sequence{.hidden = slice(model.hidden.view, 0, 0, tokens)};
        for (const HostTensor& each : model.read) sequence.read.push_back(slice(each.view, 0, 0, tokens));
        if (present(model.positions.view)) sequence.positions = slice(model.positions.view, 0, 0, tokens);
        sequence.out = make_tensor(memory[size_t(r)].data(), SMLA_F32, {tokens, width});
        out.push_back(std::move(sequence));
    }
    return out;
}

struct Selected {
    std::vector<bool> same;  // by token
    double share = 1;
};

Selected compare_selection(const DemoModel& model, const Sequence& sequence) {
    const int64_t tokens = sequence.hidden.shape[0];
    Selected out{std::vector<bool>(size_t(tokens), true), 1};
    if (!model.has_topk || sequence.selected.empty()) return out;
    const int64_t stored = int64_t(model.topk.size()) / model.tokens,
                  width = int64_t(sequence.selected.size()) / tokens;
    int64_t total = 0, hits = 0;
    for (int64_t t = 0; t < tokens; ++t) {
        const auto row = sequence.selected.begin() + t * width;
        for (int64_t j = 0; j < stored; ++j) {
            const int32_t wanted = model.topk[size_t(t * stored + j)];
            if (wanted < 0) continue;
            const bool hit = std::find(row, row + width, wanted) != row + width;
            ++total;
            hits += hit;
            if (!hit) out.same[size_t(t)] = false;
        }
    }
    out.share = total ? double(hits) / double(total) : 1;
    return out;
}

// Error over the tokens whose selection is the expected one.
double output_error(const DemoModel& model, const std::vector<Sequence>& sequences, bool f32, double& share) {
    std::vector<double> got, wanted;
    const int64_t width = model.config.common.hidden_size;
    share = 1;
    for (const Sequence& sequence : sequences) {
        const Selected selected = compare_selection(model, sequence);
        share = std::min(share, selected.share);
        for (int64_t t = 0; t < sequence.hidden.shape[0]; ++t) {
            if (!selected.same[size_t(t)]) continue;
            const auto* y = reinterpret_cast<const float*>(address(sequence.out, t));
            got.insert(got.end(), y, y + width);
            wanted.insert(wanted.end(), model.expected.begin() + t * width,
                          model.expected.begin() + (t + 1) * width);
        }
    }
    if (got.empty()) return INFINITY;
    const golden::Difference d = golden::compare(got, wanted);
    return f32 ? d.max : d.l2;
}

// Runs one request through the same caches again and predicts, from its queries and rows, the error of fp8.
double predicted_error(LayerChain& chain, const DemoModel& model) {
    chain.end_request(0);
    std::vector<float> y(size_t(model.tokens * model.config.common.hidden_size));
    double worst = 0;
    Tap tap;
    tap.attend = [&](const smla_attend_args& args) {
        worst = std::max(worst, golden::predicted_rounding_error(args));
    };
    for (int64_t first = 0; first < model.tokens; first += kDemoChunk) {
        const int64_t n = std::min<int64_t>(kDemoChunk, model.tokens - first);
        const StepRequest request{0, int32_t(n)};
        Session::Step step;
        step.requests = {&request, 1};
        step.hidden = slice(model.hidden.view, 0, first, first + n);
        step.out = make_tensor(y.data(), SMLA_F32, {n, model.config.common.hidden_size});
        if (present(model.positions.view))
            step.rope_positions = slice(model.positions.view, 0, first, first + n);
        step.tap = &tap;
        std::vector<Tensor> read;
        for (const HostTensor& each : model.read) read.push_back(slice(each.view, 0, first, first + n));
        chain.forward(step, read);
    }
    return worst;
}

double total_flops(const DemoModel& model) {
    const LayerClass layers = layer_class(model.config, model.layer);
    double sum = 0;
    for (int32_t r = 0; r < kDemoRequests; ++r)
        for (int64_t t = 1; t <= request_tokens(model, r); ++t)
            sum += token_flops(model.config, layers, t).total();
    return sum;
}

}  // namespace

DemoModel open_demo_model(const std::string& folder) {
    DemoModel model;
    model.folder = folder;
    model.config = load_config(folder);
    const LayerInput input = read_input(folder + "/hidden.safetensors", "", model.config.common.hidden_size);
    SMLA_CHECK(input.batch == 1, folder + "/hidden.safetensors: tensor hidden", describe(input.hidden.view),
               "one sequence");
    model.tokens = input.tokens;
    model.layer = input.layer.value_or(0);
    model.kind = model.config.layer_kind(model.layer);
    model.has_index = model.config.selects(model.layer);
    for (const HostTensor& each :
         read_others(folder + "/hidden.safetensors", layers_read(model.config, model.layer, false), input,
                     model.layer))
        model.read.push_back(first_sequence(each));
    model.hidden = first_sequence(input.hidden);
    if (present(input.positions.view)) model.positions = first_sequence(input.positions);
    const int64_t ratio = model.config.compress_ratio(model.layer);
    model.name = model.config.common.model_type + (ratio ? text(", ratio ", ratio) : "");

    const std::string path = folder + "/expected.safetensors";
    const HostTensor y = read_rows(path, "y", 1, model.tokens);
    model.expected.resize(size_t(element_count(y.view)));
    const Tensor flat = reshape(y.view, {int64_t(model.expected.size())});
    load_row(flat, address(flat, 0), int64_t(model.expected.size()), model.expected.data());
    const bool listed = model.kind == LayerKind::dsa || model.kind == LayerKind::shared_sparse;
    model.has_topk = listed && SafetensorsFile::open(path).has("topk");
    if (model.has_topk) {
        const HostTensor topk = read_topk(path, 1, model.tokens);
        const auto* values = static_cast<const int32_t*>(topk.view.data);
        model.topk.assign(values, values + element_count(topk.view));
    }
    return model;
}

std::vector<DemoFormat> demo_formats(const DemoModel& model) {
    std::vector<DemoFormat> out{{SMLA_ROW_F32, SMLA_ROW_F32}, {SMLA_ROW_BF16, SMLA_ROW_BF16}};
    std::vector<smla_format> records{kv_formats_for(model.config)[0]};
    if (model.config.hybrid && model.config.hybrid->sharing)
        records.insert(records.end(), {SMLA_FP8_528_G32, SMLA_NVFP4_288});
    const smla_format index = model.config.indexer ? index_formats_for(model.config)[0] : SMLA_ROW_BF16;
    for (const smla_format record : records)
        if (!plain(record) && fits(model.config, record)) out.push_back({record, index});
    return out;
}

int64_t demo_tokens(const DemoModel& model) {
    int64_t sum = 0;
    for (int32_t r = 0; r < kDemoRequests; ++r) sum += request_tokens(model, r);
    return sum;
}

bool DemoResult::pass() const { return error <= tolerance && same_selection >= kSameSelection; }

DemoResult run_demo(Context& context, const DemoModel& model, const DemoFormat& format,
                    const std::function<void(int64_t tokens)>& progress) {
    const bool f32 = format.kv == SMLA_ROW_F32;
    LayerPrecision precision;
    precision.queries = f32 ? SMLA_F32 : SMLA_BF16;
    Schedule schedule{
        .chunks = {kDemoChunk}, .decode_tokens = kDemoDecode, .stagger = 1, .keep_selected = true};
    SessionOptions options;
    options.caches.kv = format.kv;
    options.caches.index = format.index;
    options.caches.kv_scale = 1;  // normed latents are far below 448
    options.max_requests = kDemoRequests;
    options.max_tokens = int32_t(model.tokens);
    options.max_step_tokens = largest_step(schedule, kDemoRequests);
    LayerChain chain(context, model.folder, model.config, model.layer, precision, options);
    const Session& session = chain.session();

    std::vector<std::vector<float>> memory(kDemoRequests);
    std::vector<Sequence> sequences = make_sequences(model, memory);
    const double seconds = run_sequences(chain, sequences, schedule, progress);
    DemoResult out;
    out.engine = context.description().substr(0, context.description().find(','));
    const char* kernel = session.records[size_t(Stage::attend)].kernel;
    out.kernel = kernel ? kernel : "";
    out.bf16 = !f32;
    out.tokens_per_second = double(demo_tokens(model)) / seconds;
    out.gflops = total_flops(model) / seconds * 1e-9;
    for (const CacheNeed& need : session.needs()) {
        out.bytes_per_token += need.bytes_per_token();
        if (need.resident)
            out.bytes_per_request += double(need.pages(1 << 30, kDemoChunk)) * double(need.page_bytes());
    }
    out.error = output_error(model, sequences, f32, out.same_selection);
    out.tolerance = f32                ? kF32Max
                    : plain(format.kv) ? kBf16L2
                                       : golden::kOverPrediction * predicted_error(chain, model);
    return out;
}

MachinePeak machine_peak(Context& context) {
    const Peaks peaks = measure_peaks(context);
    if (context.device().type() != SMLA_CPU)
        return {peaks.bf16_dot * 1e-9, peaks.bf16_dot * 1e-9,
                fmt::format("{:.0f} GFLOP/s bf16 matrix products", peaks.bf16_dot * 1e-9)};
    const double f32 = peaks.f32_fma * 1e-9, bf16 = peaks.bf16_dot > 0 ? peaks.bf16_dot * 1e-9 : f32;
    return {
        f32, bf16,
        fmt::format("{:.0f} GFLOP/s bf16 dot products (f32 rows: {:.0f} GFLOP/s multiply-adds), {} threads",
                    bf16, f32, context.pool().threads())};
}

}  // namespace smla::cli
