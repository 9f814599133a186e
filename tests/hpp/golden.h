// A golden file as a checkpoint folder, read without the library: safetensors is eight bytes of length, a
// JSON header and the data.
#pragma once

#include <source_dir.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace golden {

using Json = nlohmann::json;
namespace fs = std::filesystem;

class Case {
public:
    explicit Case(const std::string& name) {
        const fs::path source = fs::path(SMLA_SOURCE_DIR) / "tests/goldens";
        about_ = Json::parse(text(source / (name + ".json")));
        const std::string file = text(source / (name + ".safetensors"));
        uint64_t length = 0;
        std::memcpy(&length, file.data(), sizeof length);
        header_ = Json::parse(file.substr(sizeof length, length));
        data_ = file.substr(sizeof length + length);
    }

    int64_t tokens() const { return about_["seq_len"]; }
    int64_t hidden_size() const { return about_["config"]["hidden_size"]; }
    int32_t layer() const { return about_["layers"][0]["layer_idx"]; }

    // T: float for F32, double for F64, int32_t for I32.
    template <class T>
    std::vector<T> values(const std::string& name) const {
        const Json& entry = header_.at(name);
        const std::string wanted = std::is_integral_v<T> ? "I32" : sizeof(T) == 8 ? "F64" : "F32";
        if (entry["dtype"] != wanted) throw std::runtime_error(name + " is " + entry["dtype"].dump());
        const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
        std::vector<T> out((end - begin) / sizeof(T));
        std::memcpy(out.data(), data_.data() + begin, end - begin);
        return out;
    }

    std::string config() const {
        Json config = about_["config"];
        config["model_type"] = about_["model_type"];
        return config.dump();
    }

    // A tensor in this object's memory.
    struct Stored {
        std::string name;
        bool bf16;  // else f32
        std::vector<int64_t> shape;
        void* data;
    };
    std::vector<Stored> weights() {
        std::vector<Stored> out;
        for (const auto& [name, entry] : header_.items()) {
            if (name.rfind("w.", 0) != 0) continue;
            out.push_back({name.substr(2), entry["dtype"] == "BF16", entry["shape"],
                           data_.data() + size_t(entry["data_offsets"][0])});
        }
        return out;
    }

    // config.json and model.safetensors, weights under the names that checkpoints have.
    void write_checkpoint(const fs::path& folder) const {
        std::ofstream(folder / "config.json") << config();
        Json renamed = Json::object();
        for (const auto& [name, entry] : header_.items())
            if (name != "__metadata__") renamed[name.rfind("w.", 0) == 0 ? name.substr(2) : name] = entry;
        std::string header = renamed.dump();
        header.resize((header.size() + 7) / 8 * 8, ' ');
        const uint64_t length = header.size();
        std::ofstream file(folder / "model.safetensors", std::ios::binary);
        file.write(reinterpret_cast<const char*>(&length), sizeof length) << header << data_;
        if (!file.flush()) throw std::runtime_error(folder.string() + ": cannot be written");
    }

private:
    static std::string text(const fs::path& path) {
        std::ifstream file(path, std::ios::binary);
        if (!file) throw std::runtime_error(path.string() + ": cannot be read");
        return {std::istreambuf_iterator<char>(file), {}};
    }

    Json about_, header_;
    std::string data_;
};

// Removed with what is in it.
class Folder {
public:
    Folder() {
        std::string name = (fs::temp_directory_path() / "smla_hpp_XXXXXX").string();
        if (!mkdtemp(name.data())) throw std::runtime_error(name + ": cannot be made");
        path = name;
    }
    ~Folder() {
        std::error_code ignored;
        fs::remove_all(path, ignored);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    fs::path path;
};

}  // namespace golden
