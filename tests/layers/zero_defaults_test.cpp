// A field that is left zero means the default that the headers name: the same result as with the default
// spelt out, and another one with another value. Every such comment of a header has a case here.
#include "random_layer.h"

#include <source_dir.h>
#include "backends/instance.h"
#include "backends/registry.h"
#include "core/limits.h"
#include "kit/context_args.h"
#include "ops/attend/attend.h"

#include <smla/smla.h>

#include <fstream>
#include <functional>
#include <set>

namespace smla::layers_test {
namespace {

struct Case {
    const char* field;    // struct.member
    double value, other;  // what zero stands for, and something else
    std::function<std::string(double)> result;
};

std::string last_error() { return smla_last_error(); }

template <class T>
T sized() {
    T out{};
    out.struct_size = sizeof out;
    return out;
}

template <class Struct, class Member, class Result>
Case member_case(const char* field, double value, double other, Member Struct::*member, Result result) {
    return {field, value, other, [=](double given) {
                auto args = sized<Struct>();
                args.*member = Member(given);
                return result(args);
            }};
}

std::string numbers(const int32_t* values, int64_t n) {
    std::string out;
    for (int64_t i = 0; i < n; ++i) out += text(values[i], " ");
    return out;
}

smla_backend_args backend_base(smla_backend_args args, smla_family family) {
    args.family = family;
    args.heads = 4;
    args.topk = 64;
    args.ratio = family == SMLA_FAMILY_HYBRID ? 4 : 0;
    args.max_tokens = args.max_requests = 2;
    args.max_seq_len = 256;
    args.softmax_scale = 1;
    return args;
}

// What a backend makes of its arguments.
std::string backend_of(const smla_backend_args& args, smla_family family) {
    const BackendArgs on = resolve_config(backend_base(args, family)).args;
    return text(on.kv_lora_rank, " ", on.rope_dim, " ", on.nope_dim, " ", on.v_head_dim, " ", on.head_dim,
                " ", on.dtype, " ", on.window_page_tokens, " ", on.window, " ", on.q_scale, " ", on.kv_scale,
                " ", on.max_logits_bytes, " ", on.device.multiprocessors);
}
std::string dsa(const smla_backend_args& args) { return backend_of(args, SMLA_FAMILY_DSA); }
std::string hybrid(const smla_backend_args& args) { return backend_of(args, SMLA_FAMILY_HYBRID); }
std::string page_of(const smla_backend_args& args) {
    const BackendConfig config = resolve_config(backend_base(args, SMLA_FAMILY_DSA));
    return text(BackendInstance(find_backend("TRITON_MLA_SPARSE"), config).config.args.page_tokens);
}
std::string hybrid_page_of(const smla_backend_args& args) {
    const BackendConfig config = resolve_config(backend_base(args, SMLA_FAMILY_HYBRID));
    return text(BackendInstance(find_backend("FLASHMLA_SPARSE_DSV4"), config).config.args.page_tokens);
}

// Whether attention of a backend may round keys.
std::string rounds(const smla_backend_args& args) {
    smla_attend_args attend{};
    attend.precision = resolve_config(backend_base(args, SMLA_FAMILY_DSA)).args.precision;
    smla_cache cache{};
    cache.format = SMLA_FP8_656;
    cache.page_tokens = 1;
    return text(rounds_keys(attend, CacheView(cache)));
}

std::vector<Case> backend_cases() {
    using Args = smla_backend_args;
    return {member_case("smla_backend_args.dtype", SMLA_BF16, SMLA_F32, &Args::dtype, dsa),
            member_case("smla_backend_args.kv_lora_rank", 512, 256, &Args::kv_lora_rank, dsa),
            member_case("smla_backend_args.rope_dim", 64, 32, &Args::rope_dim, dsa),
            member_case("smla_backend_args.nope_dim", 128, 64, &Args::nope_dim, dsa),
            member_case("smla_backend_args.v_head_dim", 128, 64, &Args::v_head_dim, dsa),
            member_case("smla_backend_args.head_dim", 512, 256, &Args::head_dim, hybrid),
            member_case("smla_backend_args.page_tokens", find_backend("TRITON_MLA_SPARSE").page_tokens, 128,
                        &Args::page_tokens, page_of),
            member_case("smla_backend_args.page_tokens", 256, 128, &Args::page_tokens, hybrid_page_of),
            member_case("smla_backend_args.window_page_tokens", 64, 32, &Args::window_page_tokens, hybrid),
            member_case("smla_backend_args.window", 128, 64, &Args::window, hybrid),
            member_case("smla_backend_args.q_scale", 1, 2, &Args::q_scale, dsa),
            member_case("smla_backend_args.precision", SMLA_PRECISION_EXACT, SMLA_PRECISION_ROUNDED,
                        &Args::precision, rounds),
            member_case("smla_backend_args.max_logits_bytes", double(512 << 20), 1 << 20,
                        &Args::max_logits_bytes, dsa),
            {"smla_backend_args.device", 1, 90, [](double device) {
                 auto args = sized<Args>();
                 if (device) args.device = describe_device(device == 1 ? "cpu" : "sm_90");
                 return dsa(args);
             }}};
}

// The layer of ratio 4, whose session has every kind of cache.
smla_layer* layer_of(smla_context* context, const RandomWeights& weights, const std::string& config,
                     smla_dtype activations = 0, smla_dtype queries = 0) {
    std::vector<smla_named_tensor> tensors;
    for (const NamedTensor& each : weights.tensors) tensors.push_back({each.name.c_str(), each.tensor});
    auto args = sized<smla_layer_args>();
    args.layer = weights.layer;
    args.activations = activations;
    args.queries = queries;
    args.tensors = tensors.data();
    args.tensor_count = int32_t(tensors.size());
    args.config_json = config.c_str();
    smla_layer* out = nullptr;
    EXPECT_EQ(smla_layer_create(context, &args, &out), SMLA_OK) << last_error();
    return out;
}

smla_context* a_context(smla_engine engine = SMLA_ENGINE_CPU, int32_t threads = 1,
                        smla_isa isa = SMLA_ISA_AUTO) {
    smla_context_args args = kit::context_args(engine, threads);
    args.isa = isa;
    smla_context* out = nullptr;
    EXPECT_EQ(smla_context_create(&args, &out), SMLA_OK);
    return out;
}

std::string options_of(const smla_session_args& args) {
    const std::string config = dsa_config(32);
    const RandomWeights weights(config, 0);
    smla_context* const context = a_context();
    smla_layer* const layer = layer_of(context, weights, config);
    smla_session* session = nullptr;
    auto got = sized<smla_session_args>();
    std::string refused;
    if (smla_session_create(layer, &args, &session) != SMLA_OK) refused = last_error();
    else EXPECT_EQ(smla_session_get_args(session, &got), SMLA_OK);
    smla_session_destroy(session);
    smla_layer_destroy(layer);
    smla_context_destroy(context);
    return text(got.kv_format, " ", got.index_format, " ", got.page_tokens, " ", got.max_requests, " ",
                got.max_tokens, " ", got.max_step_tokens, " ", double(got.kv_scale), refused);
}

// A scale has no default: formats that need one are refused without it.
TEST(ZeroDefaults, ASessionOfAPerTensorFormatNeedsAScale) {
    auto args = sized<smla_session_args>();
    args.kv_format = SMLA_FP8_576;
    EXPECT_NE(options_of(args).find("args.kv_scale: got 0, wanted a finite number above 0"),
              std::string::npos);
    args.kv_scale = 1;
    EXPECT_EQ(options_of(args).find("kv_scale"), std::string::npos);
}

// The workspace of a step of one token, which grows with the columns that a token may score. With larger
// vectors, attend would need more.
std::string step_of(smla_layer_step step) {
    const std::string config = dsa_config(32);
    const RandomWeights weights(config, 0);
    smla_context* const context = a_context(SMLA_ENGINE_CPU, 1, SMLA_ISA_SCALAR);
    smla_layer* const layer = layer_of(context, weights, config);
    auto maxima = sized<smla_plan_args>();
    maxima.groups = SMLA_GROUP_PRIMARY | SMLA_GROUP_INDEX;
    maxima.max_tokens = maxima.max_requests = 1;
    maxima.max_seq_len = 1 << 20;
    smla_plan* plan = nullptr;
    EXPECT_EQ(smla_plan_create(&maxima, &plan), SMLA_OK) << last_error();
    int32_t starts[] = {0, 1}, lengths[] = {1}, page = 0;
    auto batch = sized<smla_plan_batch>();
    batch.query_start_loc = make_tensor(starts, SMLA_I32, {2});
    batch.seq_lens = make_tensor(lengths, SMLA_I32, {1});
    batch.primary.block_table = batch.index.block_table = make_tensor(&page, SMLA_I32, {1, 1});
    batch.primary.page_tokens = batch.index.page_tokens = 64;
    EXPECT_EQ(smla_plan_build(plan, &batch), SMLA_OK) << last_error();
    step.plan = plan;
    step.hidden = step.out = make_tensor(static_cast<void*>(nullptr), SMLA_F32, {1, 32});
    const Tensor table = make_tensor(static_cast<void*>(nullptr), SMLA_I32, {1, maxima.max_seq_len / 64});
    const auto cache = [](int32_t width) {
        smla_cache out{};
        out.format = SMLA_ROW_F32;
        out.width = width;
        out.page_tokens = 64;
        out.pages = 1;
        return out;
    };
    step.primary = {cache(40), table};
    step.index = {cache(16), table};
    size_t bytes = 0;
    EXPECT_EQ(smla_layer_workspace_size(layer, &step, 0, &bytes), SMLA_OK) << last_error();
    smla_plan_destroy(plan);
    smla_layer_destroy(layer);
    smla_context_destroy(context);
    return text(bytes);
}

std::string description_of(const smla_context_args& given) {
    smla_context_args args = given;
    args.version = SMLA_VERSION;
    args.engine = SMLA_ENGINE_CPU;
    smla_context* context = nullptr;
    EXPECT_EQ(smla_context_create(&args, &context), SMLA_OK) << last_error();
    const std::string out = smla_context_description(context);
    smla_context_destroy(context);
    return out;
}

std::vector<Case> session_cases() {
    using Args = smla_session_args;
    return {
        member_case("smla_session_args.kv_format", SMLA_ROW_F32, SMLA_ROW_BF16, &Args::kv_format, options_of),
        member_case("smla_session_args.index_format", SMLA_ROW_F32, SMLA_ROW_BF16, &Args::index_format,
                    options_of),
        member_case("smla_session_args.page_tokens", 64, 32, &Args::page_tokens, options_of),
        member_case("smla_session_args.max_requests", 1, 2, &Args::max_requests, options_of),
        member_case("smla_session_args.max_tokens", 4096, 1024, &Args::max_tokens, options_of),
        member_case("smla_session_args.max_step_tokens", 512, 64, &Args::max_step_tokens, options_of),
        member_case("smla_layer_step.max_columns", 1 << 20, 64, &smla_layer_step::max_columns, step_of),
        member_case("smla_context_args.threads", usable_cores(), usable_cores() + 1,
                    &smla_context_args::threads, description_of)};
}

std::string rows_of(smla_request_rows_args args) {
    int32_t positions[] = {0, 3, 4, 9, 6, 1}, request[] = {0, 1}, table[] = {5, 2, 7, 1, 4, 6}, rows[6];
    args.page_tokens = 4;
    args.positions = make_tensor(positions, SMLA_I32, {2, 3});
    args.request_of_token = make_tensor(request, SMLA_I32, {2});
    args.block_table = make_tensor(table, SMLA_I32, {2, 3});
    args.rows = make_tensor(rows, SMLA_I32, {2, 3});
    EXPECT_EQ(smla_request_rows(&args), SMLA_OK) << last_error();
    return numbers(rows, 6);
}

std::string chunks_of(smla_prefill_chunks_args args) {
    int32_t starts[] = {0, 3, 8, 10}, lengths[] = {16, 24, 8}, chunks[13 * 6];
    args.query_start_loc = make_tensor(starts, SMLA_I32, {4});
    args.seq_lens = make_tensor(lengths, SMLA_I32, {3});
    args.chunks = make_tensor(chunks, SMLA_I32, {13, 6});
    EXPECT_EQ(smla_prefill_chunks(&args), SMLA_OK) << last_error();
    return numbers(chunks, args.count * 6);
}

std::vector<Case> row_cases() {
    using Rows = smla_request_rows_args;
    using Chunks = smla_prefill_chunks_args;
    const auto of_two_ranks = [](Rows args) {
        args.ranks = 2;
        return rows_of(args);
    };
    constexpr double kHuge = double(1ll << 40);
    return {member_case("smla_request_rows_args.page_rows", 4, 6, &Rows::page_rows, rows_of),
            member_case("smla_request_rows_args.ranks", 1, 2, &Rows::ranks, rows_of),
            member_case("smla_request_rows_args.interleave", 1, 2, &Rows::interleave, of_two_ranks),
            member_case("smla_prefill_chunks_args.ratio", 1, 4, &Chunks::ratio, chunks_of),
            member_case("smla_prefill_chunks_args.max_rows", kHuge, 24, &Chunks::max_rows, chunks_of),
            member_case("smla_prefill_chunks_args.max_logits_bytes", kHuge, 400, &Chunks::max_logits_bytes,
                        chunks_of),
            member_case("smla_prefill_chunks_args.max_requests", 1000, 1, &Chunks::max_requests, chunks_of)};
}

// A plan of one decode and a prefill of three tokens: everything that it lists.
std::string plan_of(const smla_plan_args& given, smla_plan_batch batch, int32_t page_rows) {
    smla_plan_args args = given;
    args.groups = SMLA_GROUP_PRIMARY;
    args.max_tokens = args.max_requests = 8;
    args.max_seq_len = 32;
    smla_plan* plan = nullptr;
    EXPECT_EQ(smla_plan_create(&args, &plan), SMLA_OK) << last_error();
    int32_t starts[] = {0, 1, 4}, lengths[] = {9, 6}, table[] = {3, 1, 2, 7, 5, 4};
    batch.query_start_loc = make_tensor(starts, SMLA_I32, {3});
    batch.seq_lens = make_tensor(lengths, SMLA_I32, {2});
    batch.primary.block_table = make_tensor(table, SMLA_I32, {2, 3});
    batch.primary.page_tokens = 4;
    batch.primary.page_rows = page_rows;
    EXPECT_EQ(smla_plan_build(plan, &batch), SMLA_OK) << last_error();
    std::string out;
    smla_tensor field{};
    EXPECT_EQ(smla_plan_field(plan, "primary_slot", &field), SMLA_OK);
    for (int64_t t = 0; t < field.shape[0]; ++t) out += text(static_cast<int64_t*>(field.data)[t], " ");
    if (smla_plan_field(plan, "schedule", &field) == SMLA_OK)
        out += "schedule " + numbers(static_cast<int32_t*>(field.data), 2);
    smla_plan_destroy(plan);
    return out;
}

std::vector<Case> plan_cases() {
    const auto plain = sized<smla_plan_args>();
    const auto batch = sized<smla_plan_batch>();
    return {{"smla_plan_group.page_rows", 4, 6,
             [=](double rows) { return plan_of(plain, batch, int32_t(rows)); }},
            member_case("smla_plan_batch.tokens", 4, 6, &smla_plan_batch::tokens,
                        [=](const smla_plan_batch& each) { return plan_of(plain, each, 0); })};
}

// Positions through a table, by the stage.
std::string map_of(smla_map_args args) {
    int32_t positions[] = {0, 3, 4, 9, 6, 1}, request[] = {0, 1}, table[] = {5, 2, 7, 1, 4, 6}, rows[12];
    const int64_t columns = 3 * std::max(args.pool_tokens, 1);
    args.page_tokens = 4;
    args.positions = make_tensor(positions, SMLA_I32, {2, 3});
    args.request_of_token = make_tensor(request, SMLA_I32, {2});
    args.block_table = make_tensor(table, SMLA_I32, {2, 3});
    args.rows = make_tensor(rows, SMLA_I32, {2, columns});
    smla_context* const context = a_context();
    EXPECT_EQ(smla_map(context, &args, {}, nullptr), SMLA_OK) << last_error();
    smla_context_destroy(context);
    return numbers(rows, 2 * columns);
}

// The rows of all five columns of a row of scores.
std::string selected_rows_of(smla_select_args args) {
    float scores[] = {5, 1, 4, 2, 3};
    int32_t indices[5], rows[5], request[] = {0}, table[] = {6, 2};
    args.page_tokens = 4;
    args.scores = make_tensor(scores, SMLA_F32, {1, 5});
    args.indices = make_tensor(indices, SMLA_I32, {1, 5});
    args.rows = make_tensor(rows, SMLA_I32, {1, 5});
    args.row_table = make_tensor(table, SMLA_I32, {1, 2});
    args.request_of_token = make_tensor(request, SMLA_I32, {1});
    alignas(64) char memory[8192];
    smla_context* const context = a_context();
    EXPECT_EQ(smla_select(context, &args, {memory, sizeof memory}, nullptr), SMLA_OK) << last_error();
    smla_context_destroy(context);
    return numbers(rows, 5);
}

// Queries below both floors, so that the floor decides the scale.
std::string quantised_of(smla_quant_index_q_args args) {
    std::vector<float> q(32), w(1, 1.f), w_out(1);
    std::vector<uint8_t> codes(32);
    for (size_t i = 0; i < q.size(); ++i) q[i] = 1e-7f * float(i);
    args.factor = 1;
    args.q = make_tensor(q.data(), SMLA_F32, {1, 1, 32});
    args.w = make_tensor(w.data(), SMLA_F32, {1, 1});
    args.q_out = make_tensor(codes.data(), SMLA_E4M3, {1, 1, 32});
    args.w_out = make_tensor(w_out.data(), SMLA_F32, {1, 1});
    smla_context* const context = a_context();
    EXPECT_EQ(smla_quant_index_q(context, &args, {}, nullptr), SMLA_OK) << last_error();
    smla_context_destroy(context);
    std::string out = text(double(w_out[0]));
    for (const uint8_t code : codes) out += text(" ", int(code));
    return out;
}

// A bf16 cache of three pages of four rows, written through slots: the bytes that it takes and where rows
// lie.
std::string written_of(smla_cache cache) {
    std::vector<uint16_t> memory(2048, 0);
    std::vector<float> values(3 * 16, 1.f);
    int64_t slots[] = {0, 5, 10};
    cache.format = SMLA_ROW_BF16;
    if (!cache.width) cache.width = 16;
    cache.page_tokens = 4;
    cache.pages = 3;
    cache.data = memory.data();
    auto args = sized<smla_write_args>();
    args.cache = cache;
    args.head = make_tensor(values.data(), SMLA_F32, {3, 16});
    args.slots = make_tensor(slots, SMLA_I64, {3});
    smla_context* const context = a_context();
    EXPECT_EQ(smla_write_kv(context, &args, {}, nullptr), SMLA_OK) << last_error();
    smla_context_destroy(context);
    size_t bytes = 0;
    EXPECT_EQ(smla_cache_bytes(&cache, &bytes), SMLA_OK);
    std::string out = text(bytes, " bytes:");
    for (size_t i = 0; i < memory.size(); i += 16)
        if (memory[i]) out += text(" ", i);
    return out;
}

std::vector<Case> stage_cases() {
    const auto cache_case = [](const char* field, double value, double other, auto smla_cache::*member) {
        return Case{field, value, other, [=](double given) {
                        smla_cache cache{};
                        cache.*member = std::remove_reference_t<decltype(cache.*member)>(given);
                        return written_of(cache);
                    }};
    };
    return {member_case("smla_map_args.page_rows", 4, 6, &smla_map_args::page_rows, map_of),
            member_case("smla_map_args.pool_tokens", 1, 2, &smla_map_args::pool_tokens, map_of),
            member_case("smla_select_args.page_rows", 4, 6, &smla_select_args::page_rows, selected_rows_of),
            member_case("smla_quant_index_q_args.amax_floor", 1e-4, 1e-10,
                        &smla_quant_index_q_args::amax_floor, quantised_of),
            cache_case("smla_cache.page_rows", 4, 5, &smla_cache::page_rows),
            cache_case("smla_cache.page_stride_bytes", 4 * 32, 256, &smla_cache::page_stride_bytes),
            cache_case("smla_cache.row_stride_bytes", 32, 64, &smla_cache::row_stride_bytes),
            {"smla_cache.width", 576, 0, [](double width) {
                 smla_format_info info = sized<smla_format_info>();
                 EXPECT_EQ(smla_format_get_info(SMLA_FP8_656, int32_t(width), &info), SMLA_OK);
                 return text(info.width, " ", info.token_bytes);
             }}};
}

std::vector<Case> all_cases() {
    std::vector<Case> out;
    for (const auto& cases : {backend_cases(), session_cases(), row_cases(), plan_cases(), stage_cases()})
        out.insert(out.end(), cases.begin(), cases.end());
    return out;
}

TEST(ZeroDefaults, AreThoseOfTheHeaders) {
    for (const Case& each : all_cases()) {
        SCOPED_TRACE(each.field);
        const std::string zero = each.result(0);
        EXPECT_EQ(zero, each.result(each.value));
        if (each.other != 0) {
            EXPECT_NE(zero, each.result(each.other));
        }
    }
}

bool names_a_zero(const std::string& comment) {
    for (const char* words : {" 0 means ", " 0 selects ", " 0: "})
        if (const size_t at = comment.find(words);
            at != std::string::npos && (at == 0 || comment[at - 1] != '>'))
            return true;
    return false;
}

// Returns struct.member for every comment that states a meaning of 0, before the member or behind it.
std::vector<std::string> documented_zeros() {
    std::vector<std::string> out;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(SMLA_SOURCE_DIR) + "/include/smla")) {
        std::ifstream file(entry.path());
        std::string line, owner, comment, member;
        bool inside = false;
        while (std::getline(file, line)) {
            const size_t first = line.find_first_not_of(' ');
            if (first == std::string::npos) continue;
            std::string words = line.substr(first);
            if (!inside && words.rfind("typedef struct ", 0) == 0 && words.back() == '{')
                owner = words.substr(15, words.find(' ', 15) - 15), comment.clear();
            else if (!inside && words.rfind("} ", 0) == 0) owner.clear();
            const size_t end = words.find_first_of(";["), begin = words.find("/*");
            if (!inside && !owner.empty() && end < begin && words.find(';') != std::string::npos) {
                const size_t before = words.find_last_of(" *", end);
                member = words.substr(before + 1, end - before - 1);
                words = begin == std::string::npos ? "" : words.substr(begin);
            }
            inside = (inside || words.rfind("/*", 0) == 0) && words.find("*/") == std::string::npos;
            if (words.rfind("/*", 0) == 0 || words.rfind("* ", 0) == 0) comment += " " + words;
            if (inside || member.empty()) continue;
            if (names_a_zero(comment)) out.push_back(owner + "." + member);
            comment.clear(), member.clear();
        }
    }
    return out;
}

TEST(ZeroDefaults, EveryOneThatAHeaderNamesHasACase) {
    std::set<std::string> tested;
    for (const Case& each : all_cases()) tested.insert(each.field);
    // What 0 means here is no default (nothing of the kind, or not known), is seen on a GPU alone (of a batch
    // that lies there), or is said of a neighbor (page_rows of caches and of mixed rows).
    for (const char* field : {"smla_device_info.multiprocessors",
                              "smla_device_info.memory_bytes",
                              "smla_backend_args.topk",
                              "smla_backend_args.ratio",
                              "smla_backend_forward_args.stage_budget",
                              "smla_backend_forward_args.kv_cache",
                              "smla_backend_forward_args.swa_cache",
                              "smla_layer_info.index_width",
                              "smla_session_args.stage_budget",
                              "smla_session_args.kv_writer",
                              "smla_plan_args.topk",
                              "smla_plan_args.heads",
                              "smla_plan_args.workers",
                              "smla_plan_group.slots",
                              "smla_plan_batch.query_tokens",
                              "smla_plan_batch.max_query_len",
                              "smla_request_rows_args.workspace_of_token",
                              "smla_combined_rows_args.ratio",
                              "smla_mixed_rows_args.ratio",
                              "smla_mixed_rows_args.window_page_tokens",
                              "smla_mixed_rows_args.local",
                              "smla_gather_args.raw",
                              "smla_score_args.fill",
                              "smla_tensor.ndim"})
        tested.insert(field);
    const std::vector<std::string> documented = documented_zeros();
    EXPECT_GT(documented.size(), 40u);
    for (const std::string& field : documented) EXPECT_TRUE(tested.count(field)) << field << " has no case";
}

}  // namespace
}  // namespace smla::layers_test
