// Tables of the fields of a stage's arguments. Visits of tensors, checks of single fields, searches for
// overlaps and outputs, and keys of cached plans use them. Rules between fields are in the op's check().
#pragma once

#include "core/workspace.h"
#include "formats/format.h"

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace smla {

// One dimension of a field's shape: a number, a letter that all fields of a table share, a letter followed by
// "+1" or "/32", or "*" for any length.
struct Dim {
    uint64_t letter = 0;  // up to 8 characters of the letter; 0: `number` is the length
    int64_t number = 0;
    int32_t plus = 0, divisor = 1;

    constexpr bool any() const { return letter == '*'; }
    constexpr bool plain() const { return letter != 0 && !any() && plus == 0 && divisor == 1; }
};

struct Dims {
    std::array<Dim, SMLA_MAX_NDIM> each{};
    int count = 0;

    constexpr Dims() = default;
    constexpr explicit Dims(std::string_view shape) {
        while (!shape.empty()) {
            const size_t space = shape.find(' ');
            each.at(size_t(count++)) = dim(shape.substr(0, space));
            shape = space == std::string_view::npos ? std::string_view() : shape.substr(space + 1);
        }
    }

private:
    static constexpr Dim dim(std::string_view word) {
        Dim out;
        size_t i = 0;
        for (; i < word.size() && word[i] != '+' && word[i] != '/'; ++i) {
            if (word[i] >= '0' && word[i] <= '9') out.number = out.number * 10 + (word[i] - '0');
            else out.letter = out.letter << 8 | uint64_t(word[i]);
        }
        int32_t behind = 0;
        for (size_t j = i + 1; j < word.size(); ++j) behind = behind * 10 + (word[j] - '0');
        if (i < word.size() && word[i] == '+') out.plus = behind;
        if (i < word.size() && word[i] == '/') out.divisor = behind;
        return out;
    }
};

enum class FieldKind : uint8_t { tensor, cache, scalar };  // `scalar` is a pointer to one f32 on the device.
constexpr size_t kNoField = ~size_t(0);

// Name of a field in errors: "args.primary.rows".
struct FieldName {
    std::array<char, 40> letters{};

    constexpr FieldName() = default;
    constexpr FieldName(std::string_view prefix, std::string_view name) {
        size_t at = 0;
        for (const std::string_view part : {std::string_view("args."), prefix, name})
            for (const char letter : part) letters.at(at++) = letter;
        letters.at(at) = 0;
    }
    constexpr const char* c_str() const { return letters.data(); }
    // Returns the name of the struct's member: "primary.rows".
    constexpr std::string_view member() const { return std::string_view(c_str()).substr(5); }
};

struct StageField {
    FieldName name;
    size_t offset = 0;  // offset in the arguments
    FieldKind kind = FieldKind::tensor;
    uint32_t allowed = 0;  // dtypes of a tensor, formats of a cache
    std::string_view shape;
    Dims dims;  // dimensions of `shape`; for a cache, the letter of its width, if any
    bool is_output = false, is_optional = false, is_rows = false;
    bool is_written = false;  // whether the call writes the field
    // Offsets of other fields:
    size_t with_cache = kNoField;   // ignored unless this cache is present
    size_t in_place_of = kNoField;  // input that this output may share
    size_t follows = kNoField;  // present exactly if that tensor is present, or has follows_dtype if not 0
    smla_dtype follows_dtype = 0;
    size_t double_as = kNoField;  // f64 exactly if that tensor is f64

    constexpr StageField optional() const {
        StageField out = *this;
        out.is_optional = true;
        return out;
    }
    constexpr StageField written() const {
        StageField out = *this;
        out.is_written = true;
        return out;
    }
    constexpr StageField rows() const {  // the innermost dimension must be contiguous
        StageField out = *this;
        out.is_rows = true;
        return out;
    }
    constexpr StageField with(size_t cache) const {
        StageField out = *this;
        out.with_cache = cache;
        return out;
    }
    constexpr StageField or_in_place_of(size_t tensor) const {
        StageField out = *this;
        out.in_place_of = tensor;
        return out;
    }
    constexpr StageField exactly_if(size_t tensor, smla_dtype dtype = 0) const {
        StageField out = *this;
        out.is_optional = true;
        out.follows = tensor;
        out.follows_dtype = dtype;
        return out;
    }
    constexpr StageField as_double_as(size_t tensor) const {
        StageField out = *this;
        out.double_as = tensor;
        return out;
    }
    // Returns the field for a struct that is `at` bytes inside other arguments.
    constexpr StageField inside(std::string_view prefix, size_t at) const {
        StageField out = *this;
        out.name = FieldName(prefix, name.member());
        out.offset += at;
        if (with_cache != kNoField) out.with_cache += at;
        if (in_place_of != kNoField) out.in_place_of += at;
        if (follows != kNoField) out.follows += at;
        if (double_as != kNoField) out.double_as += at;
        return out;
    }
};

namespace fields {

constexpr StageField in(const char* name, size_t offset, uint32_t dtypes, std::string_view shape) {
    return {.name = FieldName("", name),
            .offset = offset,
            .allowed = dtypes,
            .shape = shape,
            .dims = Dims(shape)};
}
constexpr StageField out(const char* name, size_t offset, uint32_t dtypes, std::string_view shape) {
    StageField field = in(name, offset, dtypes, shape);
    field.is_output = field.is_written = true;
    return field;
}
// `width` is the letter of the cache's width in the shapes of other fields.
constexpr StageField cache(const char* name, size_t offset, uint32_t formats, std::string_view width = {}) {
    StageField field = in(name, offset, formats, width);
    field.kind = FieldKind::cache;
    return field;
}
constexpr StageField scalar(const char* name, size_t offset) {
    StageField field = in(name, offset, 0, {});
    field.kind = FieldKind::scalar;
    field.is_optional = true;
    return field;
}
}  // namespace fields

// Name and offset of a member of Args, for in(), out(), cache(), scalar().
#define SMLA_FIELD(member) #member, offsetof(Args, member)

template <class T>
T& field_of(void* args, const StageField& field) {
    return *reinterpret_cast<T*>(static_cast<char*>(args) + field.offset);
}
template <class T>
const T& field_of(const void* args, const StageField& field) {
    return *reinterpret_cast<const T*>(static_cast<const char*>(args) + field.offset);
}

// Returns the table, which each op defines for its arguments. Stages with one argument struct share a table.
template <class Args>
std::span<const StageField> fields_of();

// Calls tensor(t) and cache(c) on each tensor and cache of the arguments, including absent ones.
template <class Args, class T, class C>
void visit(Args& args, T tensor, C cache) {
    for (const StageField& field : fields_of<std::remove_const_t<Args>>()) {
        if (field.kind == FieldKind::tensor) tensor(field_of<Tensor>(&args, field));
        else if (field.kind == FieldKind::cache) cache(field_of<smla_cache>(&args, field));
    }
}

// Throws unless all required fields are present, every field has an allowed dtype, its shape and the memory
// that `context` requires, and no two elements of an output share an address.
void check_fields(std::span<const StageField> fields, const void* args, const CheckContext& context);
template <class Args>
void check_fields(const Args& args, const CheckContext& context) {
    check_fields(fields_of<Args>(), &args, context);
}

// Throws if memory that the call writes, an output, a cache or an input in place, overlaps another argument
// or the workspace, because results must not depend on a kernel's order of reads and writes. An output in
// place must be the identical tensor; two caches may be identical. Errors name ARGS_NAME.FIELD.
void check_own_memory(std::span<const StageField> fields, const void* args, const Workspace& workspace,
                      const char* args_name = "args");
template <class Args>
void check_own_memory(const Args& args, const Workspace& workspace) {
    check_own_memory(fields_of<Args>(), &args, workspace);
}

// Returns the arguments of tokens [begin, end): slices the fields whose first dimension is T.
template <class Args>
Args tokens_of(Args args, int64_t begin, int64_t end) {
    for (const StageField& field : fields_of<Args>()) {
        if (field.kind != FieldKind::tensor || field.dims.count == 0) continue;
        const Dim& first = field.dims.each[0];
        Tensor& tensor = field_of<Tensor>(&args, field);
        if (first.plain() && first.letter == 'T' && present(tensor)) tensor = slice(tensor, 0, begin, end);
    }
    return args;
}

// Replaces strides that are all zero by dense, row-major ones, and SMLA_STRIDE_REPEAT by 0.
void resolve_strides(Tensor& tensor);
template <class Args>
void resolve_strides(Args& args) {
    visit(
        args, [](Tensor& tensor) { resolve_strides(tensor); }, [](smla_cache&) {});
}

}  // namespace smla
