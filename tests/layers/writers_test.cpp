// A session writes its records by the rules that its kv_writer names.
#include "core/numbers.h"
#include "fixture.h"

#include <smla/smla.h>

namespace smla::layers_test {
namespace {

// `values` as the window cache of `format` gives them back.
std::vector<double> stored(smla_format format, std::vector<float> values, bool bf16_first) {
    if (bf16_first)
        for (float& value : values) value = round_to_bf16(value);
    std::vector<uint64_t> memory(1024);
    smla_cache cache{};
    cache.data = memory.data();
    cache.format = format;
    cache.page_tokens = cache.pages = 1;
    const CacheView view(cache);
    view.format->encode_f32(view.at(0), values.data());
    std::vector<double> out(values.size());
    view.decode(0, out.data());
    return out;
}

struct Seen {
    std::vector<float> written;  // [T,512]: window rows as they go to the cache
    std::vector<double> read;    // the same, as the last token finds them there
    smla_writer writer = 0;
};

Seen seen(smla_format format, smla_writer writer) {
    constexpr int64_t kTokens = 24, kWidth = 512;
    const golden::Golden golden = load("V41_full");
    Context context = make_context();
    LayerPrecision precision;
    precision.weight_prefix = golden::kWeightPrefix;
    const auto layer = open_layer(golden.weights, golden.layers[1].config, 1, precision, context.device());
    SessionOptions options;
    options.caches.kv = format;
    options.caches.kv_writer = writer;
    options.max_tokens = options.max_step_tokens = kTokens;
    Session session(context, *layer, options);
    Seen out;
    Tap tap;
    tap.tensor = [&](const char* name, const Tensor& tensor) {
        if (std::string(name) != "kv_window") return;
        out.written.resize(size_t(kTokens * kWidth));
        for (int64_t t = 0; t < kTokens; ++t)
            load_row(tensor, address(tensor, t, 0), kWidth, out.written.data() + t * kWidth);
    };
    tap.attend = [&](const smla_attend_args& args) {
        const bool window = args.primary.rows.shape[1] == 128;
        const smla_attend_source& source = window ? args.primary : args.extra;
        ASSERT_EQ(source.rows.shape[1], 128);
        EXPECT_EQ((window ? args.extra : args.primary).cache.writer, writer);
        const CacheView view(source.cache);
        out.read.resize(size_t(kTokens * kWidth));
        for (int64_t t = 0; t < kTokens; ++t)
            view.decode(load_int(source.rows, kTokens - 1, t), out.read.data() + t * kWidth);
        out.writer = source.cache.writer;
    };
    const Feed feed(golden, 1);
    const StepRequest request{0, int32_t(kTokens)};
    std::vector<float> hidden(feed.hidden.begin(), feed.hidden.begin() + kTokens * feed.width),
        y(hidden.size());
    Session::Step step;
    step.requests = {&request, 1};
    step.hidden = make_tensor(hidden.data(), SMLA_F32, {kTokens, feed.width});
    step.out = make_tensor(y.data(), SMLA_F32, {kTokens, feed.width});
    step.tap = &tap;
    session.forward(step);
    return out;
}

TEST(SessionWriters, RowsAreRoundedAsTheWriterDoes) {
    for (const smla_format format :
         {SMLA_FP8_528_G32, SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT}) {
        SCOPED_TRACE(find_format(format)->name);
        for (const smla_writer writer :
             {0, int(SMLA_WRITER_BF16_FIRST), int(SMLA_WRITER_FP4_VALUES | SMLA_WRITER_BF16_FIRST)}) {
            if (writer & ~find_format(format)->writers) continue;
            const Seen found = seen(format, writer);
            ASSERT_FALSE(found.read.empty());
            EXPECT_EQ(found.writer, writer & SMLA_WRITER_BF16_FIRST);  // values of a window are not fp4
            int64_t differ = 0;
            for (size_t t = 0; t * 512 < found.read.size(); ++t) {
                const std::vector<float> row(found.written.begin() + int64_t(t) * 512,
                                             found.written.begin() + int64_t(t + 1) * 512);
                const std::vector<double> read(found.read.begin() + int64_t(t) * 512,
                                               found.read.begin() + int64_t(t + 1) * 512);
                EXPECT_EQ(read, stored(format, row, writer != 0)) << t;
                differ += stored(format, row, true) != stored(format, row, false);
            }
            EXPECT_GT(differ, 0);  // the rules can be told apart
        }
    }
}

TEST(SessionWriters, BitsThatTheFormatLacksAreRefused) {
    const auto refused = [](smla_format format, smla_writer writer) {
        try {
            seen(format, writer);
        } catch (const Error& error) {
            return error.field + ": " + error.wanted;
        }
        return std::string();
    };
    EXPECT_EQ(refused(SMLA_FP8_584, SMLA_WRITER_BF16_FIRST),
              "kv_writer: 0, because fp8_584 has no writer variants");
    EXPECT_EQ(refused(SMLA_NVFP4_288, SMLA_WRITER_SCALE_FLOOR),
              "kv_writer: 0 or SMLA_WRITER_BF16_FIRST (2) or SMLA_WRITER_BF16_POOLED (8) for nvfp4_288");
    EXPECT_EQ(refused(SMLA_FP8_528_G32, SMLA_WRITER_SCALE_FLOOR | SMLA_WRITER_BF16_FIRST), "");
}

}  // namespace
}  // namespace smla::layers_test
