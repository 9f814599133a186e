// Lines 2d and 5c on a GPU: memory that ends where nothing is mapped.
#include "contract/attention.h"
#include "gpu/wall.h"

namespace contract {
namespace {

void run_before_walls(const Call& call, smla_context* context) {
    const Scratch scratch(context, call.workspace(context));
    const Placed placed(call, context, call.args(), gpu::before_a_wall);
    ASSERT_TRUE(succeeded(call.call(context, placed.args(), scratch.get())));
    placed.fetch();
}

TEST_F(ContractGpu, L2d_EntriesPastALengthMayBeMissingMemory) {
    constexpr int64_t rows = 100;
    const Engine& engine = engines().front();
    const Context context(engine);
    for (const int64_t length : {1, 64, 67, 96}) {
        Attention problem({.tokens = 1, .heads = 20, .rows = rows});
        problem.add_lengths();
        set_int(problem.with.primary.lengths, 0, 0, length);
        const smla_tensor whole = problem.with.primary.rows;
        smla_tensor list = problem.memory.tensor(SMLA_I32, {1, length});
        for (int64_t j = 0; j < length; ++j) set_int(list, 0, j, get_int(whole, 0, j));
        problem.fill_listed();
        const Truth truth = truth_of(problem.with);
        list.shape[1] = rows;
        problem.with.primary.rows = list;
        run_before_walls(problem, context);
        EXPECT_TRUE(agrees(engine, problem.with, truth)) << length;
    }
}

TEST_F(ContractGpu, L5c_NothingIsReadBehindTheMemoryOfAnyCall) {
    const Context context(engines().front());
    for (const NamedMaker& maker : all_calls())
        for (const int64_t tokens : {1, 9}) {
            const std::unique_ptr<Call> call = make(maker, tokens);
            run_exactly(*call, context);
            const std::vector<uint8_t> image = call->memory.image();
            call->memory.reset();
            run_before_walls(*call, context);
            EXPECT_TRUE(call->memory.image() == image) << maker.name << " of " << tokens;
        }
}

}  // namespace
}  // namespace contract
