// Graphs, streams and refusals on a GPU: contract 7 and the bugs T-28 to T-30, T-35 and T-44.
#include "gpu/attention.h"

#include <algorithm>
#include <cstdlib>
#include <random>

namespace {

using gpu::Array, gpu::Attention, gpu::kHeads, gpu::kRows, gpu::kTokens;

void expect_counters_zero(const gpu::Workspace& workspace) {
    const std::vector<uint8_t> header = workspace.header();
    EXPECT_TRUE(std::all_of(header.begin(), header.end(), [](uint8_t x) { return x == 0; }));
}

TEST(Gpu, T28_T29_T30_AttendInAGraphWithChangingBatches) {
    SMLA_NEEDS_GPU();
    const smla::Context context = gpu::context();
    Attention it;
    context.prepare<SMLA_STAGE_ATTEND>(it.args);
    const gpu::Workspace workspace(context, context.workspace_size<SMLA_STAGE_ATTEND>(it.args));
    it.batch(0, 0, 0);  // captured with a dummy batch of no rows at all
    const gpu::Graph graph([&](cudaStream_t stream) { context.attend(it.args, workspace.get(), stream); });
    struct Stale {
        int32_t length, row;
    };
    for (const Stale stale : {Stale{0, 0}, {int32_t(kRows), -1}, {0, 2147480000}, {-7, INT32_MIN}})
        for (const int64_t live : {8, 6, 1, 0}) {
            it.batch(live, stale.length, stale.row);
            graph.replay();
            const std::vector<uint16_t> replayed = it.take();
            // the same workspace serves a call of its own between two replays
            context.attend(it.args, workspace.get());
            gpu::must(cudaDeviceSynchronize());
            EXPECT_TRUE(replayed == it.take()) << live << " tokens, stale length " << stale.length;
            for (int64_t t = live; t < kTokens; ++t)  // no valid row: zeros
                for (int64_t i = 0; i < kHeads * 512; ++i)
                    ASSERT_EQ(replayed[size_t(t * kHeads * 512 + i)], 0) << "token " << t;
        }
    expect_counters_zero(workspace);
}

TEST(Gpu, SelectionInAGraphFollowsItsLengths) {
    SMLA_NEEDS_GPU();
    const smla::Context context = gpu::context();
    constexpr int64_t kColumns = 20000, kTopk = 512;
    Array<float> scores(SMLA_F32, {4, kColumns});
    Array<int32_t> ends(SMLA_I32, {4}), indices(SMLA_I32, {4, kTopk});
    smla_select_args args{};
    args.scores = scores.tensor();
    args.ends = ends.tensor();
    args.indices = indices.tensor();
    context.prepare<SMLA_STAGE_SELECT>(args);
    const gpu::Workspace workspace(context, context.workspace_size<SMLA_STAGE_SELECT>(args));
    ends.set({0, 0, 0, 0});
    const gpu::Graph graph([&](cudaStream_t stream) { context.select(args, workspace.get(), stream); });
    const smla::Context host;
    std::mt19937 random(7);
    for (int round = 0; round < 5; ++round) {
        std::vector<float> values(scores.count());
        for (float& v : values) v = float(random() % 4096) * 0.25f;  // with many ties
        std::vector<int32_t> lengths(4), want(indices.count());
        for (int32_t& length : lengths) length = int32_t(random() % (kColumns + 1));
        scores.set(values);
        ends.set(lengths);
        indices.poison();
        graph.replay();
        smla_select_args same{};
        same.scores = smla::tensor(values, {4, kColumns});
        same.ends = smla::tensor(lengths);
        same.indices = smla::tensor(want, {4, kTopk});
        host.select(same);
        EXPECT_TRUE(indices.get() == want) << "round " << round;
    }
    expect_counters_zero(workspace);
}

TEST(Gpu, T35_TwoStreamsAtOnce) {
    SMLA_NEEDS_GPU();
    const smla::Context context = gpu::context();
    Attention first(128), second(8);
    first.batch(8, 0, 0);
    second.batch(8, 0, 0);
    cudaStream_t streams[2];
    for (cudaStream_t& stream : streams) gpu::must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const gpu::Workspace one(context, context.workspace_size<SMLA_STAGE_ATTEND>(first.args)),
        two(context, context.workspace_size<SMLA_STAGE_ATTEND>(second.args));
    context.attend(first.args, one.get());
    gpu::must(cudaDeviceSynchronize());
    const std::vector<uint16_t> alone = first.take();
    context.attend(second.args, two.get());
    gpu::must(cudaDeviceSynchronize());
    const std::vector<uint16_t> small_alone = second.take();
    for (int round = 0; round < 50; ++round) {
        context.attend(first.args, one.get(), streams[0]);
        context.attend(second.args, two.get(), streams[1]);
    }
    gpu::must(cudaDeviceSynchronize());
    EXPECT_TRUE(first.take() == alone);
    EXPECT_TRUE(second.take() == small_alone);
    for (const cudaStream_t stream : streams) cudaStreamDestroy(stream);
}

TEST(Gpu, T35_TwoGpusAtOnceAndNeitherNeedsToBeTheCurrentOne) {
    SMLA_NEEDS_GPU();
    int count = 0;
    gpu::must(cudaGetDeviceCount(&count));
    if (count < 2) GTEST_SKIP() << "one GPU here, two wanted";
    struct Side {
        explicit Side(int device)
            : device(device),
              current(device),
              context(gpu::context(device)),
              it(128),
              workspace(context, context.workspace_size<SMLA_STAGE_ATTEND>(it.args)) {
            it.batch(8, 0, 0);  // the same on both
            gpu::must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        }
        std::vector<uint16_t> take() {
            const gpu::Current mine(device);
            return it.take();
        }
        int device;
        gpu::Current current;
        smla::Context context;
        Attention it;
        gpu::Workspace workspace;
        cudaStream_t stream = nullptr;
    };
    Side first(0), second(1);
    for (const int now : {0, 1}) {
        const gpu::Current current(now);
        for (int round = 0; round < 20; ++round)
            for (Side* side : {&first, &second})
                side->context.attend(side->it.args, side->workspace.get(), side->stream);
        int after = -1;
        gpu::must(cudaGetDevice(&after));
        EXPECT_EQ(after, now);
        for (Side* side : {&first, &second}) gpu::must(cudaStreamSynchronize(side->stream));
        const std::vector<uint16_t> want = first.take();
        EXPECT_TRUE(want == second.take());
        EXPECT_TRUE(std::any_of(want.begin(), want.end(), [](uint16_t x) { return x != 0 && x != 0xffff; }));
    }
    try {
        second.context.attend(first.it.args, second.workspace.get(), second.stream);
        FAIL() << "memory of another GPU was taken";
    } catch (const smla::Error& error) {
        EXPECT_NE(std::string(error.what()).find("device"), std::string::npos) << error.what();
    }
}

TEST(Gpu, AnErrorThatTheCallerLeftBehindIsNotOurs) {
    SMLA_NEEDS_GPU();
    const smla::Context context = gpu::context();
    Attention it;
    it.batch(8, 0, 0);
    const gpu::Workspace workspace(context, context.workspace_size<SMLA_STAGE_ATTEND>(it.args));
    ASSERT_NE(cudaSetDevice(9999), cudaSuccess);
    ASSERT_NE(cudaPeekAtLastError(), cudaSuccess);
    context.attend(it.args, workspace.get());
    gpu::must(cudaDeviceSynchronize());
}

TEST(Gpu, HostMemoryIsRefused) {
    SMLA_NEEDS_GPU();
    const smla::Context context = gpu::context();
    Attention it;
    const gpu::Workspace workspace(context, context.workspace_size<SMLA_STAGE_ATTEND>(it.args));
    it.args.q.device_type = SMLA_CPU;
    try {
        context.attend(it.args, workspace.get());
        ADD_FAILURE() << "accepted";
    } catch (const smla::Error& error) {
        EXPECT_EQ(error.code, SMLA_INVALID_ARGUMENT);
        EXPECT_EQ(error.field, "args.q.device");
    }
    it.args.q.device_type = SMLA_CUDA;
    context.attend(it.args);  // the header's own workspace lies where the context runs
    gpu::must(cudaDeviceSynchronize());
}

TEST(Gpu, AWorkspaceThatKernelsDoNotReachIsRefused) {
    SMLA_NEEDS_GPU();
    const smla::Context context = gpu::context();
    int pageable = 0;  // on such machines they reach all memory of the host
    gpu::must(cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, 0));
    alignas(64) static char host[8192];
    const smla_status status = smla_workspace_init(context.get(), {host, sizeof host}, nullptr);
    smla_error error{};
    smla_last_error_info(&error);
    EXPECT_EQ(status, pageable ? SMLA_OK : SMLA_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(error.field ? error.field : ""), pageable ? "" : "workspace.data");
    void* pinned = nullptr;
    gpu::must(cudaMallocHost(&pinned, 8192));
    EXPECT_EQ(smla_workspace_init(context.get(), {pinned, 8192}, nullptr), SMLA_OK);
    gpu::must(cudaDeviceSynchronize());
    gpu::must(cudaFreeHost(pinned));
}

TEST(Gpu, T44_AGpuWithoutCodeIsRefusedByName) {
    SMLA_NEEDS_GPU();
    setenv("SMLA_PRETEND_CAPABILITY", "75", 1);
    try {
        gpu::context();
        ADD_FAILURE() << "accepted";
    } catch (const smla::Error& error) {
        EXPECT_EQ(error.code, SMLA_UNSUPPORTED);
        EXPECT_NE(std::string(error.what()).find("sm_75"), std::string::npos) << error.what();
    }
    unsetenv("SMLA_PRETEND_CAPABILITY");
}

}  // namespace
