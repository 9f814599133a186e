#include "ops/field.h"

#include <numeric>

namespace smla {

namespace {

// The lengths that letters have in one call.
class Letters {
public:
    int64_t length(const Dim& dim) const {
        if (dim.any()) return kAny;
        if (dim.letter == 0) return dim.number;
        const int64_t value = find(dim.letter);
        return value == kAny ? kAny : (value + dim.plus) / dim.divisor;
    }
    void bind(const Dim& dim, int64_t value) {
        if (!dim.plain() || find(dim.letter) != kAny) return;
        if (count_ == kMost) fail(SMLA_INTERNAL, "Letters", text(count_ + 1), text("at most ", kMost));
        bound_[count_++] = {dim.letter, value};
    }

private:
    struct Bound {
        uint64_t letter;
        int64_t value;
    };
    static constexpr int kMost = 16;
    Bound bound_[kMost]{};
    int count_ = 0;

    int64_t find(uint64_t letter) const {
        for (int i = 0; i < count_; ++i)
            if (bound_[i].letter == letter) return bound_[i].value;
        return kAny;
    }
};

bool cache_given(const void* args, size_t offset) {
    const auto* cache = reinterpret_cast<const smla_cache*>(static_cast<const char*>(args) + offset);
    return cache->format != SMLA_FORMAT_NONE;
}

// The name of the field at an offset, such as "q".
std::string_view member_at(std::span<const StageField> fields, size_t offset) {
    for (const StageField& field : fields)
        if (field.offset == offset) return field.name.member();
    return "";
}

// Throws unless an optional field is present exactly where it has to be.
void check_presence(std::span<const StageField> fields, const StageField& field, const void* args) {
    const auto& other = *reinterpret_cast<const Tensor*>(static_cast<const char*>(args) + field.follows);
    const bool is_there = present(field_of<Tensor>(args, field));
    const bool wanted = field.follows_dtype ? other.dtype == field.follows_dtype : present(other);
    if (is_there == wanted) return;
    const auto why = [&] {
        const std::string name(member_at(fields, field.follows));
        return text(wanted ? "present: " : "absent unless ", name, " is ",
                    field.follows_dtype ? dtype_name(field.follows_dtype) : "given");
    };
    fail(SMLA_INVALID_ARGUMENT, field.name.c_str(), is_there ? "present" : "absent", why());
}

void check_one(const StageField& field, const void* args, const CheckContext& context, Letters& letters) {
    const auto& tensor = field_of<Tensor>(args, field);
    if (field.is_optional && !present(tensor)) return;
    int64_t shape[SMLA_MAX_NDIM];
    for (int i = 0; i < field.dims.count; ++i) shape[i] = letters.length(field.dims.each[size_t(i)]);
    const char* const name = field.name.c_str();
    uint32_t allowed = field.allowed;
    if (field.double_as != kNoField) {
        const auto& other =
            *reinterpret_cast<const Tensor*>(static_cast<const char*>(args) + field.double_as);
        allowed &= other.dtype == SMLA_F64 ? dtype_bit(SMLA_F64) : ~dtype_bit(SMLA_F64);
    }
    check_tensor(name, tensor, allowed, std::span<const int64_t>(shape, size_t(field.dims.count)), context);
    if (field.is_rows) check_rows(name, tensor);
    if (field.is_output) check_apart(name, tensor);
    for (int i = 0; i < field.dims.count; ++i) letters.bind(field.dims.each[size_t(i)], tensor.shape[i]);
}

void check_one(const StageField& field, const smla_cache& cache, const CheckContext& context,
               Letters& letters) {
    if (field.is_optional && cache.format == SMLA_FORMAT_NONE) return;
    check_cache(field.name.c_str(), cache, field.allowed, context);
    if (field.dims.count) letters.bind(field.dims.each[0], CacheView(cache).width);
}

}  // namespace

void check_fields(std::span<const StageField> fields, const void* args, const CheckContext& context) {
    Letters letters;
    for (const StageField& field : fields) {
        if (field.with_cache != kNoField && !cache_given(args, field.with_cache)) continue;
        if (field.follows != kNoField) check_presence(fields, field, args);
        if (field.kind == FieldKind::tensor) check_one(field, args, context, letters);
        else if (field.kind == FieldKind::cache)
            check_one(field, field_of<smla_cache>(args, field), context, letters);
    }
}

namespace {

// Bytes [begin, end) that a field spans; if `gaps`, it does not use all of them.
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

// Whether what a call writes overlaps another extent. Two extents with gaps may interleave unless they begin
// at the same address.
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

// Whether every page of one cache is a page of the other, or shares nothing with it.
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

enum class Writes { output, in_place, cache };  // in the order in which a shared one is named

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

[[noreturn]] void fail_shared(const char* args_name, const StageField& written) {
    fail(SMLA_INVALID_ARGUMENT, text(args_name, ".", std::string(written.name.member()), ".data"),
         "memory that another argument or the workspace has", "its own");
}

}  // namespace

void check_own_memory(std::span<const StageField> fields, const void* args, const Workspace& workspace,
                      const char* args_name) {
    constexpr size_t kMost = 24;
    Extent extents[kMost];
    if (fields.size() > kMost) fail(SMLA_INTERNAL, "fields", text(fields.size()), text("at most ", kMost));
    for (size_t i = 0; i < fields.size(); ++i) extents[i] = extent_of(fields[i], args);
    const auto begin = uintptr_t(workspace.data);
    const Extent scratch{begin, begin + workspace.bytes, false};
    for (const Writes how : {Writes::output, Writes::in_place, Writes::cache})
        for (size_t i = 0; i < fields.size(); ++i) {
            if (extents[i].begin == extents[i].end || !writes(fields, fields[i], args, how)) continue;
            if (meet(extents[i], scratch)) fail_shared(args_name, fields[i]);
            for (size_t j = 0; j < fields.size(); ++j)
                if (j != i && meet(extents[i], extents[j]) && !in_place(fields[i], fields[j], args))
                    fail_shared(args_name, fields[i]);
        }
}

void resolve_strides(Tensor& tensor) {
    if (tensor.ndim <= 0 || tensor.ndim > SMLA_MAX_NDIM) return;
    bool dense = true;
    for (int i = 0; i < tensor.ndim; ++i) dense = dense && tensor.stride_elems[i] == 0;
    int64_t stride = 1;
    for (int i = tensor.ndim - 1; i >= 0; --i) {
        if (dense) tensor.stride_elems[i] = stride;
        else if (tensor.stride_elems[i] == SMLA_STRIDE_REPEAT) tensor.stride_elems[i] = 0;
        if (tensor.shape[i] > 0 && stride < (int64_t(1) << 48) / tensor.shape[i]) stride *= tensor.shape[i];
    }
}

}  // namespace smla
