#include "stage.h"

#include "engines/run.h"
#include "names.h"
#include "problems.h"

#include <CLI/CLI.hpp>

namespace smla::cli {

namespace {

// Builds the arguments of a stage from the options.
class Call {
public:
    explicit Call(const StageShape& shape) : s_(shape) {}

    void check_names() const {
        kv_format();
        index_format();
        queries(SMLA_F32);
        extra_format();
        dtype("--weights", s_.weights, SMLA_BF16);
        dtype("--out", s_.out, SMLA_BF16);
    }

    AttendShape attend() const {
        AttendShape attend;
        attend.tokens = s_.tokens;
        attend.heads = heads(128);
        const smla_format format = kv_format();
        attend.width = width(format, format == SMLA_ROW_BF16 ? 576 : 512);
        attend.value_width = s_.value_width;
        attend.primary = {format, s_.rows, std::max<int64_t>(s_.rows, 1), s_.page_tokens};
        if (const smla_format extra = extra_format())
            attend.extra = {extra, s_.extra_rows, std::max<int64_t>(s_.extra_rows, 1), s_.page_tokens};
        attend.q = queries(SMLA_BF16);
        attend.out = dtype("--out", s_.out, attend.q == SMLA_E4M3 ? SMLA_BF16 : attend.q);
        attend.sink = s_.sink;
        return attend;
    }
    void set(smla_attend_args& args) const {
        args = attend_args(attend());
        if (args.q.dtype == SMLA_F64 && s_.sink) args.sink.dtype = SMLA_F64;
        if (args.q.dtype == SMLA_F64) args.lse.dtype = SMLA_F64;
    }
    ScoreShape score() const {
        const smla_format format = index_format();
        const smla_dtype automatic = format == SMLA_INDEX_FP8_132    ? SMLA_E4M3
                                     : format == SMLA_INDEX_MXFP4_68 ? SMLA_E2M1
                                                                     : SMLA_F32;
        return {s_.tokens,          heads(64), width(format, 128), s_.columns,
                queries(automatic), format,    s_.page_tokens};
    }
    void set(smla_score_args& args) const { args = score_args(score()); }
    void set(smla_select_args& args) const { args = select_args({s_.tokens, s_.columns, s_.topk}); }
    void set(smla_score_select_args& args) const { args = score_select_args(score(), s_.topk); }
    void set(smla_score_select_blocks_args& args) const {
        const smla_score_args score = score_args(this->score());
        args.columns = int32_t(score.logits.shape[1]);
        args.block_size = 8;
        args.q = score.q;
        args.q_scales = score.q_scales;
        args.w = score.w;
        args.keys = score.keys;
        args.block_table = score.block_table;
        args.request_of_token = score.request_of_token;
        args.ends = score.ends;
        args.blocks = absent_data(SMLA_I32, {s_.tokens, s_.rows});
        args.indices = absent_data(SMLA_I32, {s_.tokens, s_.topk});
    }
    void set(smla_merge_args& args) const {
        args = merge_args({s_.partials, s_.tokens, heads(128), s_.value_width});
    }

    void set(smla_norm_args& args) const {
        args.eps = 1e-6;
        args.x = args.out = rows3(512);
        args.weight = absent_data(SMLA_F32, {args.x.shape[2]});
    }
    void set(smla_rope_args& args) const {
        args.x = rows3(64);
        args.positions = ints();
        args.frequencies = absent_data(SMLA_F64, {std::min<int64_t>(args.x.shape[2], 64) / 2});
    }
    void set(smla_project_args& args) const {
        const int64_t inner = s_.width ? s_.width : 512;
        args.x = absent_data(plain(), {s_.tokens, heads(1), inner});
        args.w = absent_data(dtype("--weights", s_.weights, SMLA_BF16), {heads(1), s_.outer, inner});
        args.out = absent_data(dtype("--out", s_.out, plain()), {s_.tokens, heads(1), s_.outer});
    }
    void set(smla_quant_index_q_args& args) const {
        const ScoreShape shape = score();
        args.factor = 1;
        args.q = absent_data(SMLA_F32, {s_.tokens, shape.heads, shape.width});
        args.w = absent_data(SMLA_F32, {s_.tokens, shape.heads});
        args.q_out = absent_data(shape.q, {s_.tokens, shape.heads, shape.width});
        if (shape.q == SMLA_E2M1)
            args.scales = absent_data(SMLA_E8M0, {s_.tokens, shape.heads, shape.width / 32});
        args.w_out = args.w;
    }
    void set(smla_write_args& args, bool index) const {
        args.cache = index ? index_cache() : kv_cache();
        args.head = absent_data(plain(), {s_.tokens, CacheView(args.cache).width});
        args.slots = absent_data(SMLA_I64, {s_.tokens});
    }
    void set(smla_save_state_args& args) const {
        const int64_t channels = overlap() * entry_width();
        args.kv = args.score = absent_data(SMLA_F32, {s_.tokens, channels});
        args.ape = absent_data(SMLA_F32, {s_.ratio, channels});
        args.positions = ints();
        args.slots = absent_data(SMLA_I64, {s_.tokens});
        args.state = cache_of(SMLA_STATE_F32, 2 * channels, 4096, s_.page_tokens);
    }
    void set(smla_compress_args& args) const {
        args.ratio = int32_t(s_.ratio);
        args.eps = 1e-6;
        args.state = cache_of(SMLA_STATE_F32, 2 * overlap() * entry_width(), 4096, s_.page_tokens);
        args.state_table = absent_data(SMLA_I32, {1, args.state.pages});
        args.request_of_token = args.positions = ints();
        args.slots = absent_data(SMLA_I64, {s_.tokens});
        args.norm_weight = absent_data(SMLA_F32, {entry_width()});
        args.frequencies = absent_data(SMLA_F64, {std::min<int64_t>(entry_width(), 64) / 2});
        args.cache = cache_of(kv_format(), entry_width(), 4096, s_.page_tokens);
    }
    void set(smla_gather_args& args) const {
        args.cache = kv_cache();
        args.block_table = absent_data(SMLA_I32, {1, args.cache.pages});
        args.cu = absent_data(SMLA_I32, {2});
        args.out = absent_data(dtype("--out", s_.out, SMLA_BF16), {s_.rows, CacheView(args.cache).width});
    }
    void set(smla_copy_pages_args& args) const {
        args.source = args.target = kv_cache();
        args.pairs = absent_data(SMLA_I32, {s_.rows, 2});
    }
    void set(smla_map_args& args) const {
        args.page_tokens = s_.page_tokens;
        args.positions = args.rows = absent_data(SMLA_I32, {s_.tokens, s_.rows});
        args.request_of_token = ints();
        args.block_table = absent_data(SMLA_I32, {1, ceil_div(s_.columns, s_.page_tokens)});
    }

private:
    static smla_dtype dtype(const char* option, const std::string& name, smla_dtype automatic) {
        return name == "auto" ? automatic : parse_dtype(option, name, kFloats);
    }
    smla_dtype queries(smla_dtype automatic) const {
        if (s_.queries == "auto") return automatic;
        return parse_dtype("--queries", s_.queries, kFloats | dtypes(SMLA_E4M3, SMLA_E2M1));
    }
    smla_dtype plain() const { return queries(SMLA_F32); }
    int64_t width(smla_format format, int64_t automatic) const {
        const int32_t own = find_format(format)->width;
        return s_.width ? s_.width : own ? own : automatic;
    }
    smla_format kv_format() const {
        return s_.kv_format == "auto" ? SMLA_FP8_656 : parse_format("--kv-format", s_.kv_format);
    }
    smla_format extra_format() const {
        return s_.extra_format == "none" ? SMLA_FORMAT_NONE : parse_format("--extra-format", s_.extra_format);
    }
    smla_cache kv_cache() const {
        return cache_of(kv_format(), width(kv_format(), 576), 4096, s_.page_tokens);
    }
    smla_format index_format() const {
        return s_.index_format == "auto" ? SMLA_INDEX_FP8_132
                                         : parse_format("--index-format", s_.index_format);
    }
    smla_cache index_cache() const {
        return cache_of(index_format(), width(index_format(), 128), 4096, s_.page_tokens);
    }
    int64_t heads(int64_t automatic) const { return s_.heads ? s_.heads : automatic; }
    int64_t overlap() const { return s_.ratio == 4 ? 2 : 1; }
    int64_t entry_width() const { return width(kv_format(), 512); }
    Tensor ints() const { return absent_data(SMLA_I32, {s_.tokens}); }
    Tensor rows3(int64_t automatic) const {
        return absent_data(plain(), {s_.tokens, heads(1), s_.width ? s_.width : automatic});
    }
    const StageShape& s_;
};

template <Stage S>
std::vector<Verdict> explain(const StageShape& shape, const Env& env) {
    ArgsOf<S> args{};
    const Call call(shape);
    if constexpr (S == Stage::write_kv || S == Stage::write_index) call.set(args, S == Stage::write_index);
    else call.set(args);
    args.struct_size = sizeof args;
    if constexpr (S == Stage::inverse_rope) args.inverse = 1;
    OpOf<S>::check(args);
    return explain_stage<S>(args, env);
}

}  // namespace

AttendShape attend_shape(const StageShape& shape) { return Call(shape).attend(); }
ScoreShape score_shape(const StageShape& shape) { return Call(shape).score(); }

void check_names(const StageShape& shape) { Call(shape).check_names(); }

std::vector<Verdict> explain_stage_of(Stage stage, const StageShape& shape, const Env& env) {
    switch (stage) {
#define SMLA_EXPLAIN(name, args) \
    case Stage::name: return explain<Stage::name>(shape, env);
        SMLA_STAGES(SMLA_EXPLAIN)
#undef SMLA_EXPLAIN
    }
    return {};
}

void add_stage_options(CLI::App& command, StageShape& shape) {
    const auto count = [&](const char* name, int64_t& value, const char* text, int64_t low) {
        command.add_option(name, value, text)
            ->transform(token_count(low, INT32_MAX))
            ->capture_default_str()
            ->group(kStageGroup);
    };
    count("--heads", shape.heads, "Query heads, index heads or groups; 0: 128, 64 or 1", 0);
    count("--width", shape.width, "Width of queries and keys; 0: the format's", 0);
    count("--value-width", shape.value_width, "attend, merge: width of a value", 1);
    count("--outer", shape.outer, "project: outputs per group", 1);
    count("--rows", shape.rows, "attend: listed rows; map, gather: rows; score_select_blocks: blocks", 0);
    count("--extra-rows", shape.extra_rows, "attend: listed rows of the extra cache", 0);
    count("--columns", shape.columns, "score, select: keys", 0);
    count("--topk", shape.topk, "select: rows wanted", 0);
    count("--ratio", shape.ratio, "compress: tokens per entry", 2);
    count("--partials", shape.partials, "merge: partial results", 1);
    command.add_option("--extra-format", shape.extra_format, "attend: format of the extra cache, or none")
        ->transform(any_case())
        ->capture_default_str()
        ->group(kStageGroup);
    command.add_option("--weights", shape.weights, "project: dtype of the weights")
        ->transform(any_case())
        ->capture_default_str()
        ->group(kStageGroup);
    command.add_option("--out", shape.out, "dtype of the output")
        ->transform(any_case())
        ->capture_default_str()
        ->group(kStageGroup);
    command.add_flag("--sink", shape.sink, "attend: with an attention sink")->group(kStageGroup);
}

}  // namespace smla::cli
