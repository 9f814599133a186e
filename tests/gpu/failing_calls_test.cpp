// Each CUDA call of the library fails in its turn: the call says so, nothing is kept, and the next one gives
// the same bits.
#include "failing_calls.h"
#include "child.h"
#include "needs_gpu.h"
#include "parts.h"

#include <smla/smla.hpp>

#include <cstdio>

namespace gpu {
namespace {

struct Outcome {
    int64_t calls = 0, failures = 0;
    bool ended = false;  // the run made fewer calls than the one that was to fail
};

// One run of a part whose nth call fails. A status other than the one wanted fails the test.
void run_failing(const NamedPart& part, Failing kind, int64_t nth, int64_t more, const Bits& wanted,
                 Outcome& outcome) {
    const smla_status status = kind == Failing::memory ? SMLA_OUT_OF_MEMORY : SMLA_DEVICE_ERROR;
    try {
        fail_calls(kind, nth, more);
        const Bits found = bits_of(part);
        const int64_t made = stop_failing();
        outcome.calls = made;
        outcome.ended = made < nth;
        EXPECT_TRUE(found == wanted) << "a run that goes on is wrong; failed: " << last_failed();
    } catch (const smla::Error& error) {
        stop_failing();
        ++outcome.failures;
        EXPECT_EQ(error.code, status) << last_failed() << ": " << error.what();
        EXPECT_FALSE(error.field.empty() || error.got.empty() || error.wanted.empty()) << error.what();
    } catch (const std::exception& error) {
        stop_failing();
        ADD_FAILURE() << last_failed() << ": not an error of the library: " << error.what();
        outcome.ended = true;
    }
}

void fail_each(const NamedPart& part, Failing kind, int64_t more) {
    SCOPED_TRACE(testing::Message() << part.name << ", " << more << " more");
    const Bits wanted = bits_of(part);
    ASSERT_TRUE(bits_of(part) == wanted) << "two runs differ";
    const Held before = held();
    Outcome outcome;
    for (int64_t nth = 1; !outcome.ended; nth += 1 + nth / 20) {
        SCOPED_TRACE(testing::Message() << "call " << nth);
        run_failing(part, kind, nth, more, wanted, outcome);
        EXPECT_TRUE(held() == before)
            << last_failed() << " leaves " << held().text() << "; there were " << before.text();
        EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << last_failed();
        if (testing::Test::HasFailure()) return;
        ASSERT_TRUE(nth % 4 != 1 || bits_of(part) == wanted) << "the next call, after " << last_failed();
    }
    ASSERT_TRUE(bits_of(part) == wanted);
    EXPECT_GT(outcome.failures, 0);
    std::printf("%s: %ld calls, %ld failures tried\n", part.name.c_str(), long(outcome.calls),
                long(outcome.failures));
}

// What is taken, one at a time and all from there on.
TEST(GpuFailingCalls, MemoryOfTheDevice) {
    SMLA_NEEDS_GPU();
    for (const NamedPart& part : parts())
        for (const int64_t more : {int64_t(0), int64_t(1) << 40}) fail_each(part, Failing::memory, more);
}

// In a child: a copy that is not waited for could read memory that is gone.
TEST(GpuFailingCalls, EveryCallThatMayFail) {
    SMLA_NEEDS_GPU();
    SMLA_IN_A_CHILD();
    for (const NamedPart& part : parts())
        for (const int64_t more : {int64_t(0), int64_t(1) << 40}) fail_each(part, Failing::any, more);
}

}  // namespace
}  // namespace gpu
