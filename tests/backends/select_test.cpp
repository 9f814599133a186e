// Which backend is chosen, and what each says.
#include "backends/gate.h"
#include "backends/registry.h"
#include "engines/candidate.h"
#include "kit/refused.h"
#include "serving.h"

#include <smla/backend.h>
#include <smla/context.h>

#include <algorithm>
#include <cstdlib>
#include <map>

namespace smla::test {
namespace {

BackendConfig on(smla_family family, const char* device, const char* type = "auto", int32_t ratio = -1) {
    BackendArgs args = backend_args(family, ratio);
    args.device = describe_device(device);
    args.kv_cache_dtype = type;
    return resolve_config(args);
}
std::string chosen(const BackendConfig& config, std::string_view wanted = "") {
    const BackendChoice selection = select_backend(config, wanted);
    return selection.backend ? selection.backend->name : "";
}
bool says(const std::vector<std::string>& reasons, const std::string& part) {
    for (const std::string& reason : reasons)
        if (reason.find(part) != reason.npos) return true;
    return false;
}

// The environment of one test.
struct SmlaBackend {
    explicit SmlaBackend(const char* name) { setenv("SMLA_BACKEND", name, 1); }
    ~SmlaBackend() { unsetenv("SMLA_BACKEND"); }
};

TEST(Selection, OrderForV32) {
    const std::map<std::string, std::string> expected = {
        {"cpu", "TRITON_MLA_SPARSE"},   {"sm_80", "TRITON_MLA_SPARSE"}, {"sm_86", "TRITON_MLA_SPARSE"},
        {"sm_89", "TRITON_MLA_SPARSE"}, {"sm_90", "FLASHMLA_SPARSE"},   {"sm_100", "FLASHMLA_SPARSE"},
        {"sm_120", "SPARSE_MLA_SM120"}, {"sm_121", "SPARSE_MLA_SM120"}};
    for (const auto& [device, backend] : expected)
        for (const char* type : {"auto", "bfloat16", "fp8", "fp8_ds_mla", "fp8_e4m3"})
            EXPECT_EQ(chosen(on(SMLA_FAMILY_DSA, device.c_str(), type)), backend) << device << " " << type;
    std::vector<std::string> order;
    for (const Backend* backend : preference(on(SMLA_FAMILY_DSA, "sm_121")))
        order.emplace_back(backend->name);
    EXPECT_EQ(order, (std::vector<std::string>{"SPARSE_MLA_SM120", "FLASHMLA_SPARSE", "TRITON_MLA_SPARSE"}));
}

TEST(Selection, OrderForV4) {
    for (const char* device : {"cpu", "sm_80", "sm_90", "sm_100"}) {
        for (const char* type : {"auto", "fp8", "fp8_ds_mla", "fp8_584"})
            EXPECT_EQ(chosen(on(SMLA_FAMILY_HYBRID, device, type)), "FLASHMLA_SPARSE_DSV4") << type;
        for (const char* type : {"bfloat16", "bf16_512", "fp8_e4m3", "fp8_512"})
            EXPECT_EQ(chosen(on(SMLA_FAMILY_HYBRID, device, type)), "FLASHINFER_MLA_SPARSE_DSV4") << type;
    }
    for (const char* device : {"sm_120", "sm_121"}) {
        for (const char* type : {"auto", "fp8", "fp8_ds_mla", "bfloat16"})
            EXPECT_EQ(chosen(on(SMLA_FAMILY_HYBRID, device, type)), "DSV4_SPARSE_MLA_SM120") << type;
        // it has no such cache, so the backend made for it
        EXPECT_EQ(chosen(on(SMLA_FAMILY_HYBRID, device, "fp8_e4m3")), "FLASHINFER_MLA_SPARSE_DSV4");
    }
}

TEST(Selection, OrderForV41) {
    const auto of = [](const char* device, const char* type) {
        return chosen(on(SMLA_FAMILY_HYBRID_SHARED, device, type));
    };
    for (const char* device : {"cpu", "sm_80", "sm_90", "sm_100"}) {
        for (const char* type : {"auto", "fp8", "fp8_ds_mla", "nvfp4_ds_mla", "fp8_528_g32", "nvfp4_288"})
            EXPECT_EQ(of(device, type), "FLASHMLA_SPARSE_DSV41") << device << " " << type;
        for (const char* type : {"bfloat16", "fp8_e4m3", "fp8_512", "fp8_528_g32_split", "nvfp4_288_split"})
            EXPECT_EQ(of(device, type), "FLASHINFER_MLA_SPARSE_DSV41") << device << " " << type;
    }
    for (const char* device : {"sm_120", "sm_121"}) {
        for (const char* type : {"auto", "fp8", "fp8_ds_mla", "nvfp4_288_split"})
            EXPECT_EQ(of(device, type), "FLASHINFER_MLA_SPARSE_DSV41") << device << " " << type;
        EXPECT_EQ(of(device, "nvfp4_ds_mla"), "FLASHMLA_SPARSE_DSV41");  // the other one has no such cache
    }
    EXPECT_EQ(preference(on(SMLA_FAMILY_HYBRID_SHARED, "sm_120", "bfloat16")).size(), 2u);
}

// "fp8" is another record for each backend.
TEST(Selection, TheStringAloneDoesNotFixTheLayout) {
    const auto record = [](const Backend& backend, const char* type) {
        return cache_format(backend, on(backend.family, "cpu", type));
    };
    EXPECT_EQ(record(kFlashMlaSparse, "fp8"), SMLA_FP8_656);
    EXPECT_EQ(record(kSparseMlaSm120, "fp8_ds_mla"), SMLA_FP8_656);
    EXPECT_EQ(record(kTritonMlaSparse, "fp8_e4m3"), SMLA_FP8_576);
    EXPECT_EQ(record(kFlashMlaSparseDsv4, "fp8"), SMLA_FP8_584);
    EXPECT_EQ(record(kFlashInferMlaSparseDsv4, "fp8"), SMLA_FP8_512);
    EXPECT_EQ(record(kFlashInferMlaSparseDsv4, "auto"), SMLA_ROW_BF16);
    EXPECT_EQ(record(kFlashInferMlaSparseDsv4, "fp8_ds_mla"), SMLA_FORMAT_NONE);
    EXPECT_EQ(record(kFlashMlaSparse, "fp8_584"), SMLA_FORMAT_NONE);
    EXPECT_EQ(record(kFlashMlaSparse, "float16"), SMLA_FORMAT_NONE);
    const auto there = [](const Backend& backend, const char* device, const char* type, int32_t ratio) {
        const BackendConfig config = on(SMLA_FAMILY_HYBRID_SHARED, device, type, ratio);
        return std::pair(cache_format(backend, config), entry_format(backend, config));
    };
    using Pair = std::pair<smla_format, smla_format>;
    for (const char* type : {"auto", "fp8", "fp8_ds_mla"}) {  // V4's record but on 10.x
        EXPECT_EQ(there(kFlashMlaSparseDsv41, "sm_90", type, 2), Pair(SMLA_FP8_584, SMLA_FP8_584));
        EXPECT_EQ(there(kFlashMlaSparseDsv41, "sm_90", type, 0), Pair(SMLA_FP8_584, SMLA_FORMAT_NONE));
        for (const char* device : {"cpu", "sm_100", "sm_103"})
            EXPECT_EQ(there(kFlashMlaSparseDsv41, device, type, 1), Pair(SMLA_FP8_528_G32, SMLA_FP8_528_G32));
        EXPECT_EQ(there(kFlashInferMlaSparseDsv41, "sm_120", type, 1), Pair(SMLA_FP8_584, SMLA_FP8_584));
    }
    EXPECT_EQ(there(kFlashMlaSparseDsv41, "sm_90", "nvfp4_ds_mla", 1),
              Pair(SMLA_FP8_528_G32, SMLA_NVFP4_288));
    EXPECT_EQ(there(kFlashInferMlaSparseDsv41, "sm_100", "auto", 1), Pair(SMLA_ROW_BF16, SMLA_ROW_BF16));
    EXPECT_EQ(there(kFlashInferMlaSparseDsv41, "sm_100", "fp8", 2), Pair(SMLA_FP8_512, SMLA_FP8_512));
    EXPECT_EQ(there(kFlashInferMlaSparseDsv41, "sm_120", "fp8_e4m3", 2), Pair(SMLA_FP8_512, SMLA_FP8_512));
    EXPECT_EQ(there(kFlashMlaSparseDsv41, "cpu", "fp8_528_g32_split", 1), Pair());
    EXPECT_EQ(there(kFlashInferMlaSparseDsv41, "cpu", "nvfp4_288", 1), Pair());
    // "auto" is as wide as queries are
    for (const auto& [dtype, format] : {std::pair<smla_dtype, smla_format>{SMLA_BF16, SMLA_ROW_BF16},
                                        {SMLA_F16, SMLA_ROW_BF16},
                                        {SMLA_F32, SMLA_ROW_F32},
                                        {SMLA_F64, SMLA_ROW_F64}}) {
        BackendArgs args = backend_args(SMLA_FAMILY_DSA);
        args.dtype = dtype;
        EXPECT_EQ(cache_format(kTritonMlaSparse, resolve_config(args)), format);
    }
}

// A type that is spelled out is that type whatever the queries are, or it is refused.
TEST(Selection, ASpelledTypeIsTheRecordOrRefused) {
    const std::map<std::string, smla_format> rows = {{"bfloat16", SMLA_ROW_BF16}, {"bf16", SMLA_ROW_BF16},
                                                     {"bf16_576", SMLA_ROW_BF16}, {"bf16_512", SMLA_ROW_BF16},
                                                     {"row_bf16", SMLA_ROW_BF16}, {"f32", SMLA_ROW_F32},
                                                     {"row_f32", SMLA_ROW_F32},   {"row_f64", SMLA_ROW_F64}};
    for (const Backend* backend : all_backends())
        for (const smla_dtype dtype : {SMLA_BF16, SMLA_F16, SMLA_F32, SMLA_F64}) {
            const auto record = [&](const char* type, const char* device = "cpu") {
                BackendArgs args = backend_args(backend->family);
                args.dtype = dtype;
                args.kv_cache_dtype = type;
                args.device = describe_device(device);
                const BackendConfig config = resolve_config(args);
                return config_refusals(*backend, config).empty() ? cache_format(*backend, config)
                                                                 : SMLA_FORMAT_NONE;
            };
            SCOPED_TRACE(testing::Message() << backend->name << " queries " << dtype);
            for (const auto& [type, format] : rows)
                for (const char* device : {"cpu", "sm_90", "sm_120"})
                    EXPECT_EQ(record(type.c_str(), device),
                              format == SMLA_ROW_F64 && dtype != SMLA_F64 ? SMLA_FORMAT_NONE : format)
                        << type << " " << device;
            for (const char* type :
                 {"float16", "half", "fp16", "f16", "row_f16", "float32", "float", "fp32", "float64",
                  "double", "f64", "int8", "uint8", "fp8_e5m2", "BFLOAT16", "torch.bfloat16", "Auto"})
                EXPECT_EQ(record(type), SMLA_FORMAT_NONE) << type;
            for (const CacheType& type : backend->cache_types)  // records of fp8 and fp4
                if (std::string(type.name) != "auto" && !rows.count(type.name)) {
                    EXPECT_NE(find_format(record(type.name))->scale, ScaleKind::none) << type.name;
                }
        }
}

TEST(Selection, ByName) {
    const BackendConfig config = on(SMLA_FAMILY_DSA, "sm_90");
    EXPECT_EQ(chosen(config, "TRITON_MLA_SPARSE"), "TRITON_MLA_SPARSE");
    EXPECT_EQ(chosen(on(SMLA_FAMILY_DSA, "cpu"), "FLASHMLA_SPARSE_VLLM_V1"), "FLASHMLA_SPARSE");
    EXPECT_EQ(chosen(config, "DSV4_SPARSE_MLA_SM120"), "");  // another model's
    {
        const SmlaBackend environment("SPARSE_MLA_SM120");
        EXPECT_EQ(chosen(config), "SPARSE_MLA_SM120");
        EXPECT_EQ(chosen(config, "TRITON_MLA_SPARSE"), "TRITON_MLA_SPARSE");  // the argument wins
    }
    EXPECT_EQ(chosen(config), "FLASHMLA_SPARSE");
    try {
        select_backend(config, "FLASHMLA");
        FAIL() << "an unknown name was accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.field, "backend");
        EXPECT_EQ(error.got, "FLASHMLA");
        for (const char* name : backend_names())
            EXPECT_NE(error.wanted.find(name), error.wanted.npos) << name;
        EXPECT_LE(std::string(error.what()).size(), 300u) << error.what();  // so it names no aliases
    }
    const SmlaBackend environment("nonsense");
    EXPECT_THROW(select_backend(config, ""), Error);
}

// A name of vLLM 0.33 for a backend that had another before is accepted wherever a name is, and means that
// one.
TEST(Selection, NewNamesOfVllmAreAliases) {
    const char* const name = "FLASHINFER_MLA_SPARSE_SM120";
    EXPECT_EQ(&find_backend(name), &kSparseMlaSm120);
    const BackendConfig config = on(SMLA_FAMILY_DSA, "cpu");
    EXPECT_EQ(chosen(config, name), "SPARSE_MLA_SM120");
    EXPECT_EQ(select_backend(config, name).forced, "SPARSE_MLA_SM120");
    EXPECT_STREQ(choose_backend(config, name).backend->name, "SPARSE_MLA_SM120");
    const SmlaBackend environment(name);
    EXPECT_EQ(chosen(config), "SPARSE_MLA_SM120");
    // No name means two backends.
    std::map<std::string, int> names;
    for (const Backend* backend : all_backends()) {
        ++names[backend->name];
        for (const char* alias : backend->aliases) ++names[alias];
    }
    for (const auto& [each, count] : names) EXPECT_EQ(count, 1) << each;
}

TEST(Selection, TheLogSaysWhatWasChosen) {
    std::vector<std::string> lines;
    smla_set_log([](void* user, int32_t,
                    const char* line) { static_cast<std::vector<std::string>*>(user)->emplace_back(line); },
                 &lines);
    choose_backend(on(SMLA_FAMILY_HYBRID, "cpu"), "");
    choose_backend(on(SMLA_FAMILY_DSA, "cpu"), "FLASHMLA_SPARSE");
    smla_set_log(nullptr, nullptr);
    EXPECT_EQ(lines, (std::vector<std::string>{
                         "attention backend FLASHMLA_SPARSE_DSV4, engine cpu",
                         "attention backend FLASHMLA_SPARSE (requested by name), engine cpu"}));
}

TEST(Selection, CapabilityRefusesOnlyWhereNoEngineRuns) {
    BackendConfig turing = on(SMLA_FAMILY_DSA, "sm_80");
    turing.args.device.capability = 75;
    const std::vector<std::string> gpu = why_not(kFlashMlaSparse, turing);
    ASSERT_EQ(gpu.size(), 1u);
    EXPECT_TRUE(says(gpu, "no engine of this build supports attention backends on sm_75"));
    EXPECT_TRUE(
        says(published_refusals(kFlashMlaSparse, on(SMLA_FAMILY_DSA, "sm_80")), "compute capability 8"));
    EXPECT_TRUE(why_not(kSparseMlaSm120, on(SMLA_FAMILY_DSA, "cpu")).empty());
    EXPECT_TRUE(says(published_refusals(kSparseMlaSm120, on(SMLA_FAMILY_DSA, "cpu")), "a CUDA device"));
    EXPECT_THROW(choose_backend(turing, ""), Error);
    for (const char* device : {"sm_80", "sm_86", "sm_90", "sm_103", "sm_121"})
        EXPECT_EQ(engine_of(describe_device(device)).refusal.empty(), has_code_for(std::stoi(device + 3)))
            << device;
    for (const char* name : {"sm_90", "sm_100"}) EXPECT_STREQ(engine_of(describe_device(name)).name, "cuda");
    EXPECT_STREQ(engine_of(describe_device("cpu")).name, "cpu");
}

// Every gate of the published backends, one thing wrong at a time.
TEST(Selection, PublishedGates) {
    const auto gate = [](const Backend& backend, const char* device, auto spoil, const char* type = "auto") {
        BackendArgs args = backend_args(backend.family);
        args.heads = 64;
        args.page_tokens = 0;
        args.device = describe_device(device);
        args.kv_cache_dtype = type;
        spoil(args);
        return published_refusals(backend, resolve_config(args));
    };
    const auto nothing = [](BackendArgs&) {};
    const struct {
        const Backend* backend;
        std::vector<const char*> devices;
    } accepted[] = {{&kFlashMlaSparse, {"sm_90", "sm_100"}},
                    {&kSparseMlaSm120, {"sm_120", "sm_121"}},
                    {&kTritonMlaSparse, {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "sm_121"}},
                    {&kFlashMlaSparseDsv4, {"sm_90", "sm_100"}},
                    {&kDsv4SparseMlaSm120, {"sm_120", "sm_121"}},
                    {&kFlashInferMlaSparseDsv4, {"sm_100"}},
                    {&kFlashMlaSparseDsv41, {"sm_90", "sm_100"}},
                    {&kFlashInferMlaSparseDsv41, {"sm_100"}}};
    for (const auto& [backend, devices] : accepted)
        for (const char* device : {"cpu", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "sm_121"}) {
            const bool listed =
                std::find(devices.begin(), devices.end(), std::string(device)) != devices.end();
            EXPECT_EQ(gate(*backend, device, nothing).empty(), listed) << backend->name << " " << device;
        }
    EXPECT_TRUE(says(gate(kSparseMlaSm120, "sm_120", [](BackendArgs& a) { a.topk = 0; }), "index_topk"));
    EXPECT_TRUE(
        says(gate(kFlashMlaSparse, "sm_90", [](BackendArgs& a) { a.page_tokens = 32; }), "block size 32"));
    const auto nope = [](BackendArgs& a) { a.rope_dim = -1; };
    for (const char* type : {"auto", "bfloat16", "fp8_ds_mla"})
        EXPECT_TRUE(gate(kFlashMlaSparse, "sm_90", nope, type).empty()) << type;
    EXPECT_TRUE(says(gate(kFlashMlaSparse, "sm_90", nope, "fp8"), "head size 512"));
    EXPECT_TRUE(says(gate(kFlashMlaSparse, "sm_100", nope), "head size 512"));
    EXPECT_TRUE(
        says(gate(kFlashMlaSparse, "sm_90", [](BackendArgs& a) { a.kv_lora_rank = 448; }), "head size 512"));
    EXPECT_TRUE(
        says(gate(kFlashMlaSparse, "sm_90", [](BackendArgs& a) { a.dtype = SMLA_F16; }), "dtype f16"));
    EXPECT_TRUE(gate(kTritonMlaSparse, "sm_90", [](BackendArgs& a) { a.dtype = SMLA_F16; }).empty());
    EXPECT_TRUE(says(gate(kFlashMlaSparse, "sm_90", [](BackendArgs& a) { a.heads = 24; }), "24 heads"));
    EXPECT_TRUE(says(gate(kFlashMlaSparse, "sm_90", nothing, "float16"), "kv_cache_dtype float16"));
    EXPECT_TRUE(says(gate(kTritonMlaSparse, "sm_90", nothing, "fp8"), "kv_cache_dtype fp8"));
    EXPECT_TRUE(
        says(gate(kFlashInferMlaSparseDsv4, "sm_100", [](BackendArgs& a) { a.heads = 129; }), "129 heads"));
    EXPECT_TRUE(says(gate(kFlashInferMlaSparseDsv4, "sm_100", nothing, "fp8_ds_mla"), "fp8_ds_mla is"));
    EXPECT_TRUE(gate(kFlashInferMlaSparseDsv4, "sm_120", nothing, "fp8").empty());
    const auto page = [](int32_t tokens) { return [tokens](BackendArgs& a) { a.page_tokens = tokens; }; };
    EXPECT_TRUE(gate(kFlashMlaSparseDsv41, "sm_90", page(64)).empty());
    EXPECT_TRUE(gate(kFlashMlaSparseDsv41, "sm_100", page(128)).empty());
    EXPECT_TRUE(says(gate(kFlashMlaSparseDsv41, "sm_90", page(128)), "block size 128"));
    EXPECT_TRUE(says(gate(kFlashMlaSparseDsv41, "sm_100", page(64)), "block size 64"));
    EXPECT_TRUE(says(gate(kFlashInferMlaSparseDsv41, "sm_100", page(64)), "block size 64"));
    EXPECT_TRUE(
        says(gate(kFlashMlaSparseDsv41, "sm_100", nothing, "nvfp4_ds_mla"), "kv_cache_dtype nvfp4_ds_mla"));
    EXPECT_TRUE(says(gate(kFlashInferMlaSparseDsv41, "sm_100", nothing, "fp8_ds_mla"), "fp8_ds_mla is"));
    EXPECT_TRUE(says(gate(kFlashInferMlaSparseDsv41, "sm_120", nothing, "fp8_e4m3"), "packed records"));
    EXPECT_TRUE(gate(kFlashInferMlaSparseDsv41, "sm_120", nothing, "fp8_ds_mla").empty());
    for (const Backend* backend : {&kFlashMlaSparseDsv41, &kFlashInferMlaSparseDsv41})
        EXPECT_TRUE(says(gate(*backend, "sm_100", [](BackendArgs& a) { a.heads = 129; }), "129 heads"));
    EXPECT_TRUE(
        says(gate(kFlashMlaSparse, "sm_90", [](BackendArgs& a) { a.wants = SMLA_WANTS_ALIBI; }), "ALiBi"));
    EXPECT_TRUE(says(gate(kFlashMlaSparse, "sm_90", [](BackendArgs& a) { a.wants = SMLA_WANTS_ENCODER; }),
                     "self-attention"));
}

// What stays refused, in words, and what no longer is.
TEST(Selection, Refusals) {
    const auto refusals = [](const Backend& backend, auto spoil) {
        BackendArgs args = backend_args(backend.family);
        spoil(args);
        return config_refusals(backend, resolve_config(args));
    };
    for (const Backend* backend : all_backends()) {
        EXPECT_TRUE(refusals(*backend, [](BackendArgs&) {}).empty()) << backend->name;
        EXPECT_TRUE(says(refusals(*backend, [](BackendArgs& a) { a.wants = SMLA_WANTS_ALIBI; }), "ALiBi"));
        EXPECT_TRUE(says(refusals(*backend, [](BackendArgs& a) { a.wants = SMLA_WANTS_SLIDING_WINDOW; }),
                         "sliding window"));
        EXPECT_TRUE(
            says(refusals(*backend, [](BackendArgs& a) { a.wants = SMLA_WANTS_SOFT_CAP; }), "soft cap"));
        EXPECT_TRUE(
            says(refusals(*backend, [](BackendArgs& a) { a.wants = SMLA_WANTS_ENCODER; }), "decoder"));
        EXPECT_TRUE(says(refusals(*backend, [](BackendArgs& a) { a.wants = SMLA_WANTS_FUSED_OUTPUT_QUANT; }),
                         "output quantization"));
        EXPECT_TRUE(says(refusals(*backend, [](BackendArgs& a) { a.topk = 0; }), "index_topk"));
        EXPECT_TRUE(says(refusals(*backend, [](BackendArgs& a) { a.heads = 257; }), "257 heads"));
        EXPECT_TRUE(says(refusals(*backend, [](BackendArgs& a) { a.kv_cache_dtype = "int8"; }), "int8"));
        EXPECT_FALSE(
            refusals(*backend, [](BackendArgs& a) { a.family = (a.family + 1) % 3, a.ratio = 0; }).empty());
        // limits of the originals that are none here
        for (const int32_t heads : {1, 5, 22, 24, 66, 72, 129, 256})
            EXPECT_TRUE(refusals(*backend, [&](BackendArgs& a) { a.heads = heads; }).empty()) << heads;
        EXPECT_TRUE(refusals(*backend, [](BackendArgs& a) { a.topk = 2051; }).empty());
        EXPECT_TRUE(refusals(*backend, [](BackendArgs& a) { a.page_tokens = 1280; }).empty());
    }
    for (const Backend* backend : {&kFlashMlaSparse, &kSparseMlaSm120, &kTritonMlaSparse})  // GLM-5.3-Flash
        EXPECT_TRUE(refusals(*backend, [](BackendArgs& a) { a.ratio = 16, a.rope_dim = -1; }).empty());
    // a layer that attends to a window alone, or to all entries, needs no indexer
    for (const int32_t ratio : {0, 1, 128})
        EXPECT_TRUE(
            refusals(kFlashMlaSparseDsv4, [&](BackendArgs& a) { a.ratio = ratio, a.topk = 0; }).empty());
    EXPECT_TRUE(refusals(kFlashMlaSparseDsv41, [](BackendArgs& a) { a.ratio = 0, a.topk = 0; }).empty());
    EXPECT_TRUE(
        says(refusals(kFlashMlaSparseDsv41, [](BackendArgs& a) { a.ratio = 1, a.topk = 0; }), "index_topk"));
    for (const char* type : {"auto", "fp8_e4m3"})
        for (const Backend* backend : {&kFlashMlaSparse, &kSparseMlaSm120, &kTritonMlaSparse})
            EXPECT_TRUE(says(
                refusals(*backend, [&](BackendArgs& a) { a.dtype = SMLA_E4M3, a.kv_cache_dtype = type; }),
                "e4m3 queries are"));
    EXPECT_TRUE(says(refusals(kFlashMlaSparseDsv4,
                              [](BackendArgs& a) { a.family = SMLA_FAMILY_HYBRID_SHARED, a.ratio = 1; }),
                     "it supports DeepSeek-V4, not DeepSeek-V4.1"));
}

TEST(Selection, ArgumentsThatMakeNoSense) {
    const auto field = [](auto spoil) {
        BackendArgs args = backend_args(SMLA_FAMILY_HYBRID);
        spoil(args);
        return kit::refused_field([&] { resolve_config(args); });
    };
    using A = BackendArgs;
    EXPECT_EQ(field([](A&) {}), "");
    EXPECT_EQ(field([](A& a) { a.family = 3; }), "args.family");
    EXPECT_EQ(field([](A& a) { a.family = -1; }), "args.family");
    EXPECT_EQ(field([](A& a) { a.family = SMLA_FAMILY_HYBRID_SHARED; }), "args.ratio");  // of V4: 4
    EXPECT_EQ(field([](A& a) { a.ratio = 2; }), "args.ratio");                           // of V4.1
    EXPECT_EQ(field([](A& a) { a.ratio = 8; }), "args.ratio");
    EXPECT_EQ(field([](A& a) { a.heads = 0; }), "args.heads");
    EXPECT_EQ(field([](A& a) { a.dtype = SMLA_I32; }), "args.dtype");
    EXPECT_EQ(field([](A& a) { a.softmax_scale = 0; }), "args.softmax_scale");
    EXPECT_EQ(field([](A& a) { a.softmax_scale = 3e38; }), "args.softmax_scale");  // times log2 e
    EXPECT_EQ(field([](A& a) { a.kv_scale = -1; }), "args.kv_scale");
    EXPECT_EQ(field([](A& a) { a.kv_scale = 1e300; }), "args.kv_scale");
    EXPECT_EQ(field([](A& a) { a.q_scale = 1e-300; }), "args.q_scale");
    EXPECT_EQ(field([](A& a) { a.max_tokens = 0; }), "args.max_tokens");
    EXPECT_EQ(field([](A& a) { a.topk = -1; }), "args.topk");
    EXPECT_EQ(field([](A& a) { a.family = SMLA_FAMILY_DSA, a.ratio = -1; }), "args.ratio");
    EXPECT_EQ(field([](A& a) { a.wants = 64; }), "args.wants");
    EXPECT_EQ(field([](A& a) { a.precision = 3; }), "args.precision");
    EXPECT_EQ(field([](A& a) { a.reserved = 1; }), "args.reserved");
    EXPECT_EQ(field([](A& a) { a.window = -1; }), "args.window");
    EXPECT_EQ(field([](A& a) { a.batch_invariant = 2; }), "args.batch_invariant");
    EXPECT_EQ(field([](A& a) { a.device = describe_device("cpu"), a.device.multiprocessors = -1; }),
              "args.device.multiprocessors");
    constexpr int32_t kMore = SMLA_GROUP_INDEX | SMLA_GROUP_STATE | SMLA_GROUP_INDEX_STATE;
    EXPECT_EQ(field([](A& a) { a.plan_groups = kMore; }), "");
    for (const int32_t wrong : {64, -1, int(SMLA_GROUP_PRIMARY), int(SMLA_GROUP_WINDOW)})
        EXPECT_EQ(field([=](A& a) { a.plan_groups = wrong; }), "args.plan_groups") << wrong;
    const auto of_latents = [](A& a) { a.family = SMLA_FAMILY_DSA, a.ratio = 0; };
    EXPECT_EQ(field([&](A& a) { of_latents(a), a.plan_groups = SMLA_GROUP_INDEX; }), "");
    EXPECT_EQ(field([&](A& a) { of_latents(a), a.ratio = 16, a.plan_groups = SMLA_GROUP_INDEX; }),
              "args.plan_groups");
    EXPECT_EQ(field([&](A& a) { of_latents(a), a.plan_groups = SMLA_GROUP_STATE; }), "args.plan_groups");
    EXPECT_EQ(field([](A& a) { a.rope_dim = 63; }), "args.rope_dim");
}

TEST(Backends, DevicesAreDescribedWhereTheCudaEngineHasCodeForThem) {
    smla_device_info info;
    for (int capability = 0; capability <= 1300; ++capability) {
        static constexpr int known[] = {80, 86, 87, 88, 89, 90, 100, 103, 120, 121};
        info = {.struct_size = sizeof info};
        const std::string name = "sm_" + std::to_string(capability);
        const smla_status status = smla_describe_device(name.c_str(), &info);
        if (std::find(std::begin(known), std::end(known), capability) != std::end(known)) {
            EXPECT_EQ(status, SMLA_OK) << name;
            EXPECT_EQ(info.capability, capability);
            continue;
        }
        EXPECT_EQ(status, SMLA_INVALID_ARGUMENT) << name;
        EXPECT_EQ(info.capability, 0) << "written although refused";
        EXPECT_EQ(
            std::string(smla_last_error()),
            "invalid argument: device: got " + name +
                ", wanted cpu, sm_80, sm_86, sm_87, sm_88, sm_89, sm_90, sm_100, sm_103, sm_120 or sm_121");
    }
    for (const char* name : {"", "gpu", "cuda", "cuda:0", "sm_", "sm_9x", "sm_090", "sm_+90", "SM_90", "90"})
        EXPECT_EQ(smla_describe_device(name, &info), SMLA_INVALID_ARGUMENT) << name;
}

TEST(Backends, CacheShapesHaveRowsThatFitInt32) {
    for (const int32_t page : {1, 64, 1 << 20, INT32_MAX}) {
        BackendArgs args = backend_args(SMLA_FAMILY_DSA);
        args.page_tokens = page;
        const BackendInstance on = instance(kFlashMlaSparse, args);
        const int64_t most = (int64_t(1) << 31) / page;
        const smla_cache_shape shape = on.cache_shape(SMLA_GROUP_PRIMARY, most);
        EXPECT_EQ(shape.bytes, most * shape.page_stride_bytes);
        EXPECT_GT(shape.page_stride_bytes, 0);
        for (const int64_t pages : {most + 1, int64_t(-1), INT64_MAX})
            EXPECT_THROW(on.cache_shape(SMLA_GROUP_PRIMARY, pages), Error) << page << " " << pages;
    }
}

TEST(Backends, CacheShapes) {
    const auto shape = [](const Backend& backend, const char* type, int32_t group, int32_t ratio = 4) {
        BackendArgs args = backend_args(backend.family, ratio);
        args.page_tokens = 0;
        args.kv_cache_dtype = type;
        const smla_cache_shape out = instance(backend, args).cache_shape(group, 10);
        return std::vector<int64_t>{out.dtype,    out.shape[0],          out.shape[1],
                                    out.shape[2], out.page_stride_bytes, out.bytes};
    };
    using Shape = std::vector<int64_t>;
    EXPECT_EQ(shape(kFlashMlaSparse, "auto", SMLA_GROUP_PRIMARY),
              (Shape{SMLA_BF16, 10, 64, 576, 73728, 737280}));
    EXPECT_EQ(shape(kFlashMlaSparse, "fp8_ds_mla", SMLA_GROUP_PRIMARY),
              (Shape{SMLA_U8, 10, 64, 656, 41984, 419840}));
    EXPECT_EQ(shape(kSparseMlaSm120, "fp8", SMLA_GROUP_PRIMARY),
              (Shape{SMLA_U8, 10, 64, 656, 41984, 419840}));
    EXPECT_EQ(shape(kFlashMlaSparseDsv4, "auto", SMLA_GROUP_WINDOW),
              (Shape{SMLA_U8, 10, 64, 584, 37440, 374400}));
    EXPECT_EQ(shape(kFlashMlaSparseDsv4, "auto", SMLA_GROUP_COMPRESSED),
              (Shape{SMLA_U8, 10, 64, 584, 37440, 374400}));
    EXPECT_EQ(shape(kFlashMlaSparseDsv4, "auto", SMLA_GROUP_COMPRESSED, 128),
              (Shape{SMLA_U8, 10, 2, 584, 1728, 17280}));
    EXPECT_EQ(shape(kFlashInferMlaSparseDsv4, "auto", SMLA_GROUP_COMPRESSED),
              (Shape{SMLA_BF16, 10, 64, 512, 65536, 655360}));
    EXPECT_EQ(shape(kFlashInferMlaSparseDsv4, "fp8", SMLA_GROUP_WINDOW),
              (Shape{SMLA_E4M3, 10, 64, 512, 32768, 327680}));
    EXPECT_EQ(shape(kFlashMlaSparseDsv41, "auto", SMLA_GROUP_WINDOW, 2),
              (Shape{SMLA_U8, 10, 32, 528, 16896, 168960}));
    EXPECT_EQ(shape(kFlashMlaSparseDsv41, "auto", SMLA_GROUP_COMPRESSED, 1),
              (Shape{SMLA_U8, 10, 128, 528, 67584, 675840}));
    EXPECT_EQ(shape(kFlashMlaSparseDsv41, "nvfp4_ds_mla", SMLA_GROUP_WINDOW, 2),
              (Shape{SMLA_U8, 10, 32, 528, 16896, 168960}));
    EXPECT_EQ(shape(kFlashMlaSparseDsv41, "nvfp4_ds_mla", SMLA_GROUP_COMPRESSED, 2),
              (Shape{SMLA_U8, 10, 64, 288, 18432, 184320}));
    EXPECT_EQ(shape(kFlashInferMlaSparseDsv41, "auto", SMLA_GROUP_COMPRESSED, 2),
              (Shape{SMLA_BF16, 10, 64, 512, 65536, 655360}));
    EXPECT_THROW(shape(kFlashMlaSparseDsv41, "auto", SMLA_GROUP_COMPRESSED, 0), Error);
    EXPECT_THROW(shape(kFlashMlaSparse, "auto", SMLA_GROUP_WINDOW), Error);
    EXPECT_THROW(shape(kFlashMlaSparseDsv4, "auto", SMLA_GROUP_COMPRESSED, 0), Error);
    EXPECT_THROW(shape(kFlashMlaSparseDsv4, "auto", SMLA_GROUP_PRIMARY), Error);
}

TEST(Backends, HeadsOfThePublishedKernels) {
    const auto heads = [](const Backend& backend, int32_t given, const char* device) {
        BackendArgs args = backend_args(backend.family);
        args.heads = given;
        args.device = describe_device(device);
        return padded_heads(backend, resolve_config(args));
    };
    EXPECT_EQ(heads(kFlashMlaSparse, 16, "sm_90"), 64);
    EXPECT_EQ(heads(kFlashMlaSparse, 16, "sm_100"), 128);
    EXPECT_EQ(heads(kFlashMlaSparse, 128, "sm_90"), 128);
    EXPECT_EQ(heads(kSparseMlaSm120, 9, "sm_120"), 16);
    EXPECT_EQ(heads(kTritonMlaSparse, 9, "sm_80"), 16);
    EXPECT_EQ(heads(kFlashInferMlaSparseDsv4, 64, "sm_100"), 64);
    EXPECT_EQ(heads(kFlashInferMlaSparseDsv4, 65, "sm_100"), 128);
    EXPECT_EQ(heads(kFlashMlaSparseDsv41, 9, "sm_90"), 64);
    EXPECT_EQ(heads(kFlashInferMlaSparseDsv41, 9, "sm_100"), 16);
}

}  // namespace
}  // namespace smla::test
