#include "model/checkpoint.h"

#include "files.h"

#include <filesystem>

namespace smla {
namespace {

using test::expect_error;
using test::Folder;

void write_one(const Folder& folder, const std::string& file, const std::string& name, float value) {
    write_safetensors(folder.path(file), {{name, make_tensor(&value, SMLA_F32, {1})}});
}

float read_one(const Checkpoint& checkpoint, const std::string& name) {
    return load_one<float>(checkpoint.tensor(name).view, 0);
}

constexpr const char* kIndex = "model.safetensors.index.json";

TEST(Checkpoint, OneFile) {
    Folder folder;
    write_one(folder, "any.safetensors", "a", 4);
    const Checkpoint checkpoint = Checkpoint::open(folder.path("any.safetensors"));
    EXPECT_EQ(read_one(checkpoint, "a"), 4);
    EXPECT_EQ(checkpoint.name(), "any.safetensors");
    EXPECT_EQ(checkpoint.names(), std::vector<std::string>{"a"});
    expect_error([&] { checkpoint.tensor("b"); }, SMLA_DATA_ERROR, "any.safetensors: tensor b", "absent",
                 "one of the checkpoint's 1 tensors");
}

TEST(Checkpoint, FolderPrefersTheWholeFileThenTheIndexThenAll) {
    Folder folder;
    write_one(folder, "x.safetensors", "a", 1);
    write_one(folder, "y.safetensors", "b", 2);
    const Checkpoint all = Checkpoint::open(folder.path());
    EXPECT_EQ(all.names().size(), 2u);
    EXPECT_TRUE(all.name().ends_with(" (without model.safetensors)")) << all.name();  // in its errors
    write_one(folder, "shard", "a", 3);
    folder.write(kIndex, R"({"metadata":{"total_size":4},"weight_map":{"a":"shard"}})");
    EXPECT_EQ(Checkpoint::open(folder.path()).names().size(), 1u);
    EXPECT_EQ(Checkpoint::open(folder.path()).name(), std::filesystem::path(folder.path()).filename());
    EXPECT_EQ(read_one(Checkpoint::open(folder.path()), "a"), 3);
    write_one(folder, "model.safetensors", "a", 5);
    EXPECT_EQ(read_one(Checkpoint::open(folder.path() + "/"), "a"), 5);
}

TEST(Checkpoint, ShardsAreOpenedWhenNeeded) {
    Folder folder;
    write_one(folder, "s1.safetensors", "a", 1);
    folder.write(kIndex,
                 R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors","c":"s1.safetensors"}})");
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    EXPECT_TRUE(checkpoint.has("b"));
    EXPECT_EQ(read_one(checkpoint, "a"), 1);
    expect_error([&] { checkpoint.tensor("b"); }, SMLA_IO_ERROR, folder.path("s2.safetensors"),
                 "cannot open the file: No such file or directory");
    expect_error([&] { checkpoint.tensor("c"); }, SMLA_DATA_ERROR, "s1.safetensors: tensor c", "absent");
    write_one(folder, "s2.safetensors", "b", 2);
    EXPECT_EQ(read_one(checkpoint, "b"), 2);
}

TEST(Checkpoint, OneNameInTwoFiles) {
    Folder folder;
    write_one(folder, "x.safetensors", "a", 1);
    write_one(folder, "y.safetensors", "a", 2);
    const Error error = test::error_of([&] { Checkpoint::open(folder.path()); });
    EXPECT_EQ(error.got, "in x.safetensors and in y.safetensors");
    EXPECT_NE(error.field.find(": tensor a"), std::string::npos);
}

TEST(Checkpoint, Index) {
    Folder folder;
    const auto index_error = [&](const std::string& content, const std::string& field,
                                 const std::string& got) {
        folder.write(kIndex, content);
        expect_error([&] { Checkpoint::open(folder.path()); }, SMLA_DATA_ERROR, text(kIndex, field), got);
    };
    index_error("[]", ": weight_map", "absent");
    index_error("{}", ": weight_map", "absent");
    index_error(R"({"weight_map":[]})", ": weight_map", "a list of 0");
    index_error(R"({"weight_map":{"a":1}})", ": weight_map.a", "1");
    index_error(R"({"weight_map":{"a":"x","a":"y"}})", "", "a duplicate key \"a\"");
    for (const char* path : {"../secret", "/etc/passwd", "..", ".", "", "sub/x", "a\\u0000b"}) {
        folder.write(kIndex, text("{\"weight_map\":{\"a\":\"", path, "\"}}"));
        const Error error = test::error_of([&] { Checkpoint::open(folder.path()); });
        EXPECT_EQ(error.wanted, "the name of a file in the same folder") << path;
    }
}

TEST(Checkpoint, EmptyFolder) {
    Folder folder;
    folder.write("readme", "");
    expect_error([&] { Checkpoint::open(folder.path()); }, SMLA_IO_ERROR, folder.path(),
                 "the folder has no model.safetensors, model.safetensors.index.json or *.safetensors");
    expect_error([&] { Checkpoint::open(folder.path("none")); }, SMLA_IO_ERROR, folder.path("none"),
                 "cannot open the file: No such file or directory");
}

}  // namespace
}  // namespace smla
