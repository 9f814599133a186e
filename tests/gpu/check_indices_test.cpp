// check_indices on lists of many blocks: the first wrong value of all, whichever block finds it, once and
// again. By the kernel of its own and by those that check what they read.
#include "cuda/index_lists.h"
#include "engines/context.h"
#include "engines/error_word.h"
#include "engines/run.h"
#include "gpu/needs_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>

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

// Runs a call on the GPU: its error word tells what is wanted.
template <Stage S>
void expect_noted(const Context& context, const ArgsOf<S>& args, const FoundValue& wanted) {
    Device& device = context.device();
    const size_t bytes = stage_workspace<S>(args, context.env({}), 0);
    const DeviceBuffer memory(device, bytes);
    const Workspace workspace = {memory.data(), bytes};
    context.init_workspace(workspace, nullptr);
    run_stage<S>(args, context.env(workspace));
    const smla_error_word word = take_error(device, workspace, nullptr);
    ASSERT_EQ(word.kind, wanted ? wanted->kind : SMLA_BAD_NONE);
    if (!wanted) return;
    EXPECT_EQ(word.stage, smla_stage(S));
    EXPECT_EQ(word.token, wanted->token);
    EXPECT_EQ(word.column, wanted->column);
    EXPECT_EQ(word.value, wanted->value);
}

constexpr int64_t kTokens = 200, kColumns = 700, kRequests = 7, kWidth = 30, kReach = kWidth * 64;

// The integers of a call of map, of which up to two are wrong: a position, a block, a request, or a number of
// tokens that a token sees.
struct MapInts {
    std::vector<int32_t> positions, requests, table, visible;

    MapInts(std::mt19937& random, int32_t pool)
        : positions(kTokens * kColumns), requests(kTokens), table(kRequests * kWidth), visible(kTokens) {
        const auto below = [&](int64_t end) { return int32_t(random() % uint64_t(end)); };
        for (int32_t& position : positions) position = below(kReach / pool + 1) - 1;
        for (int32_t& request : requests) request = below(kRequests);
        for (int32_t& block : table) block = below(1000);
        for (int32_t& seen : visible) seen = below(kReach + 1);
        for (int64_t t = 0; t < kTokens; t += 2) {  // some lists end early
            const auto list = positions.begin() + t * kColumns;
            std::fill(list + below(kColumns), list + kColumns, -1);
        }
        for (int bad = below(3); bad > 0; --bad) spoil(below);
    }

private:
    template <class Below>
    void spoil(const Below& below) {
        const bool high = below(2) == 1;
        const auto put = [&](std::vector<int32_t>& into, int32_t value) {
            into[size_t(below(std::ssize(into)))] = value;
        };
        switch (below(5)) {
            case 0: return put(positions, high ? int32_t(kReach) : -2);
            case 1: return put(requests, high ? int32_t(kRequests) : -1);
            case 2: return put(visible, high ? int32_t(kReach + 1) : -1);
            case 3: return put(table, -7);
            default:
                positions[size_t(below(kTokens / 2) * 2 * kColumns + kColumns - 1)] = -2;  // behind the end
        }
    }
};

// Each token is in a block of its own. In place the rows take the memory of the positions.
void check_map(const Context& context, std::mt19937& random, bool in_place, int32_t pool) {
    const int64_t rows = kColumns * pool + pool - 1;
    const MapInts ints(random, pool);
    Device& device = context.device();
    Ints positions(device, ints.positions), requests(device, ints.requests), table(device, ints.table),
        visible(device, ints.visible), out(device, std::vector<int32_t>(size_t(kTokens * rows)));
    const auto args_of = [&](auto tensor) {
        smla_map_args args{};
        args.page_tokens = 64, args.pool_tokens = pool;
        args.positions = (positions.*tensor)({kTokens, kColumns});
        args.request_of_token = (requests.*tensor)({kTokens});
        args.block_table = (table.*tensor)({kRequests, kWidth});
        if (pool > 1) args.visible_tokens = (visible.*tensor)({kTokens});
        args.rows = in_place ? args.positions : (out.*tensor)({kTokens, rows});
        return args;
    };
    const FoundValue wanted = find_bad_value(index_scan(args_of(&Ints::host)));

    expect_noted<Stage::map>(context, args_of(&Ints::device), wanted);
}

TEST(GpuCheckIndices, BlocksOfMapCheckTheirTokens) {
    SMLA_NEEDS_GPU();
    const Context context(checking());
    std::mt19937 random(53);
    for (int round = 0; round < 120; ++round) {
        SCOPED_TRACE(round);
        check_map(context, random, round % 4 == 1, round % 2 ? 1 : 3);
    }
}

// Rows of one block and of several scan in their own launch, many rows and those of 16 bits before it.
TEST(GpuCheckIndices, SelectOfFewAndOfManyRows) {
    SMLA_NEEDS_GPU();
    const Context context(checking());
    Device& device = context.device();
    std::mt19937 random(54);
    for (const int64_t tokens : {int64_t(1), int64_t(20), int64_t(200), int64_t(300)})
        for (const int64_t columns : {int64_t(3000), int64_t(20000)})
            for (const smla_dtype dtype : {smla_dtype(SMLA_F32), smla_dtype(SMLA_BF16)})
                for (const bool bad : {false, true}) {
                    SCOPED_TRACE(testing::Message() << tokens << " x " << columns << ", " << dtype << bad);
                    std::vector<int32_t> limits;
                    limits.assign(size_t(tokens), int32_t(columns));
                    if (bad) limits[random() % limits.size()] = random() % 2 ? -1 : int32_t(columns + 1);
                    Ints ends(device, limits), out(device, std::vector<int32_t>(size_t(tokens * 64)));
                    Ints scores(device, std::vector<int32_t>(size_t(tokens * columns)));  // zeros
                    smla_select_args args{};
                    args.scores = scores.device({tokens, columns});
                    args.scores.dtype = dtype;
                    args.indices = out.device({tokens, 64});
                    args.ends = ends.host({tokens});
                    const FoundValue wanted = find_bad_value(index_scan(args));
                    ASSERT_EQ(wanted.has_value(), bad);
                    args.ends = ends.device({tokens});
                    expect_noted<Stage::select>(context, args, wanted);
                }
}

}  // namespace
}  // namespace smla
