// smla verify --golden and smla example: what passes, and what they write into.
#include "cli/run_tool.h"
#include "model/files.h"

#include <gtest/gtest.h>

namespace smla::test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kGoldens = SMLA_SOURCE_DIR "/tests/goldens/";
const std::string kD1 = kGoldens + "D1.safetensors";

json verified(std::vector<std::string> words, int code) {
    words.insert(words.begin(), {"verify", "--json", "--golden"});
    const Finished run = run_tool(words);
    EXPECT_EQ(run.code, code) << run.err;
    return json::parse(run.out);
}

TEST(CliGolden, ADemandedKernelMustRunOnEveryFile) {
    const std::string narrow = "attend=cpu_avx2_f32_576";  // D1's rows are not as wide
    const json idle{"D1"};
    EXPECT_EQ(verified({kD1, "--kernel", narrow}, 1)["nothing_ran"], idle);  // the reference did
    const json both = verified({kD1, kGoldens + "D6.safetensors", "--engine", "cpu", "--kernel", narrow}, 1);
    EXPECT_EQ(both["nothing_ran"][0], "D1");
    EXPECT_TRUE(verified({kD1, "--kernel", "attend=cpu_generic"}, 0)["nothing_ran"].empty());
}

TEST(CliGolden, AnIndexScoreWithoutValuesIsAMiss) {
    const Folder folder;
    fs::copy_file(kGoldens + "D1.json", folder.path("D1.json"));
    const SafetensorsFile original = SafetensorsFile::open(kD1);
    std::vector<NamedTensor> list;
    for (const std::string& name : original.names()) {
        list.push_back({name, original.tensor(name).view});
        if (name == "mid.index_score") list.back().tensor.shape[2] = 0;
    }
    write_safetensors(folder.path("D1.safetensors"), list);
    verified({folder.path("D1.safetensors")}, 1);
}

// Without the output in double, double is compared with one in f32, by its tolerance.
TEST(CliGolden, AFileWithoutAnOutputInDouble) {
    const Folder folder;
    fs::copy_file(kGoldens + "D1.json", folder.path("D1.json"));
    const SafetensorsFile original = SafetensorsFile::open(kD1);
    std::vector<NamedTensor> list;
    for (const std::string& name : original.names())
        if (name != "ref.y") list.push_back({name, original.tensor(name).view});
    EXPECT_LT(list.size(), original.names().size());
    write_safetensors(folder.path("D1.safetensors"), list);
    verified({folder.path("D1.safetensors"), "--engine", "reference"}, 0);
}

TEST(CliGolden, AFileThatIsRefusedDoesNotStopTheOthers) {
    const Folder folder;
    fs::copy_file(kD1, folder.path("D1.safetensors"));
    json changed = json::parse(std::ifstream(kGoldens + "D1.json"));
    changed["config"]["attention_bias"] = true;
    folder.write("D1.json", changed.dump());
    const json found = verified({folder.path("D1.safetensors"), kD1, "--engine", "reference"}, 2);
    EXPECT_EQ(found["refused"], 1);
    EXPECT_GT(found["ran"], 0);
    EXPECT_EQ(found["failed"], 0);
    EXPECT_EQ(found["pass"], false);
}

TEST(CliGolden, NumbersAreNeverCutToFit) {
    const Folder folder;
    fs::copy_file(kD1, folder.path("D1.safetensors"));
    const auto wanted = [&](const char* member, const json& value) {
        json changed = json::parse(std::ifstream(kGoldens + "D1.json"));
        changed[member] = value;
        folder.write("D1.json", changed.dump());
        const json error = error_of({"verify", "--golden", folder.path("D1.safetensors")}, 2);
        EXPECT_EQ(error["field"], std::string("D1.json: ") + member);
        return error["wanted"];
    };
    EXPECT_EQ(wanted("chunk_plans", {{10000000000}}), "whole numbers below 2^31");
    wanted("suggested_page_sizes", {2147483648});
    wanted("seq_len", 5.5);
}

TEST(CliExample, WritesIntoNoFolderOfOthers) {
    const Folder folder;
    const std::vector<std::string> words{"example", "--golden", kD1, "--out", folder.path()};
    std::vector<std::string> forced = words;
    forced.emplace_back("--force");
    folder.write("config.json", "mine");
    EXPECT_EQ(error_of(words, 2)["field"], "--out");
    EXPECT_EQ(folder.read("config.json"), "mine");
    EXPECT_EQ(run_tool(forced).code, 0);
    EXPECT_EQ(folder.count(), 4u);
    EXPECT_EQ(run_tool(words).code, 0);  // its own by now
    fs::remove(folder.path("config.json"));
    fs::create_directory(folder.path("config.json"));
    EXPECT_EQ(error_of(words, 2)["field"], folder.path("config.json"));
    EXPECT_EQ(folder.count(), 4u);
}

}  // namespace

}  // namespace smla::test
