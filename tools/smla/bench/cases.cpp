#include "cases.h"

#include "models.h"

namespace smla::cli {

namespace {

double row_bytes(const ListShape& list, int64_t width) {
    const Format* format = find_format(list.format);
    return format ? double(format->record_bytes(int32_t(width))) * double(list.listed) : 0;
}

}  // namespace

AttendCase latent_case(smla_format format, int64_t tokens, int64_t heads, int64_t rows) {
    AttendShape shape;
    shape.tokens = tokens;
    shape.heads = heads;
    shape.primary = {.format = format, .listed = rows, .pool_rows = kColdRows};
    const std::string name = format == SMLA_ROW_BF16 ? "bf16_576" : find_format(format)->name;
    return {text("V3.2 T", tokens, " H", heads, " K", rows, " ", name), shape};
}

AttendCase window_case(smla_format format, int64_t tokens, int64_t heads, int64_t rows) {
    AttendShape shape;
    shape.tokens = tokens;
    shape.heads = heads;
    shape.width = 512;
    shape.primary = {.format = format, .listed = 128, .pool_rows = kColdRows};
    shape.extra = {.format = format, .listed = rows, .pool_rows = kColdRows};
    shape.sink = true;
    const std::string name = format == SMLA_ROW_BF16 ? "bf16_512" : find_format(format)->name;
    return {text("V4 T", tokens, " H", heads, " K128+", rows, " ", name), shape};
}

double AttendCase::flops() const {
    const int64_t rows = shape.primary.listed + shape.extra.listed;
    return 2.0 * double(shape.tokens * shape.heads * rows * (shape.width + shape.value_width));
}
double AttendCase::bytes() const {
    return double(shape.tokens) *
           (row_bytes(shape.primary, shape.width) + row_bytes(shape.extra, shape.width));
}
double ScoreCase::flops() const {
    const int64_t each = shape.tokens_per_request, unseen = shape.requests() * each * (each - 1) / 2;
    return 2.0 * double(shape.heads * shape.width) * double(shape.tokens * shape.columns - unseen);
}
double ScoreCase::bytes() const {
    return double(find_format(shape.format)->record_bytes(int32_t(shape.width))) *
           double(shape.columns * shape.requests());
}
double SelectCase::bytes() const { return 4.0 * double(shape.tokens * shape.columns); }

namespace {

// Decode batches and a prefill, as performance targets of GPUs are stated.
std::vector<AttendCase> gpu_attend_cases() {
    struct Size {
        int64_t tokens, heads;
    };
    std::vector<AttendCase> out;
    for (const smla_format format : {SMLA_ROW_BF16, SMLA_FP8_656})
        for (const Size size : {Size{1, 128},
                                {1, 16},
                                {16, 16},
                                {128, 8},
                                {128, 16},
                                {128, 64},
                                {128, 128},
                                {256, 128},
                                {4096, 128}})
            out.push_back(latent_case(format, size.tokens, size.heads, 2048));
    out.push_back(window_case(SMLA_FP8_584, 256, 64, 512));
    out.push_back(window_case(SMLA_FP8_584, 256, 128, 1024));
    return out;
}

}  // namespace

std::vector<AttendCase> attend_cases(bool quick, bool gpu) {
    if (gpu && !quick) return gpu_attend_cases();
    if (quick)
        return {latent_case(SMLA_FP8_656, 1, 128, 2048), latent_case(SMLA_FP8_656, 1, 16, 2048),
                window_case(SMLA_FP8_584, 1, 64, 512)};
    std::vector<AttendCase> out;
    for (const smla_format format : {SMLA_FP8_656, SMLA_ROW_BF16})
        for (const int64_t heads : {128, 64, 16})
            for (const int64_t rows : {2048, 512, 128}) out.push_back(latent_case(format, 1, heads, rows));
    out.push_back(latent_case(SMLA_FP8_656, 16, 128, 2048));
    for (const int64_t heads : {128, 64, 16})
        for (const int64_t rows : {2048, 512, 128}) out.push_back(window_case(SMLA_FP8_584, 1, heads, rows));
    return out;
}

std::vector<ScoreCase> score_cases(bool quick, bool gpu) {
    std::vector<ScoreCase> out;
    const auto add = [&](int64_t tokens, int64_t columns, smla_format format, smla_dtype q) {
        out.push_back({text("T", tokens, " H64 N", columns, " ", find_format(format)->name),
                       {.tokens = tokens, .columns = columns, .q = q, .format = format}});
    };
    add(1, 8192, SMLA_INDEX_FP8_132, SMLA_E4M3);
    if (quick) return out;
    add(1, 32768, SMLA_INDEX_FP8_132, SMLA_E4M3);
    add(1, 131072, SMLA_INDEX_FP8_132, SMLA_E4M3);
    add(1, 131072, SMLA_INDEX_MXFP4_68, SMLA_E2M1);
    add(1, 131072, SMLA_ROW_BF16, SMLA_BF16);
    add(16, 8192, SMLA_INDEX_FP8_132, SMLA_E4M3);
    if (gpu) add(256, 8192, SMLA_INDEX_FP8_132, SMLA_E4M3);
    return out;
}

std::vector<SelectCase> select_cases(bool quick, bool gpu) {
    std::vector<SelectCase> out;
    if (gpu && !quick) {
        struct Size {
            int64_t tokens, columns;
        };
        for (const Size size : {Size{1, 131072}, {64, 131072}, {256, 65536}, {2048, 8192}, {2048, 65536}})
            out.push_back({text("T", size.tokens, " N", size.columns, " k2048"),
                           {.tokens = size.tokens, .columns = size.columns, .topk = 2048}});
        return out;
    }
    for (const int64_t columns : {8192, 32768, 131072}) {
        if (quick && columns != 32768) continue;
        out.push_back({text("T1 N", columns, " k2048"), {.tokens = 1, .columns = columns, .topk = 2048}});
    }
    if (!quick) out.push_back({"T1 N131072 k512", {.tokens = 1, .columns = 131072, .topk = 512}});
    return out;
}

std::vector<FusedCase> fused_cases(bool quick) {
    if (quick) return {{"T1 H64 N8192 k2048", {.columns = 8192}, 2048}};
    return {{"T1 H64 N131072 k2048", {.columns = 131072}, 2048},
            {"T16 H64 N8192 k2048", {.tokens = 16, .columns = 8192}, 2048}};
}

std::vector<ProjectCase> project_cases(bool quick, bool gpu) {
    std::vector<ProjectCase> out;
    const auto add = [&](const char* what, int64_t tokens, int64_t groups, int64_t inner, int64_t outer,
                         bool along_n) {
        out.push_back({text("V3.2 ", what, " T", tokens), tokens, groups, inner, outer, along_n});
    };
    std::vector<int64_t> counts = {1};
    if (!quick) counts.push_back(8);
    if (!quick && gpu) counts.insert(counts.end(), {16, 128});
    for (const int64_t tokens : counts) {
        add("kv_a_proj", tokens, 1, 7168, 576, false);
        add("q_b_proj", tokens, 1, 1536, 24576, false);
        if (!quick) add("o_proj", tokens, 1, 16384, 7168, false);
        add("w_uk", tokens, 128, 128, 512, true);
        add("w_uv", tokens, 128, 512, 128, false);
    }
    return out;
}

std::vector<DecodeCase> decode_cases(bool quick, int64_t tokens, int64_t context) {
    if (context == 0) context = quick ? 16384 : 131072;
    const std::string of = (tokens > 1 ? text(", ", tokens, " tokens") : "") + text(", context ", context);
    std::vector<DecodeCase> out;
    for (const char* model : {"deepseek-v3.2", "deepseek-v4-flash"}) {
        const AttentionConfig config = published_model(model);
        for (const LayerClass& each : layer_classes(config, config.common.layers))
            out.push_back({text(model, " layer, ", each.name(), of), model, config, each, tokens, context});
    }
    return out;
}

}  // namespace smla::cli
