// The kernel behind check_indices on lists of many blocks: the first wrong value of all, whichever block
// finds it, once and again.
#include "cuda/index_lists.h"
#include "engines/context.h"
#include "engines/error_word.h"
#include "gpu/needs_gpu.h"

#include <gtest/gtest.h>

namespace smla {
namespace {

TEST(GpuCheckIndices, TheFirstOfManyBlocks) {
    SMLA_NEEDS_GPU();
    smla_context_args context_args{};
    context_args.struct_size = sizeof context_args;
    context_args.engine = SMLA_ENGINE_CUDA;
    context_args.check_indices = 1;
    const Context context(context_args);
    Device& device = context.device();
    std::mt19937 random(52);
    const Workspace workspace = {device.allocate(kWorkspaceHeader), kWorkspaceHeader};
    context.init_workspace(workspace, nullptr);
    const Env env = context.env(workspace);
    int found = 0;
    for (int round = 0; round < 200; ++round) {
        SCOPED_TRACE(round);
        const IndexLists lists(random, round % 4);
        const DeviceBuffer copy(device, lists.bytes());
        device.upload(copy.data(), lists.data(), lists.bytes(), nullptr);
        const smla_attend_args args = lists.at(copy.data());
        const FoundValue wanted = find_bad_value(index_scan(lists.args));
        note_bad_value(index_scan(args), Stage::attend, env);
        note_bad_value(index_scan(args), Stage::map, env);  // an error that nobody has read stays
        const smla_error_word word = take_error(device, workspace, nullptr);
        ASSERT_EQ(word.kind, wanted ? wanted->kind : SMLA_BAD_NONE);
        if (!wanted) continue;
        ++found;
        EXPECT_EQ(word.stage, smla_stage(Stage::attend));
        EXPECT_EQ(word.token, wanted->token);
        EXPECT_EQ(word.column, wanted->column);
        EXPECT_EQ(word.value, wanted->value);
    }
    EXPECT_GT(found, 80);
    std::vector<char> header(kErrorWordBytes, 1);
    device.download(header.data(), static_cast<char*>(workspace.data) + kErrorWordAt, header.size(), nullptr);
    device.wait(nullptr);
    EXPECT_EQ(header, std::vector<char>(kErrorWordBytes)) << "nothing stays behind";
    device.release(workspace.data);
}

}  // namespace
}  // namespace smla
