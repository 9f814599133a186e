// smla run --serve: requests that join, share, are preempted and resumed, through every backend.
#include "cli/run_tool.h"

#include <gtest/gtest.h>

#include <set>

namespace smla::test {

namespace {

const std::string kMixed = SMLA_SOURCE_DIR "/examples/traces/mixed.csv";
// The smallest trace in which requests join, share a block of 256 tokens, are preempted and have rejected
// guesses.
const std::string kShort =
    "arrival,prompt,output,shared\n0,5,12,0\n0,300,6,260\n1,33,9,0\n2,290,10,260\n"
    "3,1,30,0\n4,280,8,0\n6,270,8,260\n";

// compress by the reference's loops: with others a code of e4m3 may be the one beside it, 2.4e-4 of a row.
TEST(CliServe, EveryBackendGivesEachRequestWhatItGetsAlone) {
    const TemporaryFile trace(kShort);
    for (const char* dtype : {"auto", "fp8"}) {
        const auto found = json_of({"run", "--serve", trace.path(), "--kv-dtype", dtype, "--threads", "2",
                                    "--pool-percent", "35", "--kernel", "compress=cpu_generic_compress"});
        EXPECT_TRUE(found["pass"]);
        std::set<std::string> names;
        for (const auto& run : found["runs"]) {
            names.insert(run["backend"]);
            EXPECT_LE(run["error"], 1e-4) << run;
            // all that this is about has happened
            for (const char* count : {"decodes", "rejected", "preempted", "shared"})
                EXPECT_GT(run[count], 0) << run;
            // outputs of rejected guesses are not compared, all others are
            EXPECT_EQ(run["compared"].get<int64_t>(),
                      run["tokens"].get<int64_t>() - run["rejected"].get<int64_t>());
        }
        EXPECT_EQ(names.size(), 8u);
        EXPECT_EQ(found["runs"].size(), 22u);  // three kinds of layers of V4, and of V4.1, and its sources
    }
}

// Entries in four bits beside a window of fp8, in either arrangement.
TEST(CliServe, RecordsOfV41) {
    const struct {
        const char *backend, *type, *record;
    } cases[] = {{"FLASHMLA_SPARSE_DSV41", "nvfp4_ds_mla", "fp8_528_g32, nvfp4_288"},
                 {"FLASHINFER_MLA_SPARSE_DSV41", "nvfp4_288_split", "fp8_528_g32_split, nvfp4_288_split"}};
    const TemporaryFile trace(kShort);
    for (const auto& each : cases) {
        const auto found = json_of({"run", "--serve", trace.path(), "--backend", each.backend, "--kv-dtype",
                                    each.type, "--threads", "2"});
        EXPECT_TRUE(found["pass"]) << found;
        const int ratios[] = {0, 1, 1, 2, 2};  // entries by lists at random, then by those of index sources
        ASSERT_EQ(found["runs"].size(), std::size(ratios));
        const std::string record = each.record;
        for (size_t i = 0; i < std::size(ratios); ++i) {
            const auto& run = found["runs"][i];
            EXPECT_EQ(run["ratio"], ratios[i]);
            EXPECT_EQ(run["record"], ratios[i] ? record : record.substr(0, record.find(',')));
        }
    }
}

// The first index source names blocks, those after it select within them: what plain loops over the text
// find. Without the blocks most tokens would attend to something else.
TEST(CliServe, LaterIndexSourcesSelectWithinCandidateBlocks) {
    const TemporaryFile trace(kShort);
    for (const char* engine : {"cpu", "reference"})
        for (const char* backend : {"FLASHMLA_SPARSE_DSV41", "FLASHINFER_MLA_SPARSE_DSV41"}) {
            const auto found = json_of({"run", "--serve", trace.path(), "--backend", backend, "--engine",
                                        engine, "--pool-percent", "35", "--seed", "2"});
            EXPECT_TRUE(found["pass"]) << found;
            int in_blocks = 0;
            for (const auto& run : found["runs"]) {
                if (run["lists"] != "in blocks") {
                    EXPECT_TRUE(run["restricted"].is_null());
                    EXPECT_EQ(run["lists"].is_null(), run["ratio"] == 0);
                    continue;
                }
                ++in_blocks;
                EXPECT_GT(run["restricted"].get<int64_t>(), run["compared"].get<int64_t>() / 2) << run;
                for (const char* count : {"decodes", "rejected", "preempted", "shared"})
                    EXPECT_GT(run[count], 0) << run;
            }
            EXPECT_EQ(in_blocks, 2);  // ratios 1 and 2
        }
}

TEST(CliServe, ReferenceEngineAndOtherSchedules) {
    const TemporaryFile trace("arrival,prompt,output,shared\n0,300,4,280\n0,9,6,0\n1,270,3,260\n40,5,2,0\n");
    for (const char* seed : {"1", "2", "3"}) {
        const auto found = json_of({"run", "--serve", trace.path(), "--engine", "reference", "--seed", seed,
                                    "--step-tokens", "50", "--requests", "3", "--pool-percent", "70"});
        EXPECT_TRUE(found["pass"]) << found;
    }
}

TEST(CliServe, ATraceMayBeginWithAByteOrderMark) {
    const std::string lines = "arrival,prompt,output,shared\r\n0,9,2,0\r\n", mark = "\xEF\xBB\xBF";
    for (const std::string& text : {mark + lines, mark + "# text\n" + lines}) {
        const TemporaryFile trace(text);
        EXPECT_EQ(json_of({"run", "--serve", trace.path(), "--backend", "FLASHMLA_SPARSE"}, "requests"), 1);
    }
    const TemporaryFile twice(mark + mark + lines);
    EXPECT_EQ(error_of({"run", "--serve", twice.path()}, 2)["field"], twice.path() + ":1");
}

// Every option that only one of the two uses of `run` has, beside the other one.
TEST(CliServe, OptionsOfTheOtherUseAreRefused) {
    const std::string help = run_tool({"run", "--help"}).out;
    const size_t general = help.find("\nOptions:"), serving = help.find("\nA serving run"),
                 context = help.find("\nWhere it runs");
    ASSERT_TRUE(general < serving && serving < context && context != std::string::npos) << help;
    int seen = 0;
    for (size_t at = help.find("\n  --", general); at < context; at = help.find("\n  --", at + 1)) {
        const size_t end = help.find_first_of(" \n", at + 3);
        const std::string name = help.substr(at + 3, end - at - 3);
        if (name == "--json" || name == "--serve") continue;
        const std::string value = name == "--kv-writer" ? "vllm" : "4";
        const std::string given = name == "--f64" ? name : name + "=" + value;
        const bool serves = at > serving;
        const auto error = serves ? error_of({"run", "model", "--hidden", "x", "--out", "y", given}, 2)
                                  : error_of({"run", "--serve", kMixed, given}, 2);
        EXPECT_EQ(error["field"], name);
        EXPECT_EQ(error["got"], name == "--f64" ? "true" : value);
        EXPECT_NE(error.value("wanted", "").find("--serve"), std::string::npos) << error;
        ++seen;
    }
    EXPECT_EQ(seen, 18 + 6);
    EXPECT_EQ(error_of({"run", "model", "--serve", kMixed}, 2)["field"], "checkpoint");
    EXPECT_EQ(error_of({"run", "--serve", ""}, 2)["field"], "--serve");
}

TEST(CliServe, SensibleErrors) {
    EXPECT_EQ(error_of({"run", "--serve", "no/such.csv"}, 2)["field"], "no/such.csv");
    const auto refused = [](const std::string& text) {
        const TemporaryFile trace(text);
        const std::string field = error_of({"run", "--serve", trace.path()}, 2)["field"];
        return field.substr(field.find(':') + 1);
    };
    EXPECT_EQ(refused("1,2,3,4\n"), "1");
    EXPECT_EQ(refused("arrival,prompt,output,shared\n1,2,3\n"), "2");
    EXPECT_EQ(refused("arrival,prompt,output,shared\n1,2,3,3\n"), "2 shared");
    EXPECT_EQ(refused("# text\narrival,prompt,output,shared\n0,0,3,0\n"), "3 prompt");
    EXPECT_EQ(refused("arrival,prompt,output,shared\n0,5x,3,0\n"), "2 prompt");
    for (const char* before :
         {"", "arrival,prompt,output,shared\n", "arrival,prompt,output,shared\n1,2,3,"}) {
        const TemporaryFile trace(before + std::string(1 << 20, '7'));
        const std::string got = error_of({"run", "--serve", trace.path()}, 2)["got"];
        EXPECT_LT(got.size(), 200u) << "an error shows where a line begins, not a megabyte of it";
        EXPECT_EQ(got.substr(got.size() - 6), "777...");
    }
    std::string many = "arrival,prompt,output,shared\n";
    EXPECT_EQ(refused(many + "0,1048576,1048576,0\n"), "2");
    for (int i = 0; i < 4; ++i) many += "0,32768,32768,0\n";
    EXPECT_EQ(refused(many + "0,1,1,0\n"), "6");
    for (const char* seed : {"-1", "9223372036854775808"})
        EXPECT_EQ(error_of({"run", "--serve", kMixed, std::string("--seed=") + seed}, 2)["field"], "--seed");
    EXPECT_EQ(error_of({"run", "--serve", kMixed, "--backend", "NONE"}, 2)["field"], "--backend");
    EXPECT_EQ(error_of({"run"}, 2)["field"], "checkpoint");
    EXPECT_EQ(error_of({"run", "somewhere", "--out", "y"}, 2)["field"], "--hidden");
}

}  // namespace

}  // namespace smla::test
