// smla run: what it reads and writes, and what it refuses before it works.
#include "cli/run_tool.h"

#include "core/tensor.h"
#include "model/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace smla::test {

namespace {

namespace fs = std::filesystem;

std::string content(const std::string& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
}

// A folder with the checkpoint of a golden file, its input, what it should give, and an old output.
class CliRun : public testing::Test {
protected:
    void SetUp() override {
        folder_ = testing::TempDir() + "smla_run_XXXXXX";
        ASSERT_TRUE(mkdtemp(folder_.data()));
        const std::string golden = SMLA_SOURCE_DIR "/tests/goldens/D1.safetensors";
        ASSERT_EQ(run_tool({"example", "--golden", golden, "--out", at("model")}).code, 0);
        std::ofstream(at("old.st")) << "old";
    }
    void TearDown() override { fs::remove_all(folder_); }

    std::string at(const std::string& name) const { return folder_ + "/" + name; }
    const std::string hidden() const { return at("model/hidden.safetensors"); }
    std::vector<std::string> line(const std::vector<std::string>& more) const {
        std::vector<std::string> all{"run", at("model"), "--hidden", hidden()};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    // The field of the error; no file has changed or come.
    std::string refused(const std::vector<std::string>& more) const {
        const auto before = everything();
        const std::string field = error_of(line(more), 2)["field"];
        EXPECT_TRUE(everything() == before) << field;
        return field;
    }
    // `hidden` again, with its first value NaN.
    std::string hidden_with_nan() const {
        const HostTensor found = SafetensorsFile::open(hidden()).tensor("hidden");
        std::vector<float> values(size_t(element_count(found.view)));
        const int64_t width = found.view.shape[found.view.ndim - 1];
        const int64_t tokens = int64_t(values.size()) / width;
        Tensor copy = make_tensor(values.data(), SMLA_F32, {tokens, width});
        for (int64_t t = 0; t < tokens; ++t)
            load_row(found.view,
                     static_cast<const char*>(found.view.data) + t * width * dtype_bits(found.view.dtype) / 8,
                     width, values.data() + t * width);
        values[0] = NAN;
        write_safetensors(at("nan.st"), {{"hidden", copy}});
        return at("nan.st");
    }

private:
    std::map<std::string, std::string> everything() const {
        std::map<std::string, std::string> found;
        for (const auto& entry : fs::recursive_directory_iterator(folder_))
            if (entry.is_regular_file()) found[entry.path()] = content(entry.path());
        return found;
    }
    std::string folder_;
};

TEST_F(CliRun, AnOutputThatIsAnInputIsRefused) {
    fs::create_symlink(hidden(), at("link.st"));
    for (const std::string& out : {hidden(), at("link.st"), at("model/config.json"),
                                   at("model/model.safetensors"), at("model/../model/config.json")})
        EXPECT_EQ(refused({"--out", out}), "--out") << out;
    EXPECT_EQ(refused({"--out", at("old.st"), "--expected", at("old.st")}),
              "old.st: size");  // no safetensors
    const std::string expected = at("model/expected.safetensors");
    EXPECT_EQ(refused({"--out", expected, "--expected", expected}), "--out");
    EXPECT_EQ(refused({"--out", at("y.st"), "--save-topk", at("./y.st")}), "--save-topk");
    EXPECT_EQ(refused({"--out", at("y.st"), "--save-topk", hidden()}), "--save-topk");
}

TEST_F(CliRun, WhatIsWrongWithFilesIsFoundBeforeTheWork) {
    const std::string old = at("old.st");
    EXPECT_EQ(refused({"--out", at("no/folder/y.st")}), at("no/folder/y.st"));
    EXPECT_EQ(refused({"--out", at("model")}), at("model"));
    EXPECT_EQ(refused({"--out", old, "--save-topk", at("no/t.st")}), at("no/t.st"));
    EXPECT_NE(refused({"--out", old, "--expected", at("none.st")}), "");
    EXPECT_NE(refused({"--out", old, "--expected", hidden()}).find("tensor y"), std::string::npos);
    EXPECT_NE(refused({"--out", old, "--topk", hidden()}).find("tensor topk"), std::string::npos);
}

TEST_F(CliRun, OutputsKeepLinksAndPermissions) {
    fs::create_symlink("old.st", at("link.st"));
    ASSERT_EQ(chmod(at("old.st").c_str(), 0640), 0);
    EXPECT_EQ(run_tool(line({"--out", at("link.st")})).code, 0);
    EXPECT_TRUE(fs::is_symlink(at("link.st")));
    struct stat found {};
    ASSERT_EQ(stat(at("old.st").c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777, 0640u);
    EXPECT_TRUE(SafetensorsFile::open(at("old.st")).has("y"));

    EXPECT_EQ(run_tool(line({"--out", "/dev/null"})).code, 0);
    ASSERT_EQ(stat("/dev/null", &found), 0);
    EXPECT_TRUE(S_ISCHR(found.st_mode));
}

TEST_F(CliRun, OptionsAreReadAsTheyStand) {
    const std::string y = at("y.st");
    EXPECT_EQ(refused({"--out", y, "--layer", "-1"}), "--layer");
    for (const char* chunk : {"1,,2", "0", "4,x", "", "-3"})
        EXPECT_EQ(refused({"--out", y, "--chunk", chunk}), "--chunk") << chunk;
    for (const char* number : {"-1", "nan", "inf"}) {
        EXPECT_EQ(refused({"--out", y, "--tolerance", number}), "--tolerance") << number;
        EXPECT_EQ(refused({"--out", y, "--scratch-mib", number}), "--scratch-mib") << number;
    }
    EXPECT_EQ(refused({"--out", y, "--serve", y}), "checkpoint");
    EXPECT_EQ(run_tool({"run", "--hidden", hidden(), "--out", y, "--chunk", "2,1", at("model")}).code, 0);

    write_safetensors(at("odd.st"), {{"hidden", SafetensorsFile::open(hidden()).tensor("hidden").view}},
                      {{"layer", "abc"}});
    EXPECT_EQ(error_of({"run", at("model"), "--hidden", at("odd.st"), "--out", y}, 2)["field"],
              "odd.st: metadata layer");
}

TEST_F(CliRun, AFormatWithOneScaleNeedsTheOption) {
    const std::string golden = SMLA_SOURCE_DIR "/tests/goldens/D6.safetensors", y = at("y.st");
    fs::remove_all(at("model"));
    ASSERT_EQ(run_tool({"example", "--golden", golden, "--out", at("model")}).code, 0);
    EXPECT_EQ(refused({"--out", y, "--kv-format", "fp8_576"}), "--kv-scale");
    for (const char* scale : {"0", "1e-50", "-1", "1e39", "nan", "inf", "x", ""})
        EXPECT_EQ(refused({"--out", y, "--kv-format", "fp8_576", "--kv-scale", scale}), "--kv-scale")
            << scale;
    for (const char* format : {"row_f32", "row_bf16", "fp8_656"})
        EXPECT_EQ(refused({"--out", y, "--kv-format", format, "--kv-scale", "2"}), "--kv-scale") << format;
    const auto agrees = [&](const std::string& scale) {
        const Finished run = run_tool(line({"--out", y, "--kv-format", "fp8_576", "--kv-scale", scale,
                                            "--expected", at("model/expected.safetensors")}));
        return run.code == 0;
    };
    EXPECT_TRUE(agrees("0.05"));
    EXPECT_FALSE(agrees("1e-9"));  // clips every value
}

// The tool runs in this test's folder: a checkpoint there may be called like a subcommand.
TEST_F(CliRun, ACheckpointMayBeCalledLikeASubcommand) {
    const fs::path before = fs::current_path();
    fs::copy(at("model"), at("demo"));
    fs::current_path(at(""));
    const Finished run = run_tool({"run", "demo", "--hidden", "demo/hidden.safetensors", "--out", "y.st"});
    fs::current_path(before);
    EXPECT_EQ(run.code, 0) << run.err;
}

TEST_F(CliRun, ASelectionOfAnyIntegersIsTaken) {
    ASSERT_EQ(run_tool(line({"--out", at("y.st"), "--save-topk", at("t.st")})).code, 0);
    const HostTensor narrow = SafetensorsFile::open(at("t.st")).tensor("topk");
    std::vector<int64_t> wide(size_t(element_count(narrow.view)));
    for (size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<const int32_t*>(narrow.view.data)[i];
    Tensor view = narrow.view;
    view.data = wide.data(), view.dtype = SMLA_I64;
    write_safetensors(at("wide.st"), {{"topk", view}});
    EXPECT_EQ(run_tool(line({"--out", at("z.st"), "--topk", at("wide.st")})).code, 0);
    EXPECT_EQ(content(at("z.st")), content(at("y.st")));
    wide[0] = int64_t(1) << 32;
    write_safetensors(at("wide.st"), {{"topk", view}});
    EXPECT_NE(refused({"--out", at("z.st"), "--topk", at("wide.st")}).find("tensor topk"), std::string::npos);
}

TEST_F(CliRun, ValuesThatAreNotFiniteAreTold) {
    const auto good = json_of(line({"--out", at("y.st")}));
    EXPECT_EQ(good["not_finite"], 0);
    const Finished bad =
        run_tool({"run", at("model"), "--hidden", hidden_with_nan(), "--out", at("y.st"), "--json"});
    EXPECT_EQ(bad.code, 0);
    EXPECT_NE(bad.err.find("not finite, 1 of those of the hidden states"), std::string::npos) << bad.err;
    EXPECT_GT(nlohmann::json::parse(bad.out)["not_finite"], 0);
}

}  // namespace

}  // namespace smla::test
