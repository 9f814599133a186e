// Line 7g, and what line 9 says of captures: every call of the contract's tests in a CUDA graph.
#include "contract/calls.h"
#include "gpu/gpu.h"

#include <algorithm>

namespace contract {
namespace {

// The same call with other contents: its integers the other way round.
void turn(Call& call) {
    for (const TensorField& field : call.tensors) {
        const smla_tensor& tensor = *field.tensor;
        if (call.is_output(field) || (tensor.dtype != SMLA_I32 && tensor.dtype != SMLA_I64)) continue;
        if (field.name == "args.cu") continue;  // ranges ascend
        std::vector<int64_t> values;
        fill_int(tensor, [&](int64_t i, int64_t j) { return values.emplace_back(get_int(tensor, i, j)); });
        fill_int(tensor, [&](int64_t, int64_t) {
            const int64_t last = values.back();
            values.pop_back();
            return last;
        });
    }
    call.memory.remember();
}

bool harmless(cudaGraphNodeType kind) {
    return kind == cudaGraphNodeTypeKernel || kind == cudaGraphNodeTypeMemset ||
           kind == cudaGraphNodeTypeMemcpy || kind == cudaGraphNodeTypeEmpty;
}

// What may not stand in a capture fails there: allocating, waiting, copying to memory of the host.
TEST_F(ContractGpu, L7g_EveryCallIsCapturedAndReplayedWithOtherContents) {
    for (const NamedMaker& maker : all_calls())
        for (const int32_t check_indices : {0, 1}) {
            SCOPED_TRACE(std::string(maker.name) + (check_indices ? " checking" : ""));
            const Context context(engines().front(), {.check_indices = check_indices});
            const std::unique_ptr<Call> call = make(maker, 9);
            const Scratch scratch(context, call->workspace(context));
            const Placed placed(*call, context, call->args());
            smla_status status = SMLA_INTERNAL;
            const gpu::Graph graph([&](cudaStream_t stream) {
                status = call->call(context, placed.args(), scratch.get(), stream);
            });
            ASSERT_TRUE(succeeded(status));
            ASSERT_FALSE(HasFatalFailure());
            EXPECT_FALSE(graph.kinds().empty());
            EXPECT_TRUE(std::all_of(graph.kinds().begin(), graph.kinds().end(), harmless));
            for (int round = 0; round < 3; ++round) {  // the second time as captured
                turn(*call);
                placed.send();
                graph.replay();
                placed.fetch();
                const std::vector<uint8_t> replayed = call->memory.image();
                call->memory.reset();
                const Scratch own(context, call->workspace(context));
                ASSERT_TRUE(succeeded(call->run(context, own.get())));
                EXPECT_TRUE(call->memory.image() == replayed) << "round " << round;
                call->memory.reset();
                smla_error_word words[2] = {};
                ASSERT_TRUE(succeeded(smla_read_error(context, scratch.get(), nullptr, &words[0])));
                ASSERT_TRUE(succeeded(smla_read_error(context, own.get(), nullptr, &words[1])));
                EXPECT_EQ(std::memcmp(&words[0], &words[1], sizeof words[0]), 0) << "round " << round;
                EXPECT_TRUE(scratch.clean());
            }
        }
}

TEST_F(ContractGpu, L9k_CallsThatWaitAreRefusedInACaptureWhichGoesOn) {
    const Context context(engines().front(), {.check_indices = 1});
    const std::unique_ptr<Call> call = make(attend_calls().front());
    const Scratch scratch(context, call->workspace(context));
    const Placed placed(*call, context, call->args());
    const gpu::Graph graph([&](cudaStream_t stream) {
        EXPECT_TRUE(succeeded(call->call(context, placed.args(), scratch.get(), stream)));
        EXPECT_TRUE(
            refused(smla_check_stage(context, call->stage, placed.args()), SMLA_INVALID_ARGUMENT, "stream"));
        smla_error_word word{};
        EXPECT_TRUE(
            refused(smla_read_error(context, scratch.get(), stream, &word), SMLA_INVALID_ARGUMENT, "stream"));
    });
    ASSERT_FALSE(HasFatalFailure());
    graph.replay();
    placed.fetch();
    const std::vector<uint8_t> replayed = call->memory.image();
    call->memory.reset();
    const Scratch own(context, call->workspace(context));
    ASSERT_TRUE(succeeded(call->run(context, own.get())));
    EXPECT_TRUE(call->memory.image() == replayed);
    smla_error_word word{};
    ASSERT_TRUE(succeeded(smla_read_error(context, scratch.get(), nullptr, &word)));
    EXPECT_EQ(word.kind, SMLA_BAD_LENGTH);  // longer than its list
}

}  // namespace
}  // namespace contract
