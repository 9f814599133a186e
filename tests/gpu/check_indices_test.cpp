// check_indices on lists of many blocks: the first wrong value of all, whichever block finds it, once and
// again. By the kernel of its own and by those that check what they read.
#include "cuda/index_lists.h"
#include "engines/context.h"
#include "engines/error_word.h"
#include "engines/run.h"
#include "gpu/needs_gpu.h"

#include <gtest/gtest.h>

namespace smla {
namespace {

smla_context_args checking() {
    smla_context_args args{};
    args.struct_size = sizeof args;
    args.engine = SMLA_ENGINE_CUDA;
    args.check_indices = 1;
    return args;
}

TEST(GpuCheckIndices, TheFirstOfManyBlocks) {
    SMLA_NEEDS_GPU();
    const Context context(checking());
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

// Integers on the host, and the same on a GPU, given back when the test ends.
class Ints {
public:
    Ints(Device& device, std::vector<int32_t> values) : values_(std::move(values)), copy_(device, bytes()) {
        device.upload(copy_.data(), values_.data(), bytes(), nullptr);
    }
    Tensor host(std::initializer_list<int64_t> shape) { return make_tensor(values_.data(), SMLA_I32, shape); }
    Tensor device(std::initializer_list<int64_t> shape) {
        Tensor out = make_tensor(copy_.data(), SMLA_I32, shape);
        out.device_type = SMLA_CUDA;
        return out;
    }

private:
    size_t bytes() const { return values_.size() * sizeof(int32_t); }

    std::vector<int32_t> values_;
    DeviceBuffer copy_;
};

// Tokens of map, each in a block of its own, of which up to three hold a wrong position, block or request. In
// place the rows take the memory of the positions.
void check_map(const Context& context, std::mt19937& random, bool in_place, int32_t pool) {
    const int64_t tokens = 200, columns = 700, requests = 7, width = 30, rows = columns * pool;
    std::vector<int32_t> positions(size_t(tokens * columns)), of(tokens), table(size_t(requests * width));
    const auto below = [&](int64_t end) { return int32_t(random() % uint64_t(end)); };
    for (int32_t& position : positions) position = below(width * 64 / pool + 1) - 1;
    for (int32_t& request : of) request = below(requests);
    for (int32_t& block : table) block = below(1000);
    for (uint64_t bad = random() % 3; bad > 0; --bad) switch (random() % 3) {
            case 0: positions[random() % positions.size()] = random() % 2 ? -2 : int32_t(width * 64); break;
            case 1: of[random() % of.size()] = int32_t(requests); break;
            default: table[random() % table.size()] = -7;
        }
    Device& device = context.device();
    Ints on_positions(device, positions), on_requests(device, of), on_table(device, table),
        on_rows(device, std::vector<int32_t>(size_t(tokens * rows)));
    smla_map_args args{};
    args.page_tokens = 64, args.pool_tokens = pool;
    args.positions = on_positions.host({tokens, columns});
    args.request_of_token = on_requests.host({tokens});
    args.block_table = on_table.host({requests, width});
    const FoundValue wanted = find_bad_value(index_scan(args));
    args.positions = on_positions.device({tokens, columns});
    args.request_of_token = on_requests.device({tokens});
    args.block_table = on_table.device({requests, width});
    args.rows = in_place ? args.positions : on_rows.device({tokens, rows});

    const DeviceBuffer memory(device, kWorkspaceHeader);
    const Workspace workspace = {memory.data(), kWorkspaceHeader};
    context.init_workspace(workspace, nullptr);
    run_stage<Stage::map>(args, context.env(workspace));
    const smla_error_word word = take_error(device, workspace, nullptr);
    ASSERT_EQ(word.kind, wanted ? wanted->kind : SMLA_BAD_NONE);
    if (!wanted) return;
    EXPECT_EQ(word.stage, smla_stage(Stage::map));
    EXPECT_EQ(word.token, wanted->token);
    EXPECT_EQ(word.column, wanted->column);
    EXPECT_EQ(word.value, wanted->value);
}

TEST(GpuCheckIndices, BlocksOfMapCheckTheirTokens) {
    SMLA_NEEDS_GPU();
    const Context context(checking());
    std::mt19937 random(53);
    for (int round = 0; round < 60; ++round) {
        SCOPED_TRACE(round);
        const int32_t pool = round % 4 == 3 ? 3 : 1;
        check_map(context, random, pool == 1 && round % 2 == 1, pool);
    }
}

}  // namespace
}  // namespace smla
