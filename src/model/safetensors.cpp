#include "model/safetensors.h"

#include "model/findings.h"
#include "model/json.h"
#include "model/mapped_file.h"
#include "model/safetensors_dtypes.h"

#include <algorithm>
#include <cstring>

namespace smla {

namespace {

constexpr uint64_t kMaxElements = uint64_t(1)
                                  << 48;  // as in core/tensor.cpp: sizes in bytes stay far from overflow
constexpr size_t kLengthBytes = 8;

std::string base_name(const std::string& path) {
    const size_t slash = path.find_last_of('/');
    return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::string range_text(uint64_t begin, uint64_t end) { return text("[", begin, ", ", end, "]"); }

uint64_t little_endian64(const char* at) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(at[i]);
    return value;
}

}  // namespace

class SafetensorsHeader {
public:
    explicit SafetensorsHeader(SafetensorsFile& file) : file_(file) {}

    void read() {
        const uint64_t length = header_length();
        const Bytes copy = read_range(file_.bytes_, file_.name_, kLengthBytes, size_t(length));
        const std::string_view header(copy.data, copy.size);
        if (header.empty() || header[0] != '{')
            bad("header", header.empty() ? "nothing" : "a first byte other than {", "{");
        // A tensor takes 8 values, so this allows 500,000 tensors, five times the largest known checkpoint
        // (all shards).
        const JsonDocument json = parse_json(header, file_.name_ + ": header", {4, 4000000});
        data_size_ = file_.bytes_.size - kLengthBytes - size_t(length);
        file_.data_ = file_.bytes_.data + kLengthBytes + length;
        for (const auto& item : json.items()) {
            if (item.key() == "__metadata__") read_metadata(item.value());
            else file_.entries_.emplace(item.key(), read_entry(item.key(), item.value()));
        }
        check_layout();
    }

private:
    [[noreturn]] void bad(const std::string& what, std::string got, std::string wanted) const {
        fail(SMLA_DATA_ERROR, file_.name_ + ": " + what, std::move(got), std::move(wanted));
    }
    static std::string member(const std::string& tensor, const std::string& what) {
        return text("tensor ", printable(tensor)) + ": " + what;
    }

    uint64_t header_length() const {
        const size_t size = file_.bytes_.size;
        if (size < kLengthBytes) bad("size", text(size, " bytes"), "at least 8 bytes (the header length)");
        const uint64_t length = little_endian64(read_range(file_.bytes_, file_.name_, 0, kLengthBytes).data);
        if (length > kMaxSafetensorsHeader)
            bad("header length", text(length), text("at most ", kMaxSafetensorsHeader));
        if (length > size - kLengthBytes)
            bad("header length", text(length),
                text("at most ", size - kLengthBytes, " (the bytes that follow)"));
        return length;
    }

    void read_metadata(const Json& json) {
        if (!json.is_object()) bad("__metadata__", json_text(json), "an object of strings");
        for (const auto& item : json.items()) {
            if (!item.value().is_string())
                bad("__metadata__." + printable(item.key()), json_text(item.value()), "a string");
            file_.metadata_[item.key()] = item.value().get<std::string>();
        }
    }

    SafetensorsFile::Entry read_entry(const std::string& name, const Json& json) const {
        if (!json.is_object()) bad(text("tensor ", printable(name)), json_text(json), "an object");
        const char* const members[] = {"dtype", "shape", "data_offsets"};
        for (const char* each : members)
            if (!json.contains(each)) bad(member(name, each), "absent", "dtype, shape and data_offsets");
        for (const auto& item : json.items())
            if (std::find(std::begin(members), std::end(members), item.key()) == std::end(members))
                bad(member(name, printable(item.key())), json_text(item.value()),
                    "only dtype, shape and data_offsets");

        SafetensorsFile::Entry entry;
        if (!json["dtype"].is_string()) bad(member(name, "dtype"), json_text(json["dtype"]), "a string");
        entry.dtype = json["dtype"].get<std::string>();
        const uint64_t elements = read_shape(name, json["shape"], entry);
        read_offsets(name, json["data_offsets"], entry);
        const SafetensorsDtype* dtype = find_safetensors_dtype(entry.dtype);
        if (dtype && entry.end - entry.begin != elements * uint64_t(dtype->bytes))
            bad(member(name, "data_offsets"),
                text(range_text(entry.begin, entry.end), ", ", entry.end - entry.begin, " bytes"),
                text(elements * uint64_t(dtype->bytes), " bytes: ", elements, " of ", entry.dtype));
        return entry;
    }

    uint64_t read_shape(const std::string& name, const Json& json, SafetensorsFile::Entry& entry) const {
        if (!json.is_array()) bad(member(name, "shape"), json_text(json), "a list of integers");
        uint64_t elements = 1,
                 bound = 1;  // dimensions of 0 count as 1, so that strides cannot overflow
        for (size_t i = 0; i < json.size(); ++i) {
            const std::string field = member(name, text("shape[", i, "]"));
            if (!json[i].is_number_unsigned()) bad(field, json_text(json[i]), "an integer, 0 or more");
            const uint64_t n = json[i].get<uint64_t>();
            if (n > kMaxElements || (n != 0 && bound > kMaxElements / n))
                bad(field, text(n), "at most 2^48 elements in total");
            elements *= n;
            bound *= std::max<uint64_t>(n, 1);
            entry.shape.push_back(int64_t(n));
        }
        return elements;
    }

    void read_offsets(const std::string& name, const Json& json, SafetensorsFile::Entry& entry) const {
        const std::string field = member(name, "data_offsets");
        if (!json.is_array() || json.size() != 2)
            bad(field, json_text(json), "a list of two integers (begin, end)");
        for (size_t i = 0; i < 2; ++i)
            if (!json[i].is_number_unsigned())
                bad(text(field, "[", i, "]"), json_text(json[i]), "an integer, 0 or more");
        entry.begin = json[0].get<uint64_t>();
        entry.end = json[1].get<uint64_t>();
        if (entry.end < entry.begin)
            bad(field, range_text(entry.begin, entry.end), "an end that is not before the begin");
        if (entry.end > data_size_)
            bad(field, range_text(entry.begin, entry.end),
                text("an end within the ", data_size_, " data bytes of the file"));
    }

    // The official rule: in order of their offsets, tensors follow one another to the end without gap or
    // overlap.
    void check_layout() const {
        using Item = const std::pair<const std::string, SafetensorsFile::Entry>*;
        std::vector<Item> order;
        for (const auto& each : file_.entries_) order.push_back(&each);
        std::sort(order.begin(), order.end(), [](Item a, Item b) {
            return a->second.begin != b->second.begin ? a->second.begin < b->second.begin
                                                      : a->second.end < b->second.end;
        });
        uint64_t at = 0;
        for (const Item each : order) {
            const SafetensorsFile::Entry& entry = each->second;
            if (entry.begin != at)
                bad(member(each->first, "data_offsets"), range_text(entry.begin, entry.end),
                    text("a begin at ", at, " (the end of the previous tensor), without ",
                         entry.begin < at ? "overlap" : "a gap"));
            at = entry.end;
        }
        if (at != data_size_)
            bad("data", text(data_size_, " bytes"), text(at, " bytes (the end of the last tensor)"));
    }

    SafetensorsFile& file_;
    uint64_t data_size_ = 0;
};

SafetensorsFile SafetensorsFile::from_bytes(Bytes bytes, std::string name) {
    SafetensorsFile file;
    file.name_ = std::move(name);
    file.bytes_ = std::move(bytes);
    SafetensorsHeader(file).read();
    return file;
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
    return from_bytes(map_file(path), base_name(path));
}

std::vector<std::string> SafetensorsFile::names() const {
    std::vector<std::string> out;
    for (const auto& each : entries_) out.push_back(each.first);
    return out;
}

const SafetensorsFile::Entry& SafetensorsFile::entry(const std::string& tensor) const {
    const auto found = entries_.find(tensor);
    if (found == entries_.end())
        fail(SMLA_DATA_ERROR, name_ + ": tensor " + printable(tensor), "absent",
             text("one of the file's ", entries_.size(), " tensors"));
    return found->second;
}

HostTensor SafetensorsFile::tensor(const std::string& tensor) const {
    const std::string field = name_ + ": tensor " + printable(tensor);
    const Entry& entry = this->entry(tensor);
    const SafetensorsDtype* dtype = find_safetensors_dtype(entry.dtype);
    if (!dtype || dtype->dtype == 0)
        fail(SMLA_DATA_ERROR, field + ": dtype", in_quotes(entry.dtype),
             "F64, F32, F16, BF16, F8_E4M3, F8_E8M0, I64, I32, U8 or I8");
    if (entry.shape.size() > SMLA_MAX_NDIM)
        fail(SMLA_DATA_ERROR, field + ": shape", text(entry.shape.size(), " dimensions"),
             text("at most ", SMLA_MAX_NDIM));

    HostTensor out;
    const size_t bytes = size_t(entry.end - entry.begin);
    const Bytes stored = read_range(bytes_, name_, size_t(data_ - bytes_.data) + entry.begin, bytes);
    const char* data = stored.data;
    out.memory = stored.memory;
    if (reinterpret_cast<uintptr_t>(data) % uintptr_t(dtype->bytes) != 0 && bytes > 0) {
        const std::shared_ptr<char[]> copy(new char[bytes]);
        std::memcpy(copy.get(), data, bytes);
        data = copy.get();
        out.memory = copy;
    }
    out.view.data = bytes > 0 ? const_cast<char*>(data) : nullptr;
    out.view.dtype = dtype->dtype;
    out.view.ndim = std::max(1, int(entry.shape.size()));
    int64_t stride = 1;
    for (int i = out.view.ndim - 1; i >= 0; --i) {
        out.view.shape[i] = entry.shape.empty() ? 1 : entry.shape[size_t(i)];
        out.view.stride_elems[i] = stride;
        stride *= std::max<int64_t>(out.view.shape[i], 1);
    }
    return out;
}

}  // namespace smla
