// Any text as the JSON of a golden file, and, as its member "tensors" says, any tensors beside it: either one
// Error that names what is wrong, or layers, steps and tensors that a run and its comparisons may rely on.
#include "fuzz.h"
#include "golden/compare.h"
#include "json_mutator.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

namespace {

namespace fs = std::filesystem;
using smla::fuzz::Json;
using smla::golden::Golden;
using smla::golden::LayerResult;
using smla::golden::Rows;

// Bytes of a safetensors file of zeros: {name: {"dtype": ..., "shape": [...]}}. What would be no such file,
// which another fuzzer knows, or large is left out.
std::string zeros(const Json& tensors) {
    static const std::map<std::string, uint64_t> kBytes{{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2},
                                                        {"I64", 8}, {"I32", 4}, {"U8", 1}};
    constexpr uint64_t kMost = 1 << 16;
    Json header = Json::object();
    uint64_t at = 0;
    for (const auto& [name, each] : tensors.items()) {
        const auto dtype = each.is_object() ? each.find("dtype") : each.end();
        const auto shape = each.is_object() ? each.find("shape") : each.end();
        if (dtype == each.end() || shape == each.end() || !dtype->is_string() || !shape->is_array()) continue;
        const auto bytes = kBytes.find(dtype->get<std::string>());
        uint64_t n = 1;
        for (const Json& extent : *shape)
            n = n > kMost || !extent.is_number_unsigned() || extent.get<uint64_t>() > kMost
                    ? kMost + 1
                    : n * extent.get<uint64_t>();
        if (bytes == kBytes.end() || n > kMost || name.empty()) continue;
        header[name] = {{"dtype", *dtype}, {"shape", *shape}, {"data_offsets", {at, at + n * bytes->second}}};
        at += n * bytes->second;
    }
    const std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
    const uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text +
           std::string(size_t(at), '\0');
}

// A folder of this process; what is in it is written anew for every input.
class Folder {
public:
    Folder() {
        std::string name = (fs::temp_directory_path() / "smla_fuzz_golden_XXXXXX").string();
        FUZZ_ASSERT(mkdtemp(name.data()));
        path_ = name;
    }
    ~Folder() { fs::remove_all(path_); }
    std::string tensors() const { return (path_ / "case.safetensors").string(); }
    void write(const uint8_t* data, size_t size) {
        const std::string text(reinterpret_cast<const char*>(data), size);
        put(path_ / "case.json", text);
        const Json json = Json::parse(text, nullptr, false);
        const bool changed = json.is_object() && json.contains("tensors") && json["tensors"].is_object();
        if (changed) put(tensors(), zeros(json["tensors"]));
        else if (!original_) fs::copy_file(SMLA_FUZZ_GOLDEN, tensors(), fs::copy_options::overwrite_existing);
        original_ = !changed;
    }

private:
    static void put(const fs::path& path, const std::string& text) {
        std::ofstream out(path, std::ios::binary | std::ios::trunc);
        out.write(text.data(), std::streamsize(text.size()));
        FUZZ_ASSERT(out.good());
    }

    fs::path path_;
    bool original_ = false;
};

void check_golden(const Golden& golden) {
    FUZZ_ASSERT(golden.batch >= 1 && golden.tokens >= 1 && !golden.layers.empty());
    for (const auto& plan : golden.chunk_plans)
        FUZZ_ASSERT(std::accumulate(plan.begin(), plan.end(), int64_t(0)) == golden.tokens);
    for (const auto& layer : golden.layers) {
        FUZZ_ASSERT(layer.index >= 0 && !layer.config_json.empty());
        FUZZ_ASSERT(layer.config.softmax_scale() > 0 && std::isfinite(layer.config.softmax_scale()));
    }
    if (golden.has("in.position_ids")) {
        for (const double position : golden.values("in.position_ids")) FUZZ_ASSERT(position >= 0);
    }
}

// What a run of the layer could have given, in rows of a few values.
LayerResult result_of(const Golden& golden, const smla::golden::GoldenLayer& layer) {
    const size_t tokens = size_t(golden.batch * golden.tokens);
    LayerResult out;
    out.y.assign(tokens * size_t(layer.config.common.hidden_size), 0);
    for (const char* name : {"topk", "candidates", "entries", "entries_index", "latent", "kpe", "kv_window",
                             "qr", "index_q", "index_k", "index_w", "core_out", "core_rotated", "o_lora"})
        out.seen[name] = Rows{{3}, std::vector<double>(tokens * 3)};
    for (const char* name : {"q_nope", "q_rope"})
        out.seen[name] = Rows{{2, 3}, std::vector<double>(tokens * 6)};
    const int64_t ratio = std::max<int64_t>(layer.config.compress_ratio(layer.index), 1);
    const int64_t entries = golden.tokens / ratio;
    out.seen["index_score"] = Rows{{entries}, std::vector<double>(tokens * size_t(entries))};
    return out;
}

void compare_all(const Golden& golden) {
    for (size_t i = 0; i < golden.layers.size(); ++i) {
        const LayerResult result = result_of(golden, golden.layers[i]);
        check_intermediates(golden, i, result, 1);
        check_steps(golden, i, result);
        topk_overlap(golden, i, result);
        check_y(golden, i, result, smla::golden::Arithmetic::f32);
    }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
    return smla::fuzz::mutate_json(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static Folder folder;
    folder.write(data, size);
    try {
        const Golden golden = smla::golden::load_golden(folder.tensors());
        check_golden(golden);
        compare_all(golden);
    } catch (const smla::Error& error) {
        FUZZ_ASSERT(error.status == SMLA_DATA_ERROR || error.status == SMLA_INVALID_ARGUMENT);
        FUZZ_ASSERT(error.field.compare(0, 4, "case") == 0);
        FUZZ_ASSERT(!error.got.empty() && !error.wanted.empty());
    }
    return 0;
}
