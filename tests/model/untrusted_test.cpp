// Files of unknown origin: they change while they are read, or ask for more than they hold.
#include "files.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/configs.h"

#include "counting_new.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <limits>

namespace smla::test {
namespace {

constexpr size_t kFloats = 1 << 18;  // 1 MiB: many pages behind the header

std::string large_file() {
    const std::string bytes = text(kFloats * 4);
    return image(
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[" + text(kFloats) + "],\"data_offsets\":[0," + bytes + "]}}",
        std::string(kFloats * 4, '\1'));
}

// A mapping would end the process with SIGBUS.
TEST(Untrusted, AFileThatIsCutAfterItWasOpenedIsAnError) {
    const std::string good = large_file();
    for (const size_t left : {size_t(0), size_t(4), size_t(100), good.size() / 2, good.size() - 1}) {
        Folder folder;
        folder.write("m.safetensors", good);
        const SafetensorsFile file = SafetensorsFile::open(folder.path("m.safetensors"));
        const HostTensor before = file.tensor("a");
        ASSERT_EQ(::truncate(folder.path("m.safetensors").c_str(), off_t(left)), 0);
        const Error error = error_of([&] { file.tensor("a"); });
        EXPECT_EQ(error.status, SMLA_IO_ERROR) << error.what();
        EXPECT_EQ(error.field, "m.safetensors");
        EXPECT_NE(error.got.find("the file was truncated to"), std::string::npos) << error.got;
        // what was read before stays
        const char* const data = static_cast<const char*>(before.view.data);
        EXPECT_EQ(std::string(data, kFloats * 4), std::string(kFloats * 4, '\1'));
    }
}

TEST(Untrusted, AFileThatIsOverwrittenDoesNotChangeWhatWasRead) {
    Folder folder;
    folder.write("m.safetensors", large_file());
    const SafetensorsFile file = SafetensorsFile::open(folder.path("m.safetensors"));
    const HostTensor before = file.tensor("a");
    std::fstream(folder.path("m.safetensors"), std::ios::in | std::ios::out | std::ios::binary)
        << std::string(1000, '{');
    EXPECT_EQ(*static_cast<const char*>(before.view.data), '\1');
}

TEST(Untrusted, AShardThatIsCutOrGoneIsAnError) {
    Folder folder;
    folder.write("m.safetensors", large_file());
    folder.write("model.safetensors.index.json",
                 R"({"weight_map":{"a":"m.safetensors","b":"gone.safetensors"}})");
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    EXPECT_EQ(error_of([&] { checkpoint.tensor("b"); }).status, SMLA_IO_ERROR);
    EXPECT_NO_THROW(checkpoint.tensor("a"));
    ASSERT_EQ(::truncate(folder.path("m.safetensors").c_str(), 5000), 0);
    EXPECT_EQ(error_of([&] { checkpoint.tensor("a"); }).status, SMLA_IO_ERROR);
}

TEST(Untrusted, NamesWithNewlinesAndLinksAreFilesLikeOthers) {
    Folder folder;
    const std::string name = "a\nb\x1b[31m.safetensors";
    folder.write(name, large_file());
    EXPECT_TRUE(SafetensorsFile::open(folder.path(name)).has("a"));
    std::filesystem::create_symlink(name, folder.path("model.safetensors"));  // as in Hugging Face's cache
    EXPECT_TRUE(Checkpoint::open(folder.path()).has("a"));
    std::filesystem::remove(folder.path("model.safetensors"));
    std::filesystem::create_symlink("model.safetensors", folder.path("model.safetensors"));  // to itself
    EXPECT_THROW(Checkpoint::open(folder.path("model.safetensors")), Error);
}

// Bytes that opening takes from the heap, right or refused.
template <class Action>
int64_t heap_of(const Action& action) {
    const int64_t before = counting::allocated_bytes;
    try {
        action();
    } catch (const Error& error) {
        EXPECT_NE(error.status, SMLA_OUT_OF_MEMORY) << error.what();
        EXPECT_NE(error.status, SMLA_INTERNAL) << error.what();
    }
    return counting::allocated_bytes - before;
}

constexpr int64_t kMost = int64_t(4) << 20;  // of a file of some KiB, all allocations added up

TEST(Untrusted, ASmallFileTakesLittleMemoryWhateverItClaims) {
    const std::string most = "281474976710656";  // 2^48, what a shape may have
    const char* const max = "18446744073709551615";
    std::vector<std::string> headers = {
        R"({"a":{"dtype":"F32","shape":[)" + most + R"(],"data_offsets":[0,4]}})",
        R"({"a":{"dtype":"F32","shape":[)" + most + R"(,0],"data_offsets":[0,0]}})",
        R"({"a":{"dtype":"F32","shape":[0,)" + most + R"(],"data_offsets":[0,0]}})",
        std::string(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,)") + max + "]}}",
        std::string(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[)") + max + ",4]}}",
        std::string(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,)") + max +
            R"(],"data_offsets":[0,0]}})",
        "{\"__metadata__\":{\"" + std::string(900, 'k') + "\":\"v\"}}",
        std::string(900, '['),
        "{\"a\":" + std::string(450, '[') + std::string(450, ']') + "}",
        "[" + std::string(900, '1') + "]",
    };
    for (const std::string& header : headers) {
        const std::string content = image(header, std::string(4, '\0'));
        EXPECT_LT(heap_of([&] {
                      const SafetensorsFile file = parse(content);
                      for (const std::string& name : file.names()) file.tensor(name);
                  }),
                  kMost)
            << header.substr(0, 80);
    }
    for (const uint64_t length : {uint64_t(1) << 20, uint64_t(1) << 40, std::numeric_limits<uint64_t>::max()})
        EXPECT_LT(heap_of([&] { parse(length_prefix(length) + std::string(1000, ' ')); }), kMost) << length;
}

// Every number of a config in turn, as large as one can be.
TEST(Untrusted, AConfigTakesLittleMemoryWhateverItClaims) {
    for (const std::string& config : {std::string(kV32), std::string(kGlm52), v4_flash()}) {
        const auto good = nlohmann::json::parse(config);
        for (const auto& [key, value] : good.items()) {
            if (!value.is_number()) continue;
            for (const int64_t huge :
                 {int64_t(1) << 31, int64_t(1) << 47, std::numeric_limits<int64_t>::max()}) {
                auto bad = good;
                bad[key] = huge;
                const std::string text = bad.dump();
                EXPECT_LT(heap_of([&] {
                              const AttentionConfig read = parse_config(text, "config.json");
                              read.layer_kind(0);
                              read.softmax_scale();
                          }),
                          kMost)
                    << key << " " << huge;
            }
        }
    }
}

}  // namespace
}  // namespace smla::test
