#include "judge.h"

#include "kit/memory.h"

#include <algorithm>
#include <map>

namespace smla::fuzz {

namespace {

constexpr int64_t kMostElements = 1 << 18;

bool within(const void* data, __int128 bytes) {
    if (!data || bytes <= 0) return true;
    const kit::Range payload = kit::block_around(data).payload;
    const auto* at = static_cast<const uint8_t*>(data);
    return payload.begin && at >= payload.begin && bytes <= payload.begin + payload.bytes - at;
}

bool fits(Tensor tensor) {
    if (tensor.ndim <= 0 || tensor.ndim > SMLA_MAX_NDIM) return true;
    if (tensor.dtype < SMLA_F64 || tensor.dtype > SMLA_I64) return true;
    __int128 count = 1, last = 0;
    resolve_strides(tensor);
    for (int d = 0; d < tensor.ndim; ++d) {
        if (tensor.shape[d] < 0 || tensor.stride_elems[d] < 0) return true;
        count = std::min<__int128>(count * tensor.shape[d], kMostElements + 1);
        last += __int128(std::max<int64_t>(tensor.shape[d] - 1, 0)) * tensor.stride_elems[d];
        last = std::min<__int128>(last, INT64_MAX);
    }
    if (count == 0) return true;
    return count <= kMostElements && within(tensor.data, ((last + 1) * dtype_bits(tensor.dtype) + 7) / 8);
}

bool fits(const smla_cache& cache) { return within(cache.data, __int128(kit::extent(cache))); }

}  // namespace

bool fits(std::span<const StageField> fields, const void* args) {
    return std::ranges::all_of(fields, [&](const StageField& field) {
        if (field.kind == FieldKind::tensor) return fits(field_of<Tensor>(args, field));
        return field.kind != FieldKind::cache || fits(field_of<smla_cache>(args, field));
    });
}

bool lies_in_blocks(std::span<const StageField> fields, const void* args) {
    return std::ranges::all_of(fields, [&](const StageField& field) {
        if (field.kind == FieldKind::scalar) return true;
        const void* const data = field.kind == FieldKind::tensor ? field_of<Tensor>(args, field).data
                                                                 : field_of<smla_cache>(args, field).data;
        return !data || kit::block_around(data).whole.begin;
    });
}

bool on_first_device(std::span<const StageField> fields, const void* args) {
    return std::ranges::all_of(fields, [&](const StageField& field) {
        if (field.kind == FieldKind::tensor) return field_of<Tensor>(args, field).device_index == 0;
        return field.kind != FieldKind::cache || field_of<smla_cache>(args, field).device_index == 0;
    });
}

bool outputs_overlap(std::span<const StageField> fields, const void* args) {
    const auto range = [&](const StageField& field) -> kit::Range {
        if (field.kind == FieldKind::scalar) return {};
        if (field.kind == FieldKind::cache) {
            const auto& cache = field_of<smla_cache>(args, field);
            return {static_cast<uint8_t*>(cache.data), kit::extent(cache)};
        }
        const auto& tensor = field_of<Tensor>(args, field);
        return {static_cast<uint8_t*>(tensor.data), kit::extent(tensor)};
    };
    const auto written = [&](const StageField& field) {
        return field.is_written || std::ranges::any_of(fields, [&](const StageField& output) {
                   return output.in_place_of == field.offset && !present(field_of<Tensor>(args, output));
               });
    };
    for (const StageField& output : fields)
        for (const StageField& other : fields) {
            const kit::Range a = range(output), b = range(other);
            if (!written(output) || a.begin == b.begin) continue;
            if (a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes) return true;
        }
    return false;
}

bool contradicts_table(std::span<const StageField> fields, const void* args) {
    std::map<uint64_t, int64_t> letters;
    for (const StageField& field : fields) {
        if (field.with_cache != kNoField) continue;  // which is or is not looked at
        if (field.kind == FieldKind::cache) {
            const smla_format format = field_of<smla_cache>(args, field).format;
            if (format < 0 || format > 31) return true;
            const bool allowed = (uint32_t(1) << format & field.allowed) != 0;
            if (format == SMLA_FORMAT_NONE ? !field.is_optional : !allowed) return true;
        }
        if (field.kind != FieldKind::tensor) continue;
        const auto& tensor = field_of<Tensor>(args, field);
        if (tensor.ndim == 0 && field.is_optional) continue;
        if (tensor.ndim != field.dims.count || tensor.dtype < 0 || tensor.dtype > 31) return true;
        if (!(dtype_bit(tensor.dtype) & field.allowed)) return true;
        for (int d = 0; d < tensor.ndim; ++d) {
            const Dim& dim = field.dims.each[size_t(d)];
            if (tensor.shape[d] < 0) return true;
            if (dim.letter == 0 && tensor.shape[d] != dim.number) return true;
            if (dim.plain() && letters.emplace(dim.letter, tensor.shape[d]).first->second != tensor.shape[d])
                return true;
        }
    }
    return false;
}

}  // namespace smla::fuzz
