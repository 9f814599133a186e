// Lists of an attend call, for many blocks of the kernel behind check_indices: some dense, some with gaps,
// some that cannot be read in vectors; most values are good.
#pragma once

#include "core/tensor.h"
#include "formats/format.h"
#include "ops/check_data.h"

#include <random>
#include <vector>

namespace smla {

class IndexLists {
public:
    // `bad` of the values are wrong.
    IndexLists(std::mt19937& random, int bad) : memory_(kValues) {
        const auto any = [&](int64_t low, int64_t high) {
            return low + int64_t(random() % uint64_t(high - low + 1));
        };
        const int64_t tokens = any(1, 150);
        smla_cache& cache = args.primary.cache;
        cache.format = SMLA_ROW_BF16;
        cache.width = 576;
        cache.page_tokens = 64, cache.pages = 500;
        args.extra.cache = cache;
        args.extra.cache.page_tokens = 2, args.extra.cache.pages = 300;
        args.extra.cache.page_rows = 3;
        for (smla_attend_source* source : {&args.primary, &args.extra}) {
            const int64_t columns = any(0, 3) ? 4 * any(1, 300) : any(0, 400);
            const int64_t stride = any(0, 1) ? columns : columns + any(0, 3) * any(1, 4);
            source->rows = take({tokens, columns}, any(0, 2) ? 0 : any(1, 3));
            source->rows.stride_elems[0] = stride;
            if (any(0, 1)) source->lengths = take({tokens}, 0);
            const RowRange rows = CacheView(source->cache).range();
            for (int64_t t = 0; t < tokens; ++t) {
                const int64_t length = any(0, columns);
                if (present(source->lengths)) put(source->lengths, t, 0, int32_t(length));
                for (int64_t j = 0; j < columns; ++j) {
                    const int64_t row = any(-1, rows.capacity - 1);
                    put(source->rows, t, j, int32_t(row == -1 || !rows.hole(row) ? row : row - 1));
                }
            }
        }
        constexpr int32_t kBad[] = {-2, INT32_MIN, INT32_MAX, 32000, 899, 5};  // 5: between two pages
        for (int i = 0; i < bad; ++i) {
            const smla_attend_source& source = any(0, 1) ? args.primary : args.extra;
            const bool length = present(source.lengths) && any(0, 3) == 0;
            const Tensor& tensor = length ? source.lengths : source.rows;
            if (tensor.shape[tensor.ndim - 1] == 0) continue;
            put(tensor, any(0, tokens - 1), length ? 0 : any(0, tensor.shape[1] - 1),
                kBad[size_t(any(0, std::ssize(kBad) - 1))]);
        }
    }
    IndexLists(const IndexLists&) = delete;

    // The same lists in other memory: `bytes()` from data() on were copied there.
    smla_attend_args at(void* copy) const {
        smla_attend_args out = args;
        for (Tensor* tensor :
             {&out.primary.rows, &out.primary.lengths, &out.extra.rows, &out.extra.lengths}) {
            if (!present(*tensor)) continue;
            const int64_t first = static_cast<const int32_t*>(tensor->data) - data();
            tensor->data = static_cast<int32_t*>(copy) + first;
        }
        return out;
    }
    const int32_t* data() const { return memory_.data(); }
    size_t bytes() const { return memory_.size() * sizeof(int32_t); }

    smla_attend_args args{};

private:
    static constexpr size_t kValues = 2 * 151 * 1220;

    // From a multiple of 16 bytes on, or `shift` values later.
    Tensor take(std::initializer_list<int64_t> shape, int64_t shift) {
        while (reinterpret_cast<uintptr_t>(memory_.data() + used_) % 16 != 0) ++used_;
        const Tensor out = make_tensor(memory_.data() + used_ + shift, SMLA_I32, shape);
        used_ += shape.size() == 1 ? 152 : 151 * 1216;
        return out;
    }
    static void put(const Tensor& tensor, int64_t i, int64_t j, int32_t value) {
        const int64_t column = tensor.ndim > 1 ? j * tensor.stride_elems[1] : 0;
        static_cast<int32_t*>(tensor.data)[i * tensor.stride_elems[0] + column] = value;
    }

    std::vector<int32_t> memory_;
    size_t used_ = 0;
};

}  // namespace smla
