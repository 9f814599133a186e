#include "model/checkpoint.h"

#include "model/dequantise.h"
#include "model/findings.h"
#include "model/json.h"
#include "model/safetensors_dtypes.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <optional>

namespace smla {

namespace fs = std::filesystem;

namespace {
constexpr const char* kWholeFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kSuffix = ".safetensors";
constexpr size_t kMaxIndexBytes = 100000000;

// Throws unless a caller's tensor is valid. Any shape is accepted, because other layers may have unusual
// ones.
void check_memory(const std::string& field, const Tensor& tensor) {
    constexpr uint32_t kAll = ~uint32_t(0);
    try {
        switch (tensor.ndim) {
            case 1: return check_tensor(field.c_str(), tensor, kAll, {kAny});
            case 2: return check_tensor(field.c_str(), tensor, kAll, {kAny, kAny});
            case 3: return check_tensor(field.c_str(), tensor, kAll, {kAny, kAny, kAny});
            default: return check_tensor(field.c_str(), tensor, kAll, {kAny, kAny, kAny, kAny});
        }
    } catch (const Error& error) {
        fail(SMLA_DATA_ERROR, error.field, error.got, error.wanted);
    }
}
}  // namespace

struct Checkpoint::State {
    struct Shard {
        std::string path;  // empty: from from_file()
        std::optional<SafetensorsFile> file;
    };
    std::string name;
    std::mutex mutex;  // guards opening shards
    std::vector<Shard> shards;
    std::map<std::string, size_t> shard_of;
    std::map<std::string, Tensor> given;  // the caller's tensors, instead of shards
    Device* device = &host_device();      // where `given` may be stored

    const SafetensorsFile& opened(size_t shard) {
        std::lock_guard lock(mutex);
        Shard& at = shards[shard];
        if (!at.file) at.file = SafetensorsFile::open(at.path);
        return *at.file;
    }

    void add_file(SafetensorsFile file) {
        for (const std::string& tensor : file.names()) {
            const auto placed = shard_of.emplace(tensor, shards.size());
            if (!placed.second)
                fail(SMLA_DATA_ERROR, name + ": tensor " + printable(tensor),
                     text("in ", shards[placed.first->second].file->name(), " and in ", file.name()),
                     "one file");
        }
        shards.push_back({"", std::move(file)});
    }

    void add_index(const fs::path& folder) {
        const JsonDocument json = parse_json(read_text_file((folder / kIndexFile).string(), kMaxIndexBytes),
                                             kIndexFile, {8, 4000000});
        const auto found = json.is_object() ? json.find("weight_map") : json.end();
        if (!json.is_object() || found == json.end() || !found->is_object())
            fail(SMLA_DATA_ERROR, text(kIndexFile, ": weight_map"),
                 json.is_object() && found != json.end() ? json_text(*found) : "absent",
                 "an object that maps tensors to files");
        std::map<std::string, size_t> known;
        for (const auto& item : found->items()) {
            const std::string field = text(kIndexFile, ": weight_map.", printable(item.key()));
            if (!item.value().is_string())
                fail(SMLA_DATA_ERROR, field, json_text(item.value()), "the name of a file");
            const std::string& file = item.value().get_ref<const std::string&>();
            // Accepts only plain names, because an index must not refer to files outside its folder.
            if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
                file.find('\0') != std::string::npos)
                fail(SMLA_DATA_ERROR, field, json_text(item.value()),
                     "the name of a file in the same folder");
            const auto shard = known.emplace(file, shards.size());
            if (shard.second) shards.push_back({(folder / file).string(), std::nullopt});
            shard_of[item.key()] = shard.first->second;
        }
    }

    HostTensor find_given(const std::string& tensor) const {
        const Tensor& at = given.at(tensor);
        const std::string field = "tensor " + printable(tensor);
        check_memory(field, at);
        const bool here = at.device_type == device->type() && at.device_index == device->index();
        if (at.device_type != SMLA_CPU && !here)
            fail(SMLA_DATA_ERROR, field, text("on cuda:", at.device_index),
                 device->type() == SMLA_CPU ? "host memory"
                                            : text("memory of the host or of cuda:", device->index()));
        if (is_contiguous(at)) return {at, nullptr};
        return packed(at.device_type == SMLA_CPU ? HostTensor{at, nullptr} : fetched(at));
    }

    HostTensor fetched(const Tensor& at) const {
        std::unique_ptr<char[]> memory;
        HostTensor out{fetch(*device, at, nullptr, memory), nullptr};
        out.memory = std::shared_ptr<const char[]>(std::move(memory));
        return out;
    }

    void add_folder(const fs::path& folder) {
        std::error_code error;
        if (fs::exists(folder / kWholeFile, error))
            return add_file(SafetensorsFile::open((folder / kWholeFile).string()));
        if (fs::exists(folder / kIndexFile, error)) return add_index(folder);
        std::vector<std::string> files;
        for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
            if (it->path().extension() == kSuffix) files.push_back(it->path().string());
        if (error)
            fail(SMLA_IO_ERROR, folder.string(), text("cannot read the folder: ", error.message()), "");
        if (files.empty())
            fail(SMLA_IO_ERROR, folder.string(),
                 text("the folder has no ", kWholeFile, ", ", kIndexFile, " or *", kSuffix), "");
        std::sort(files.begin(), files.end());
        for (const std::string& file : files) add_file(SafetensorsFile::open(file));
        name += text(" (without ", kWholeFile, ")");  // a possible reason for missing tensors
    }
};

Checkpoint Checkpoint::open(const std::string& path) {
    Checkpoint out;
    out.state_ = std::make_shared<State>();
    const fs::path at(path);
    out.state_->name = at.filename().empty() ? at.parent_path().filename().string() : at.filename().string();
    std::error_code error;
    if (fs::is_directory(at, error)) out.state_->add_folder(at);
    else out.state_->add_file(SafetensorsFile::open(path));
    return out;
}

Checkpoint Checkpoint::from_file(SafetensorsFile file) {
    Checkpoint out;
    out.state_ = std::make_shared<State>();
    out.state_->name = file.name();
    out.state_->add_file(std::move(file));
    return out;
}

Checkpoint Checkpoint::from_tensors(const std::vector<NamedTensor>& tensors, std::string name,
                                    Device& device) {
    Checkpoint out;
    out.state_ = std::make_shared<State>();
    out.state_->name = std::move(name);
    out.state_->device = &device;
    for (const NamedTensor& each : tensors)
        if (!out.state_->given.emplace(each.name, each.tensor).second)
            fail(SMLA_INVALID_ARGUMENT, out.state_->name + ": tensor " + printable(each.name),
                 "a name that is listed twice", "each name once");
    return out;
}

const std::string& Checkpoint::name() const { return state_->name; }

bool Checkpoint::has(const std::string& tensor) const {
    return state_->shard_of.count(tensor) != 0 || state_->given.count(tensor) != 0;
}

std::vector<std::string> Checkpoint::names() const {
    std::vector<std::string> out;
    for (const auto& each : state_->shard_of) out.push_back(each.first);
    for (const auto& each : state_->given) out.push_back(each.first);
    return out;
}

const SafetensorsFile& Checkpoint::file_of(const std::string& tensor) const {
    const auto found = state_->shard_of.find(tensor);
    if (found == state_->shard_of.end())
        fail(SMLA_DATA_ERROR, state_->name + ": tensor " + printable(tensor), "absent",
             text("one of the checkpoint's ", state_->shard_of.size(), " tensors"));
    return state_->opened(found->second);
}

HostTensor Checkpoint::tensor(const std::string& tensor) const {
    return state_->given.count(tensor) ? state_->find_given(tensor) : file_of(tensor).tensor(tensor);
}

std::string Checkpoint::dtype(const std::string& tensor) const {
    const auto found = state_->given.find(tensor);
    if (found == state_->given.end()) return file_of(tensor).dtype(tensor);
    const SafetensorsDtype* dtype = find_safetensors_dtype(found->second.dtype);
    return dtype ? std::string(dtype->name) : text("dtype ", found->second.dtype);
}

HostTensor Checkpoint::on_host(const HostTensor& tensor) const { return state_->fetched(tensor.view); }

}  // namespace smla
