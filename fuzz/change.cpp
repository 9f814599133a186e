#include "change.h"

#include "kit/hostile_memory.h"
#include "kit/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace smla::fuzz {

namespace {

constexpr int64_t kAbsurd[] = {-1, INT64_MIN, INT64_MAX, int64_t(1) << 50, SMLA_STRIDE_REPEAT};

// Below a length, one more than it, or absurd.
int64_t other_length(int64_t now, Choices& choose) {
    switch (choose.below(4)) {
        case 0: return kAbsurd[choose.below(std::size(kAbsurd))];
        case 1: return now < INT64_MAX ? now + 1 : now;
        default: return choose.below(std::clamp<int64_t>(now, 0, 65535) + 1);
    }
}

// An index out of its range, or any.
void change_index(const Tensor& tensor, int64_t element, Choices& choose) {
    int64_t value = choose.between(-2, 70);
    if (choose.flag()) value = choose.any<int64_t>({-1, INT32_MIN, INT32_MAX, 1 << 20, 255});
    if (tensor.dtype == SMLA_I64 && choose.below(4) == 0)
        value = choose.any<int64_t>({INT64_MIN, INT64_MAX, int64_t(1) << 32, -(int64_t(1) << 32)});
    char* at = static_cast<char*>(tensor.data) + element * dtype_bits(tensor.dtype) / 8;
    const auto narrow = int32_t(value);
    if (tensor.dtype == SMLA_I64) std::memcpy(at, &value, sizeof value);
    else std::memcpy(at, &narrow, sizeof narrow);
}

// One element: an index of any kind, or NaN.
void change_element(const Tensor& tensor, Choices& choose) {
    if (!present(tensor) || !tensor.data || element_count(tensor) == 0) return;
    int64_t index[SMLA_MAX_NDIM] = {};
    for (int d = 0; d < tensor.ndim; ++d) index[d] = choose.below(tensor.shape[d]);
    const int64_t element = kit::element(tensor, index[0], index[1], index[2], index[3]);
    if (dtype_bit(tensor.dtype) & kInts) change_index(tensor, element, choose);
    else if (tensor.dtype == SMLA_E8M0) static_cast<uint8_t*>(tensor.data)[element] = 0xFF;
    else if (tensor.dtype != SMLA_E2M1) kit::set_element(tensor, element, std::nan(""));
}

void shift(Tensor& tensor, int64_t bytes) {
    tensor.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(tensor.data) + uintptr_t(bytes));
}

bool change_tensor(Tensor& tensor, Choices& choose) {
    const int dim = int(choose.below(std::clamp(tensor.ndim, 1, SMLA_MAX_NDIM)));
    switch (choose.below(10)) {
        case 0: {
            // Bits of one type are numbers of any size in another: f32 overflows where the oracle does not.
            const smla_dtype was = tensor.dtype;
            tensor.dtype = smla_dtype(choose.between(-1, 12));
            return tensor.dtype == was;
        }
        case 1: tensor.ndim = int32_t(choose.between(-1, SMLA_MAX_NDIM + 1)); break;
        case 2:
        case 3: tensor.shape[dim] = other_length(tensor.shape[dim], choose); break;
        case 4:
        case 5: tensor.stride_elems[dim] = other_length(tensor.stride_elems[dim], choose); break;
        case 6: std::memset(tensor.stride_elems, 0, sizeof tensor.stride_elems); break;
        case 7: {
            const int64_t bits =
                tensor.dtype >= SMLA_F64 && tensor.dtype <= SMLA_I64 ? dtype_bits(tensor.dtype) : 8;
            const bool whole = choose.flag();
            shift(tensor, choose.between(-2, 2) * (whole ? std::max<int64_t>(bits / 8, 1) : 1));
            return whole;
        }
        case 8:
            if (choose.flag()) tensor.data = nullptr;
            else tensor = Tensor{};
            break;
        default:
            if (choose.flag()) tensor.device_type = smla_device_type(choose.between(-1, 2));
            else tensor.device_index = int32_t(choose.between(-1, 1));
            break;
    }
    return true;
}

// A cached record that is NaN in every format that has one.
void spoil_record(const smla_cache& cache, Choices& choose) {
    const size_t bytes = kit::extent(cache);
    if (!cache.data || bytes < 8) return;
    const auto words = std::min<int64_t>(int64_t(bytes / 8), 65536);
    std::memset(static_cast<char*>(cache.data) + 8 * choose.below(words), 0xFF, 8);
}

bool change_cache(smla_cache& cache, Choices& choose) {
    switch (choose.below(12)) {
        case 0: cache.format = smla_format(choose.between(-1, 20)); return false;
        case 1: cache.width = choose.any({-1, 0, 1, 128, 512, INT32_MAX, INT32_MIN}); return false;
        case 2: cache.page_tokens = choose.any({-1, 0, 1, 2, INT32_MIN, INT32_MAX}); return false;
        case 3: cache.page_rows = choose.any({-1, 0, 1, 2, 64, INT32_MIN, INT32_MAX}); return false;
        case 4: cache.pages = other_length(cache.pages, choose); return true;
        case 5: cache.scale = choose.any({0.f, -1.f, 2.f, float(NAN), float(INFINITY)}); return false;
        case 6: cache.page_stride_bytes = other_length(cache.page_stride_bytes, choose); return false;
        case 7: cache.row_stride_bytes = other_length(cache.row_stride_bytes, choose); return false;
        case 8: cache.writer = int32_t(choose.between(-1, 4)); return false;
        case 9: cache.device_type = smla_device_type(choose.between(-1, 2)); return true;
        case 10:
            if (choose.flag()) cache.data = nullptr;
            else cache = smla_cache{};
            return true;
        default: cache.device_index = int32_t(choose.between(-1, 1)); return true;
    }
}

Changed change_scalar(const float*& scalar, Choices& choose) {
    static const float values[] = {0.5f, 0.f, -1.f, float(NAN), float(INFINITY)};
    scalar = choose.flag() ? nullptr : &values[choose.below(std::size(values))];
    return {.comparable = false};
}

size_t size_of(const StageField& field) {
    return field.kind == FieldKind::tensor  ? sizeof(Tensor)
           : field.kind == FieldKind::cache ? sizeof(smla_cache)
                                            : sizeof(const float*);
}

// A number that no table names: a flag, an enumeration, a length or half a double.
Changed change_number(std::span<const StageField> fields, void* args, size_t bytes, Choices& choose) {
    std::vector<size_t> words;
    for (size_t at = sizeof(uint32_t); at < bytes; at += sizeof(int32_t)) {  // behind struct_size
        const auto holds = [&](const StageField& field) {
            return at >= field.offset && at < field.offset + size_of(field);
        };
        if (std::none_of(fields.begin(), fields.end(), holds)) words.push_back(at);
    }
    if (words.empty()) return {};
    const int32_t value = choose.any({-1, 0, 1, 2, 3, 4, 8, 16, 64, 300, INT32_MIN, INT32_MAX});
    std::memcpy(static_cast<char*>(args) + words[size_t(choose.below(int64_t(words.size())))], &value,
                sizeof value);
    return {.comparable = false, .runnable = value != INT32_MAX};
}

struct Length {
    uint64_t letter;
    int64_t now;
    int fields = 1;  // that have it
};

// The lengths of a call that the table has a letter for.
std::vector<Length> lengths_of(std::span<const StageField> fields, const void* args) {
    std::vector<Length> out;
    for (const StageField& field : fields) {
        if (field.kind != FieldKind::tensor) continue;
        const auto& tensor = field_of<Tensor>(args, field);
        for (int d = 0; d < std::min(tensor.ndim, field.dims.count); ++d) {
            const Dim& dim = field.dims.each[size_t(d)];
            const auto same = [&](const Length& other) { return other.letter == dim.letter; };
            const bool sane = tensor.shape[d] > 0 && tensor.shape[d] <= 65535;
            const auto known = std::find_if(out.begin(), out.end(), same);
            if (known != out.end()) ++known->fields;
            else if (dim.plain() && sane) out.push_back({dim.letter, tensor.shape[d]});
        }
    }
    return out;
}

// An output, or an input that may be one in place.
bool is_written(std::span<const StageField> fields, const StageField& field) {
    return field.is_output || std::ranges::any_of(fields, [&](const StageField& other) {
               return other.in_place_of == field.offset;
           });
}

// Dense, in memory of its own.
void grow(Tensor& tensor, kit::HostileMemory& memory) {
    constexpr int64_t kMost = 1 << 18;  // elements
    int64_t count = 1;
    for (int d = 0; d < tensor.ndim && count <= kMost; ++d)
        count *= std::clamp<int64_t>(tensor.shape[d], 0, kMost);
    if (count > kMost || tensor.dtype < SMLA_F64 || tensor.dtype > SMLA_I64) return;
    tensor.data = memory.tensor(tensor.dtype, {(count + 2) / 2 * 2}).data;
    std::memset(tensor.stride_elems, 0, sizeof tensor.stride_elems);
}

// Dense, in poison that all calls share.
void lay_out(Tensor& tensor) {
    static kit::HostileMemory memory(0);
    static const Tensor spare = memory.tensor(SMLA_F64, {1 << 15});  // aligned for every type
    tensor.data = spare.data;
    std::memset(tensor.stride_elems, 0, sizeof tensor.stride_elems);
}

// A new value for a length. A rule between two lengths usually has its bound at the other length, its half or
// its double, so values just past these are likely. Most rules are about the width, the longest length.
int64_t next_length(int64_t now, const std::vector<Length>& lengths, Choices& choose) {
    const auto shorter = [](const Length& a, const Length& b) { return a.now < b.now; };
    const int64_t other = choose.flag() ? std::max_element(lengths.begin(), lengths.end(), shorter)->now
                                        : lengths[size_t(choose.below(int64_t(lengths.size())))].now;
    switch (choose.below(8)) {
        case 0:
        case 1: return now + choose.any<int64_t>({1, 7, 40, 600});
        case 2: return other + 1;
        case 3: return other / 2 + 1;
        case 4: return 2 * other + 1;
        case 5: return choose.below(now);
        default: return now - 1;
    }
}

// Another length in all fields that share its letter: the table allows it, and the rules between fields are
// left to refuse it. An output that grows gets memory for it. An input repeats an element if it may, or lies
// in poison elsewhere. Rows of any width follow now and then, in caches that the table does not tie to the
// letter, too.
Changed change_length(std::span<const StageField> fields, void* args, kit::HostileMemory& memory,
                      Choices& choose) {
    const std::vector<Length> lengths = lengths_of(fields, args);
    if (lengths.empty()) return {};
    // The table holds fields of one letter to each other; a letter of one field has rules alone.
    std::vector<Length> from = lengths;
    if (choose.flag()) std::erase_if(from, [](const Length& each) { return each.fields > 1; });
    if (from.empty()) from = lengths;
    const Length& chosen = from[size_t(choose.below(int64_t(from.size())))];
    const uint64_t letter = chosen.letter;
    const int64_t now = chosen.now;
    const int64_t next = next_length(now, lengths, choose);
    const bool follow = choose.flag(), spare = choose.flag();
    Changed out;
    for (const StageField& field : fields) {
        if (field.kind == FieldKind::cache) {
            auto& cache = field_of<smla_cache>(args, field);
            const bool tied = field.dims.count > 0 && field.dims.each[0].letter == letter;
            if (tied || (follow && cache.width == now)) cache.width = int32_t(next);
        }
        if (field.kind != FieldKind::tensor) continue;
        auto& tensor = field_of<Tensor>(args, field);
        for (int d = 0; d < std::min(tensor.ndim, field.dims.count); ++d) {
            const Dim& dim = field.dims.each[size_t(d)];
            if (dim.letter != letter) continue;
            tensor.shape[d] = (next + dim.plus) / std::max(dim.divisor, 1);
            if (next <= now) continue;
            if (field.is_output) {
                grow(tensor, memory);
                out.comparable = false;  // norm of a row that repeats one element is all rounding
            } else {
                tensor.stride_elems[d] = SMLA_STRIDE_REPEAT;
            }
            if ((spare || field.is_rows) && !is_written(fields, field)) lay_out(tensor);
        }
    }
    return out;
}

}  // namespace

Changed change(std::span<const StageField> fields, void* args, size_t bytes, kit::HostileMemory& memory,
               Choices& choose) {
    const StageField& field = fields[size_t(choose.below(int64_t(fields.size())))];
    const int64_t kind = choose.below(8);
    if (kind == 0) return change_number(fields, args, bytes, choose);
    if (kind >= 2 && kind <= 4) return change_length(fields, args, memory, choose);
    if (field.kind == FieldKind::scalar) return change_scalar(field_of<const float*>(args, field), choose);
    if (field.kind == FieldKind::cache)
        return {.comparable = change_cache(field_of<smla_cache>(args, field), choose)};
    auto& tensor = field_of<Tensor>(args, field);
    if (kind == 1) {  // what another field has: two that share memory
        const StageField& other = fields[size_t(choose.below(int64_t(fields.size())))];
        if (other.kind == FieldKind::tensor) tensor = field_of<Tensor>(args, other);
        return {.comparable = other.offset == field.offset};
    }
    return {.comparable = change_tensor(tensor, choose)};
}

void spoil_contents(std::span<const StageField> fields, const void* args, Choices& choose) {
    const StageField& field = fields[size_t(choose.below(int64_t(fields.size())))];
    if (field.kind == FieldKind::cache) spoil_record(field_of<smla_cache>(args, field), choose);
    if (field.kind == FieldKind::tensor) change_element(field_of<Tensor>(args, field), choose);
}

}  // namespace smla::fuzz
