#include "ops/field.h"

#include "ops/ops.h"

namespace smla {

namespace {

// Lengths of the letters in one call.
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

// Returns the name of the field at an offset, such as "q".
std::string_view member_at(std::span<const StageField> fields, size_t offset) {
    for (const StageField& field : fields)
        if (field.offset == offset) return field.name.member();
    return "";
}

// Throws unless an optional field is present exactly if its rule requires it.
void check_presence(std::span<const StageField> fields, const StageField& field, const void* args) {
    const auto& other = *reinterpret_cast<const Tensor*>(static_cast<const char*>(args) + field.follows);
    const bool is_there = present(field_of<Tensor>(args, field));
    const bool wanted = field.follows_dtype ? other.dtype == field.follows_dtype : present(other);
    if (is_there == wanted) return;
    const auto why = [&] {
        const std::string name(member_at(fields, field.follows));
        return text(wanted ? "present, because " : "absent unless ", name, " is ",
                    field.follows_dtype ? dtype_name(field.follows_dtype) : "present");
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

std::span<const StageField> fields_of_stage(Stage stage) {
    return with_stage(stage, []<Stage S>() { return fields_of<typename OpOf<S>::Args>(); });
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
