#include "model/weight_reader.h"

#include "model/safetensors_dtypes.h"

#include <cmath>

namespace smla {

namespace {

constexpr std::string_view kWeight = ".weight";

std::string shape_text(std::initializer_list<int64_t> shape) {
    std::string out;
    for (const int64_t n : shape) out += (out.empty() ? "[" : ", ") + std::to_string(n);
    return out + "]";
}

bool same_shape(const Tensor& tensor, std::initializer_list<int64_t> shape) {
    if (tensor.ndim != int(shape.size())) return false;
    for (int i = 0; i < tensor.ndim; ++i)
        if (tensor.shape[i] != shape.begin()[i]) return false;
    return true;
}

}  // namespace

const WeightReader::Dtypes WeightReader::kPlain{kFloats, "f32, bf16, f16 or f64"};
const WeightReader::Dtypes WeightReader::kScale{kFloats | dtype_bit(SMLA_E8M0), "f32 or e8m0"};
const WeightReader::Dtypes WeightReader::kMatrix{kFloats | dtype_bit(SMLA_E4M3),
                                                 "f32, bf16, f16, f64, or e4m3 with block scales"};

WeightReader::WeightReader(const Checkpoint& checkpoint, const AttentionConfig& config, int64_t layer,
                           const WeightOptions& options)
    : checkpoint_(checkpoint),
      options_(options),
      block_{config.common.weight_block_rows, config.common.weight_block_columns},
      vectors_(options.matrices == SMLA_F64 ? SMLA_F64 : SMLA_F32),
      findings_(text(checkpoint.name(), ": layer ", layer)) {
    SMLA_CHECK(options.matrices == SMLA_F32 || options.matrices == SMLA_F64 || options.matrices == SMLA_BF16,
               "options.matrices", options.matrices, "f32 (2), bf16 (3) or f64 (1)");
}

std::string WeightReader::field(const std::string& name) const {
    return text("tensor ", printable(options_.prefix + name));
}

void WeightReader::add_wrong(const std::string& field, const std::string& got, const std::string& wanted) {
    findings_.add(field, got, wanted);
    readable_ = false;
}

HostTensor WeightReader::checked(const HostTensor& weight, const std::string& name, bool infinities) {
    int64_t at = first_not_finite(weight.view);
    const Tensor flat = make_tensor(weight.view.data, weight.view.dtype, {element_count(weight.view)});
    while (infinities && at >= 0 && !std::isnan(load_one<double>(flat, at)))
        if (++at == flat.shape[0]) at = -1;
    if (at < 0) return weight;
    const int64_t columns = weight.view.shape[weight.view.ndim - 1];
    const std::string place = weight.view.ndim == 1 ? text(at) : text(at / columns, ", ", at % columns);
    findings_.add(text(field(name), "[", place, "]"), text(load_one<double>(flat, at)),
                  infinities ? "a value that is not NaN" : "a finite value");
    return weight;
}

HostTensor WeightReader::find(const std::vector<std::string>& names, std::initializer_list<int64_t> shape,
                              const Dtypes& dtypes, std::string& name) {
    name = names[0];
    for (const std::string& each : names)
        if (has(each)) {
            name = each;
            break;
        }
    if (!has(name)) {
        add_wrong(field(name), "absent", shape_text(shape));
        return {};
    }
    try {
        const std::string spelt = checkpoint_.dtype(options_.prefix + name);
        const SafetensorsDtype* dtype = find_safetensors_dtype(spelt);
        if (!dtype || dtype->dtype == 0 || !(dtypes.allowed & dtype_bit(dtype->dtype))) {
            add_wrong(field(name) + ": dtype", in_quotes(spelt), dtypes.text);
            return {};
        }
        const HostTensor stored = checkpoint_.tensor(options_.prefix + name);
        if (same_shape(stored.view, shape)) return stored;
        add_wrong(field(name), describe(stored.view), shape_text(shape));
    } catch (const Error& error) {  // error in the tensor's file, with that file's name
        if (error.status != SMLA_DATA_ERROR && error.status != SMLA_IO_ERROR) throw;
        findings_.add(error);
        readable_ = false;
    }
    return {};
}

HostTensor WeightReader::plain(const std::vector<std::string>& names, std::initializer_list<int64_t> shape,
                               bool infinities) {
    std::string name;
    const HostTensor stored = find(names, shape, kPlain, name);
    if (!present(stored.view)) return {};
    return converted(stored, vectors_, name, infinities);
}

HostTensor WeightReader::converted(const HostTensor& stored, smla_dtype dtype, const std::string& name,
                                   bool infinities) {
    const bool here = stored.view.device_type == SMLA_CPU;
    if (!readable_ || (!here && stored.view.dtype == dtype)) return stored;
    return checked(convert_weight(here ? stored : checkpoint_.on_host(stored), dtype), name, infinities);
}

HostTensor WeightReader::vector(const std::vector<std::string>& names, int64_t n) {
    return plain(names, {n});
}

HostTensor WeightReader::table(const std::vector<std::string>& names, int64_t rows, int64_t columns) {
    return plain(names, {rows, columns});
}

HostTensor WeightReader::logits(const std::vector<std::string>& names, int64_t n) {
    return plain(names, {n}, true);
}

HostTensor WeightReader::optional_vector(const std::vector<std::string>& names, int64_t n) {
    for (const std::string& each : names)
        if (has(each)) return vector({each}, n);
    return {};
}

std::string WeightReader::scale_name(const std::string& name) const {
    if (!name.ends_with(kWeight)) return {};
    const std::string base = name.substr(0, name.size() - kWeight.size());
    for (const char* suffix : {".weight_scale_inv", ".weight_scale", ".scale"})
        if (has(base + suffix)) return base + suffix;
    return {};
}

HostTensor WeightReader::quantised(const HostTensor& stored, const std::string& name) {
    const auto on_host = [&](const HostTensor& tensor) {
        return tensor.view.device_type == SMLA_CPU ? tensor : checkpoint_.on_host(tensor);
    };
    const HostTensor codes = on_host(stored);
    const BlockSize shape = scale_shape(codes.view, block_);
    const std::string scale = scale_name(name);
    if (scale.empty()) {
        add_wrong(field(name), "e4m3 without a scale",
                  text("a scale in .weight_scale_inv or .scale with shape ",
                       shape_text({shape.rows, shape.columns})));
        return {};
    }
    std::string unused;
    const HostTensor found = find({scale}, {shape.rows, shape.columns}, kScale, unused);
    if (!present(found.view)) return {};
    const HostTensor factors = on_host(found);
    for (int64_t r = 0; r < shape.rows; ++r) {
        for (int64_t c = 0; c < shape.columns; ++c) {
            const float value = load_one<float>(factors.view, r, c);
            if (std::isfinite(value) && value >= 0) continue;
            add_wrong(text(field(scale), "[", r, ", ", c, "]"), text(value), "a finite factor, 0 or more");
            return {};
        }
    }
    if (!readable_) return codes;
    return checked(dequantise(codes.view, factors.view, block_, options_.matrices), name);
}

bool WeightReader::packed(const std::string& name) {
    if (!name.ends_with(kWeight)) return false;
    // Suffixes of GPTQ, AWQ, compressed-tensors, NVFP4 (of ModelOpt and compressed-tensors), and ModelOpt's
    // AWQ.
    for (const char* suffix :
         {".qweight", ".weight_packed", ".weight_scale_2", ".weight_global_scale", ".pre_quant_scale"}) {
        const std::string beside = name.substr(0, name.size() - kWeight.size()) + suffix;
        if (!has(beside)) continue;
        add_wrong(field(name), "a packed format with " + printable(options_.prefix + beside), kMatrix.text);
        return true;
    }
    return false;
}

HostTensor WeightReader::matrix(const std::vector<std::string>& names, int64_t rows, int64_t columns) {
    for (const std::string& each : names)
        if (packed(each)) return {};
    std::string name;
    const HostTensor stored = find(names, {rows, columns}, kMatrix, name);
    if (!present(stored.view)) return {};
    if (stored.view.dtype == SMLA_E4M3) return quantised(stored, name);
    const std::string scale = scale_name(name);
    if (!scale.empty()) {
        add_wrong(field(name) + ": dtype",
                  text(dtype_name(stored.view.dtype), " with the scale ", printable(scale)),
                  "e4m3, or no scale");
        return {};
    }
    const bool kept = options_.as_stored && (stored.view.dtype == SMLA_F32 || stored.view.dtype == SMLA_BF16);
    return converted(stored, kept ? stored.view.dtype : options_.matrices, name);
}

}  // namespace smla
