// Lists, tables, slots and lengths that hold anything at all: contexts with check_indices say which number is
// the first that is wrong, as the reference engine does, and nothing is read behind a cache or a list.
#include "child.h"
#include "contract/calls.h"
#include "gpu/needs_gpu.h"
#include "gpu/wall.h"

#include <cstdio>
#include <random>

namespace contract {
namespace {

// Some of the integers become others. Ranges of requests are not among them: kernels rely on their order.
void spoil(Call& call, std::mt19937& random) {
    constexpr int64_t kHostile[] = {-1,         -2,      INT32_MIN, INT32_MAX, INT32_MAX - 63,
                                    1000000007, 1000000, 4096,      64,        0};
    for (const TensorField& field : call.tensors) {
        const smla_tensor& tensor = *field.tensor;
        if (call.is_output(field) || (tensor.dtype != SMLA_I32 && tensor.dtype != SMLA_I64)) continue;
        if (field.name == "args.cu") continue;
        fill_int(tensor, [&](int64_t i, int64_t j) {
            const int64_t now = get_int(tensor, i, j);
            return random() % 3 ? now : kHostile[random() % std::size(kHostile)];
        });
    }
    call.memory.remember();
}

smla_error_word word_after(const Call& call, const Engine& engine, bool walls) {
    const Context context(engine, {.check_indices = 1});
    const Scratch scratch(context, call.workspace(context));
    const Placed placed(call, context, call.args(), walls ? gpu::before_a_wall : nullptr);
    EXPECT_TRUE(succeeded(call.call(context, placed.args(), scratch.get()))) << engine.name;
    smla_error_word word{};
    EXPECT_TRUE(succeeded(smla_read_error(context, scratch.get(), nullptr, &word))) << engine.name;
    return word;
}

TEST(GpuFaults, AnyIntegersAreReportedAndNeverFollowed) {
    SMLA_NEEDS_GPU();
    SMLA_IN_A_CHILD();
    const Engine cuda{"cuda", SMLA_ENGINE_CUDA, SMLA_ISA_AUTO};
    std::mt19937 random(22);
    int calls = 0, reported = 0;
    for (const NamedMaker& maker : all_calls())
        for (int round = 0; round < 3; ++round) {
            SCOPED_TRACE(testing::Message() << maker.name << ", round " << round);
            const std::unique_ptr<Call> call = make(maker, 9);
            spoil(*call, random);
            const smla_error_word found = word_after(*call, cuda, true);
            ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << "a kernel went astray";
            call->memory.reset();
            const smla_error_word wanted = word_after(*call, reference_engine(), false);
            EXPECT_EQ(std::memcmp(&found, &wanted, sizeof found), 0)
                << "kind " << found.kind << ", token " << found.token << ", column " << found.column
                << ", value " << found.value << "; the reference: kind " << wanted.kind << ", token "
                << wanted.token << ", column " << wanted.column << ", value " << wanted.value;
            ++calls;
            reported += found.kind != SMLA_BAD_NONE;
        }
    std::printf("%d calls, %d with an error word\n", calls, reported);
    EXPECT_GT(reported, calls / 4);
}

}  // namespace
}  // namespace contract
