#include "ops/own_memory.h"

#include "ops/field.h"

namespace smla {

namespace {

// Bytes [begin, end) that a field spans; `gaps` is set if it does not use all of them.
struct Extent {
    uintptr_t begin = 0, end = 0;
    bool gaps = false;
};

Extent extent_of(const Tensor& tensor) {
    if (!present(tensor) || !tensor.data) return {};
    const auto begin = uintptr_t(tensor.data);
    const size_t bytes = span_bytes(tensor), bits = size_t(dtype_bits(tensor.dtype));
    return {begin, begin + bytes, bytes > (size_t(element_count(tensor)) * bits + 7) / 8};
}

Extent extent_of(const smla_cache& cache) {
    if (cache.format == SMLA_FORMAT_NONE || !cache.data) return {};
    const auto begin = uintptr_t(cache.data);
    return {begin, begin + touched_bytes(cache), cache.page_stride_bytes || cache.row_stride_bytes};
}

Extent extent_of(const StageField& field, const void* args) {
    switch (field.kind) {
        case FieldKind::tensor: return extent_of(field_of<Tensor>(args, field));
        case FieldKind::cache: return extent_of(field_of<smla_cache>(args, field));
        case FieldKind::scalar: break;  // read before a kernel writes
    }
    return {};
}

// Returns whether written memory overlaps another extent. Two extents with gaps may interleave unless they
// begin at the same address.
bool meet(const Extent& written, const Extent& other) {
    if (other.begin == other.end || written.begin >= other.end || other.begin >= written.end) return false;
    const Extent &holed = written.gaps ? written : other, &whole = written.gaps ? other : written;
    const bool ends = holed.begin >= whole.begin || holed.end <= whole.end;
    return written.begin == other.begin || (!whole.gaps && (!holed.gaps || ends));
}

bool same_elements(const Tensor& a, const Tensor& b) {
    bool same = a.data == b.data && a.dtype == b.dtype && a.ndim == b.ndim;
    for (int i = 0; same && i < a.ndim; ++i) same = a.shape[i] <= 1 || a.stride_elems[i] == b.stride_elems[i];
    return same;
}

// Returns whether each page of one cache is a page of the other, or shares nothing with the other.
bool same_pages(const smla_cache& a, const smla_cache& b) {
    const auto stride = [](const smla_cache& cache) {
        return cache.page_stride_bytes ? size_t(cache.page_stride_bytes) : packed_page_bytes(cache);
    };
    const uintptr_t at = uintptr_t(a.data), other = uintptr_t(b.data);
    return a.format == b.format && a.width == b.width && a.page_tokens == b.page_tokens &&
           a.row_stride_bytes == b.row_stride_bytes && stride(a) == stride(b) &&
           (at > other ? at - other : other - at) % stride(a) == 0;
}

bool in_place(const StageField& written, const StageField& other, const void* args) {
    if (written.kind == FieldKind::cache && other.kind == FieldKind::cache)
        return same_pages(field_of<smla_cache>(args, written), field_of<smla_cache>(args, other));
    return written.in_place_of == other.offset &&
           same_elements(field_of<Tensor>(args, other), field_of<Tensor>(args, written));
}

enum class Writes { output, in_place, cache };  // in the order in which errors report overlaps

bool writes(std::span<const StageField> fields, const StageField& field, const void* args, Writes how) {
    switch (how) {
        case Writes::output: return field.is_output;
        case Writes::cache: return field.is_written && !field.is_output;
        case Writes::in_place: break;
    }
    for (const StageField& output : fields)
        if (output.in_place_of == field.offset && !present(field_of<Tensor>(args, output))) return true;
    return false;
}

[[noreturn]] void fail_shared(const std::string& written, const std::string& other) {
    fail(SMLA_INVALID_ARGUMENT, text(written, ".data"), text("memory that overlaps ", other),
         "memory that does not overlap");
}

}  // namespace

void check_own_memory(std::span<const StageField> fields, const void* args, const Workspace& workspace,
                      const char* args_name) {
    const auto name = [&](const StageField& field) {
        return text(args_name, ".", std::string(field.name.member()));
    };
    constexpr size_t kMost = 24;
    Extent extents[kMost];
    if (fields.size() > kMost) fail(SMLA_INTERNAL, "fields", text(fields.size()), text("at most ", kMost));
    for (size_t i = 0; i < fields.size(); ++i) extents[i] = extent_of(fields[i], args);
    const auto begin = uintptr_t(workspace.data);
    const Extent scratch{begin, begin + workspace.bytes, false};
    for (const Writes how : {Writes::output, Writes::in_place, Writes::cache})
        for (size_t i = 0; i < fields.size(); ++i) {
            if (extents[i].begin == extents[i].end || !writes(fields, fields[i], args, how)) continue;
            if (meet(extents[i], scratch)) fail_shared(name(fields[i]), "the workspace");
            for (size_t j = 0; j < fields.size(); ++j)
                if (j != i && meet(extents[i], extents[j]) && !in_place(fields[i], fields[j], args))
                    fail_shared(name(fields[i]), name(fields[j]));
        }
}

void check_own_memory(std::initializer_list<NamedField> written, std::initializer_list<NamedField> read,
                      const Tensor* in_place) {
    for (const NamedField& each : written) {
        check_apart(each.field, each.tensor);
        const Extent extent = extent_of(each.tensor);
        if (extent.begin == extent.end) continue;
        for (const NamedField& other : read)
            if (meet(extent, extent_of(other.tensor)) &&
                !(&other.tensor == in_place && same_elements(each.tensor, other.tensor)))
                fail_shared(each.field, other.field);
        for (const NamedField& other : written)
            if (&other != &each && meet(extent, extent_of(other.tensor)))
                fail_shared(each.field, other.field);
    }
}

}  // namespace smla
