#include "host.h"

#include "common.h"
#include "cuda_peaks.h"
#include "machine.h"

#include <algorithm>

namespace smla::cli {

namespace {

// Target times in seconds of one call whose plan is cached.
constexpr double kCpuCall = 1.5e-6, kGpuCall = 3e-6;

struct DestroyContext {
    void operator()(smla_context* context) const { smla_context_destroy(context); }
};
using AbiContext = std::unique_ptr<smla_context, DestroyContext>;

AbiContext make_context(const ContextOptions& options) {
    const smla_context_args args = options.args_here();
    smla_context* context = nullptr;
    check_status(smla_context_create(&args, &context));
    return AbiContext(context);
}

smla_write_args write_args(HostBench& bench) {
    smla_write_args args{};
    args.struct_size = sizeof args;
    args.head = bench.zeros(SMLA_F32, {1, 576});
    args.slots = bench.ints(SMLA_I64, {3});
    args.cache = cache_of(SMLA_FP8_656, 576, 64, 64);
    bench.memory.back(args.cache);
    bench.placed.take(args.cache);
    return args;
}

smla_rope_args rope_args(HostBench& bench) {
    smla_rope_args args{};
    args.struct_size = sizeof args;
    args.x = bench.zeros(SMLA_F32, {1, 1, 64});
    args.out = bench.zeros(SMLA_F32, {1, 1, 64});
    args.positions = bench.ints(SMLA_I32, {5});
    args.frequencies = bench.zeros(SMLA_F64, {32});
    return args;
}

smla_map_args map_args(HostBench& bench) {
    smla_map_args args{};
    args.struct_size = sizeof args;
    args.page_tokens = 64;
    args.positions = bench.ints(SMLA_I32, {5});
    args.positions = reshape(args.positions, {1, 1});
    args.rows = bench.zeros(SMLA_I32, {1, 1});
    args.request_of_token = bench.ints(SMLA_I32, {0});
    args.block_table = reshape(bench.ints(SMLA_I32, {0}), {1, 1});
    return args;
}

}  // namespace

void check_status(smla_status status) {
    if (status == SMLA_OK) return;
    smla_error error{};
    smla_last_error_info(&error);
    throw Error(status, error.field, error.got, error.wanted);
}

Tensor HostBench::zeros(smla_dtype dtype, std::initializer_list<int64_t> shape) {
    Tensor out = absent_data(dtype, shape);
    memory.back(out);
    placed.take(out);
    return out;
}

Tensor HostBench::ints(smla_dtype dtype, const std::vector<int64_t>& values) {
    Tensor out = absent_data(dtype, {int64_t(values.size())});
    memory.back(out);
    for (size_t i = 0; i < values.size(); ++i) {
        if (dtype == SMLA_I64) static_cast<int64_t*>(out.data)[i] = values[i];
        else static_cast<int32_t*>(out.data)[i] = int32_t(values[i]);
    }
    placed.take(out);
    return out;
}

HostTime HostTimer::summary(const std::string& name, const std::string& what, std::vector<double>& times) {
    HostTime out;
    out.call = name;
    out.name = what;
    out.calls = int64_t(times.size());
    std::sort(times.begin(), times.end());
    out.median = times[times.size() / 2];
    out.p90 = times[times.size() * 9 / 10];
    return out;
}

std::vector<HostTime> time_calls(HostBench& bench) {
    std::vector<HostTime> out;
    OwnedWorkspace owned(bench.context);
    Filler filler(bench.memory, bench.filling, 1);
    const auto time = [&](const char* name, const char* what, smla_stage stage, auto* function,
                          const auto& args) {
        size_t bytes = 0;
        check_status(smla_workspace_size(bench.abi, stage, &args, 0, &bytes));
        const Workspace memory = owned.at_least(bytes);
        const smla_workspace workspace{memory.data, memory.bytes};
        check_status(smla_prepare(bench.abi, stage, &args));
        HostTime one = bench.timer.time(text("smla_", name), what,
                                        [&] { return function(bench.abi, &args, workspace, nullptr); });
        one.bar = bench.timer.gpu() ? kGpuCall : kCpuCall;
        out.push_back(one);
    };
    const auto filled = [&](auto args) {
        filler.fill(args);
        return Placed(bench.context.device(), args);
    };
    AttendShape latent;
    latent.heads = 1;
    latent.primary = {.format = SMLA_ROW_BF16, .listed = 1, .pool_rows = 64};
    const auto attend = filled(attend_args(latent));
    time("attend", "T1 H1 K1 bf16_576", SMLA_STAGE_ATTEND, smla_attend, attend.args);
    ScoreShape keys;
    keys.heads = 1;
    keys.columns = 1;
    const auto score = filled(score_args(keys));
    time("score", "T1 H1 N1 index_fp8_132", SMLA_STAGE_SCORE, smla_score, score.args);
    const auto select = filled(select_args({.tokens = 1, .columns = 64, .topk = 16}));
    time("select", "T1 N64 k16", SMLA_STAGE_SELECT, smla_select, select.args);
    const auto merge = filled(merge_args({.partials = 2, .tokens = 1, .heads = 1, .value_width = 512}));
    time("merge", "2 partials, T1 H1 D512", SMLA_STAGE_MERGE, smla_merge, merge.args);
    time("write_kv", "T1 fp8_656", SMLA_STAGE_WRITE_KV, smla_write_kv, write_args(bench));
    time("rope", "T1 H1 D64", SMLA_STAGE_ROPE, smla_rope, rope_args(bench));
    time("map", "T1 K1", SMLA_STAGE_MAP, smla_map, map_args(bench));
    return out;
}

int bench_host(const Tool& tool, const ContextOptions& options, const BenchOptions& bench_options) {
    const AbiContext abi = make_context(options);
    Context context = options.create(tool);
    HostBench bench{abi.get(), context, HostTimer(context.device(), bench_options)};
    std::vector<HostTime> times;
    if (bench.timer.gpu())  // the lower bound of every call
        times.push_back(bench.timer.time("launch", "an empty kernel", [] {
            bench::launch_nothing();
            return SMLA_OK;
        }));
    const auto microseconds = [](const Document& cell) { return fmt::format("{:.2f}", cell.get<double>()); };
    Table table({{"call", "call"},
                 {"case", "case", {}, 4},
                 {"median_us", "median us", microseconds},
                 {"p90_us", "p90 us", microseconds, 2},
                 {"bar_us", "bar us", microseconds, 5},
                 {"within_bar", "within", {}, 5},
                 {"calls", "calls", {}, 1}});
    Progress progress(2);
    for (const HostTime& each : time_calls(bench)) times.push_back(each);
    progress.advance(1, "layers");
    for (const HostTime& each : time_layers(bench)) times.push_back(each);
    progress.advance(1, "");
    for (const HostTime& each : times)
        table.row({each.call, each.name, each.median * 1e6, each.p90 * 1e6,
                   each.bar ? Document(*each.bar * 1e6) : Document(),
                   each.bar ? Document(each.median <= *each.bar) : Document(), each.calls});
    const char* method = bench.timer.gpu()
                             ? "until a call returns; the stream is drained between batches of calls"
                             : "wall time of calls that compute next to nothing";
    tool.print(
        Document{{"machine", machine_facts()},
                 {"context", context.description()},
                 {"check_indices", context.env({}).check_indices},
                 {"method", method},
                 {"quick", bench_options.quick},
                 {"host", table.json()}},
        fmt::format("{}, {}\nhost time: {}\n\n{}", cpu_model(), context.description(), method, table.text()),
        bench_options.save);
    return kOk;
}

}  // namespace smla::cli
