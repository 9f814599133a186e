// Mixed rows, decode schedules and prefill chunks.
#include "support.h"

#include "backends/maps/rows.h"
#include "plan/split.h"

#include <algorithm>
#include <numeric>

namespace smla::test {
namespace {

// A mixed batch with its own memory.
struct Mixed {
    int32_t window, ratio, topk, local, decode_columns, window_page, entry_page, page_rows;
    std::vector<int32_t> starts{0}, lengths;
    int32_t decodes;  // requests
    Ints window_table = Ints(0, 0), entry_table = window_table, decode_window = window_table,
         decode_entries = window_table, prefill_entries = window_table, requests = window_table,
         decode_lens = window_table;
    std::vector<uint8_t> valid;

    explicit Mixed(Random& random) {
        window = random.in(1, 9);
        ratio = std::vector<int32_t>{0, 1, 2, 4, 128}[size_t(random.in(0, 4))];
        local = ratio && ratio != 128;
        topk = ratio ? random.in(0, 7) : 0;
        decode_columns = ratio ? random.in(0, 7) : 0;
        window_page = random.in(1, 5);
        entry_page = random.in(1, 5);
        page_rows = random.in(0, 1) ? 0 : 7;
        decodes = random.in(0, 3);
        for (int32_t r = decodes + random.in(0, 3); r > 0; --r) {
            const int32_t query = random.in(1, 4);
            starts.push_back(starts.back() + query);
            lengths.push_back(query + random.in(0, 40));
        }
        const int64_t n = int64_t(lengths.size());
        window_table = Ints(n, 50);
        entry_table = Ints(n, 50);
        for (int64_t r = 0; r < n; ++r)
            for (int64_t c = 0; c < 50; ++c) {
                window_table.at(r, c) = random.in(-1, 90);
                entry_table.at(r, c) = random.in(-1, 90);
            }
        decodes = std::min<int32_t>(decodes, int32_t(n));
        decode_window = Ints(decode_tokens(), window);
        decode_entries = Ints(decode_tokens(), decode_columns);
        decode_lens = Ints(decode_tokens(), 1);
        prefill_entries = Ints(starts.back() - decode_tokens(), topk + 2);
        requests = Ints(starts.back(), 1);
        const auto fill = [&](Ints& matrix, int32_t low, int32_t high) {
            for (int64_t i = 0; i < matrix.rows(); ++i)
                for (int64_t j = 0; j < matrix.columns(); ++j) matrix.at(i, j) = random.in(low, high);
        };
        fill(decode_window, -1, 99);
        fill(decode_entries, -1, 60);
        fill(decode_lens, 0, decode_columns);
        fill(prefill_entries, -1, 60);
        for (size_t r = 0; r < lengths.size(); ++r)
            for (int32_t t = starts[r]; t < starts[r + 1]; ++t) requests.at(t) = int32_t(r);
        for (int64_t t = 0; t < decode_tokens(); ++t) valid.push_back(uint8_t(random.in(0, 2) > 0));
    }
    int32_t decode_tokens() const { return starts[size_t(decodes)]; }

    smla_mixed_rows_args args(const Ints& starts_view, const Ints& lengths_view, Ints& rows,
                              Ints& lens) const {
        smla_mixed_rows_args out{};
        out.struct_size = sizeof out;
        out.window = window;
        out.ratio = ratio;
        out.topk = topk;
        out.local = local;
        out.window_page_tokens = window_page;
        out.window_page_rows = page_rows;
        out.entry_page_tokens = entry_page;
        out.entry_page_rows = page_rows;
        out.decode_window_rows = decode_window.matrix();
        if (ratio) out.decode_entries = decode_entries.matrix();
        if (ratio && !local) out.decode_lens = decode_lens.list();
        if (local) out.is_valid = make_tensor(valid.data(), SMLA_U8, {int64_t(valid.size())});
        out.prefill_entries = prefill_entries.matrix();
        out.query_start_loc = starts_view.list();
        out.seq_lens = lengths_view.list();
        out.request_of_token = requests.list();
        out.window_table = window_table.matrix();
        if (ratio) out.entry_table = entry_table.matrix();
        out.rows = rows.matrix();
        out.lens = lens.list();
        return out;
    }
    int32_t width() const { return window + (std::max(topk, decode_columns) + 3) / 4 * 4; }
};

TEST(MixedRows, AgainstPlainLoops) {
    Random random(8);
    for (int round = 0; round < 500; ++round) {
        Mixed mixed(random);
        const Ints starts(mixed.starts), lengths(mixed.lengths);
        Ints rows(mixed.starts.back(), mixed.width()), lens(mixed.starts.back(), 1);
        const smla_mixed_rows_args args = mixed.args(starts, lengths, rows, lens);
        ASSERT_EQ(smla_mixed_rows(&args), SMLA_OK) << smla_last_error();
        ASSERT_TRUE(rows.canaries() && lens.canaries());
        const auto entry = [&](int64_t t, int32_t local) {
            return plain_row(mixed.entry_table, mixed.requests.at(t), local, mixed.entry_page,
                             mixed.page_rows ? mixed.page_rows : mixed.entry_page);
        };
        for (int32_t t = 0; t < mixed.decode_tokens(); ++t) {
            std::vector<int32_t> want = mixed.decode_window.row(t), listed;
            for (int32_t c = 0; c < mixed.decode_columns; ++c) {
                const int32_t given = mixed.decode_entries.at(t, c);
                const int32_t row = mixed.local ? entry(t, given) : given;
                if (!mixed.local || row >= 0) listed.push_back(row);
            }
            int32_t length = mixed.window + int32_t(listed.size());
            if (mixed.local && !mixed.valid[size_t(t)]) length = mixed.window;
            if (mixed.ratio && !mixed.local) length = mixed.window + mixed.decode_lens.at(t);
            want.insert(want.end(), listed.begin(), listed.end());
            want.resize(size_t(mixed.width()), -1);
            ASSERT_EQ(rows.row(t), want);
            ASSERT_EQ(lens.at(t), length);
        }
        for (int32_t t = mixed.decode_tokens(); t < mixed.starts.back(); ++t) {
            const size_t r = size_t(mixed.requests.at(t));
            const int32_t position = mixed.lengths[r] - (mixed.starts[r + 1] - t);
            std::vector<int32_t> want;
            for (int32_t p = std::max(0, position - mixed.window + 1); p <= position; ++p)
                want.push_back(plain_row(mixed.window_table, int64_t(r), p, mixed.window_page,
                                         mixed.page_rows ? mixed.page_rows : mixed.window_page));
            want.resize(size_t(mixed.window), -1);
            const int32_t visible = mixed.ratio ? std::min((position + 1) / mixed.ratio, mixed.topk) : 0;
            for (int32_t c = 0; c < visible; ++c)
                want.push_back(entry(t, mixed.prefill_entries.at(t - mixed.decode_tokens(), c)));
            want.resize(size_t(mixed.width()), -1);
            ASSERT_EQ(rows.row(t), want);
            ASSERT_EQ(lens.at(t), mixed.window + visible);
        }
    }
}

// Position 4 of ratio 4 with topk 512: the length counts the whole window, 128 + 1, though 123 of it are
// holes.
TEST(MixedRows, WorkedNumbers) {
    const Ints starts({0, 1}), lengths({5}), request({0}), window_table(1, 1, 6), entry_table(1, 1, 9),
        no_window(0, 128);
    Ints selected(1, 512, -1), rows(1, 640), lens(1, 1);
    selected.at(0, 0) = 0;
    smla_mixed_rows_args args{};
    args.struct_size = sizeof args;
    args.window = 128;
    args.ratio = 4;
    args.topk = 512;
    args.window_page_tokens = args.entry_page_tokens = 64;
    args.decode_window_rows = no_window.matrix();
    args.prefill_entries = selected.matrix();
    args.query_start_loc = starts.list();
    args.seq_lens = lengths.list();
    args.request_of_token = request.list();
    args.window_table = window_table.matrix();
    args.entry_table = entry_table.matrix();
    args.rows = rows.matrix();
    args.lens = lens.list();
    ASSERT_EQ(smla_mixed_rows(&args), SMLA_OK) << smla_last_error();
    EXPECT_EQ(lens.at(0), 129);
    for (int64_t j = 0; j < 640; ++j)
        EXPECT_EQ(rows.at(0, j), j < 5 ? 6 * 64 + j : j == 128 ? 9 * 64 : -1) << j;
    args.rows.shape[1] = 639;
    EXPECT_EQ(refused_field(smla_mixed_rows(&args)), "args.rows.shape");
    args.rows.shape[1] = 640;
    const Ints stale({1});
    args.request_of_token = stale.list();
    EXPECT_EQ(refused_field(smla_mixed_rows(&args)), "args.request_of_token[0]");
    args.request_of_token = request.list();
    args.local = 1;
    EXPECT_EQ(refused_field(smla_mixed_rows(&args)), "args.is_valid");
}

TEST(MixedRows, ARefusalWritesNothing) {
    const Ints window(2, 3, 7), entries(2, 4, 9), prefill(1, 4, 0), starts({0, 1, 3}), lengths({5, 6}),
        table(2, 9, 0);
    const auto refused = [&](const Ints& decode_lens, const Ints& request) {
        Ints rows(3, 3 + 4), lens(3, 1);
        smla_mixed_rows_args args{};
        args.struct_size = sizeof args;
        args.window = 3;
        args.ratio = args.topk = 4;
        args.window_page_tokens = args.entry_page_tokens = 4;
        args.decode_window_rows = window.matrix();
        args.decode_entries = entries.matrix();
        args.decode_lens = decode_lens.list();
        args.prefill_entries = prefill.matrix();
        args.query_start_loc = starts.list();
        args.seq_lens = lengths.list();
        args.request_of_token = request.list();
        args.window_table = args.entry_table = table.matrix();
        args.rows = rows.matrix();
        args.lens = lens.list();
        const std::string field = refused_field(smla_mixed_rows(&args));
        EXPECT_EQ(rows.at(0, 0), field.empty() ? 7 : kGarbage) << field;
        EXPECT_EQ(lens.at(0), field.empty() ? 3 + decode_lens.at(0) : kGarbage) << field;
        return field;
    };
    EXPECT_EQ(refused(Ints({4, 0}), Ints({0, 1, 1})), "");
    EXPECT_EQ(refused(Ints({4, 5}), Ints({0, 1, 1})), "args.decode_lens[1]");
    EXPECT_EQ(refused(Ints({4, -1}), Ints({0, 1, 1})), "args.decode_lens[1]");
    EXPECT_EQ(refused(Ints({4, 0}), Ints({0, 1, 2})), "args.request_of_token[2]");
    EXPECT_EQ(refused(Ints({4, 0}), Ints({0, 1, -1})), "args.request_of_token[2]");
    EXPECT_EQ(refused(Ints({4, 0}), Ints({0, 1, 0})), "args.query_start_loc[1]");
}

// What each part does, block by block, must be every block of every request exactly once, in order.
TEST(DecodeSchedule, EveryBlockOnce) {
    Random random(4);
    for (int round = 0; round < 300; ++round) {
        const int32_t requests = random.in(1, 9), parts = random.in(1, 40);
        Ints lens(requests, 1), schedule(parts, 8), splits(requests + 1, 1);
        for (int32_t r = 0; r < requests; ++r)
            lens.at(r) = random.in(0, 1) ? random.in(1, 5000) : 64 * random.in(1, 9);
        smla_decode_schedule_args args{};
        args.struct_size = sizeof args;
        args.lens = lens.list();
        args.schedule = schedule.matrix();
        args.splits = splits.list();
        ASSERT_EQ(smla_decode_schedule(&args), SMLA_OK) << smla_last_error();
        int64_t work = 0;
        const auto blocks = [&](int32_t r) { return (lens.at(r) + 63) / 64; };
        for (int32_t r = 0; r < requests; ++r) work += blocks(r) + 5;
        const int64_t payload = (work + parts - 1) / parts + 5;
        std::vector<std::vector<int32_t>> done(static_cast<size_t>(requests));  // split of each block
        for (int32_t p = 0; p < parts; ++p) {
            if (schedule.at(p, 0) < 0) continue;
            int64_t used = 0;
            for (int32_t r = schedule.at(p, 0); r <= schedule.at(p, 2); ++r) {
                const int32_t begin = r == schedule.at(p, 0) ? schedule.at(p, 1) : 0;
                const int32_t end = r == schedule.at(p, 2) ? schedule.at(p, 3) : blocks(r);
                const int32_t split = r == schedule.at(p, 0) ? schedule.at(p, 4) : 0;
                used += end - begin + 5;
                ASSERT_EQ(int32_t(done[size_t(r)].size()), begin);
                for (int32_t b = begin; b < end; ++b) done[size_t(r)].push_back(split);
            }
            ASSERT_LE(used, payload);
        }
        int32_t all = 0;
        for (int32_t r = 0; r < requests; ++r) {
            ASSERT_EQ(int32_t(done[size_t(r)].size()), blocks(r));
            ASSERT_EQ(splits.at(r), all);
            all += done[size_t(r)].empty() ? 1 : done[size_t(r)].back() + 1;
        }
        ASSERT_EQ(splits.at(requests), all);
        ASSERT_TRUE(schedule.canaries() && splits.canaries());
    }
}

TEST(DecodeSchedule, WorkedNumbers) {
    // 2048 rows are 32 blocks; 66 parts of an H100: ceil(37 / 66) + 5 = 6, so one block each
    EXPECT_EQ(flash_mla_parts(132, 128, 1, false), 66);
    EXPECT_EQ(flash_mla_parts(132, 128, 1, true), 132);
    EXPECT_EQ(flash_mla_parts(132, 129, 1, false), 33);
    EXPECT_EQ(flash_mla_parts(132, 128, 1000, false), 1);
    const Ints lens({2048});
    Ints schedule(66, 8), splits(2, 1);
    smla_decode_schedule_args args{};
    args.struct_size = sizeof args;
    args.lens = lens.list();
    args.schedule = schedule.matrix();
    args.splits = splits.list();
    ASSERT_EQ(smla_decode_schedule(&args), SMLA_OK) << smla_last_error();
    for (int32_t p = 0; p < 66; ++p)
        EXPECT_EQ(schedule.row(p), p < 32 ? (std::vector<int32_t>{0, p, 0, p + 1, p, 0, 0, 0})
                                          : (std::vector<int32_t>{-1, 0, 0, 0, 0, 0, 0, 0}));
    EXPECT_EQ(splits.values(), (std::vector<int32_t>{0, 32}));
}

TEST(DecodeSchedule, TritonSplits) {
    EXPECT_EQ(triton_split_count(1, 16, 2048, 132), 16);
    EXPECT_EQ(triton_split_count(8, 128, 2048, 132), 1);
}

TEST(PrefillChunks, AgainstPlainLoops) {
    Random random(6);
    for (int round = 0; round < 400; ++round) {
        const int32_t ratio = random.in(0, 1) ? 0 : random.in(1, 5), first = random.in(0, 2);
        std::vector<int32_t> begins{0}, lengths;
        for (int32_t r = first + random.in(0, 6); r > 0; --r) {
            const int32_t query = random.in(0, 30);
            begins.push_back(begins.back() + query);
            lengths.push_back(query + random.in(0, 60));
        }
        const int64_t divisor = std::max(ratio, 1);
        const int64_t max_rows = random.in(0, 1) ? 0 : random.in(90, 200);
        const int64_t max_logits = random.in(0, 1) ? 0 : random.in(1, 4000);
        const int32_t max_requests = random.in(0, 3);
        const Ints starts(begins), lens(lengths);
        Ints chunks(begins.back() + int64_t(lengths.size()) + 1, 6);
        smla_prefill_chunks_args args{};
        args.struct_size = sizeof args;
        args.ratio = ratio;
        args.max_rows = max_rows;
        args.max_logits_bytes = 4 * max_logits;
        args.first_request = std::min<int32_t>(first, int32_t(lengths.size()));
        args.max_requests = max_requests;
        args.query_start_loc = starts.list();
        args.seq_lens = lens.list();
        args.chunks = chunks.matrix();
        ASSERT_EQ(smla_prefill_chunks(&args), SMLA_OK) << smla_last_error();
        ASSERT_TRUE(chunks.canaries());
        int32_t token = begins[size_t(args.first_request)], request = args.first_request;
        for (int32_t i = 0; i < args.count; ++i) {
            const std::vector<int32_t> c = chunks.row(i);
            int64_t rows = 0;
            for (int32_t r = c[0]; r < c[1]; ++r) rows += lengths[size_t(r)] / divisor;
            ASSERT_EQ(rows, c[4]);
            ASSERT_EQ(c[2], token);
            ASSERT_LT(c[2], c[3]);
            ASSERT_EQ(c[5], c[2] > begins[size_t(c[0])]);
            token = c[3];
            if (max_rows) {
                ASSERT_LE(rows, max_rows);
            }
            if (max_requests) {
                ASSERT_LE(c[1] - c[0], max_requests);
            }
            const int64_t logits = rows * (c[3] - c[2]);
            if (max_logits && logits > max_logits) {
                ASSERT_EQ(c[3] - c[2], 1);
            }
            // greedy: one more request would not have fitted
            if (c[3] == begins[size_t(c[1])] && c[1] < int32_t(lengths.size())) {
                const int64_t more = rows + lengths[size_t(c[1])] / divisor;
                const bool fits =
                    (!max_rows || more <= max_rows) &&
                    (!max_logits || more * (begins[size_t(c[1]) + 1] - begins[size_t(c[0])]) <= max_logits) &&
                    (!max_requests || c[1] + 1 - c[0] <= max_requests);
                ASSERT_FALSE(fits);
            }
            ASSERT_GE(c[0], i == 0 ? request : chunks.at(i - 1, 0));
        }
        ASSERT_EQ(token, begins.back());
    }
}

TEST(PrefillChunks, RowsOfAChunkFitInt32) {
    const Ints starts({0, 1, 2, 3, 4}), lens({2000000000, 2000000000, 100000000, 47483647});
    for (const int64_t max_rows : {int64_t(0), int64_t(1) << 40}) {
        Ints chunks(8, 6);
        smla_prefill_chunks_args args{};
        args.struct_size = sizeof args;
        args.max_rows = max_rows;
        args.query_start_loc = starts.list();
        args.seq_lens = lens.list();
        args.chunks = chunks.matrix();
        ASSERT_EQ(smla_prefill_chunks(&args), SMLA_OK) << smla_last_error();
        ASSERT_EQ(args.count, 2);
        EXPECT_EQ(chunks.row(0), (std::vector<int32_t>{0, 1, 0, 1, 2000000000, 0}));
        EXPECT_EQ(chunks.row(1), (std::vector<int32_t>{1, 4, 1, 4, 2147483647, 0}));
    }
}

// The count goes into the caller's struct, which must have it.
TEST(PrefillChunks, AStructWithoutACountIsRefused) {
    smla_prefill_chunks_args args{};
    args.count = kGarbage;
    for (const size_t size : {size_t(8), offsetof(smla_prefill_chunks_args, count),
                              offsetof(smla_prefill_chunks_args, count) + 3}) {
        args.struct_size = uint32_t(size);
        EXPECT_EQ(refused_field(smla_prefill_chunks(&args)), "args.struct_size") << size;
    }
    EXPECT_EQ(args.count, kGarbage);
}

TEST(PrefillChunks, OneLongRequestIsCut) {
    const Ints starts({0, 1, 1001}), lens({9, 100000});
    Ints chunks(1003, 6);
    smla_prefill_chunks_args args{};
    args.struct_size = sizeof args;
    args.max_logits_bytes = int64_t(4) * 100000 * 400;
    args.first_request = 1;
    args.query_start_loc = starts.list();
    args.seq_lens = lens.list();
    args.chunks = chunks.matrix();
    ASSERT_EQ(smla_prefill_chunks(&args), SMLA_OK) << smla_last_error();
    ASSERT_EQ(args.count, 3);
    EXPECT_EQ(chunks.row(0), (std::vector<int32_t>{1, 2, 1, 401, 100000, 0}));
    EXPECT_EQ(chunks.row(1), (std::vector<int32_t>{1, 2, 401, 801, 100000, 1}));
    EXPECT_EQ(chunks.row(2), (std::vector<int32_t>{1, 2, 801, 1001, 100000, 1}));
    args.chunks.shape[0] = 2;
    chunks.at(0, 0) = kGarbage;
    EXPECT_EQ(refused_field(smla_prefill_chunks(&args)), "args.chunks.shape[0]");
    EXPECT_EQ(chunks.at(0, 0), kGarbage);
    args.max_rows = 99999;
    EXPECT_EQ(refused_field(smla_prefill_chunks(&args)), "args.seq_lens[1]");
    args.first_request = 3;
    EXPECT_EQ(refused_field(smla_prefill_chunks(&args)), "args.first_request");
}

}  // namespace
}  // namespace smla::test
