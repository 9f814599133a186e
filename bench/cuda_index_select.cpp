// Checks of select on the GPU against the host's full sort: every dtype, hostile values, windows and sizes.
#include "cuda_index_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>

namespace smla::bench {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr const char* kKernels[] = {"cuda_register_select", "cuda_cluster_select", "cuda_sampled_select",
                                    "cuda_generic_select"};

struct Values {
    const char* name;
    std::function<float(std::mt19937&, int64_t)> at;
};

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

const std::vector<Values>& all_values() {
    static std::normal_distribution<float> normal;
    static const std::vector<Values> values = {
        {"normal", [](auto& r, int64_t) { return normal(r); }},
        {"shifted", [](auto& r, int64_t) { return normal(r) * 1e-3f - 100; }},
        {"equal", [](auto&, int64_t) { return 1.5f; }},
        {"relu", [](auto& r, int64_t) { return std::max(0.f, normal(r) - 2); }},
        {"integers", [](auto& r, int64_t) { return float(r() % 33); }},
        {"nan", [](auto&, int64_t) { return std::nanf(""); }},
        {"zeros", [](auto& r, int64_t) { return r() % 2 ? 0.f : -0.f; }},
        {"lowest", [](auto&, int64_t) { return -kInfinity; }},
        {"mixed",
         [](auto& r, int64_t) {
             const uint32_t which = r() % 4;
             return which == 0 ? std::nanf("") : which == 1 ? -kInfinity : which == 2 ? kInfinity : normal(r);
         }},
        {"patterns", [](auto& r, int64_t) { return from_bits(uint32_t(r())); }},
        {"rising", [](auto&, int64_t j) { return float(j); }},
        {"falling", [](auto&, int64_t j) { return -float(j); }},
        {"neighbours", [](auto&, int64_t j) { return from_bits(0x3f800000u + uint32_t(j)); }},
        {"binade", [](auto& r, int64_t) { return 1 + 0.245f * float(r() % 65536) / 65536; }},
        {"runs", [](auto& r, int64_t j) { return float((j / 512) * 2654435761u % 97) + 1e-3f * normal(r); }},
        {"tiny",
         [](auto& r, int64_t) { return from_bits(uint32_t(r() % 100) | (r() % 2 ? 0x80000000u : 0)); }},
    };
    return values;
}

struct SelectCase {
    int64_t rows, columns, k;
    smla_dtype dtype = SMLA_F32;
    bool windows = false, relative = false, ids = false;
};

// Rows further apart than they are long, from an odd address; what lies outside windows is the best there is.
class Problem {
public:
    Problem(const SelectCase& shape, const Values& values, uint32_t seed) : shape_(shape) {
        std::mt19937 random(seed);
        stride_ = shape.columns + 3;
        scores_.assign(size_t(shape.rows * stride_), kInfinity);
        for (int64_t t = 0; t < shape.rows; ++t) {
            int64_t begin = 0, end = shape.columns;
            if (shape.windows) {
                const int64_t n = shape.columns;
                const int64_t ends[][2] = {
                    {0, n}, {5, n - 7}, {n / 3, n / 2},         {-4, n + 9},     {n / 2, n / 3}, {0, 0},
                    {n, n}, {1, 2},     {INT32_MIN, INT32_MAX}, {3, n / 16 + 40}};
                begin = ends[(size_t(t) + seed) % 10][0], end = ends[(size_t(t) + seed) % 10][1];
            }
            starts_.push_back(int32_t(begin));
            ends_.push_back(int32_t(end));
            begin = std::clamp<int64_t>(begin, 0, shape.columns),
            end = std::clamp<int64_t>(end, begin, shape.columns);
            for (int64_t j = begin; j < end; ++j) scores_[size_t(t * stride_ + j)] = values.at(random, j);
        }
        if (shape.dtype != SMLA_F32)
            for (const float score : scores_)
                halves_.push_back(shape.dtype == SMLA_BF16 ? f32_to_bf16(score) : f32_to_f16(score));
        if (!shape.ids) return;
        for (int64_t i = 0; i < shape.rows * stride_; ++i)
            ids_.push_back(random() % 7 ? int32_t(random() % (2 * uint32_t(shape.columns)))
                                        : -int32_t(random() % 9));
    }

    // Compares a kernel with the host's sort, bit for bit.
    void check(Gpu& gpu, Report& report, const char* kernel, const char* what) {
        const int64_t gap = 5, size = shape_.rows * (shape_.k + gap);
        std::vector<int32_t> indices(size_t(size), -99), counts(size_t(shape_.rows), -5);
        std::vector<float> selected(size_t(size), 7.25f);
        smla_select_args host = args(scores_.data(), halves_.data(), starts_.data(), ends_.data(),
                                     ids_.data(), indices.data(), selected.data(), counts.data());
        smla_select_args on_gpu = host;
        on_gpu.scores.data = shape_.dtype == SMLA_F32 ? static_cast<void*>(gpu.upload(scores_, 1))
                                                      : static_cast<void*>(gpu.upload(halves_, 1));
        on_gpu.starts.data = gpu.upload(starts_);
        on_gpu.ends.data = gpu.upload(ends_);
        if (shape_.ids) on_gpu.ids.data = gpu.upload(ids_);
        on_gpu.indices.data = gpu.upload(indices);
        on_gpu.selected.data = gpu.upload(selected);
        on_gpu.counts.data = gpu.upload(counts);
        for (Tensor* t : {&on_gpu.scores, &on_gpu.starts, &on_gpu.ends, &on_gpu.ids, &on_gpu.indices,
                          &on_gpu.selected, &on_gpu.counts})
            t->device_type = SMLA_CUDA;
        if (gpu.refuses<Stage::select>(kernel, on_gpu)) return;
        SelectOp::reference(host, 0, shape_.rows);
        gpu.run<Stage::select>(kernel, on_gpu);
        const auto got = gpu.download(static_cast<int32_t*>(on_gpu.indices.data), size_t(size));
        const auto got_selected = gpu.download(static_cast<float*>(on_gpu.selected.data), size_t(size));
        const auto got_counts = gpu.download(static_cast<int32_t*>(on_gpu.counts.data), size_t(shape_.rows));
        const std::string name =
            text(kernel, " ", what, " rows ", shape_.rows, " N ", shape_.columns, " k ", shape_.k, " ",
                 dtype_name(shape_.dtype), shape_.windows ? " windows" : "", shape_.ids ? " ids" : "",
                 shape_.relative ? " relative" : "");
        size_t first = 0;
        while (first < got.size() && got[first] == indices[first]) ++first;
        report.check(first == got.size(), text(name, ": indices, from entry ", first, " of ", got.size()));
        report.check(got_counts == counts, name + ": counts");
        report.check(std::memcmp(got_selected.data(), selected.data(), selected.size() * sizeof(float)) == 0,
                     name + ": selected");
        gpu.clear();
    }

private:
    smla_select_args args(const void* f32, const void* half, const void* starts, const void* ends,
                          const void* ids, void* indices, void* selected, void* counts) const {
        smla_select_args out{};
        out.struct_size = sizeof out;
        out.relative = shape_.relative;
        out.scores =
            make_tensor(shape_.dtype == SMLA_F32 ? f32 : half, shape_.dtype, {shape_.rows, shape_.columns});
        out.scores.stride_elems[0] = stride_;
        out.starts = make_tensor(starts, SMLA_I32, {shape_.rows});
        out.ends = make_tensor(ends, SMLA_I32, {shape_.rows});
        if (shape_.ids) {
            out.ids = make_tensor(ids, SMLA_I32, {shape_.rows, shape_.columns});
            out.ids.stride_elems[0] = stride_;
        }
        out.indices = make_tensor(indices, SMLA_I32, {shape_.rows, shape_.k});
        out.selected = make_tensor(selected, SMLA_F32, {shape_.rows, shape_.k});
        out.indices.stride_elems[0] = out.selected.stride_elems[0] = shape_.k + 5;
        out.counts = make_tensor(counts, SMLA_I32, {shape_.rows});
        return out;
    }

    SelectCase shape_;
    int64_t stride_;
    std::vector<float> scores_;
    std::vector<uint16_t> halves_;
    std::vector<int32_t> starts_, ends_, ids_;
};

}  // namespace

void check_select(Gpu& gpu, Report& report) {
    uint32_t seed = 1;
    const auto both = [&](const SelectCase& shape, const Values& values) {
        Problem problem(shape, values, ++seed);
        for (const char* kernel : kKernels) problem.check(gpu, report, kernel, values.name);
    };
    for (const Values& values : all_values()) {
        if (report.tiny && values.name != all_values()[4].name) continue;
        if (report.brief) {
            both({.rows = 3, .columns = 9001, .k = 512, .windows = true}, values);
            both({.rows = 10, .columns = 4001, .k = 300, .windows = true, .relative = true}, values);
            both({.rows = 1, .columns = 20000, .k = 700, .dtype = SMLA_BF16}, values);
            both({.rows = 2, .columns = 901, .k = 300, .windows = true, .ids = true}, values);
            continue;
        }
        for (const smla_dtype dtype : {SMLA_F32, SMLA_BF16, SMLA_F16}) {
            both({.rows = 10, .columns = 9001, .k = 512, .dtype = dtype, .windows = true}, values);
            both({.rows = 2, .columns = 32769, .k = 2048, .dtype = dtype}, values);
        }
        both({.rows = 270, .columns = 7000, .k = 300, .windows = true, .relative = true}, values);
        both({.rows = 1, .columns = 131072, .k = 2048}, values);
        both({.rows = 10, .columns = 3001, .k = 700, .windows = true, .ids = true}, values);
        both({.rows = 3, .columns = 100, .k = 260, .dtype = SMLA_BF16, .ids = true}, values);
    }
    if (report.brief) return;
    const Values& normal = all_values()[0];
    for (const int64_t columns :
         {1, 2, 3, 31, 2047, 2048, 2049, 4096, 4097, 6143, 6144, 6145, 8191, 8192, 16381, 16384, 40000})
        for (const int64_t k : {1, 2, 31, 1000, 2048, 4096, 5000})
            both({.rows = 3, .columns = columns, .k = k, .windows = columns > 100}, normal);
    for (const int64_t rows : {14, 30, 60})  // clusters of 8, 4 and 2 blocks
        both({.rows = rows, .columns = 20000, .k = 2048, .windows = true}, normal);
    for (const char* name : {"normal", "relu", "rising", "runs"})
        for (const Values& values : all_values())
            if (std::strcmp(values.name, name) == 0) {
                both({.rows = 2, .columns = 262144, .k = 2048}, values);
                both({.rows = 1, .columns = 1000003, .k = 512}, values);
            }
    for (const int64_t columns : {65536, 70001, 262144, 524288, 524289})  // clusters of 16 blocks, and none
        for (const smla_dtype dtype : {SMLA_F32, SMLA_BF16})
            both({.rows = 7, .columns = columns, .k = 2048, .dtype = dtype, .windows = true}, normal);
    both({.rows = 1, .columns = 8 << 20, .k = 2048}, normal);
    both({.rows = 1, .columns = 8 << 20, .k = 64}, normal);
    both({.rows = 0, .columns = 50, .k = 4}, normal);
    both({.rows = 3, .columns = 50, .k = 0}, normal);
    both({.rows = 3, .columns = 0, .k = 9}, normal);
}

}  // namespace smla::bench
