// Line 9, the data: what hot calls take for holes is reported by smla_check_stage, and noted in the error
// word by contexts with check_indices.
#include "calls.h"

#include <string>

namespace contract {
namespace {

struct Bad {
    const char* call;
    const char* tensor;
    int64_t i, j;  // j -1: one dimension
    int64_t value;
    smla_bad_kind kind;
    const char* field = nullptr;  // null: tensor[i,j]
    std::string name() const {
        if (field) return field;
        return std::string(tensor) + "[" + std::to_string(i) + (j < 0 ? "" : "," + std::to_string(j)) + "]";
    }
};

// Caches of attend calls have 5 pages of 8 tokens: 40 rows. Extra ones 20 pages of 2 tokens, 3 rows apart.
const Bad kBad[] = {
    {"attend_656", "args.primary.rows", 2, 5, 40, SMLA_BAD_ROW},
    {"attend_656", "args.primary.rows", 4, 15, INT32_MAX, SMLA_BAD_ROW},
    {"attend_656", "args.primary.rows", 0, 0, -2, SMLA_BAD_ROW},
    {"attend_656", "args.primary.lengths", 1, -1, 41, SMLA_BAD_LENGTH},
    {"attend_656", "args.primary.lengths", 1, -1, -1, SMLA_BAD_LENGTH},
    {"attend_v4", "args.extra.rows", 1, 3, 2, SMLA_BAD_EXTRA_ROW},  // between two pages
    {"attend_v4", "args.extra.lengths", 3, -1, 21, SMLA_BAD_EXTRA_LENGTH},
    {"write_kv_656", "args.slots", 1, -1, 45, SMLA_BAD_SLOT},
    {"write_kv_584", "args.slots", 3, -1, -7, SMLA_BAD_SLOT},
    {"write_index_132", "args.slots", 0, -1, INT64_MAX, SMLA_BAD_SLOT},
    {"save_state", "args.slots", 2, -1, 36, SMLA_BAD_SLOT},
    {"save_state", "args.positions", 2, -1, -1, SMLA_BAD_POSITION},
    {"compress_4", "args.slots", 2, -1, INT64_MIN, SMLA_BAD_SLOT},
    {"compress_4", "args.positions", 3, -1, -3, SMLA_BAD_POSITION},
    {"compress_4", "args.request_of_token", 1, -1, 2, SMLA_BAD_REQUEST},
    {"compress_4", "args.state_table", 0, 0, 9, SMLA_BAD_BLOCK},
    {"compress_4", "args.positions", 1, -1, 4095, SMLA_BAD_TABLE_WIDTH, "args.state_table.shape[1]"},
    {"gather", "args.cu", 1, -1, 9, SMLA_BAD_CU},
    {"gather", "args.cu", 0, -1, -1, SMLA_BAD_CU},
    {"gather", "args.starts", 1, -1, -1, SMLA_BAD_START},
    {"gather", "args.starts", 1, -1, 1000, SMLA_BAD_TABLE_WIDTH, "args.block_table.shape[1]"},
    {"gather_raw", "args.block_table", 0, 0, 8, SMLA_BAD_BLOCK},
    {"copy_pages", "args.pairs", 3, 0, 6, SMLA_BAD_PAGE},
    {"copy_pages", "args.pairs", 1, 1, -1, SMLA_BAD_PAGE},
    {"score_paged", "args.starts", 2, -1, -1, SMLA_BAD_START},
    {"score_paged", "args.ends", 2, -1, 71, SMLA_BAD_END},
    {"score_paged", "args.request_of_token", 1, -1, -1, SMLA_BAD_REQUEST},
    {"score_paged", "args.block_table", 0, 0, 12, SMLA_BAD_BLOCK},
    {"score_ragged", "args.ends", 4, -1, -1, SMLA_BAD_END},
    {"select", "args.ends", 4, -1, 71, SMLA_BAD_END},
    {"select", "args.request_of_token", 2, -1, 2, SMLA_BAD_REQUEST},
    {"select", "args.row_table", 0, 0, -1, SMLA_BAD_BLOCK},
    {"select", "args.ends", 3, -1, 65, SMLA_BAD_TABLE_WIDTH, "args.row_table.shape[1]"},
    {"score_select", "args.score.ends", 4, -1, 71, SMLA_BAD_END},
    {"score_select", "args.score.block_table", 0, 0, -1, SMLA_BAD_BLOCK},
    {"score_select", "args.select.row_table", 0, 0, INT32_MAX, SMLA_BAD_BLOCK},
    {"score_listed_blocks", "args.ends", 3, -1, 71, SMLA_BAD_END},
    {"score_listed_blocks", "args.block_table", 0, 0, 12, SMLA_BAD_BLOCK},
    {"score_listed_blocks", "args.blocks", 2, 3, 9, SMLA_BAD_CANDIDATE},
    {"score_listed_blocks", "args.blocks", 4, 6, -2, SMLA_BAD_CANDIDATE},
    {"map", "args.positions", 4, 8, 24, SMLA_BAD_POSITION},
    {"map", "args.positions", 1, 2, -2, SMLA_BAD_POSITION},
    {"map", "args.request_of_token", 2, -1, 2, SMLA_BAD_REQUEST},
    {"map", "args.block_table", 0, 0, INT32_MAX, SMLA_BAD_BLOCK},
};

smla_tensor& tensor_of(Call& call, const std::string& name) {
    for (TensorField& field : call.tensors)
        if (field.name == name) return *field.tensor;
    ADD_FAILURE() << call.name << " has no " << name;
    return *call.tensors.front().tensor;
}

// Every index in its range: nothing to report.
void tame(Call& call) {
    for (const TensorField& field : call.tensors) {
        if (call.is_output(field)) continue;
        const std::string last = field.name.substr(field.name.rfind('.') + 1);
        const smla_tensor& tensor = *field.tensor;
        if (last == "slots") fill_int(tensor, [](int64_t t, int64_t) { return t; });
        else if (last == "lengths") fill_int(tensor, [](int64_t t, int64_t) { return 20 - t; });
        else if (last == "rows" || last == "request_of_token" || last == "pairs" || last == "starts")
            fill_int(tensor, [](int64_t, int64_t) { return 0; });
        else if (last == "row_table") fill_int(tensor, [](int64_t r, int64_t b) { return 7 * r + b; });
        else if (last == "blocks") fill_int(tensor, [](int64_t t, int64_t i) { return t % 2 ? i : -1; });
        else if (last == "limits") fill_int(tensor, [](int64_t, int64_t) { return 9; });
        else if (last == "ends") fill_int(tensor, [](int64_t, int64_t) { return 5; });
        else if (last == "positions" && tensor.ndim == 2)
            fill_int(tensor, [](int64_t, int64_t j) { return j - 1; });
    }
    call.memory.remember();
}

std::unique_ptr<Call> tame_call(const std::string& name) {
    for (const NamedMaker& maker : all_calls())
        if (name == maker.name) {
            std::unique_ptr<Call> call = make(maker);
            tame(*call);
            return call;
        }
    ADD_FAILURE() << "no call " << name;
    return nullptr;
}

CONTRACT_TEST(L9g_CheckStageReportsTheFirstBadValueByNameAndTokenAndNothingElse) {
    const Context context(engines().back());
    for (const NamedMaker& maker : all_calls()) {
        const std::unique_ptr<Call> call = tame_call(maker.name);
        EXPECT_TRUE(succeeded(call->check(context))) << maker.name;
    }
    for (const Bad& bad : kBad) {
        const std::unique_ptr<Call> call = tame_call(bad.call);
        set_int(tensor_of(*call, bad.tensor), bad.i, std::max<int64_t>(bad.j, 0), bad.value);
        call->memory.remember();
        EXPECT_TRUE(refused(call->check(context), SMLA_DATA_ERROR, bad.name())) << bad.call;
        if (!bad.field) {
            EXPECT_EQ(last_error().got, std::to_string(bad.value));
        }
        EXPECT_TRUE(call->memory.nothing_changed());
    }
}

CONTRACT_TEST(L9h_ContextsWithCheckIndicesNoteTheFirstBadValueAndRunOn) {
    for (const Engine& engine : engines()) {
        const Context plain(engine), checking(engine, {.check_indices = 1});
        for (const Bad& bad : kBad) {
            SCOPED_TRACE(std::string(bad.call) + " " + bad.name() + " on " + engine.name);
            const std::unique_ptr<Call> call = tame_call(bad.call);
            set_int(tensor_of(*call, bad.tensor), bad.i, std::max<int64_t>(bad.j, 0), bad.value);
            call->memory.remember();
            run_exactly(*call, plain);
            const std::vector<uint8_t> image = call->memory.image();
            call->memory.reset();

            const Scratch scratch(checking, call->workspace(checking));
            ASSERT_TRUE(succeeded(call->run(checking, scratch.get())));
            EXPECT_TRUE(call->memory.image() == image) << "the call runs as if nobody looked";
            smla_error_word word{};
            ASSERT_TRUE(succeeded(smla_read_error(checking, scratch.get(), nullptr, &word)));
            EXPECT_EQ(word.kind, bad.kind);
            EXPECT_EQ(word.stage, call->stage);
            if (!bad.field) {
                EXPECT_EQ(word.token, bad.i);
                EXPECT_EQ(word.column, bad.j);
                EXPECT_EQ(word.value, bad.value);
            }
            EXPECT_TRUE(scratch.clean()) << "reading empties the word";
            ASSERT_TRUE(succeeded(smla_read_error(checking, scratch.get(), nullptr, &word)));
            EXPECT_EQ(word.kind, SMLA_BAD_NONE);
        }
    }
}

smla_error_word word_of(const Call& call, const Engine& engine);

struct Setting {
    const char* tensor;
    int64_t i, j, value;
};
// The last value that is right and the first that is not, of every bound; and what no call looks at.
struct Border {
    const char* call;
    std::vector<Setting> settings;
    smla_bad_kind kind = SMLA_BAD_NONE;
    int64_t token = 0, column = 0;
};
const Border kBorders[] = {
    {"attend_656", {{"args.primary.rows", 1, 0, 39}}},
    {"attend_656", {{"args.primary.lengths", 1, 0, 40}}},
    {"attend_656", {{"args.primary.lengths", 1, 0, 0}, {"args.primary.rows", 1, 0, 40}}},
    {"attend_656", {{"args.primary.rows", 2, 18, 40}}},  // token t has 20 - t rows
    {"attend_656", {{"args.primary.rows", 2, 17, 40}}, SMLA_BAD_ROW, 2, 17},
    {"attend_v4", {{"args.extra.rows", 0, 3, 58}}},  // 20 pages of 2 tokens, 3 rows apart
    {"attend_v4", {{"args.extra.rows", 0, 3, 59}}, SMLA_BAD_EXTRA_ROW, 0, 3},
    {"attend_v4", {{"args.extra.rows", 0, 3, 60}}, SMLA_BAD_EXTRA_ROW, 0, 3},
    {"write_kv_656", {{"args.slots", 2, 0, 44}}},
    {"write_kv_656", {{"args.slots", 2, 0, -1}}},
    // The last token is padding.
    {"save_state", {{"args.positions", 4, 0, -77}}},
    {"save_state", {{"args.positions", 3, 0, -77}}, SMLA_BAD_POSITION, 3, -1},
    {"compress_4", {{"args.positions", 4, 0, -77}}},
    {"compress_4", {{"args.positions", 3, 0, -77}}, SMLA_BAD_POSITION, 3, -1},
    {"compress_4", {{"args.request_of_token", 4, 0, 2}}},
    {"compress_4", {{"args.request_of_token", 3, 0, 2}}, SMLA_BAD_REQUEST, 3, -1},
    {"compress_4", {{"args.request_of_token", 3, 0, 1}}},
    // Position 11 pools from 4 on, not from block 0; position 18 closes nothing.
    {"compress_4",
     {{"args.positions", 0, 0, 11},
      {"args.state_table", 0, 0, 999},
      {"args.request_of_token", 1, 0, 1},
      {"args.request_of_token", 3, 0, 1}}},
    {"compress_4", {{"args.positions", 0, 0, 11}, {"args.state_table", 0, 1, 999}}, SMLA_BAD_BLOCK, 0, 1},
    {"compress_4", {{"args.positions", 0, 0, 15}, {"args.state_table", 0, 3, -1}}},
    {"compress_4", {{"args.positions", 0, 0, 15}, {"args.state_table", 0, 3, -2}}, SMLA_BAD_BLOCK, 0, 3},
    {"compress_4", {{"args.positions", 0, 0, 19}}, SMLA_BAD_TABLE_WIDTH, 0, 4},
    {"compress_4", {{"args.positions", 0, 0, 18}}},
    {"compress_4", {{"args.positions", 0, 0, 19}, {"args.slots", 0, 0, -1}}},
    // Request 1 takes 4 tokens of a table of 4 blocks of 4.
    {"gather", {{"args.starts", 1, 0, 12}}},
    {"gather", {{"args.starts", 1, 0, 13}}, SMLA_BAD_TABLE_WIDTH, 1, 4},
    {"gather", {{"args.starts", 1, 0, 8}, {"args.block_table", 1, 1, -1}, {"args.block_table", 1, 3, -1}}},
    {"gather", {{"args.starts", 1, 0, 9}, {"args.block_table", 1, 3, -1}}, SMLA_BAD_BLOCK, 1, 3},
    {"gather", {{"args.block_table", 1, 0, 7}}},
    {"gather", {{"args.block_table", 1, 0, 8}}, SMLA_BAD_BLOCK, 1, 0},
    {"gather", {{"args.cu", 2, 0, 7}}},
    {"gather", {{"args.cu", 2, 0, 8}}, SMLA_BAD_CU, 2, -1},
    {"gather", {{"args.cu", 1, 0, 6}}, SMLA_BAD_CU, 2, -1},  // ends before it begins
    {"copy_pages", {{"args.pairs", 1, 0, 5}, {"args.pairs", 1, 1, 7}}},
    {"copy_pages", {{"args.pairs", 1, 1, 8}}, SMLA_BAD_PAGE, 1, 1},
    {"score_paged", {{"args.starts", 1, 0, 70}, {"args.ends", 1, 0, 70}}},
    {"score_paged", {{"args.ends", 0, 0, 16}, {"args.block_table", 0, 1, 12}}},
    {"score_paged", {{"args.ends", 0, 0, 17}, {"args.block_table", 0, 1, 12}}, SMLA_BAD_BLOCK, 0, 1},
    {"score_paged", {{"args.block_table", 0, 0, 11}}},
    {"map", {{"args.positions", 0, 0, 23}}},
    {"map", {{"args.positions", 4, 8, 24}, {"args.limits", 4, 0, 8}}},
    {"map", {{"args.positions", 4, 8, 24}, {"args.limits", 4, 0, 9}}, SMLA_BAD_POSITION, 4, 8},
    {"map", {{"args.positions", 4, 0, 24}, {"args.limits", 4, 0, -1}}},
    {"map", {{"args.block_table", 0, 0, -1}}, SMLA_BAD_BLOCK, 0, 0},
    {"map", {{"args.block_table", 0, 2, -1}}},  // of positions that are not listed
    {"map", {{"args.block_table", 0, 0, INT32_MAX / 12}}},
    {"map", {{"args.block_table", 0, 0, INT32_MAX / 12 + 1}}, SMLA_BAD_BLOCK, 0, 0},
};

CONTRACT_TEST(L9g_EveryBoundIsWhereItShouldBe) {
    for (const Border& border : kBorders) {
        const std::unique_ptr<Call> call = tame_call(border.call);
        for (const Setting& s : border.settings) set_int(tensor_of(*call, s.tensor), s.i, s.j, s.value);
        call->memory.remember();
        SCOPED_TRACE(std::string(border.call) + " " + border.settings[0].tensor + " = " +
                     std::to_string(border.settings[0].value));
        for (const Engine& engine : engines()) {
            const Context context(engine);
            EXPECT_EQ(call->check(context), border.kind ? SMLA_DATA_ERROR : SMLA_OK) << smla_last_error();
            const smla_error_word word = word_of(*call, engine);
            EXPECT_EQ(word.kind, border.kind) << engine.name << " " << word.token << "," << word.column;
            EXPECT_EQ(word.token, border.token) << engine.name;
            EXPECT_EQ(word.column, border.column) << engine.name;
            call->memory.reset();
        }
    }
}

// A window of 8 tokens touches four pages of three.
CONTRACT_TEST(L9g_AWindowThatBeginsInAPageIsSeenToItsEnd) {
    for (const NamedMaker& maker : cache_calls()) {
        if (std::string(maker.name) != "compress_4") continue;
        const std::unique_ptr<Call> call = make(maker, 9);
        tame(*call);
        for (CacheField& field : call->caches)
            if (field.name == "args.state") field.cache->page_tokens = 3;
        set_int(tensor_of(*call, "args.positions"), 0, 0, 15);
        set_int(tensor_of(*call, "args.state_table"), 0, 5, 999);
        const Context context(engines().back());
        EXPECT_TRUE(refused(call->check(context), SMLA_DATA_ERROR, "args.state_table[0,5]"));
        EXPECT_EQ(word_of(*call, engines().back()).column, 5);
        // The last position of all closes a group, far past the table's pages of one token.
        std::vector<int64_t> last(9, INT64_MAX);
        tensor_of(*call, "args.positions") = smla_dense(last.data(), SMLA_I64, 1, 9, 0, 0, 0);
        for (CacheField& field : call->caches)
            if (field.name == "args.state") field.cache->page_tokens = 1;
        EXPECT_TRUE(refused(call->check(context), SMLA_DATA_ERROR, "args.state_table.shape[1]"));
        EXPECT_EQ(word_of(*call, engines().back()).kind, SMLA_BAD_TABLE_WIDTH);
    }
}

smla_error_word word_of(const Call& call, const Engine& engine) {
    const Context context(engine, {.check_indices = 1});
    const Scratch scratch(context, call.workspace(context));
    EXPECT_TRUE(succeeded(call.run(context, scratch.get())));
    smla_error_word word{};
    EXPECT_TRUE(succeeded(smla_read_error(context, scratch.get(), nullptr, &word)));
    EXPECT_TRUE(scratch.clean());
    return word;
}

// Calls with many bad values of several kinds: one of them is the first.
CONTRACT_TEST(L9h_WhichValueIsTheFirstIsTheSameOnEveryEngine) {
    int found = 0;
    for (const NamedMaker& maker : all_calls()) {
        const std::unique_ptr<Call> call = make(maker, 23);
        for (int round = 0; round < 6; ++round) {
            for (const TensorField& field : call->tensors)
                if (!call->is_output(field) && field.tensor->dtype == SMLA_I32 && round > 0) {
                    const smla_tensor& tensor = *field.tensor;
                    const auto any = [&](int d) {
                        return d < tensor.ndim ? int64_t(call->memory.rng() % uint64_t(tensor.shape[d])) : 0;
                    };
                    set_int(tensor, any(0), any(1), int64_t(call->memory.rng() % 200) - 50);
                }
            call->memory.remember();
            const smla_error_word want = word_of(*call, reference_engine());
            for (const Engine& engine : engines()) {
                call->memory.reset();
                const smla_error_word got = word_of(*call, engine);
                EXPECT_EQ(std::memcmp(&got, &want, sizeof got), 0)
                    << maker.name << " on " << engine.name << ": kind " << got.kind << " at " << got.token
                    << "," << got.column << ", not kind " << want.kind << " at " << want.token << ","
                    << want.column;
            }
            call->memory.reset();
            found += want.kind != SMLA_BAD_NONE;
        }
    }
    EXPECT_GT(found, 60);
}

CONTRACT_TEST(L9i_TheErrorWordKeepsTheFirstFindingUntilItIsRead) {
    const Context context(engines().back(), {.check_indices = 1});
    const std::unique_ptr<Call> first = tame_call("write_kv_656"), second = tame_call("attend_656");
    const Scratch scratch(context, std::max(first->workspace(context), second->workspace(context)));
    smla_error_word word{};
    ASSERT_TRUE(succeeded(first->run(context, scratch.get())));  // nothing to find
    EXPECT_TRUE(scratch.clean());
    set_int(tensor_of(*first, "args.slots"), 3, 0, 1234567);
    set_int(tensor_of(*second, "args.primary.rows"), 1, 2, 999);
    ASSERT_TRUE(succeeded(first->run(context, scratch.get())));
    ASSERT_TRUE(succeeded(second->run(context, scratch.get())));
    ASSERT_TRUE(succeeded(smla_read_error(context, scratch.get(), nullptr, &word)));
    EXPECT_EQ(word.kind, SMLA_BAD_SLOT);
    EXPECT_EQ(word.stage, SMLA_STAGE_WRITE_KV);
    EXPECT_EQ(word.token, 3);
    EXPECT_EQ(word.value, 1234567);
    ASSERT_TRUE(succeeded(second->run(context, scratch.get())));
    ASSERT_TRUE(succeeded(smla_read_error(context, scratch.get(), nullptr, &word)));
    EXPECT_EQ(word.kind, SMLA_BAD_ROW);
    EXPECT_EQ(word.column, 2);

    // Without room for the word, or without a place to put it, the call says so.
    EXPECT_TRUE(refused(first->run(context, {}), SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes"));
    EXPECT_TRUE(
        refused(smla_read_error(context, {}, nullptr, &word), SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes"));
    EXPECT_EQ(std::string(last_error().got), "0");
    EXPECT_EQ(std::string(last_error().wanted).rfind(smla::text("at least ", kHeader, " (the header"), 0),
              0u);
    EXPECT_TRUE(
        refused(smla_read_error(context, scratch.get(), nullptr, nullptr), SMLA_INVALID_ARGUMENT, "out"));
    const std::unique_ptr<Call> norm = tame_call("norm_rms");  // has no indices
    EXPECT_TRUE(succeeded(norm->run(context, {})));
}

}  // namespace
}  // namespace contract
