// What lines 1, 2, 5 and 9 say of memory that nobody may touch, and of the integers that name rows.
#include "attention.h"
#include "kit/mapped.h"

namespace contract {

using smla::kit::Walled;
namespace {

smla_tensor packed(const smla_tensor& tensor, void* data) {  // the same shape without gaps
    smla_tensor out = tensor;
    out.data = data;
    int64_t stride = 1;
    for (int d = out.ndim - 1; d >= 0; --d) out.stride_elems[d] = stride, stride *= out.shape[d];
    return out;
}

// On a GPU: tests/gpu/contract_wall_test.cpp.
TEST(Contract, L2d_EntriesPastALengthMayBeUnreadableMemory) {
    constexpr int64_t rows = 100, length = 67;
    Attention problem({.tokens = 1, .heads = 20, .rows = rows});
    problem.add_lengths();
    set_int(problem.with.primary.lengths, 0, 0, length);
    problem.fill_listed();
    const Walled list(length * sizeof(int32_t));
    smla_tensor short_list = packed(problem.with.primary.rows, list.data());
    for (int64_t j = 0; j < length; ++j) set_int(short_list, 0, j, get_int(problem.with.primary.rows, 0, j));
    const Truth truth = truth_of(problem.with);
    problem.with.primary.rows = short_list;
    for (const Engine& engine : engines()) {
        const Context context(engine, {.threads = 1});
        run_exactly(problem, context);
        EXPECT_TRUE(agrees(engine, problem.with, truth));
    }
}

// Caches whose last record ends at the wall: nobody reads or writes past a record (vllm#57134 read past 512).
TEST(Contract, L5c_NothingIsReadBehindACacheOrATensor) {
    for (const smla_format format : {SMLA_ROW_BF16, SMLA_FP8_528, SMLA_FP8_512, SMLA_FP8_584, SMLA_ROW_F32}) {
        Attention problem({.tokens = 2, .heads = 3, .width = 512, .rows = 33, .format = format, .pages = 3});
        problem.list(1, 32, capacity(problem.with.primary.cache) - 1);
        problem.list(0, 0, capacity(problem.with.primary.cache) - 1);
        problem.fill_listed();
        const Truth truth = truth_of(problem.with);
        smla_attend_args& a = problem.with;
        const size_t page = size_t(a.primary.cache.page_stride_bytes) - 128;  // without the gap
        const Walled cache(2 * (page + 128) + page), q(2 * 3 * 512 * 2), rows(2 * 33 * sizeof(int32_t)),
            out(2 * 3 * 512 * sizeof(float));
        std::memcpy(cache.data(), a.primary.cache.data, 2 * (page + 128) + page);
        const smla_tensor walled_q = packed(a.q, q.data()), walled_rows = packed(a.primary.rows, rows.data());
        for (int64_t t = 0; t < 2; ++t) {
            for (int64_t j = 0; j < 33; ++j) set_int(walled_rows, t, j, get_int(a.primary.rows, t, j));
            for (int64_t h = 0; h < 3; ++h)
                for (int64_t d = 0; d < 512; ++d) set(walled_q, t, h, d, get(a.q, t, h, d));
        }
        a.q = walled_q, a.primary.rows = walled_rows, a.primary.cache.data = cache.data();
        a.out = packed(a.out, out.data());
        for (const Engine& engine : engines()) {
            const Context context(engine, {.threads = 1});
            run_exactly(problem, context);
            EXPECT_TRUE(agrees(engine, a, truth)) << format;
        }
    }
}

TEST(Contract, L5c_NothingIsReadBehindTheMemoryOfAnyCall) {
    const auto walled = [](size_t bytes) {
        const auto memory = std::make_shared<Walled>(bytes);
        return std::shared_ptr<void>(memory, memory->data());
    };
    for (const NamedMaker& maker : all_calls())
        for (const int64_t tokens : {1, 9})
            for (const Engine& engine : engines()) {
                const std::unique_ptr<Call> call = make(maker, tokens);
                const Context context(engine, {.threads = 1});
                run_exactly(*call, context);
                const std::vector<uint8_t> image = call->memory.image();
                call->memory.reset();
                const Scratch scratch(context, call->workspace(context));
                const Placed placed(*call, context, call->args(), walled);
                ASSERT_TRUE(succeeded(call->call(context, placed.args(), scratch.get())));
                placed.fetch();
                EXPECT_TRUE(call->memory.image() == image) << maker.name << " of " << tokens << engine.name;
            }
}

CONTRACT_TEST(L1f_SlotsAndPositionsOf32And64BitsMeanTheSame) {
    int changed = 0;
    for (const NamedMaker& maker : all_calls())
        for (const Engine& engine : first_and_last_engine()) {
            const std::unique_ptr<Call> call = make(maker, 8);
            const Context context(engine);
            run_exactly(*call, context);
            const std::vector<uint8_t> image = call->memory.image();
            call->memory.reset();
            std::vector<std::vector<int64_t>> wide;
            std::vector<std::vector<int32_t>> narrow;
            for (TensorField& field : call->tensors) {
                const bool both =
                    field.name == "args.slots" || (field.name == "args.positions" && field.tensor->ndim == 1);
                if (!both) continue;
                ++changed;
                smla_tensor& tensor = *field.tensor;
                wide.emplace_back(), narrow.emplace_back();
                for (int64_t i = 0; i < tensor.shape[0]; ++i) {
                    wide.back().push_back(get_int(tensor, i));
                    narrow.back().push_back(int32_t(get_int(tensor, i)));
                }
                const bool to_wide = tensor.dtype == SMLA_I32;
                tensor.data = to_wide ? static_cast<void*>(wide.back().data()) : narrow.back().data();
                tensor.dtype = to_wide ? SMLA_I64 : SMLA_I32;
                tensor.stride_elems[0] = 1;
            }
            run_exactly(*call, context);
            EXPECT_TRUE(call->memory.image() == image) << maker.name << " on " << engine.name;
        }
    EXPECT_GT(changed, 0);
}

// Slots as large as only 64 bits hold, whose low 32 bits look like a row, are holes.
CONTRACT_TEST(L10b_SlotsThatDoNotFit32BitsWriteNothing) {
    int ran = 0;
    for (const NamedMaker& maker : cache_calls()) {
        const std::unique_ptr<Call> call = make(maker, 8);
        bool slots = false;
        for (const TensorField& field : call->tensors)
            if (field.name == "args.values") *field.tensor = {};  // has rows of holes, too
            else if (field.name == "args.slots" && field.tensor->dtype == SMLA_I64) {
                slots = true;
                fill_int(*field.tensor, [](int64_t t, int64_t) { return (int64_t(t + 1) << 32) + t; });
            }
        if (!slots) continue;
        ++ran;
        call->memory.remember();
        for (const Engine& engine : engines()) {
            const Context context(engine);
            run_exactly(*call, context);
            EXPECT_TRUE(call->memory.nothing_changed()) << maker.name << " on " << engine.name;
        }
    }
    EXPECT_GT(ran, 0);
}

}  // namespace
}  // namespace contract
