// Shapes that smla bench measures.
#pragma once

#include "model_info.h"
#include "problems.h"

#include <string>
#include <vector>

namespace smla::cli {

struct AttendCase {
    std::string name;   // "V3.2 H128 K2048 fp8_656"
    AttendShape shape;  // shape of one call; pools are larger than any processor cache, and lists are random
    double flops() const;
    double bytes() const;  // bytes of the cached rows that one call reads
};
struct ScoreCase {
    std::string name;
    ScoreShape shape;
    double flops() const;
    double bytes() const;
};
struct SelectCase {
    std::string name;
    SelectShape shape;
    double bytes() const;
};
struct FusedCase {
    std::string name;
    ScoreShape score;
    int64_t topk;
};
struct ProjectCase {
    std::string name;
    int64_t tokens, groups, inner, outer;
    bool along_n;             // w is contiguous along its outputs, like the key half of kv_b_proj
    smla_dtype x = SMLA_F32;  // dtype of x and out; weights are bf16
    double flops() const { return 2.0 * double(tokens * groups * inner * outer); }
    double bytes() const { return 2.0 * double(groups * inner * outer); }  // bytes of the bf16 weights
};
struct DecodeCase {
    std::string name, model;
    AttentionConfig config;
    LayerClass layers;        // equal layers of the model; only the first one runs
    int64_t tokens, context;  // requests with one token each, and how many each has
};

struct MetadataCase {
    std::string name;
    const char* backend;
    int32_t requests, context;  // decode requests of one token each
    int32_t ratio;              // tokens per entry; 0: no entries
};

constexpr int64_t kColdRows = 131072;  // 86 MB of fp8_656

// Lists of `rows` keys of 576 values, and of 128 + `rows` of 512: a model's name and the shape.
AttendCase latent_case(smla_format format, int64_t tokens, int64_t heads, int64_t rows);
AttendCase window_case(smla_format format, int64_t tokens, int64_t heads, int64_t rows);

std::vector<AttendCase> attend_cases(bool quick, bool gpu);
std::vector<ScoreCase> score_cases(bool quick, bool gpu);
std::vector<SelectCase> select_cases(bool quick, bool gpu);
std::vector<FusedCase> fused_cases(bool quick);
std::vector<ProjectCase> project_cases(bool quick, bool gpu);
std::vector<DecodeCase> decode_cases(bool quick, int64_t tokens, int64_t context);
std::vector<MetadataCase> metadata_cases(bool quick);

}  // namespace smla::cli
