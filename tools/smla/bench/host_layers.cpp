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

constexpr double kGpuStep = 25e-6;  // bar of a V3.2 layer's decode step on a GPU, seconds
constexpr int32_t kContext = 64;    // tokens of the request, the step's included

struct Size {
    const char* name;
    int64_t hidden, heads, q_rank, index_heads, topk;
};
constexpr Size kTiny{"tiny layer", 256, 2, 128, 8, 16};
constexpr Size kV32{"V3.2 layer", 7168, 128, 1536, 64, 2048};

// A folder with the checkpoint of one such layer; the file of weights is a hole, which reads as zeros.
class ZeroCheckpoint {
public:
    explicit ZeroCheckpoint(const Size& size) {
        std::string pattern = (std::filesystem::temp_directory_path() / "smla_bench_XXXXXX").string();
        if (!mkdtemp(pattern.data())) fail(SMLA_IO_ERROR, "TMPDIR", pattern, "a folder that can be written");
        folder_ = pattern;
        const nlohmann::json config{
            {"model_type", "deepseek_v32"}, {"hidden_size", size.hidden}, {"num_attention_heads", size.heads},
            {"q_lora_rank", size.q_rank},   {"kv_lora_rank", 512},        {"qk_nope_head_dim", 128},
            {"qk_rope_head_dim", 64},       {"v_head_dim", 128},          {"index_n_heads", size.index_heads},
            {"index_head_dim", 128},        {"index_topk", size.topk},    {"rms_norm_eps", 1e-6},
            {"rope_theta", 10000.0}};
        std::ofstream(folder_ / "config.json") << config.dump();
        write_weights(size);
    }
    ~ZeroCheckpoint() {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }
    ZeroCheckpoint(const ZeroCheckpoint&) = delete;
    ZeroCheckpoint& operator=(const ZeroCheckpoint&) = delete;
    std::string folder() const { return folder_.string(); }

private:
    void write_weights(const Size& s) const {
        const std::string at = "model.layers.0.self_attn.";
        nlohmann::json header;
        int64_t end = 0;
        const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
            int64_t bytes = 2;
            for (const int64_t n : shape) bytes *= n;
            header[at + name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
            end += bytes;
        };
        add("q_a_proj.weight", {s.q_rank, s.hidden});
        add("q_a_layernorm.weight", {s.q_rank});
        add("q_b_proj.weight", {s.heads * 192, s.q_rank});
        add("kv_a_proj_with_mqa.weight", {576, s.hidden});
        add("kv_a_layernorm.weight", {512});
        add("kv_b_proj.weight", {s.heads * 256, 512});
        add("o_proj.weight", {s.hidden, s.heads * 128});
        add("indexer.wq_b.weight", {s.index_heads * 128, s.q_rank});
        add("indexer.wk.weight", {128, s.hidden});
        add("indexer.k_norm.weight", {128});
        add("indexer.k_norm.bias", {128});
        add("indexer.weights_proj.weight", {s.index_heads, s.hidden});
        std::string text = header.dump();
        text.resize((text.size() + 7) / 8 * 8, ' ');
        const std::string path = (folder_ / "model.safetensors").string();
        const uint64_t length = text.size();
        std::ofstream file(path, std::ios::binary);
        file.write(reinterpret_cast<const char*>(&length), sizeof length);
        file << text;
        file.close();
        if (!file || truncate(path.c_str(), int64_t(sizeof length + length) + end) != 0)
            fail(SMLA_IO_ERROR, path, std::strerror(errno), "a file that can be written");
    }
    std::filesystem::path folder_;
};

template <class Handle>
using Owned = std::unique_ptr<Handle, void (*)(Handle*)>;

Owned<smla_layer> open(HostBench& bench, const ZeroCheckpoint& checkpoint) {
    const std::string folder = checkpoint.folder();
    smla_layer_args args{};
    args.struct_size = sizeof args;
    args.checkpoint = folder.c_str();
    args.queries = SMLA_BF16;
    smla_layer* layer = nullptr;
    check_status(smla_layer_create(bench.abi, &args, &layer));
    return {layer, smla_layer_destroy};
}

// The step of one request that has kContext tokens: plan and caches are the caller's, as an engine has them.
HostTime time_forward(HostBench& bench, const Size& size, const smla_layer* layer,
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
    step.hidden = bench.zeros(SMLA_F32, {1, size.hidden});
    step.out = bench.zeros(SMLA_F32, {1, size.hidden});
    size_t bytes = 0;
    check_status(smla_layer_workspace_size(layer, &step, 0, &bytes));
    OwnedWorkspace owned(bench.context);
    const Workspace memory = owned.at_least(bytes);
    const smla_workspace workspace{memory.data, memory.bytes};
    return bench.timer.time("smla_layer_forward", text(size.name, ", T1"),
                            [&] { return smla_layer_forward(layer, &step, 0, workspace, nullptr); });
}

HostTime time_session(HostBench& bench, const Size& size, const smla_layer* layer) {
    smla_session_args args{};
    args.struct_size = sizeof args;
    args.kv_format = SMLA_FP8_656;
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
    step.hidden = bench.zeros(SMLA_F32, {1, size.hidden});
    step.out = bench.zeros(SMLA_F32, {1, size.hidden});
    return bench.timer.time(
        "smla_session_forward", text(size.name, ", T1"),
        [&] { return smla_session_forward(session.get(), &step); },
        [&] { check_status(smla_session_end_request(session.get(), 0)); });
}

}  // namespace

std::vector<HostTime> time_layers(HostBench& bench) {
    std::vector<HostTime> out;
    for (const Size& size : {kTiny, kV32}) {
        const bool published = size.heads == kV32.heads;
        if (published && !bench.timer.gpu()) continue;
        const ZeroCheckpoint checkpoint(size);
        const auto layer = open(bench, checkpoint);
        std::vector<HostTime> plans;
        HostTime forward = time_forward(bench, size, layer.get(), plans);
        if (published) forward.bar = kGpuStep;
        else out.push_back(plans.front());
        out.push_back(forward);
        out.push_back(time_session(bench, size, layer.get()));
    }
    return out;
}

}  // namespace smla::cli
