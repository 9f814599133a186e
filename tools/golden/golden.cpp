#include "golden/golden.h"

#include "model/findings.h"
#include "model/json.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace smla::golden {

namespace {

namespace fs = std::filesystem;

// Whether casting one of its values to an integer is undefined.
bool overflows(const Json& json) {
    if (json.is_number_float()) return std::fabs(json.get<double>()) >= 0x1p31;
    return json.is_structured() && std::any_of(json.begin(), json.end(), overflows);
}

template <class T>
T member(const Json& json, const std::string& file, const char* name, T fallback, bool required) {
    const auto found = json.find(name);
    if (found == json.end() || found->is_null()) {
        if (required)
            fail(SMLA_DATA_ERROR, text(file, ": ", name), "absent", "a member of a golden file's JSON");
        return fallback;
    }
    constexpr bool takes_all = std::is_same_v<T, double> || std::is_same_v<T, Json>;
    try {
        if (takes_all || !overflows(*found)) {
            T value = found->get<T>();
            if (Json(value) == *found) return value;  // get() truncates numbers without an error
        }
    } catch (const Json::exception&) {
    }
    fail(SMLA_DATA_ERROR, text(file, ": ", name), json_text(*found),
         std::is_same_v<T, double>        ? "a number"
         : std::is_same_v<T, std::string> ? "a string"
                                          : "whole numbers below 2^31");
}

// The config.json of a checkpoint: the config of the case, overridden by members of the layer, and the
// model type.
Json layer_config(const Json& meta, const Json& layer, const Json& layers, const std::string& file) {
    Json config = member<Json>(meta, file, "config", {}, true);
    if (!config.is_object()) fail(SMLA_DATA_ERROR, file + ": config", json_text(config), "an object");
    if (layer.contains("config") && layer["config"].is_object()) config.update(layer["config"]);
    config["model_type"] = member<std::string>(meta, file, "model_type", "", true);
    std::vector<std::string> types;
    bool shared = false;
    for (const Json& each : layers) {
        const int given = member<int>(each, file, "layer_idx", 0, true);
        SMLA_CHECK(given >= 0 && given < kMaxLayers, file + ": layers.layer_idx", given,
                   text("0 to ", kMaxLayers - 1));
        const size_t index = size_t(given);
        if (types.size() <= index) types.resize(index + 1, "full");
        types[index] = member<std::string>(each, file, "indexer", "full", false);
        shared = shared || types[index] == "shared";
    }
    if (shared && !config.contains("indexer_types")) {
        const int64_t all = member<int64_t>(config, file, "num_hidden_layers", int64_t(types.size()), false);
        if (all > int64_t(types.size()) && all <= kMaxLayers) types.resize(size_t(all), "full");
        config["indexer_types"] = types;
    }
    return config;
}

Tolerance read_tolerance(const Json& meta, const std::string& file) {
    Tolerance out;
    const Json json = member<Json>(meta, file, "tolerance", Json::object(), false);
    out.f64_y = member(json, file, "fp64_vs_ref.y", out.f64_y, false);
    out.f32_intermediate = member(json, file, "fp32_mid", out.f32_intermediate, false);
    out.f32_y = member(json, file, "fp32_y", out.f32_y, false);
    out.bf16_l2 = member(json, file, "bf16_y_L2", out.bf16_l2, false);
    out.bf16_max = member(json, file, "bf16_y_max", out.bf16_max, false);
    out.bf16_cosine = member(json, file, "bf16_y_cosine", out.bf16_cosine, false);
    return out;
}

void check_chunks(const Golden& golden, const std::string& file) {
    for (const auto& plan : golden.chunk_plans) {
        int64_t sum = 0;
        for (const int32_t tokens : plan) {
            SMLA_CHECK(tokens > 0, file + ": chunk_plans", tokens, "at least 1 token per step");
            sum += tokens;
        }
        SMLA_CHECK(sum == golden.tokens, file + ": chunk_plans", sum,
                   text(golden.tokens, " tokens in total"));
    }
}

}  // namespace

std::vector<double> Golden::values(const std::string& tensor) const {
    const HostTensor host = file.tensor(tensor);
    std::vector<double> out(static_cast<size_t>(element_count(host.view)));
    const Tensor flat = reshape(host.view, {int64_t(out.size())});
    if (flat.dtype == SMLA_I32 || flat.dtype == SMLA_I64)
        for (size_t i = 0; i < out.size(); ++i) out[i] = double(load_int(flat, int64_t(i)));
    else if (!out.empty()) load_row(flat, address(flat, 0), int64_t(out.size()), out.data());
    return out;
}

std::vector<int64_t> Golden::shape(const std::string& tensor) const {
    const Tensor view = file.tensor(tensor).view;
    return {view.shape, view.shape + view.ndim};
}

void Golden::check_shape(const std::string& tensor, const std::vector<int64_t>& wanted) const {
    if (!has(tensor)) return;
    const std::vector<int64_t> got = shape(tensor);
    const bool open = !wanted.empty() && wanted.back() == kAnyDims;
    const size_t dims = wanted.size() - open;
    bool same = open ? got.size() >= dims : got.size() == dims;
    for (size_t i = 0; same && i < dims; ++i) same = wanted[i] == got[i] || wanted[i] == kAnySize;
    std::string list;
    for (const int64_t n : wanted)
        list += (list.empty() ? "" : ",") + (n == kAnySize   ? std::string("any")
                                             : n == kAnyDims ? std::string("...")
                                                             : text(n));
    SMLA_CHECK(same, file.name() + ": tensor " + tensor, describe(file.tensor(tensor).view),
               text("[", list, "]"));
}

namespace {

// Allowed dtypes and values of a tensor, by name. Whole numbers must be within `least` to `most`.
struct Rule {
    std::vector<int64_t> shape;
    bool whole_numbers = false;
    int64_t least = 0, most = 0;
};

// The name without the suffix of a layer, and without the token of a step: what comes before its second dot.
std::string plain_name(const std::string& tensor) {
    return tensor.substr(0, tensor.find('.', tensor.find('.') + 1));
}

std::vector<std::pair<std::string, Rule>> rules(const Golden& golden) {
    const int64_t batch = golden.batch, tokens = golden.tokens;
    const int64_t rows = golden.has("rows.index") ? golden.shape("rows.index")[0] : kAnySize;
    const Rule of_tokens{{batch, tokens, kAnyDims}}, of_entries{{batch, kAnySize, kAnyDims}},
        table{{tokens, kAnySize}}, selection{{batch, tokens, kAnySize}, true, -1, tokens - 1};
    return {// the first rule that equals the name, or that ends in a dot and is a prefix of the name
            {"in.position_ids", {{batch, tokens}, true, 0, INT32_MAX}},
            {"in.hidden", {{batch, tokens, kAnySize}}},
            {"in.streams", {{batch, tokens, kAnySize, kAnySize}}},
            {"mid.topk", selection},
            {"mid.candidates", selection},
            {"mid.entries", of_entries},
            {"mid.entries_index", of_entries},
            {"mid.latent", of_entries},
            {"mid.rope_cos", table},
            {"mid.rope_sin", table},
            {"rows.index", {{kAnySize}, true, 0, tokens - 1}},
            {"rows.", {{batch, rows, kAnyDims}}},
            {"step.", {{batch, 1, kAnyDims}}},
            {"mid.", of_tokens},
            {"out.", of_tokens},
            {"ref.", of_tokens}};
}

void check_tensor(const Golden& golden, const std::string& name, const Rule& rule) {
    golden.check_shape(name, rule.shape);
    const std::string field = golden.file.name() + ": tensor " + name;
    const smla_dtype dtype = golden.file.tensor(name).view.dtype;
    const bool whole = dtype == SMLA_I32 || dtype == SMLA_I64;
    if (rule.whole_numbers) {
        SMLA_CHECK(whole, field, dtype_name(dtype), "an integer dtype");
        for (const double each : golden.values(name))
            SMLA_CHECK(each >= double(rule.least) && each <= double(rule.most), field, each,
                       text(rule.least, " to ", rule.most));
    } else {
        SMLA_CHECK(whole || dtype_bit(dtype) & kFloats, field, dtype_name(dtype), "a numeric dtype");
    }
}

// Checks every tensor except weights, which layers check.
void check_tensors(const Golden& golden) {
    const auto all = rules(golden);
    for (const std::string& name : golden.file.names())
        for (const auto& [own, rule] : all)
            if (own.back() == '.' ? name.rfind(own, 0) == 0 : plain_name(name) == own) {
                check_tensor(golden, name, rule);
                break;
            }
}

void check_suffix(const std::string& suffix, const std::string& file) {
    const bool fits = suffix.empty() || (suffix[0] == '.' && suffix.find('.', 1) == std::string::npos);
    SMLA_CHECK(fits, file + ": layers.suffix", in_quotes(suffix),
               "an empty string, or a dot followed by a word without dots");
}

}  // namespace

Golden load_golden(const std::string& path) {
    const std::string suffix = ".safetensors";
    SMLA_CHECK(
        path.size() > suffix.size() && path.compare(path.size() - suffix.size(), suffix.size(), suffix) == 0,
        "--golden", path, "a .safetensors file with a .json file of the same name");
    const std::string json_path = path.substr(0, path.size() - suffix.size()) + ".json";
    const std::string file = fs::path(json_path).filename().string();
    const JsonDocument meta = parse_json(read_text_file(json_path, 1 << 24), file, {64, 1000000});
    if (!meta.is_object()) fail(SMLA_DATA_ERROR, file, json_text(meta), "an object");

    SafetensorsFile tensors = SafetensorsFile::open(path);
    Golden out{.file = tensors, .weights = Checkpoint::from_file(tensors)};
    out.name = fs::path(path).stem().string();
    out.batch = member<int64_t>(meta, file, "batch", 1, false);
    out.tokens = member<int64_t>(meta, file, "seq_len", 0, true);
    SMLA_CHECK(out.batch >= 1 && out.batch <= 4096, file + ": batch", out.batch, "1 to 4096");
    SMLA_CHECK(out.tokens >= 1 && out.tokens <= (1 << 24), file + ": seq_len", out.tokens, "1 to 2^24");
    out.chunk_plans = member(meta, file, "chunk_plans", out.chunk_plans, false);
    out.page_sizes = member(meta, file, "suggested_page_sizes", out.page_sizes, false);
    out.tolerance = read_tolerance(meta, file);
    check_chunks(out, file);
    const Json layers = member<Json>(meta, file, "layers", {}, true);
    SMLA_CHECK(layers.is_array() && !layers.empty(), file + ": layers", json_text(layers),
               "a list of layers");
    for (const Json& layer : layers) {
        GoldenLayer each;
        each.index = member<int>(layer, file, "layer_idx", 0, true);
        each.suffix = member<std::string>(layer, file, "suffix", "", false);
        check_suffix(each.suffix, file);
        each.config_json = layer_config(meta, layer, layers, file).dump(2);
        each.config = parse_config(each.config_json, file + ": config");
        const std::string hidden = "in.hidden" + each.suffix;
        if (!out.file.has(hidden))
            fail(SMLA_DATA_ERROR, out.file.name() + ": tensor " + hidden, "absent", "the input of the layer");
        out.check_shape(hidden, {out.batch, out.tokens, each.config.common.hidden_size});
        out.layers.push_back(std::move(each));
    }
    check_tensors(out);
    return out;
}

}  // namespace smla::golden
