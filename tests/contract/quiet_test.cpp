// Line 7, the rest: hot calls allocate nothing once they are warm, print nothing and log nothing.
#include "calls.h"
#include "counting_new.h"

#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <unistd.h>

namespace contract {
namespace {

using counting::allocated_bytes;
using counting::allocations;

// Everything that the process writes to its standard outputs while one lives.
class Captured {
public:
    Captured() : file_(std::tmpfile()) {
        std::fflush(nullptr);
        for (int fd : {1, 2}) saved_[fd - 1] = dup(fd), dup2(fileno(file_), fd);
    }
    ~Captured() { std::fclose(file_); }
    Captured(const Captured&) = delete;
    Captured& operator=(const Captured&) = delete;
    std::string end() {
        std::fflush(nullptr);
        for (int fd : {1, 2}) dup2(saved_[fd - 1], fd), close(saved_[fd - 1]);
        std::rewind(file_);
        std::string text;
        for (int c; (c = std::fgetc(file_)) != EOF;) text += char(c);
        return text;
    }

private:
    std::FILE* file_;
    int saved_[2];
};

CONTRACT_TEST(L7f_HotCallsPrintNothingAndLogNothing) {
    for (const Engine& engine : engines()) {
        const Context context(engine);
        int lines = 0;
        alignas(64) static char misaligned[2];
        smla_set_log([](void* user, int32_t, const char*) { ++*static_cast<int*>(user); }, &lines);
        Captured captured;
        int done = 0, failed = 0;
        for (const NamedMaker& maker : all_calls()) {
            const std::unique_ptr<Call> call = make(maker);
            const Scratch scratch(context, call->workspace(context));
            failed += call->run(context, scratch.get()) != SMLA_OK;
            failed += call->run(context, {misaligned + 1, 1}) == SMLA_OK;  // refused, in silence too
            ++done;
        }
        const std::string text = captured.end();
        smla_set_log(nullptr, nullptr);
        EXPECT_EQ(text, "") << engine.name;
        EXPECT_EQ(lines, 0) << engine.name;
        EXPECT_EQ(failed, 0);
        EXPECT_GT(done, 20);
    }
}

// Scratch comes from the workspace. What a call of the cpu engine still takes from the heap is bookkeeping of
// its kernel and threads: as much for 140 tokens as for 70, which the same kernels take, and nothing like the
// size of its data.
CONTRACT_TEST(L7e_HotCallsTakeNoMemoryThatGrowsWithTheirTokens) {
    constexpr int64_t kBookkeeping = 160 << 10;  // bytes; compress keeps a window of state per thread
    for (const NamedMaker& maker : all_calls()) {
        const std::unique_ptr<Call> calls[] = {make(maker, 70), make(maker, 140)};
        for (const Engine& engine : engines()) {
            if (engine.engine == SMLA_ENGINE_REFERENCE) continue;  // a specification may use vectors
            SCOPED_TRACE(std::string(maker.name) + " on " + engine.name);
            const Context context(engine, {.threads = 2});
            int64_t counts[2], bytes[2];
            for (const int i : {0, 1}) {
                const Scratch scratch(context, calls[i]->workspace(context));
                const Placed placed(*calls[i], context, calls[i]->args());
                EXPECT_TRUE(succeeded(calls[i]->call(context, placed.args(), scratch.get())));  // warm
                counts[i] = -allocations, bytes[i] = -allocated_bytes;
                const smla_status status = calls[i]->call(context, placed.args(), scratch.get());
                counts[i] += allocations, bytes[i] += allocated_bytes;
                placed.fetch();
                EXPECT_EQ(status, SMLA_OK);
            }
            EXPECT_EQ(counts[0], counts[1]);
            EXPECT_EQ(bytes[0], bytes[1]);
            EXPECT_LE(bytes[1], kBookkeeping);
        }
    }
}

}  // namespace
}  // namespace contract
