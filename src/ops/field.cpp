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

// Whether an output overlaps another extent. Two extents with gaps may interleave unless they begin at the
// same address.
bool meet(const Extent& output, const Extent& other) {
    if (other.begin == other.end || output.begin >= other.end || other.begin >= output.end) return false;
    const Extent &holed = output.gaps ? output : other, &whole = output.gaps ? other : output;
    const bool ends = holed.begin >= whole.begin || holed.end <= whole.end;
    return output.begin == other.begin || (!whole.gaps && (!holed.gaps || ends));
}

bool same_elements(const Tensor& a, const Tensor& b) {
    bool same = a.data == b.data && a.dtype == b.dtype && a.ndim == b.ndim;
    for (int i = 0; same && i < a.ndim; ++i) same = a.shape[i] <= 1 || a.stride_elems[i] == b.stride_elems[i];
    return same;
}

bool in_place(const StageField& output, const StageField& other, const void* args) {
    return output.in_place_of == other.offset &&
           same_elements(field_of<Tensor>(args, other), field_of<Tensor>(args, output));
}

[[noreturn]] void fail_shared(const StageField& output) {
    fail(SMLA_INVALID_ARGUMENT, text(output.name.c_str(), ".data"),
         "memory that another argument or the workspace has", "its own");
}

}  // namespace

void check_own_memory(std::span<const StageField> fields, const void* args, const Workspace& workspace) {
    constexpr size_t kMost = 24;
    Extent extents[kMost];
    if (fields.size() > kMost) fail(SMLA_INTERNAL, "fields", text(fields.size()), text("at most ", kMost));
    for (size_t i = 0; i < fields.size(); ++i) extents[i] = extent_of(fields[i], args);
    const auto begin = uintptr_t(workspace.data);
    const Extent scratch{begin, begin + workspace.bytes, false};
    for (size_t i = 0; i < fields.size(); ++i) {
        if (!fields[i].is_output || extents[i].begin == extents[i].end) continue;
        if (meet(extents[i], scratch)) fail_shared(fields[i]);
        for (size_t j = 0; j < fields.size(); ++j)
            if (j != i && meet(extents[i], extents[j]) && !in_place(fields[i], fields[j], args))
                fail_shared(fields[i]);
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
