#include "model/findings.h"
#include "model/json.h"
#include "model/output_file.h"
#include "model/safetensors.h"
#include "model/safetensors_dtypes.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace smla {

namespace {

const SafetensorsDtype& dtype_of(const NamedTensor& each) {
    const std::string field = text("tensor ", printable(each.name));
    SMLA_CHECK(each.tensor.device_type == SMLA_CPU, field + ": device", "memory of a GPU", "host memory");
    const SafetensorsDtype* dtype = find_safetensors_dtype(each.tensor.dtype);
    SMLA_CHECK(dtype, field + ": dtype", dtype_name(each.tensor.dtype), "a dtype other than e2m1");
    return *dtype;
}

void check_tensors(const std::vector<NamedTensor>& tensors) {
    std::set<std::string> names;
    for (const NamedTensor& each : tensors) {
        const std::string field = text("tensor ", printable(each.name));
        SMLA_CHECK(each.name != "__metadata__", field, "the reserved name of the metadata", "another name");
        SMLA_CHECK(names.insert(each.name).second, field, "a duplicate name",
                   "a unique name for each tensor");
        SMLA_CHECK(each.tensor.ndim >= 1 && each.tensor.ndim <= SMLA_MAX_NDIM, field + ": ndim",
                   each.tensor.ndim, "1 to 4");
        const SafetensorsDtype& dtype = dtype_of(each);
        constexpr int64_t any[SMLA_MAX_NDIM] = {kAny, kAny, kAny, kAny};
        const uint32_t allowed = dtype_bit(dtype.dtype);
        switch (each.tensor.ndim) {
            case 1: check_tensor(field.c_str(), each.tensor, allowed, {any[0]}); break;
            case 2: check_tensor(field.c_str(), each.tensor, allowed, {any[0], any[1]}); break;
            case 3: check_tensor(field.c_str(), each.tensor, allowed, {any[0], any[1], any[2]}); break;
            default:
                check_tensor(field.c_str(), each.tensor, allowed, {any[0], any[1], any[2], any[3]});
                break;
        }
    }
}

std::string make_header(const std::vector<const NamedTensor*>& order,
                        const std::map<std::string, std::string>& metadata) {
    Json json = Json::object();
    if (!metadata.empty()) json["__metadata__"] = metadata;
    uint64_t at = 0;
    for (const NamedTensor* each : order) {
        const SafetensorsDtype& dtype = dtype_of(*each);
        const uint64_t end = at + uint64_t(element_count(each->tensor)) * uint64_t(dtype.bytes);
        const int64_t* shape = each->tensor.shape;
        json[each->name] = {{"dtype", dtype.name},
                            {"shape", std::vector<int64_t>(shape, shape + each->tensor.ndim)},
                            {"data_offsets", {at, end}}};
        at = end;
    }
    std::string header;
    try {
        header = json.dump();
    } catch (const Json::exception& error) {  // dump() rejects bytes that are not UTF-8
        fail(SMLA_INVALID_ARGUMENT, "tensor or metadata name", printable(error.what()), "UTF-8");
    }
    header.append((8 - header.size() % 8) % 8, ' ');  // the data starts aligned
    SMLA_CHECK(header.size() <= kMaxSafetensorsHeader, "tensors", text(header.size(), " bytes of header"),
               text("at most ", kMaxSafetensorsHeader));
    return header;
}

void write_data(OutputFile& file, const Tensor& tensor, int bytes) {
    if (element_count(tensor) == 0) return;
    const int last = tensor.ndim - 1;
    const int64_t n = tensor.shape[last], rows = element_count(tensor) / n, step = tensor.stride_elems[last];
    std::vector<char> packed(size_t(step == 1 ? 0 : n * bytes));
    int64_t index[SMLA_MAX_NDIM] = {};
    for (int64_t row = 0; row < rows; ++row) {
        int64_t at = 0;
        for (int d = 0; d < last; ++d) at += index[d] * tensor.stride_elems[d];
        const char* from = static_cast<const char*>(tensor.data) + at * bytes;
        if (step != 1) {
            for (int64_t i = 0; i < n; ++i)
                std::memcpy(packed.data() + i * bytes, from + i * step * bytes, size_t(bytes));
            from = packed.data();
        }
        file.write(from, size_t(n * bytes));
        for (int d = last - 1; d >= 0 && ++index[d] == tensor.shape[d]; --d) index[d] = 0;
    }
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
    check_tensors(tensors);
    std::vector<const NamedTensor*> order;
    for (const NamedTensor& each : tensors) order.push_back(&each);
    std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
        const int x = dtype_of(*a).bytes, y = dtype_of(*b).bytes;
        return x != y ? x > y : a->name < b->name;
    });
    const std::string header = make_header(order, metadata);
    char length[8];
    for (int i = 0; i < 8; ++i) length[i] = char(uint64_t(header.size()) >> (8 * i) & 255);

    OutputFile file(path);
    file.write(length, sizeof length);
    file.write(header.data(), header.size());
    for (const NamedTensor* each : order) write_data(file, each->tensor, dtype_of(*each).bytes);
    file.commit();
}

}  // namespace smla
