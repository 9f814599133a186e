// smla verify --golden and smla example: what passes, and what they write into.
#include "cli/run_tool.h"
#include "model/files.h"

#include <gtest/gtest.h>

namespace smla::test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kGoldens = SMLA_SOURCE_DIR "/tests/goldens/";

std::vector<std::string> verify(std::vector<std::string> words) {
    words.insert(words.begin(), {"verify", "--json", "--golden"});
    return words;
}

// D1, to be changed.
struct CopyOfD1 {
    Folder folder;
    json about;
    const SafetensorsFile original = SafetensorsFile::open(kGoldens + "D1.safetensors");

    CopyOfD1() {
        about = json::parse(std::ifstream(kGoldens + "D1.json"));
        fs::copy_file(kGoldens + "D1.safetensors", path());
        write(about);
    }
    std::string path() const { return folder.path("D1.safetensors"); }
    void write(const json& changed) const { folder.write("D1.json", changed.dump()); }
    void empty(const std::string& tensor) const {
        std::vector<NamedTensor> list;
        for (const std::string& name : original.names()) list.push_back({name, original.tensor(name).view});
        for (NamedTensor& each : list)
            if (each.name == tensor) each.tensor.shape[each.tensor.ndim - 1] = 0;
        write_safetensors(path(), list);
    }
    void remove(const std::string& tensor) const {
        std::vector<NamedTensor> list;
        for (const std::string& name : original.names())
            if (name != tensor) list.push_back({name, original.tensor(name).view});
        write_safetensors(path(), list);
    }
};

TEST(CliGolden, ADemandedKernelMustRunOnEveryFile) {
    const std::string d1 = kGoldens + "D1.safetensors", d6 = kGoldens + "D6.safetensors";
    const std::vector<std::string> demand{"--kernel", "attend=cpu_avx2_f32_576"};  // not for D1's narrow rows
    const Finished one =
        run_tool(verify({d1, demand[0], demand[1]}));  // the reference ran, it does not count
    EXPECT_EQ(one.code, 1);
    EXPECT_NE(one.err.find("nothing ran with attend=cpu_avx2_f32_576 of D1"), std::string::npos) << one.err;
    const Finished both = run_tool(verify({d1, d6, "--engine", "cpu", demand[0], demand[1]}));
    EXPECT_EQ(both.code, 1);
    EXPECT_EQ(json::parse(both.out)["nothing_ran"][0], "D1");
    EXPECT_EQ(json::parse(both.out)["pass"], false);
    const json fits = json_of(verify({d1, "--kernel", "attend=cpu_generic", "--isa", "scalar"}));
    EXPECT_EQ(fits["pass"], true);
    EXPECT_TRUE(fits["nothing_ran"].empty());
}

TEST(CliGolden, AnIntermediateWithoutValuesIsAMiss) {
    for (const char* tensor : {"mid.index_score", "mid.topk", "mid.index_k"}) {
        const CopyOfD1 copy;
        ASSERT_TRUE(copy.original.has(tensor));
        copy.empty(tensor);
        EXPECT_EQ(run_tool(verify({copy.path(), "--engine", "reference"})).code, 1) << tensor;
    }
}

// Without the output in double, double is compared with one in f32, by its tolerance.
TEST(CliGolden, AFileWithoutAnOutputInDouble) {
    const CopyOfD1 copy;
    ASSERT_TRUE(copy.original.has("ref.y"));
    copy.remove("ref.y");
    EXPECT_EQ(json_of(verify({copy.path(), "--engine", "reference"}))["pass"], true);
}

TEST(CliGolden, AFileThatIsRefusedDoesNotStopTheOthers) {
    const CopyOfD1 copy;
    json changed = copy.about;
    changed["config"]["attention_bias"] = true;
    copy.write(changed);
    const std::string d1 = kGoldens + "D1.safetensors";
    const Finished run = run_tool(verify({copy.path(), d1, "--engine", "reference"}));
    EXPECT_EQ(run.code, 2);
    EXPECT_NE(run.err.find("attention_bias"), std::string::npos) << run.err;
    const json found = json::parse(run.out);
    EXPECT_EQ(found["refused"], 1);
    EXPECT_GT(found["ran"], 0);
    EXPECT_EQ(found["failed"], 0);
    EXPECT_EQ(found["pass"], false);
}

TEST(CliGolden, NumbersAreNeverCutToFit) {
    const CopyOfD1 copy;
    const auto error = [&](const char* member, const json& value) {
        json changed = copy.about;
        changed[member] = value;
        copy.write(changed);
        return error_of({"verify", "--golden", copy.path()}, 2);
    };
    const json chunk = error("chunk_plans", {{10000000000}});
    EXPECT_EQ(chunk["field"], "D1.json: chunk_plans");
    EXPECT_EQ(chunk["wanted"], "a list, each a list, each a whole number up to 2147483647");
    EXPECT_EQ(error("suggested_page_sizes", {2147483648})["field"], "D1.json: suggested_page_sizes");
    EXPECT_EQ(error("seq_len", 5.5)["got"], "5.5");
    EXPECT_EQ(error("seq_len", 18446744073709551615u)["field"], "D1.json: seq_len");
    EXPECT_EQ(error("model_type", 3)["wanted"], "a string");
    json layers = copy.about["layers"];
    layers[0]["layer_idx"] = -1;
    EXPECT_EQ(error("layers", layers)["got"], "-1");
}

std::vector<std::string> example(const Folder& folder, std::vector<std::string> words = {}) {
    words.insert(words.begin(), {"example", "--golden", kGoldens + "D1.safetensors", "--out", folder.path()});
    return words;
}

TEST(CliExample, WritesIntoNoFolderOfOthers) {
    const Folder folder;
    folder.write("config.json", "mine");
    EXPECT_EQ(error_of(example(folder), 2)["field"], "--out");
    EXPECT_EQ(folder.read("config.json"), "mine");
    EXPECT_EQ(folder.count(), 1u);
    EXPECT_EQ(run_tool(example(folder, {"--force"})).code, 0);
    EXPECT_NE(folder.read("config.json"), "mine");
    EXPECT_EQ(run_tool(example(folder)).code, 0);  // its own by now
}

TEST(CliExample, AFolderInAFilesPlaceLeavesNothingBehind) {
    const Folder folder;
    fs::create_directory(folder.path("config.json"));
    EXPECT_EQ(error_of(example(folder, {"--force"}), 2)["field"], folder.path("config.json"));
    for (const fs::directory_entry& each : fs::directory_iterator(folder.path()))
        EXPECT_NE(each.path().extension(), ".tmp") << each.path();
}

}  // namespace

}  // namespace smla::test
