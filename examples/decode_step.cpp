// Runs decode steps of an attention layer of DeepSeek-V3.2 between its projections: caches the new tokens,
// selects 2048 tokens per request with the indexer, and attends to them. With a GPU and a build with CUDA,
// the program captures the step as a CUDA graph and replays it; otherwise the step runs on the CPU. The
// program compares every step with the reference engine.
#include <smla/smla.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#if defined(SMLA_EXAMPLE_CUDA) && __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#define DECODE_STEP_HAS_GRAPHS 1
#else
#define DECODE_STEP_HAS_GRAPHS 0
#endif

namespace {

// The attention members of DeepSeek-V3.2's config.json.
constexpr const char* CONFIG = R"({
  "model_type": "deepseek_v32", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
  "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048, "rope_theta": 10000,
  "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
                   "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}})";

// clang-format off
// [README.begin]
// One decode step of a layer of DeepSeek-V3.2: R requests, one new token each. Buffers live on the context's
// device at fixed addresses, so that a step captured on a GPU can be replayed.
constexpr int R = 3, HEADS = 16, INDEX_HEADS = 64, TOPK = 2048, PAGE = 64, PAGES = 40;  // pages per request

struct DecodeStep {
    const smla::Context& on;
    // Read from the text of a config.json; .config = "DeepSeek-V3.2/config.json" reads a file instead.
    smla_layer_info layer = smla::layer_info({.layer = 3, .config_json = CONFIG});
    // Outputs of the layer's projections for each new token; q is absorbed and rotated.
    smla::Tensor latent = on.tensor<float>({R, 512}), k_rope = on.tensor<float>({R, 64});
    smla::Tensor q = on.tensor<float>({R, HEADS, 576}), index_k = on.tensor<float>({R, 128});
    smla::Tensor index_q = on.tensor<float>({R, INDEX_HEADS, 128});
    smla::Tensor index_w = on.tensor<float>({R, INDEX_HEADS});
    // The batch: pages of each request, its length with the new token, where its tokens start.
    smla::Tensor table = on.tensor<int32_t>({R, PAGES}), lengths = on.tensor<int32_t>({R});
    smla::Tensor starts = on.tensor<int32_t>({R + 1});
    smla::Cache kv = on.cache(SMLA_FP8_656, R * PAGES, PAGE);
    smla::Cache keys = on.cache(SMLA_INDEX_FP8_132, R * PAGES, PAGE);
    // Results and intermediate tensors.
    smla::Tensor out = on.tensor<float>({R, HEADS, 512}), logits = on.tensor<float>({R, PAGES * PAGE});
    smla::Tensor q8 = on.tensor(SMLA_E4M3, {R, INDEX_HEADS, 128}), w = on.tensor<float>({R, INDEX_HEADS});
    smla::Tensor chosen = on.tensor<int32_t>({R, TOPK}), counts = on.tensor<int32_t>({R});
    smla::Tensor rows = on.tensor<int32_t>({R, TOPK});
    smla::Workspace scratch = on.workspace();
    smla::Plan plan{on, {.groups = SMLA_GROUP_PRIMARY | SMLA_GROUP_INDEX, .max_tokens = R, .max_requests = R,
                         .max_seq_len = PAGES * PAGE}};

    void run(smla_stream stream = nullptr) {
        const smla_plan_group pages{.block_table = table, .page_tokens = PAGE};
        plan.build({.tokens = R, .query_start_loc = starts, .seq_lens = lengths, .primary = pages,
                    .index = pages, .stream = stream});
        const smla_tensor requests = plan.tensor("request_of_token"), ends = plan.tensor("score_end");
        on.write_kv({.head = latent, .tail = k_rope, .slots = plan.tensor("primary_slot"), .cache = kv},
                    scratch, stream);
        on.write_index({.hadamard = 1, .head = index_k, .slots = plan.tensor("index_slot"), .cache = keys},
                       scratch, stream);
        on.quant_index_q({.hadamard = 1, .amax_floor = 1e-10, .factor = 1 / std::sqrt(INDEX_HEADS * 128.),
                          .q = index_q, .w = index_w, .q_out = q8, .w_out = w}, scratch, stream);
        on.score({.q = q8, .w = w, .keys = keys, .block_table = table, .request_of_token = requests,
                  .ends = ends, .logits = logits}, scratch, stream);
        on.select({.scores = logits, .ends = ends, .indices = chosen, .counts = counts, .rows = rows,
                   .row_table = table, .request_of_token = requests, .page_tokens = PAGE}, scratch, stream);
        on.attend({.softmax_scale = layer.softmax_scale, .q = q,  // includes YaRN's magnitude
                   .primary = {.cache = kv, .rows = rows, .lengths = counts}, .out = out}, scratch, stream);
    }
};
// [README.end]
// clang-format on

constexpr int STEPS = 3;

#if DECODE_STEP_HAS_GRAPHS
void checked(cudaError_t status) {
    if (status != cudaSuccess) throw smla::Error(SMLA_DEVICE_ERROR, "cuda", cudaGetErrorString(status), "");
}

// [README.begin]
// Captures the step as a CUDA graph. A first run sizes scratch and loads kernels, which a capture cannot.
std::function<void()> captured(DecodeStep& step, cudaStream_t stream) {
    step.run(stream);
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    checked(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    step.run(stream);
    checked(cudaStreamEndCapture(stream, &graph));
    checked(cudaGraphInstantiate(&replay, graph, 0));
    return [=] { checked(cudaGraphLaunch(replay, stream)); };  // uses the tensors' current contents
}
// [README.end]
#endif

std::mt19937 random_bits(3);

std::vector<float> random_values(int64_t count) {
    std::uniform_real_distribution<float> values(-1, 1);
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) value = values(random_bits);
    return out;
}

// Uploads the same random values to a tensor of the step and of the reference.
void upload(smla::Tensor DecodeStep::*tensor, int64_t count, DecodeStep& step, DecodeStep& reference,
            smla_stream stream) {
    const std::vector<float> values = random_values(count);
    (step.*tensor).upload(values, stream);
    (reference.*tensor).upload(values);
}

// Fills the block tables and caches of three requests, whose pages alternate, and returns their lengths.
std::vector<int32_t> fill(DecodeStep& step, DecodeStep& reference, smla_stream stream) {
    std::vector<int32_t> lengths{2500, 70, 2047}, table(R * PAGES), starts(R + 1);
    for (int r = 0; r < R; ++r) {
        starts[size_t(r) + 1] = r + 1;
        for (int page = 0; page < PAGES; ++page) table[size_t(r * PAGES + page)] = page * R + r;
    }
    std::vector<int64_t> slots;
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < lengths[size_t(r)]; ++t)
            slots.push_back(int64_t(table[size_t(r * PAGES + t / PAGE)]) * PAGE + t % PAGE);
    const int64_t tokens = int64_t(slots.size());
    const std::vector<float> latent = random_values(tokens * 512), rope = random_values(tokens * 64),
                             key = random_values(tokens * 128);
    for (DecodeStep* each : {&step, &reference}) {
        const smla_stream queue = each == &step ? stream : nullptr;
        each->table.upload(table, queue);
        each->starts.upload(starts, queue);
        const smla::Tensor rows = each->on.copy_of(slots), head = each->on.copy_of(latent, {tokens, 512}),
                           tail = each->on.copy_of(rope, {tokens, 64}),
                           index = each->on.copy_of(key, {tokens, 128});
        each->on.write_kv({.head = head, .tail = tail, .slots = rows, .cache = each->kv}, each->scratch);
        each->on.write_index({.hadamard = 1, .head = index, .slots = rows, .cache = each->keys},
                             each->scratch);
        each->counts.download<int32_t>();  // waits, because the tensors of this iteration are freed
    }
    return lengths;
}

// Checks that every selected position scores at least as high as every other one, up to rounding, with the
// scores of the reference. Returns the number of selected positions.
int64_t check_selection(DecodeStep& step, DecodeStep& reference, const std::vector<int32_t>& lengths,
                        smla_stream stream) {
    const std::vector<float> logits = reference.logits.download<float>();
    const std::vector<int32_t> chosen = step.chosen.download<int32_t>(stream);
    int64_t selected = 0;
    for (size_t r = 0; r < R; ++r) {
        const float* const row = &logits[r * PAGES * PAGE];
        std::vector<bool> taken(size_t(lengths[r]), false);
        float least = INFINITY, best_left = -INFINITY, largest = 0;
        for (size_t j = 0; j < TOPK && chosen[r * TOPK + j] >= 0; ++j, ++selected) {
            const size_t position = size_t(chosen[r * TOPK + j]);
            taken.at(position) = true;
            least = std::fmin(least, row[position]);
        }
        for (size_t j = 0; j < taken.size(); ++j) {
            largest = std::fmax(largest, std::fabs(row[j]));
            if (!taken[j]) best_left = std::fmax(best_left, row[j]);
        }
        const auto wanted = std::min<int64_t>(lengths[r], TOPK);
        // f32 sums of 64 weighted products of 128 codes: 192 roundings, of sums that may be several times the
        // result because weights have both signs.
        if (std::count(taken.begin(), taken.end(), true) != wanted ||
            best_left - least > 8 * 192 * 0x1p-24F * largest)
            return -1;
    }
    return selected;
}

// Returns the largest relative error of an output row, compared with the reference on the same cache rows.
double attention_error(DecodeStep& step, DecodeStep& reference, smla_stream stream) {
    reference.rows.upload(step.rows.download<int32_t>(stream));
    const double magnitude = 0.1 * std::log(40.) + 1;  // YaRN's factor for queries and keys
    reference.on.attend({.softmax_scale = magnitude * magnitude / std::sqrt(128. + 64.),
                         .q = reference.q,
                         .primary = {.cache = reference.kv, .rows = reference.rows},
                         .out = reference.out},
                        reference.scratch);
    const std::vector<float> out = step.out.download<float>(stream), exact = reference.out.download<float>();
    double worst = 0;
    for (size_t row = 0; row < R * HEADS; ++row) {
        double error = 0, size = 0;
        for (size_t d = row * 512; d < (row + 1) * 512; ++d) {
            error += std::pow(double(out[d]) - double(exact[d]), 2);
            size += std::pow(double(exact[d]), 2);
        }
        worst = std::fmax(worst, std::sqrt(error / size));
    }
    return worst;
}

int run(const smla::Context& context) {
    const smla::Context exact({.engine = SMLA_ENGINE_REFERENCE});
    DecodeStep step{context}, reference{exact};
    smla_stream stream = nullptr;
    std::function<void()> once = [&] { step.run(); };
    const char* how = "without a graph";
#if DECODE_STEP_HAS_GRAPHS
    cudaStream_t own = nullptr;
    if (context.device_type() == SMLA_CUDA) {
        checked(cudaSetDevice(context.device_index()));
        checked(cudaStreamCreate(&own));
        stream = own;
    }
#endif
    std::vector<int32_t> lengths = fill(step, reference, stream);
    step.lengths.upload(lengths, stream);
#if DECODE_STEP_HAS_GRAPHS
    if (stream) once = captured(step, own), how = "replayed as one graph";
#endif
    std::printf("%s, %s\n", context.description().c_str(), how);
    for (int i = 0; i < STEPS; ++i) {
        upload(&DecodeStep::latent, R * 512, step, reference, stream);
        upload(&DecodeStep::k_rope, R * 64, step, reference, stream);
        upload(&DecodeStep::q, R * HEADS * 576, step, reference, stream);
        upload(&DecodeStep::index_k, R * 128, step, reference, stream);
        upload(&DecodeStep::index_q, R * INDEX_HEADS * 128, step, reference, stream);
        upload(&DecodeStep::index_w, R * INDEX_HEADS, step, reference, stream);
        for (int32_t& length : lengths) ++length;
        step.lengths.upload(lengths, stream);
        reference.lengths.upload(lengths);
        once();
        reference.run();
        const int64_t selected = check_selection(step, reference, lengths, stream);
        const double error = attention_error(step, reference, stream);
        // Kernels may round queries and weights to bf16 (f16 on a GPU): at most 2^-9 each.
        const bool right = selected >= 0 && error < 2 * 0x1p-9;
        std::printf("step %d: %d tokens selected, error of out %.1e: %s\n", i, int(selected), error,
                    right ? "ok" : "WRONG");
        if (!right) return 1;
    }
    return 0;
}

// Returns a GPU context if the library has the CUDA engine and finds a GPU, otherwise a CPU context.
smla::Context gpu_or_cpu() {
    try {
        return smla::Gpu(0);
    } catch (const smla::Error& error) {
        std::printf("no GPU: %s\n", error.what());
        return smla::Cpu();
    }
}

}  // namespace

int main() {
    try {
        return run(gpu_or_cpu());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
