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
    const std::string narrow = "attend=cpu_avx512_bf16_attend";  // D1's rows are not as wide
    const json idle{"D1"};
    EXPECT_EQ(verified({kD1, "--kernel", narrow}, 1)["nothing_ran"], idle);
    const json both = verified({kD1, kGoldens + "D6.safetensors", "--engine", "cpu", "--kernel", narrow}, 1);
    EXPECT_EQ(both["nothing_ran"][0], "D1");
    EXPECT_TRUE(verified({kD1, "--kernel", "attend=cpu_generic_attend"}, 0)["nothing_ran"].empty());
}

// A golden file in `folder`, with a change to the tensors of the original.
template <class Change>
std::string changed_golden(const Folder& folder, const std::string& name, const Change& change) {
    fs::copy_file(kGoldens + name + ".json", folder.path(name + ".json"),
                  fs::copy_options::overwrite_existing);
    const SafetensorsFile original = SafetensorsFile::open(kGoldens + name + ".safetensors");
    std::vector<HostTensor> copies;
    std::vector<NamedTensor> list;
    for (const std::string& tensor : original.names()) {
        copies.push_back(original.tensor(tensor));
        const size_t bytes =
            size_t(element_count(copies.back().view)) * size_t(dtype_bits(copies.back().view.dtype)) / 8;
        const auto memory = std::make_shared<std::vector<char>>(bytes);
        std::memcpy(memory->data(), copies.back().view.data, bytes);
        copies.back().view.data = memory->data();
        copies.back().memory = memory;
        list.push_back({tensor, copies.back().view});
    }
    for (NamedTensor& each : list) change(each.name, each.tensor);
    const std::string path = folder.path(name + ".safetensors");
    write_safetensors(path, list);
    return path;
}

TEST(CliGolden, AnIndexScoreWithoutValuesIsAMiss) {
    const Folder folder;
    verified({changed_golden(folder, "D1",
                             [](const std::string& name, Tensor& view) {
                                 if (name == "mid.index_score") view.shape[2] = 0;
                             })},
             1);
}

// The middle value of a tensor, or the last, which of a selection is no padding, becomes another.
void falsify(Tensor& tensor) {
    const int64_t n = element_count(tensor);
    if (tensor.dtype == SMLA_I32) {
        int32_t& value = static_cast<int32_t*>(tensor.data)[n - 1];
        value += value > 0 ? -1 : 1;
    } else if (tensor.dtype == SMLA_F64) {
        static_cast<double*>(tensor.data)[n / 2] += 3;
    } else {
        float& value = static_cast<float*>(tensor.data)[n / 2];
        value = std::isfinite(value) ? value + 3 : 0;  // -inf: a score of what is not visible
    }
}

TEST(CliGolden, EveryResultOfAFileIsCompared) {
    const Folder folder;
    int compared = 0;
    for (const std::string name : {"D3", "G2", "V3_S9", "V8"})
        for (const std::string& tensor : SafetensorsFile::open(kGoldens + name + ".safetensors").names()) {
            const std::string kind = tensor.substr(0, tensor.find('.'));
            if (kind == "w" || kind == "in") continue;
            // hyper-connections, which surround the layers that smla runs
            if (tensor.starts_with("mid.hc_") || tensor == "out.streams") continue;
            const std::string path = changed_golden(folder, name, [&](const std::string& each, Tensor& view) {
                if (each == tensor) falsify(view);
            });
            SCOPED_TRACE(name + ": " + tensor);
            verified({path, "--engine", "reference"}, 1);
            ++compared;
        }
    EXPECT_GT(compared, 60);
}

// Every record of the published widths is read back by each engine and held to the error that it must leave.
// V41_full takes longest of all golden files, so the ctest entry `goldens` omits it.
TEST(CliGolden, EveryRecordThatFitsIsVerified) {
    const auto formats = [](const char* name) {
        std::map<std::string, std::string> out;
        const json found = verified({kGoldens + name + std::string(".safetensors")}, 0);
        for (const json& each : found["combinations"])
            if (!each.contains("skipped")) {
                if (each["how"] == "forced topk") out[each["kv_format"]] += "rounding ";
                else if (each["how"] == "own topk") out[each["index_format"]] += "selection ";
                else if (each["how"] == "same cache, bf16 queries") out[each["kv_format"]] += "attend ";
            }
        return out;
    };
    const std::string both = "attend rounding ";
    std::map<std::string, std::string> wanted;
    for (const char* record : {"fp8_584", "fp8_512", "fp8_528_g32", "fp8_528_g32_split", "nvfp4_288",
                               "nvfp4_288_split", "nvfp4_384"})
        wanted[record] = both;
    for (const char* keys : {"index_fp8_132", "index_mxfp4_68"}) wanted[keys] = "selection ";
    EXPECT_EQ(formats("V41_full"), wanted);
    wanted = {{"fp8_656", both},
              {"fp8_576", both},
              {"nvfp4_352", both},
              {"index_fp8_132", "selection "},
              {"index_mxfp4_68", "selection "}};
    EXPECT_EQ(formats("G3"), wanted);
}

// D1 has five keys where six could be selected.
TEST(CliGolden, AStepSelectsAndScoresAsManyAsItHasKeys) {
    const Folder folder;
    fs::copy_file(kGoldens + "D1.json", folder.path("D1.json"));
    const SafetensorsFile original = SafetensorsFile::open(kD1);
    std::vector<NamedTensor> list;
    std::vector<HostTensor> kept;
    const auto tensor = [&](const std::string& name) {
        return kept.emplace_back(original.tensor(name)).view;
    };
    for (const std::string& name : original.names()) list.push_back({name, tensor(name)});
    for (const char* name : {"out.y", "mid.topk", "mid.index_score", "mid.core_out"}) {
        const std::string step = std::string("step.4.") + (std::strchr(name, '.') + 1);
        list.push_back({step, slice(tensor(name), 1, 4, 5)});
    }
    write_safetensors(folder.path("D1.safetensors"), list);
    verified({folder.path("D1.safetensors")}, 0);
    list[list.size() - 3].tensor.shape[2] -= 1;  // the selection lacks a key
    write_safetensors(folder.path("D1.safetensors"), list);
    verified({folder.path("D1.safetensors"), "--engine", "cpu"}, 1);
}

TEST(CliGolden, TensorsOfAnotherShapeOrRangeAreRefused) {
    const Folder folder;
    const auto field = [&](const char* name, const std::string& wrong, const auto& change) {
        const std::string path = changed_golden(folder, name, [&](const std::string& each, Tensor& view) {
            if (each == wrong) change(view);
        });
        const json error = error_of({"verify", "--golden", path}, 2);
        EXPECT_EQ(error["field"], std::string(name) + ".safetensors: tensor " + wrong);
        return error["wanted"];
    };
    const auto shorter = [](Tensor& view) { view.shape[1] -= 1; };
    EXPECT_EQ(field("D2", "in.position_ids", shorter), "[1,40]");
    EXPECT_EQ(field("D2", "in.hidden", shorter), "[1,40,64]");
    EXPECT_EQ(field("D2", "mid.topk", shorter), "[1,40,any]");
    EXPECT_EQ(field("V8", "in.streams", shorter), "[1,18,any,any]");
    const auto past = [](Tensor& view) { static_cast<int32_t*>(view.data)[0] = 256; };
    EXPECT_EQ(field("D6", "rows.index", past), "0 to 255");
    EXPECT_EQ(field("D6", "mid.topk", past), "-1 to 255");
}

// What is compared row by row lies where a name says: a run of values of any other shape ends elsewhere.
TEST(CliGolden, EveryTensorOfAFileHasTheShapeOfItsName) {
    const Folder folder;
    int changed = 0;
    for (const std::string name : {"G2", "V3_S9", "V8", "N1"})
        for (const std::string& tensor : SafetensorsFile::open(kGoldens + name + ".safetensors").names()) {
            if (tensor.rfind("w.", 0) == 0) continue;
            SCOPED_TRACE(name + ": " + tensor);
            const std::string path = changed_golden(folder, name, [&](const std::string& each, Tensor& view) {
                if (each != tensor) return;
                const int64_t n = element_count(view);
                view.ndim = 1;
                view.shape[0] = n;
                view.stride_elems[0] = 1;
            });
            EXPECT_EQ(error_of({"verify", "--golden", path}, 2)["field"],
                      name + ".safetensors: tensor " + tensor);
            ++changed;
        }
    EXPECT_GT(changed, 70);
}

// A golden file in `folder` and further tensors; those named by `without` are left out.
std::string longer_golden(const Folder& folder, const std::string& name, const std::string& without,
                          const std::vector<NamedTensor>& more) {
    fs::copy_file(kGoldens + name + ".json", folder.path(name + ".json"),
                  fs::copy_options::overwrite_existing);
    const SafetensorsFile original = SafetensorsFile::open(kGoldens + name + ".safetensors");
    std::vector<NamedTensor> list = more;
    std::vector<HostTensor> kept;
    for (const std::string& each : original.names())
        if (each != without) list.push_back({each, kept.emplace_back(original.tensor(each)).view});
    const std::string path = folder.path(name + ".safetensors");
    write_safetensors(path, list);
    return path;
}

// Entries are listed by the tokens that close them, not by their own numbers.
TEST(CliGolden, ListedRowsOfEntriesAreThoseOfTokens) {
    const Folder folder;
    for (const char* name : {"entries", "entries_index"}) {
        const std::string whole = std::string("mid.") + name;
        const HostTensor entries = SafetensorsFile::open(kGoldens + "V3_S9.safetensors").tensor(whole);
        int32_t closing[] = {3, 7}, past[] = {4, 8};
        const auto file = [&](int32_t* tokens) {
            return longer_golden(folder, "V3_S9", whole,
                                 {{"rows.index", make_tensor(tokens, SMLA_I32, {2})},
                                  {std::string("rows.") + name, entries.view}});
        };
        verified({file(closing), "--engine", "reference"}, 0);
        verified({file(past), "--engine", "reference"}, 1);
    }
}

TEST(CliGolden, CandidatesAreWholeNumbersOfTokens) {
    const Folder folder;
    int32_t blocks[27] = {};
    const auto refused = [&](const char* name, Tensor tensor) {
        const std::string path = longer_golden(folder, "V3_S9", "", {{name, tensor}});
        const json error = error_of({"verify", "--golden", path}, 2);
        EXPECT_EQ(error["field"], std::string("V3_S9.safetensors: tensor ") + name);
        return error["wanted"];
    };
    EXPECT_EQ(refused("mid.candidates", make_tensor(blocks, SMLA_I32, {8})), "[1,9,any]");
    EXPECT_EQ(refused("mid.candidates", make_tensor(blocks, SMLA_F32, {1, 9, 3})), "an integer dtype");
    EXPECT_EQ(refused("step.3.topk", make_tensor(blocks, SMLA_I32, {8})), "[1,1,...]");
    EXPECT_EQ(refused("rows.qr", make_tensor(blocks, SMLA_F32, {3})), "[1,any,...]");
    blocks[5] = 9;
    EXPECT_EQ(refused("mid.candidates", make_tensor(blocks, SMLA_I32, {1, 9, 3})), "-1 to 8");
}

TEST(CliGolden, AScoreOfNoEntries) {
    const Folder folder;
    float nothing = 0;
    const Tensor scores = make_tensor(&nothing, SMLA_F32, {1, 3, 0});
    verified({longer_golden(folder, "V3_S3", "", {{"mid.index_score", scores}}), "--engine", "reference"}, 0);
}

TEST(CliGolden, ASuffixIsOneWord) {
    const Folder folder;
    fs::copy_file(kD1, folder.path("D1.safetensors"));
    json changed = json::parse(std::ifstream(kGoldens + "D1.json"));
    for (const char* suffix : {"mid.topk", ".a.b", "x"}) {
        changed["layers"][0]["suffix"] = suffix;
        folder.write("D1.json", changed.dump());
        const json error = error_of({"verify", "--golden", folder.path("D1.safetensors")}, 2);
        EXPECT_EQ(error["field"], "D1.json: layers.suffix");
    }
}

// Without the output in double, double is compared with one in f32, by its tolerance.
TEST(CliGolden, AFileWithoutAnOutputInDouble) {
    const Folder folder;
    fs::copy_file(kGoldens + "D1.json", folder.path("D1.json"));
    const SafetensorsFile original = SafetensorsFile::open(kD1);
    std::vector<NamedTensor> list;
    std::vector<HostTensor> kept;
    for (const std::string& name : original.names())
        if (name != "ref.y") list.push_back({name, kept.emplace_back(original.tensor(name)).view});
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

TEST(CliExample, ShowsACommandThatAShellTakes) {
    const Folder folder;
    const std::string out = folder.path("it's one");
    const auto made = run_tool({"example", "--golden", kD1, "--out", out});
    ASSERT_EQ(made.code, 0);
    const std::string quoted = folder.path("it'\\''s one");
    EXPECT_NE(made.out.find("smla run '" + quoted + "' --layer"), std::string::npos) << made.out;
    EXPECT_NE(made.out.find("--hidden '" + quoted + "/hidden.safetensors'"), std::string::npos) << made.out;
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
