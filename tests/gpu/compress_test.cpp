// compress of windows that a cluster of blocks pools where few tokens close a group, and one block where many
// do: the same bits, whatever the number of tokens, with holes, infinite scores and lists that are checked.
#include "gpu/gpu.h"

#include <cmath>
#include <cstring>
#include <random>

namespace {

using gpu::Array;

constexpr int32_t kRatio = 128, kPageTokens = 32, kPagesOfRequest = kRatio / kPageTokens;
constexpr int64_t kRequests = 96;  // more than any GPU has clusters for

// A request for each token, which closes the first group of its window.
class LongWindows {
public:
    explicit LongWindows(int32_t width)
        : width_(width),
          state_(SMLA_F32, {kRequests * kRatio, 2 * width}),
          table_(SMLA_I32, {kRequests, kPagesOfRequest}),
          requests_(SMLA_I32, {kRequests}),
          positions_(SMLA_I32, {kRequests}),
          slots_(SMLA_I32, {kRequests}),
          weight_(SMLA_F32, {width}),
          frequencies_(SMLA_F64, {std::min(width / 2, 32)}),
          rows_(SMLA_F32, {kRequests, width}) {
        std::mt19937 random(unsigned(width) + 1);
        const auto drawn = [&](auto& array, auto value) {
            auto values = array.get();
            for (size_t i = 0; i < values.size(); ++i) values[i] = value(i);
            array.set(values);
        };
        const size_t of_row = size_t(2 * width);
        drawn(state_, [&](size_t i) {
            const bool is_score = i % of_row >= size_t(width);
            if (is_score && random() % 50 == 0) return -INFINITY;
            return float(random() % 4001) / 500 - 4;
        });
        drawn(table_, [&](size_t i) { return random() % 40 == 0 ? -1 : int32_t(i); });
        drawn(requests_, [](size_t i) { return int32_t(i); });
        drawn(positions_, [](size_t) { return kRatio - 1; });
        drawn(slots_, [](size_t i) { return int32_t(i); });
        drawn(weight_, [&](size_t) { return float(random() % 100) / 50; });
        drawn(frequencies_, [](size_t i) { return std::pow(10000., -double(i) / 32); });
    }

    // The entries of `count` requests from `first` on.
    std::vector<float> entries(const smla::Context& context, int64_t first, int64_t count) {
        smla_compress_args args{};
        args.ratio = kRatio;
        args.eps = 1e-6;
        args.state = cache(state_, SMLA_STATE_F32, 2 * width_, kPageTokens, kRequests * kPagesOfRequest);
        args.state_table = table_.tensor();
        args.request_of_token = part(requests_, first, count);
        args.positions = part(positions_, first, count);
        args.slots = part(slots_, first, count);
        args.norm_weight = weight_.tensor();
        args.frequencies = frequencies_.tensor();
        args.cache = cache(rows_, SMLA_ROW_F32, width_, 1, kRequests);
        rows_.poison();
        const gpu::Workspace workspace(context, context.workspace_size<SMLA_STAGE_COMPRESS>(args));
        context.compress(args, workspace.get());
        gpu::must(cudaDeviceSynchronize());
        const std::vector<float> all = rows_.get();
        const auto at = [&](int64_t request) { return all.begin() + request * width_; };
        for (auto it = all.begin(); it != all.end(); ++it)
            EXPECT_EQ(std::isnan(*it), it < at(first) || it >= at(first + count))
                << "channel " << it - all.begin() << " of all rows";
        return {at(first), at(first + count)};
    }

private:
    static smla_cache cache(const Array<float>& memory, smla_format format, int32_t width,
                            int32_t page_tokens, int64_t pages) {
        smla_cache out{};
        out.data = memory.tensor().data;
        out.device_type = SMLA_CUDA;
        out.device_index = memory.tensor().device_index;
        out.format = format;
        out.width = width;
        out.page_tokens = page_tokens;
        out.pages = pages;
        return out;
    }
    static smla_tensor part(const Array<int32_t>& array, int64_t first, int64_t count) {
        smla_tensor out = array.tensor();
        out.data = static_cast<int32_t*>(out.data) + first;
        out.shape[0] = count;
        return out;
    }

    int32_t width_;
    Array<float> state_;
    Array<int32_t> table_, requests_, positions_, slots_;
    Array<float> weight_;
    Array<double> frequencies_;
    Array<float> rows_;
};

void expect_the_bits_of_one_call(const smla::Context& context, int32_t width) {
    LongWindows windows(width);
    const std::vector<float> want = windows.entries(context, 0, kRequests);
    for (const int64_t count : {1, 3, 16, 17}) {
        std::vector<float> got;
        for (int64_t first = 0; first < kRequests; first += count) {
            const std::vector<float> some =
                windows.entries(context, first, std::min(count, kRequests - first));
            got.insert(got.end(), some.begin(), some.end());
        }
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < got.size(); ++i)
            ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(float)), 0)
                << "width " << width << ", " << count << " tokens a call, token " << i / size_t(width)
                << ", channel " << i % size_t(width) << ": " << got[i] << " and " << want[i];
    }
}

TEST(GpuCompress, BitsDoNotDependOnHowManyTokensACallHas) {
    SMLA_NEEDS_GPU();
    const smla::Context context = gpu::context();
    // 4 and 60: no cluster, as a block would have less than a thread
    for (const int32_t width : {512, 128, 32, 1024, 60, 4}) expect_the_bits_of_one_call(context, width);
}

TEST(GpuCompress, ListsAreCheckedBesideAClustersBlocks) {
    SMLA_NEEDS_GPU();
    smla_context_args args{};
    args.engine = SMLA_ENGINE_CUDA;
    args.check_indices = 1;
    const smla::Context checked(args);
    expect_the_bits_of_one_call(checked, 512);
}

}  // namespace
