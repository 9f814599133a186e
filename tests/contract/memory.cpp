#include "memory.h"

#include "formats/format.h"

#include <cmath>
#include <cstring>

namespace contract {

using namespace smla::kit;

smla_tensor Memory::tensor(smla_dtype dtype, std::initializer_list<int64_t> shape, int64_t gap,
                           int64_t step) {
    smla_tensor out{};
    out.dtype = dtype;
    out.ndim = int32_t(shape.size());
    int64_t stride = step;
    for (int d = out.ndim - 1; d >= 0; --d) {
        out.shape[d] = shape.begin()[d];
        out.stride_elems[d] = stride;
        stride = stride * out.shape[d] + (d == 0 ? 0 : gap);
    }
    out.data = add(smla::span_bytes(out), 0, smla::describe(out));
    return out;
}

smla_cache Memory::cache(const CacheShape& shape) {
    smla_cache out{};
    const smla::Format& format = *smla::find_format(shape.format);
    out.format = shape.format;
    out.width = format.width ? 0 : shape.width;
    out.page_tokens = shape.page_tokens;
    out.page_rows = shape.page_rows;
    out.pages = shape.pages;
    out.page_stride_bytes = int64_t(smla::packed_page_bytes(out)) + shape.page_gap;
    out.scale = format.scale == smla::ScaleKind::per_tensor ? 0.02f : 0.f;
    out.data = add(size_t(shape.pages * out.page_stride_bytes), 0, smla::text("cache ", format.name));
    return out;
}

testing::AssertionResult Memory::only_allowed_changed() const {
    const std::string wrote = forbidden_write();
    return wrote.empty() ? testing::AssertionSuccess() : testing::AssertionFailure() << wrote;
}

testing::AssertionResult Memory::nothing_changed() const {
    return changed() ? testing::AssertionFailure() << "memory was written" : testing::AssertionSuccess();
}

void set(const smla_tensor& tensor, int64_t i, int64_t j, int64_t k, double value) {
    set_value(tensor, i, j, k, 0, value);
}

double get(const smla_tensor& tensor, int64_t i, int64_t j, int64_t k) {
    return smla::load_one<double>(tensor, i, j, k);
}

int64_t get_int(const smla_tensor& tensor, int64_t i, int64_t j) { return smla::load_int(tensor, i, j); }

void zero(const smla_tensor& tensor) {
    const int64_t bytes = smla::dtype_bits(tensor.dtype) / 8;
    each_element(tensor, [&](int64_t element) {
        std::memset(static_cast<char*>(tensor.data) + element * bytes, 0, size_t(bytes));
    });
}

bool has_nan(const smla_tensor& tensor) {
    if (tensor.dtype > SMLA_E8M0 || tensor.dtype == SMLA_E2M1) return false;
    bool nan = false;
    each_element(tensor, [&](int64_t element) { nan = nan || std::isnan(get_element(tensor, element)); });
    return nan;
}

void fill_normal(const smla_tensor& tensor, std::mt19937& rng, double size) {
    std::normal_distribution<double> normal(0, size);
    each_element(tensor, [&](int64_t element) { set_element(tensor, element, normal(rng)); });
}

void fill_int(const smla_tensor& tensor, const std::function<int64_t(int64_t, int64_t)>& value) {
    for (int64_t i = 0; i < tensor.shape[0]; ++i)
        for (int64_t j = 0; j < (tensor.ndim > 1 ? tensor.shape[1] : 1); ++j)
            set_int(tensor, i, j, value(i, j));
}

int64_t capacity(const smla_cache& cache) { return smla::CacheView(cache).capacity; }

std::vector<double> read_record(const smla_cache& cache, int64_t row) {
    const smla::CacheView view(cache);
    std::vector<double> out(static_cast<size_t>(view.width));
    view.decode(row, out.data());
    return out;
}

void write_record(const smla_cache& cache, int64_t row, const std::vector<double>& values) {
    const smla::CacheView view(cache);
    const std::vector<float> rounded(values.begin(), values.end());
    view.encode(row, rounded.data());
}

void write_normal(const smla_cache& cache, int64_t row, std::mt19937& rng) {
    std::normal_distribution<double> normal;
    std::vector<double> values(static_cast<size_t>(smla::CacheView(cache).width));
    for (double& v : values) v = normal(rng);
    write_record(cache, row, values);
}

}  // namespace contract
