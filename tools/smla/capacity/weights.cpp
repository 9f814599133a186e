#include "weights.h"

#include "core/status.h"
#include "model/json.h"
#include "model/mapped_file.h"

#include <filesystem>
#include <fstream>
#include <set>

namespace smla::cli {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxIndexBytes = 256 << 20, kMaxHeader = 100000000;

// Adds the sizes of a safetensors file's tensors, from its header only.
void add_file(const fs::path& path, double& total, double& experts) {
    std::ifstream file(path, std::ios::binary);
    uint64_t bytes = 0;
    file.read(reinterpret_cast<char*>(&bytes), sizeof bytes);  // little endian, as all supported processors
    const std::string name = path.filename();
    if (!file || bytes > kMaxHeader)
        fail(SMLA_DATA_ERROR, name, "a file without a header", "a safetensors file");
    std::string header(bytes, ' ');
    file.read(header.data(), std::streamsize(bytes));
    if (!file) fail(SMLA_DATA_ERROR, name, "a truncated header", "a safetensors file");
    const JsonDocument json = parse_json(header, name);
    for (const auto& [tensor, entry] : json.items()) {
        if (tensor == "__metadata__") continue;
        const Json offsets = entry.is_object() ? entry.value("data_offsets", Json()) : Json();
        SMLA_CHECK(offsets.is_array() && offsets.size() == 2 && offsets[0].is_number_unsigned() &&
                       offsets[1].is_number_unsigned() && offsets[0] <= offsets[1],
                   name + ": tensor " + tensor, json_text(offsets),
                   "a list of two integers in data_offsets (begin, end)");
        const double size = offsets[1].get<double>() - offsets[0].get<double>();
        total += size;
        if (tensor.find(".experts.") != std::string::npos) experts += size;
    }
}

}  // namespace

double Weights::per_gpu(int64_t tp, int64_t dp) const {
    return split ? (total - experts) / double(tp) + experts / double(tp * dp) : total / double(tp * dp);
}

Weights read_weights(const std::string& model) {
    std::error_code error;
    if (!fs::exists(model, error)) return {};  // the name of a published model
    const fs::path folder = fs::is_directory(model, error) ? fs::path(model) : fs::path(model).parent_path();
    const fs::path index = folder / "model.safetensors.index.json", single = folder / "model.safetensors";
    Weights out;
    std::set<std::string> files;
    if (fs::exists(index, error)) {
        out.source = index.filename();
        const JsonDocument json = parse_json(read_text_file(index.string(), kMaxIndexBytes), out.source);
        const auto number = json.is_object() && json.contains("metadata") && json["metadata"].is_object() &&
                                    json["metadata"].contains("total_size")
                                ? json["metadata"]["total_size"]
                                : Json();
        SMLA_CHECK(number.is_number() && number.get<double>() > 0, out.source + ": metadata.total_size",
                   json_text(number), "the bytes of all tensors; alternatively, set --weights-gib");
        out.total = number.get<double>();
        if (json.contains("weight_map") && json["weight_map"].is_object())
            for (const auto& [tensor, file] : json["weight_map"].items())
                if (file.is_string()) files.insert(file.get<std::string>());
    } else if (fs::exists(single, error)) {
        out.source = single.filename();
        files.insert(out.source);
    }
    for (const std::string& file : files)
        if (!fs::exists(folder / file, error)) return out;
    double total = 0;
    for (const std::string& file : files) add_file(folder / file, total, out.experts);
    if (total > 0) {
        out.total = total;
        out.split = true;
    }
    return out;
}

}  // namespace smla::cli
