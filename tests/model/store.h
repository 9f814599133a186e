// A checkpoint made of random tensors by name, for the tests of weights.
#pragma once

#include "files.h"
#include "model/checkpoint.h"

#include <list>
#include <map>
#include <random>

namespace smla::test {

// A checkpoint in memory: tensors by name with random values, written to a file and opened.
class Store {
public:
    void add(const std::string& name, smla_dtype dtype, std::vector<int64_t> shape) {
        int64_t count = 1;
        for (const int64_t n : shape) count *= n;
        std::vector<char>& bytes = data_.emplace_back(size_t(count) * size_t(dtype_bits(dtype) / 8));
        Tensor flat = make_tensor(bytes.data(), dtype, {count});
        if (dtype == SMLA_E4M3 || dtype == SMLA_E8M0) {
            for (char& byte : bytes) byte = char(dtype == SMLA_E4M3 ? random_() % 0x7f : 120 + random_() % 8);
        } else if (kFloats & dtype_bit(dtype)) {
            std::vector<float> values(static_cast<size_t>(count));
            for (float& value : values) value = float(1 + random_() % 1000) / 1024.f;
            store_row(flat, address(flat, 0), count, values.data());
        }
        flat.ndim = int(shape.size());
        for (int i = flat.ndim - 1, stride = 1; i >= 0; stride *= int(flat.shape[i]), --i) {
            flat.shape[i] = shape[size_t(i)];
            flat.stride_elems[i] = stride;
        }
        tensors_[name] = flat;
    }
    void remove(const std::string& name) { ASSERT_EQ(tensors_.erase(name), 1u) << name; }
    void rename(const std::string& from, const std::string& to) {
        ASSERT_TRUE(tensors_.count(from)) << from;
        tensors_[to] = tensors_[from];
        tensors_.erase(from);
    }
    Tensor tensor(const std::string& name) const { return tensors_.at(name); }

    Checkpoint open() const {
        const Folder folder;
        return Checkpoint::open(written_to(folder));
    }
    // Opens a file in memory, whose tensors are views.
    Checkpoint in_memory() const {
        const Folder folder;
        written_to(folder);
        return Checkpoint::from_file(parse(folder.read("c.safetensors")));
    }

private:
    std::string written_to(const Folder& folder) const {
        std::vector<NamedTensor> list;
        for (const auto& each : tensors_) list.push_back({each.first, each.second});
        write_safetensors(folder.path("c.safetensors"), list);
        return folder.path("c.safetensors");
    }
    std::mt19937 random_{11};
    std::list<std::vector<char>> data_;
    std::map<std::string, Tensor> tensors_;
};

// Same shape and values, whatever the dtypes.
inline void expect_same(const HostTensor& loaded, const Tensor& stored) {
    ASSERT_EQ(loaded.view.ndim, stored.ndim);
    ASSERT_EQ(element_count(loaded.view), element_count(stored));
    const int64_t count = element_count(stored);
    const Tensor a = make_tensor(loaded.view.data, loaded.view.dtype, {count});
    const Tensor b = make_tensor(stored.data, stored.dtype, {count});
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(load_one<double>(a, i), load_one<double>(b, i)) << i;
}

}  // namespace smla::test
