// smla list, smla explain and smla doctor agree with each other.
#include "cli/run_tool.h"
#include "model/configs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

namespace smla::test {

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::string> available_isas() {
    std::vector<std::string> names;
    for (const auto& isa : json_of({"list", "isas"}, "isas"))
        if (isa["available"]) names.push_back(isa["name"]);
    return names;
}

std::vector<std::string> kernels_of(const std::string& stage) {
    for (const auto& row : json_of({"list", "kernels"}, "kernels"))
        if (row["stage"] == stage) return row["cpu"];
    ADD_FAILURE() << stage;
    return {};
}

TEST(CliList, EverySectionAloneIsThatSectionOfAll) {
    const auto all = json_of({"list"});
    for (const char* part : {"engines", "isas", "formats", "kernels", "models", "backends"}) {
        const auto one = json_of({"list", part});
        EXPECT_EQ(one.size(), 2u) << part;  // and the version
        EXPECT_EQ(one[part], all[part]);
        EXPECT_FALSE(all[part].empty()) << part;
    }
}

TEST(CliList, FormatsAreThoseOfTheModels) {
    // bytes per token and of a packed page of 64, from the records' published layouts
    const std::map<std::string, std::pair<int, int>> known = {
        {"fp8_656", {656, 64 * 656}},       {"fp8_576", {576, 64 * 576}},
        {"fp8_512", {512, 64 * 512}},       {"fp8_528", {528, 64 * 528}},
        {"index_fp8_132", {132, 64 * 132}}, {"index_mxfp4_68", {68, 64 * 68}},
        {"fp8_528_g32", {528, 64 * 528}},   {"fp8_528_g32_split", {528, 64 * 528}},
        {"nvfp4_288", {288, 64 * 288}},     {"nvfp4_288_split", {288, 64 * 288}},
        {"nvfp4_384", {384, 64 * 384}},     {"nvfp4_352", {352, 64 * 352}},
        {"fp8_584", {584, 37440}}};  // whole pages are multiples of 576
    size_t seen = 0;
    for (const auto& row : json_of({"list", "formats"}, "formats")) {
        const auto found = known.find(row["name"]);
        if (found == known.end()) continue;
        EXPECT_EQ(row["bytes_per_token"], found->second.first) << row;
        EXPECT_EQ(row["page_64_bytes"], found->second.second) << row;
        ++seen;
    }
    EXPECT_EQ(seen, known.size());
}

TEST(CliList, WeakestIsaIsAlwaysThereAndOneIsChosen) {
    const std::vector<std::string> names = available_isas();
    ASSERT_FALSE(names.empty());
    EXPECT_EQ(names.front(), "scalar");
    int chosen = 0;
    for (const auto& isa : json_of({"list", "isas"}, "isas")) chosen += isa["chosen"].get<bool>();
    EXPECT_EQ(chosen, 1);
}

TEST(CliList, KernelsOfEveryEngineAndWhyOthersAreMissing) {
    const std::string shown = run_tool({"list", "kernels"}).out, header = shown.substr(0, shown.find('\n'));
    for (const char* engine : {"cpu, best first", "cuda, best first", "reference"})
        EXPECT_TRUE(has(header, engine)) << header;
    const auto engines = json_of({"list", "engines"}, "engines");
    for (const auto& engine : engines)
        if (engine["name"] == "cuda" && !engine["available"]) {
            EXPECT_TRUE(has(shown, "\ncuda: " + engine["note"].get<std::string>() + "\n")) << shown;
        }
    for (const auto& isa : json_of({"list", "isas"}, "isas")) {
        const std::string prefix = "cpu_" + isa["name"].get<std::string>() + "_";
        EXPECT_EQ(has(shown, "\n" + prefix + "*: "), !isa["available"] && has(shown, prefix + "attend"))
            << isa << shown;
    }
}

// The table has the same backends as list support --json for kv_cache_dtype auto.
TEST(CliList, SupportIsATableOfModelsAndDevices) {
    const std::string shown = run_tool({"list", "support"}).out;
    std::istringstream lines(shown);
    std::string line;
    std::getline(lines, line);
    std::vector<std::string> models;
    std::istringstream head(line);
    for (std::string word; head >> word;) models.push_back(word);
    models.erase(models.begin());
    EXPECT_EQ(models, (std::vector<std::string>{"V3.2", "GLM-5.x", "GLM-5.3", "V4", "V4.1"}));
    std::map<std::string, std::vector<std::string>> expected;
    for (const auto& row : json_of({"list", "support"}, "support"))
        if (row["kv_cache_dtype"] == "auto")
            expected[row["device"]].push_back(row["backend"].is_null() ? "-" : row["backend"]);
    size_t seen = 0;
    while (std::getline(lines, line)) {
        const auto found = expected.find(line.substr(0, line.find(' ')));
        if (found == expected.end()) continue;
        std::istringstream cells(line.find(')') == std::string::npos ? line.substr(line.find(' '))
                                                                     : line.substr(line.find(')') + 1));
        std::vector<std::string> backends;
        for (std::string word; cells >> word;) backends.push_back(word);
        EXPECT_EQ(backends, found->second) << line;
        ++seen;
    }
    EXPECT_EQ(seen, 8u) << shown;
    EXPECT_TRUE(has(shown, "sm_90 (H100, H200, H20)")) << shown;
}

// The configurations in the tool equal the copies in the tests.
TEST(CliList, ModelsByNameAreThoseOfTheirConfigurations) {
    const std::map<std::string, std::string> configs = {{"deepseek-v3.2", kV32},
                                                        {"deepseek-v4-flash", v4_flash()},
                                                        {"deepseek-v4-pro", v4_pro()},
                                                        {"deepseek-v4.1-flash", v41()},
                                                        {"glm-5", kGlm5},
                                                        {"glm-5.1", kGlm5},
                                                        {"glm-5.2", kGlm52},
                                                        {"glm-5.3-flash", kGlm53}};
    size_t seen = 0;
    for (const auto& model : json_of({"list", "models"}, "models")) {
        const std::string name = model["name"];
        ASSERT_TRUE(configs.count(name)) << name;
        const TemporaryFile file(configs.at(name));
        const auto command = [](const std::string& value) {
            return std::vector<std::string>{"capacity", "--model", value, "--mtp"};
        };
        EXPECT_EQ(json_of(command(name)), json_of(command(file.path()))) << name;
        ++seen;
    }
    EXPECT_EQ(seen, configs.size());
    EXPECT_EQ(json_of({"explain", "--model", "GLM-5.2", "--device", "cpu"}, "model_type"), "glm_moe_dsa");
    for (const char* command : {"capacity", "explain"}) {
        const auto error = error_of({command, "--model", "deepseek-v3.3"}, 2);
        EXPECT_EQ(error["field"], "--model");
        EXPECT_TRUE(has(error["wanted"], "; did you mean deepseek-v3.2?")) << error;
        EXPECT_TRUE(has(error["wanted"], "glm-5.3-flash")) << error;
        EXPECT_LT(error["message"].get<std::string>().size(), 300u);
    }
}

TEST(CliExplain, EveryStageListsItsKernelsInOrder) {
    for (const auto& row : json_of({"list", "kernels"}, "kernels")) {
        const std::string stage = row["stage"];
        const auto call = json_of({"explain", "--stage", stage});
        EXPECT_EQ(call["stage"], stage);
        std::vector<std::string> names;
        std::string first_able;
        for (const auto& candidate : call["candidates"]) {
            names.push_back(candidate["kernel"]);
            if (first_able.empty() && candidate["can_run"]) first_able = names.back();
            EXPECT_EQ(candidate["chosen"].get<bool>(), candidate["reason"] == "") << candidate;
            EXPECT_EQ(candidate["chosen"].get<bool>(), candidate["kernel"] == call["kernel"]) << candidate;
        }
        // In the order of the list, but for those that this processor takes last: they stand at the end.
        const auto listed = row["cpu"].get<std::vector<std::string>>();
        EXPECT_TRUE(std::is_permutation(names.begin(), names.end(), listed.begin(), listed.end())) << stage;
        int backwards = 0;
        for (size_t i = 1; i < names.size(); ++i)
            backwards += std::find(listed.begin(), listed.end(), names[i]) <
                         std::find(listed.begin(), listed.end(), names[i - 1]);
        EXPECT_LE(backwards, 1) << stage;
        EXPECT_EQ(call["kernel"], first_able) << stage;
    }
}

TEST(CliExplain, WeakerInstructionSetsTakeOtherKernels) {
    for (const std::string& isa : available_isas()) {
        const auto call = json_of({"explain", "--stage", "attend", "--isa", isa, "--queries", "f32"});
        const std::string kernel = call["kernel"];
        EXPECT_EQ(kernel.find("bf16"), std::string::npos) << kernel;  // f32 queries keep f32 arithmetic
        if (isa == "scalar") {
            EXPECT_EQ(kernel.find("avx"), std::string::npos) << kernel;
            for (const auto& candidate : call["candidates"])
                EXPECT_EQ(candidate["can_run"].get<bool>() && has(candidate["kernel"], "avx"), false)
                    << candidate;
        }
    }
}

TEST(CliExplain, DemandedKernelIsTakenOrNothing) {
    const std::string last = kernels_of("attend").back();
    const auto call = json_of({"explain", "--stage", "attend", "--kernel", "attend=" + last});
    EXPECT_EQ(call["kernel"], last);
    for (const std::string& name : kernels_of("attend")) {
        const Finished run =
            run_tool({"explain", "--stage", "attend", "--width", "40", "--value-width", "24", "--kv-format",
                      "row_f64", "--queries", "f64", "--kernel", "attend=" + name, "--json"});
        const bool generic = name == last;
        EXPECT_EQ(run.code, generic ? 0 : 3) << name << run.out << run.err;
        EXPECT_EQ(nlohmann::json::parse(run.out)["kernel"].is_null(), !generic) << name;
    }
}

TEST(CliExplain, ModelStepsAreWhatTheLayerRuns) {
    const TemporaryFile v32(kV32), flash(v4_flash()), glm(kGlm52);
    const auto stages = [](const nlohmann::json& layer) {
        std::string names;
        for (const auto& call : layer["stages"])
            names += (names.empty() ? "" : " ") + call["stage"].get<std::string>();
        return names;
    };
    const auto layers = json_of({"explain", "--model", v32.path()})["layers"];
    ASSERT_EQ(layers.size(), 1u);
    EXPECT_EQ(stages(layers[0]),
              "write_kv write_index quant_index_q score_select rope absorb attend up_project");
    const auto hybrid = json_of({"explain", "--model", flash.path()})["layers"];
    ASSERT_EQ(hybrid.size(), 3u);
    EXPECT_EQ(hybrid[0]["layer_kind"], "sliding");
    EXPECT_EQ(stages(hybrid[0]), "write_kv attend");
    EXPECT_EQ(stages(hybrid[2]), "write_kv save_state compress attend");
    const auto shared = json_of({"explain", "--model", glm.path(), "--layer", "3"})["layers"];
    EXPECT_EQ(stages(shared[0]), "write_kv rope absorb map attend up_project");  // no indexer of its own
    const TemporaryFile chain(v41());
    const auto chained = [&](const char* layer) {
        return stages(json_of({"explain", "--model", chain.path(), "--layer", layer})["layers"][0]);
    };
    EXPECT_EQ(chained("7"), "write_kv map attend");  // reads entries and selection of another
    EXPECT_NE(chained("8").find("compress"), std::string::npos) << chained("8");
    EXPECT_NE(chained("20").find("score_select_blocks"), std::string::npos) << chained("20");
    EXPECT_NE(chained("24").find("score_select"), std::string::npos) << chained("24");
}

TEST(CliExplain, WordsThatAreNotAskedToKernels) {
    const Finished stage = run_tool({"explain", "--stage", "select", "--all"}),
                   model = run_tool({"explain", "--model", "deepseek-v3.2", "--device", "H200"});
    EXPECT_TRUE(has(stage.out, "cpu_generic_select: supported, lower priority")) << stage.out;
    EXPECT_TRUE(has(model.out, "supported, lower priority")) << model.out;
    EXPECT_TRUE(has(model.out, "original: would reject: ")) << model.out;
    for (const char* old : {"stands after", "not: ", "demands"}) {
        EXPECT_FALSE(has(stage.out, old)) << stage.out;
        EXPECT_FALSE(has(model.out, old)) << model.out;
    }
}

TEST(CliExplain, WithoutArgumentsSaysWhatToAskFor) {
    const Finished run = run_tool({"explain"});
    EXPECT_EQ(run.code, run_tool({}).code);  // as any usage error
    EXPECT_EQ(run.code, 2);
    EXPECT_EQ(run.out, "");
    for (const char* part : {"--model MODEL", "--stage NAME", "--device H200",
                             "Examples:\n  smla explain --model ", "\n  smla explain --stage attend "})
        EXPECT_TRUE(has(run.err, part)) << part << " in " << run.err;
    // the guide comes first, the error last
    EXPECT_GT(run.err.find("smla: error: --model, --stage: got neither"), run.err.find("--stage NAME"));
    EXPECT_FALSE(has(run_tool({"explain", "--json"}).err, "--stage NAME"));
}

TEST(CliExplain, SensibleErrors) {
    const TemporaryFile v32(kV32);
    EXPECT_EQ(error_of({"explain"}, 2)["field"], "--model, --stage");
    EXPECT_EQ(error_of({"explain", "--model", v32.path(), "--stage", "attend"}, 2)["got"], "both");
    EXPECT_EQ(error_of({"explain", "--stage", "atend"}, 2)["field"], "--stage");
    for (const char* option : {"--layer", "--requests", "--context", "--backend"})  // of other questions
        EXPECT_EQ(error_of({"explain", "--stage", "attend", option, "1"}, 2)["field"], option);
    for (const char* option : {"--heads", "--topk", "--weights"})
        EXPECT_EQ(
            error_of({"explain", "--model", v32.path(), option, option[2] == 'w' ? "f32" : "16"}, 2)["field"],
            option);
    EXPECT_EQ(error_of({"explain", "--stage", "attend", "--width", "512"}, 2)["field"],
              "args.primary.cache.width");
    EXPECT_EQ(error_of({"explain", "--stage", "attend", "--heads", "257"}, 2)["field"], "args.q.shape[1]");
    EXPECT_EQ(error_of({"explain", "--model", v32.path(), "--layer", "62"}, 2)["field"], "layer");
    EXPECT_EQ(error_of({"explain", "--model", v32.path(), "--kv-format", "fp8_584"}, 3)["field"],
              "kv_format");
    EXPECT_EQ(error_of({"explain", "--stage", "attend", "--queries", "i32"}, 2)["field"], "--queries");
    for (const char* option : {"--heads", "--width", "--value-width", "--outer", "--rows", "--extra-rows",
                               "--columns", "--topk", "--ratio", "--partials"})
        EXPECT_EQ(error_of({"explain", "--stage", "attend", option, "2147483648"}, 2)["field"], option);
}

TEST(CliDoctor, PassesOnEveryInstructionSetAndTheReference) {
    std::vector<std::vector<std::string>> contexts{{"--engine", "reference"}, {"--threads", "1"}};
    for (const std::string& isa : available_isas()) contexts.push_back({"--isa", isa});
    for (std::vector<std::string> words : contexts) {
        words.insert(words.begin(), "doctor");
        const auto found = json_of(words);
        EXPECT_TRUE(found["passed"]) << found;
        std::map<std::string, int> stages;
        for (const auto& test : found["self_test"]) {
            EXPECT_TRUE(test["passed"]) << test;
            EXPECT_FALSE(test["skipped"]) << test;
            EXPECT_LE(test["error"], test["limit"]) << test;
            stages[test["stage"]] += 1;
        }
        for (const char* stage : {"attend", "score", "select", "score_select", "merge", "project"})
            EXPECT_GE(stages[stage], 1) << stage;
        EXPECT_GE(found["cores"], 1);
        EXPECT_NE(found["cpu"], "");
    }
}

TEST(CliDoctor, DemandedKernelRunsWhereItCanAndIsSkippedElsewhere) {
    const std::string first = "cpu_avx512_bf16_attend";
    const Finished run = run_tool({"doctor", "--kernel", "attend=" + first, "--json"});
    const auto found = nlohmann::json::parse(run.out);
    EXPECT_EQ(run.code, 0) << run.out;
    const auto isas = available_isas();
    const bool here = std::find(isas.begin(), isas.end(), "avx512_bf16") != isas.end();
    int ran = 0, skipped = 0;
    for (const auto& test : found["self_test"]) {
        if (test["stage"] != "attend") continue;
        skipped += test["skipped"].get<bool>();
        if (!test["skipped"]) {
            EXPECT_EQ(test["kernel"], first);
            ++ran;
        }
    }
    EXPECT_GT(skipped, 0);
    EXPECT_EQ(ran > 0, here);
}

TEST(CliDoctor, LooksWithoutTesting) {
    const auto found = json_of({"doctor", "--no-self-test"});
    EXPECT_FALSE(found.contains("self_test"));
    EXPECT_GT(found["memory_bytes"], 0);
}

}  // namespace

}  // namespace smla::test
