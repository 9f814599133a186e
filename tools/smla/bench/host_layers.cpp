// smla bench --case host: a layer's decode step, of a checkpoint whose weights are all zero.
#include "host.h"

#include "layers/cache_layout.h"

#include <smla/layer.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace smla::cli {

namespace {

constexpr double kGpuStep = 25e-6;  // target time of a V3.2 layer's decode step on a GPU, in seconds
constexpr int32_t kContext = 64;    // tokens of the request, including the step's

struct Matrix {
    std::string name;
    std::vector<int64_t> shape;
};
// A layer of a checkpoint, and how its session caches keys.
struct Model {
    const char* name;
    nlohmann::json config;
    int32_t layer;
    std::string prefix;
    std::vector<Matrix> weights;
    smla_format kv_format;
    int64_t hidden() const { return config["hidden_size"]; }
};

Model v32(const char* name, int64_t hidden, int64_t heads, int64_t q_rank, int64_t index_heads,
          int64_t topk) {
    return {name,
            {{"model_type", "deepseek_v32"},
             {"hidden_size", hidden},
             {"num_attention_heads", heads},
             {"q_lora_rank", q_rank},
             {"kv_lora_rank", 512},
             {"qk_nope_head_dim", 128},
             {"qk_rope_head_dim", 64},
             {"v_head_dim", 128},
             {"index_n_heads", index_heads},
             {"index_head_dim", 128},
             {"index_topk", topk},
             {"rms_norm_eps", 1e-6},
             {"rope_theta", 10000.0}},
            0,
            "model.layers.0.self_attn.",
            {{"q_a_proj.weight", {q_rank, hidden}},
             {"q_a_layernorm.weight", {q_rank}},
             {"q_b_proj.weight", {heads * 192, q_rank}},
             {"kv_a_proj_with_mqa.weight", {576, hidden}},
             {"kv_a_layernorm.weight", {512}},
             {"kv_b_proj.weight", {heads * 256, 512}},
             {"o_proj.weight", {hidden, heads * 128}},
             {"indexer.wq_b.weight", {index_heads * 128, q_rank}},
             {"indexer.wk.weight", {128, hidden}},
             {"indexer.k_norm.weight", {128}},
             {"indexer.k_norm.bias", {128}},
             {"indexer.weights_proj.weight", {index_heads, hidden}}},
            SMLA_FP8_656};
}

Model v4_flash() {
    constexpr int64_t hidden = 4096, heads = 64, q_rank = 1024, width = 512, index_width = 128, groups = 8,
                      rank = 1024;
    Model out{"V4-Flash layer of ratio 4",
              {{"model_type", "deepseek_v4"},
               {"hidden_size", hidden},
               {"num_attention_heads", heads},
               {"q_lora_rank", q_rank},
               {"head_dim", width},
               {"qk_rope_head_dim", 64},
               {"o_groups", groups},
               {"o_lora_rank", rank},
               {"sliding_window", 128},
               {"index_n_heads", 64},
               {"index_head_dim", 128},
               {"index_topk", 512},
               {"rope_theta", 10000.0},
               {"rms_norm_eps", 1e-6},
               {"compress_rope_theta", 160000.0},
               {"compress_ratios", {4}}},
              0,
              "layers.0.attn.",
              {{"wq_a.weight", {q_rank, hidden}},
               {"q_norm.weight", {q_rank}},
               {"wq_b.weight", {heads * width, q_rank}},
               {"wkv.weight", {width, hidden}},
               {"kv_norm.weight", {width}},
               {"attn_sink", {heads}},
               {"wo_a.weight", {groups * rank, heads / groups * width}},
               {"wo_b.weight", {hidden, groups * rank}},
               {"indexer.wq_b.weight", {64 * index_width, q_rank}},
               {"indexer.weights_proj.weight", {64, hidden}}},
              SMLA_FP8_584};
    for (const auto& [of, channels] :
         {std::pair<std::string, int64_t>("", width), {"indexer.", index_width}}) {
        const std::string at = of + "compressor.";
        out.weights.push_back({at + "wkv.weight", {2 * channels, hidden}});
        out.weights.push_back({at + "wgate.weight", {2 * channels, hidden}});
        out.weights.push_back({at + "ape", {4, 2 * channels}});
        out.weights.push_back({at + "norm.weight", {channels}});
    }
    return out;
}

// A folder with the checkpoint of such a layer. The weight file is sparse, so all weights are zero.
class ZeroCheckpoint {
public:
    explicit ZeroCheckpoint(const Model& model) {
        std::string pattern = (std::filesystem::temp_directory_path() / "smla_bench_XXXXXX").string();
        if (!mkdtemp(pattern.data())) fail(SMLA_IO_ERROR, "TMPDIR", pattern, "a writable folder");
        folder_ = pattern;
        std::ofstream(folder_ / "config.json") << model.config.dump();
        write_weights(model);
    }
    ~ZeroCheckpoint() {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }
    ZeroCheckpoint(const ZeroCheckpoint&) = delete;
    ZeroCheckpoint& operator=(const ZeroCheckpoint&) = delete;
    std::string folder() const { return folder_.string(); }

private:
    void write_weights(const Model& model) const {
        nlohmann::json header;
        int64_t end = 0;
        for (const Matrix& each : model.weights) {
            int64_t bytes = 2;
            for (const int64_t n : each.shape) bytes *= n;
            header[model.prefix + each.name] = {
                {"dtype", "BF16"}, {"shape", each.shape}, {"data_offsets", {end, end + bytes}}};
            end += bytes;
        }
        std::string text = header.dump();
        text.resize((text.size() + 7) / 8 * 8, ' ');
        const std::string path = (folder_ / "model.safetensors").string();
        const uint64_t length = text.size();
        std::ofstream file(path, std::ios::binary);
        file.write(reinterpret_cast<const char*>(&length), sizeof length);
        file << text;
        file.close();
        if (!file || truncate(path.c_str(), int64_t(sizeof length + length) + end) != 0)
            fail(SMLA_IO_ERROR, path, smla::text("cannot write the file: ", std::strerror(errno)), "");
    }
    std::filesystem::path folder_;
};

template <class Handle>
using Owned = std::unique_ptr<Handle, void (*)(Handle*)>;

Owned<smla_layer> open(HostBench& bench, const Model& model, const ZeroCheckpoint& checkpoint) {
    const std::string folder = checkpoint.folder();
    smla_layer_args args{};
    args.struct_size = sizeof args;
    args.checkpoint = folder.c_str();
    args.layer = model.layer;
    args.queries = SMLA_BF16;
    args.weights = SMLA_WEIGHTS_AS_STORED;
    smla_layer* layer = nullptr;
    check_status(smla_layer_create(bench.abi, &args, &layer));
    return {layer, smla_layer_destroy};
}

// The step of one request that has kContext tokens: plan and caches are the caller's, as an engine has them.
HostTime time_forward(HostBench& bench, const Model& model, const smla_layer* layer,
                      std::vector<HostTime>& out) {
    smla_plan_args maxima{};
    maxima.struct_size = sizeof maxima;
    maxima.groups = SMLA_GROUP_PRIMARY | SMLA_GROUP_INDEX;
    maxima.max_tokens = maxima.max_requests = 1;
    maxima.max_seq_len = kContext;
    maxima.context = bench.abi;
    smla_plan* made = nullptr;
    check_status(smla_plan_create(&maxima, &made));
    const Owned<smla_plan> plan(made, smla_plan_destroy);
    smla_plan_batch batch{};
    batch.struct_size = sizeof batch;
    batch.tokens = 1;
    batch.query_start_loc = bench.ints(SMLA_I32, {0, 1});
    batch.seq_lens = bench.ints(SMLA_I32, {kContext});
    smla_layer_step step{};
    step.struct_size = sizeof step;
    const auto group = [&](smla_plan_group& of_plan, smla_layer_cache& of_step, smla_format format,
                           int64_t width) {
        of_plan.block_table = reshape(bench.ints(SMLA_I32, {0}), {1, 1});
        of_plan.page_tokens = kContext;
        of_step.cache = cache_of(format, width, kContext, kContext);
        bench.memory.back(of_step.cache);
        bench.placed.take(of_step.cache);
        of_step.block_table = of_plan.block_table;
    };
    group(batch.primary, step.primary, SMLA_FP8_656, 576);
    group(batch.index, step.index, SMLA_INDEX_FP8_132, 128);
    out.push_back(bench.timer.time("smla_plan_build", "V3.2, 1 decode",
                                   [&] { return smla_plan_build(plan.get(), &batch); }));
    step.plan = plan.get();
    step.hidden = bench.zeros(SMLA_F32, {1, model.hidden()});
    step.out = bench.zeros(SMLA_F32, {1, model.hidden()});
    size_t bytes = 0;
    check_status(smla_layer_workspace_size(layer, &step, 0, &bytes));
    OwnedWorkspace owned(bench.context);
    const Workspace memory = owned.at_least(bytes);
    const smla_workspace workspace{memory.data, memory.bytes};
    return bench.timer.time("smla_layer_forward", text(model.name, ", T1"),
                            [&] { return smla_layer_forward(layer, &step, 0, workspace, nullptr); });
}

void time_session(HostBench& bench, const Model& model, const smla_layer* layer, std::vector<HostTime>& out) {
    smla_session_args args{};
    args.struct_size = sizeof args;
    args.kv_format = model.kv_format;
    args.max_tokens = kContext;
    args.max_step_tokens = 1;
    smla_session* made = nullptr;
    check_status(smla_session_create(layer, &args, &made));
    const Owned<smla_session> session(made, smla_session_destroy);
    const smla_step_request request{0, 1};
    smla_session_step step{};
    step.struct_size = sizeof step;
    step.request_count = 1;
    step.requests = &request;
    step.hidden = bench.zeros(SMLA_F32, {1, model.hidden()});
    step.out = bench.zeros(SMLA_F32, {1, model.hidden()});
    const auto forward = [&] { return smla_session_forward(session.get(), &step); };
    const auto end = [&] { check_status(smla_session_end_request(session.get(), 0)); };
    const char* const call = "smla_session_forward";
    out.push_back(bench.timer.time(call, text(model.name, ", T1"), forward, end));
    if (bench.timer.gpu())
        out.push_back(bench.timer.time_done(call, text(model.name, ", T1, until done"), forward, end));
}

}  // namespace

std::vector<HostTime> time_layers(HostBench& bench) {
    std::vector<HostTime> out;
    const std::vector<Model> models{v32("tiny layer", 256, 2, 128, 8, 16),
                                    v32("V3.2 layer", 7168, 128, 1536, 64, 2048), v4_flash()};
    for (const Model& model : models) {
        const bool published = &model != &models.front();
        if (published && !bench.timer.gpu()) continue;
        const ZeroCheckpoint checkpoint(model);
        const auto layer = open(bench, model, checkpoint);
        if (model.kv_format == SMLA_FP8_656) {  // V3.2, whose plan time_forward() makes
            std::vector<HostTime> plans;
            HostTime forward = time_forward(bench, model, layer.get(), plans);
            if (published) forward.bar = kGpuStep;
            else out.push_back(plans.front());
            out.push_back(forward);
        }
        time_session(bench, model, layer.get(), out);
    }
    return out;
}

}  // namespace smla::cli
