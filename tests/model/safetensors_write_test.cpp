#include "files.h"
#include "model/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

namespace smla {
namespace {

using test::expect_error;
using test::Folder;

TEST(SafetensorsWrite, WhatIsWrittenIsRead) {
    Folder folder;
    const std::string path = folder.path("out.safetensors");
    std::vector<uint8_t> codes = {1, 2, 3};
    std::vector<uint16_t> halves = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0};
    std::vector<double> doubles = {1, 2, 3, 4};
    std::vector<int32_t> ints = {-1, 5};
    write_safetensors(path,
                      {{"codes", make_tensor(codes.data(), SMLA_E4M3, {3})},
                       {"halves", make_tensor(halves.data(), SMLA_BF16, {2, 3})},
                       {"ints", make_tensor(ints.data(), SMLA_I32, {2, 1})},
                       {"none", make_tensor(static_cast<const void*>(nullptr), SMLA_F32, {0, 7})},
                       {"doubles", make_tensor(doubles.data(), SMLA_F64, {1, 2, 2})}},
                      {{"made by", "a test"}});
    const std::string content = folder.read("out.safetensors");
    EXPECT_EQ((8 + static_cast<unsigned char>(content[0]) + 256 * static_cast<unsigned char>(content[1])) % 8,
              0);
    const SafetensorsFile file = SafetensorsFile::open(path);
    EXPECT_EQ(file.metadata().at("made by"), "a test");
    EXPECT_EQ(file.names().size(), 5u);
    EXPECT_EQ(std::memcmp(file.tensor("codes").view.data, codes.data(), 3), 0);
    EXPECT_EQ(std::memcmp(file.tensor("halves").view.data, halves.data(), 12), 0);
    EXPECT_EQ(std::memcmp(file.tensor("ints").view.data, ints.data(), 8), 0);
    EXPECT_EQ(std::memcmp(file.tensor("doubles").view.data, doubles.data(), 32), 0);
    EXPECT_EQ(file.tensor("codes").view.dtype, SMLA_E4M3);
    EXPECT_EQ(file.tensor("doubles").view.ndim, 3);
    EXPECT_EQ(file.tensor("none").view.shape[1], 7);
    EXPECT_EQ(folder.count(), 1u);  // nothing temporary stays
    // the widest dtypes come first, so every tensor is aligned and, of a file in memory, served in place
    const SafetensorsFile in_memory = test::parse(content);
    for (const char* name : {"halves", "ints", "doubles"})
        EXPECT_EQ(in_memory.tensor(name).memory, in_memory.tensor("codes").memory) << name;
}

TEST(SafetensorsWrite, StridedTensorsAreMadeContiguous) {
    Folder folder;
    std::vector<float> values(24);
    for (size_t i = 0; i < values.size(); ++i) values[i] = float(i);
    Tensor transposed = make_tensor(values.data(), SMLA_F32, {2, 3, 4});
    std::swap(transposed.shape[0], transposed.shape[2]);
    std::swap(transposed.stride_elems[0], transposed.stride_elems[2]);
    const Tensor cut = slice(make_tensor(values.data(), SMLA_F32, {2, 3, 4}), 1, 1, 3);
    write_safetensors(folder.path("a"), {{"transposed", transposed}, {"cut", cut}});
    const SafetensorsFile file = SafetensorsFile::open(folder.path("a"));
    for (const char* name : {"transposed", "cut"}) {
        const Tensor& source = name[0] == 't' ? transposed : cut;
        const HostTensor read = file.tensor(name);
        for (int64_t i = 0; i < source.shape[0]; ++i)
            for (int64_t j = 0; j < source.shape[1]; ++j)
                for (int64_t k = 0; k < source.shape[2]; ++k)
                    EXPECT_EQ(load_one<float>(read.view, i, j, k), load_one<float>(source, i, j, k)) << name;
    }
}

TEST(SafetensorsWrite, Refusals) {
    Folder folder;
    const std::string path = folder.path("x");
    float value = 1;
    const Tensor one = make_tensor(&value, SMLA_F32, {1});
    Tensor cuda = one;
    cuda.device_type = SMLA_CUDA;
    expect_error(
        [&] {
            write_safetensors(path, {{"a", one}, {"a", one}});
        },
        SMLA_INVALID_ARGUMENT, "tensor a", "a duplicate name");
    expect_error(
        [&] {
            write_safetensors(path, {{"__metadata__", one}});
        },
        SMLA_INVALID_ARGUMENT, "tensor __metadata__", "the reserved name of the metadata");
    expect_error(
        [&] {
            write_safetensors(path, {{"a", cuda}});
        },
        SMLA_INVALID_ARGUMENT, "tensor a: device", "memory of a GPU");
    expect_error(
        [&] {
            write_safetensors(path, {{"a", make_tensor(&value, SMLA_E2M1, {8})}});
        },
        SMLA_INVALID_ARGUMENT, "tensor a: dtype", "e2m1");
    expect_error(
        [&] {
            write_safetensors(path, {{"a", Tensor{}}});
        },
        SMLA_INVALID_ARGUMENT, "tensor a: ndim", "0");
    EXPECT_EQ(test::error_of([&] { write_safetensors(path, {{"a\xff", one}}); }).wanted, "UTF-8");
    EXPECT_EQ(test::error_of([&] {
                  write_safetensors(path, {{"a", one}}, {{"k", "\xc0"}});
              }).wanted,
              "UTF-8");
    const Error nowhere = test::error_of([&] { write_safetensors(folder.path("no/x"), {{"a", one}}); });
    EXPECT_EQ(nowhere.status, SMLA_IO_ERROR);
    EXPECT_EQ(nowhere.field, folder.path("no/x"));
    EXPECT_EQ(folder.count(), 0u);
}

// The disk is full half-way: the old file stays as it was, and nothing else is left.
TEST(SafetensorsWrite, AFailureLeavesTheOldFile) {
    Folder folder;
    const std::string path = folder.path("weights.safetensors");
    std::vector<float> values(4096, 3.f);
    write_safetensors(path, {{"a", make_tensor(values.data(), SMLA_F32, {2})}});
    const std::string before = folder.read("weights.safetensors");

    rlimit old{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
    const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{4096, old.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const Error error = test::error_of([&] {
        write_safetensors(path, {{"a", make_tensor(values.data(), SMLA_F32, {int64_t(values.size())})}});
    });
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
    std::signal(SIGXFSZ, old_handler);

    EXPECT_EQ(error.status, SMLA_IO_ERROR) << error.what();
    EXPECT_EQ(error.field, path);
    EXPECT_EQ(folder.read("weights.safetensors"), before);
    EXPECT_EQ(folder.count(), 1u);
}

// However a process ends, what it has written so far is gone with it; where the file system gives files
// without names, that is.
TEST(SafetensorsWrite, AnEndHalfWayLeavesNothing) {
    Folder folder;
    const int unnamed = open(folder.path("").c_str(), O_TMPFILE | O_WRONLY, 0600);
    if (unnamed < 0) GTEST_SKIP() << "no files without names here";
    close(unnamed);
    const pid_t child = fork();
    if (child == 0) {
        OutputFile file(folder.path("a"));
        file.write("half", 4);
        kill(getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(folder.count(), 0u);
}

// Names that a file gets in the folder, in order; any other one could be left by a process that is killed.
std::vector<std::string> names_given(const Folder& folder, const std::function<void()>& write) {
    const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    EXPECT_GE(inotify_add_watch(watch, folder.path().c_str(), IN_CREATE | IN_MOVED_TO), 0);
    write();
    std::vector<std::string> out;
    alignas(inotify_event) char buffer[4096];
    const ssize_t size = read(watch, buffer, sizeof buffer);
    for (ssize_t at = 0; at < size;) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
        out.emplace_back(event->name);
        at += ssize_t(sizeof *event + event->len);
    }
    close(watch);
    return out;
}

TEST(SafetensorsWrite, OnlyWhatReplacesAFileHasAnotherNameFirst) {
    Folder folder;
    const int unnamed = open(folder.path("").c_str(), O_TMPFILE | O_WRONLY, 0600);
    if (unnamed < 0) GTEST_SKIP() << "no files without names here";
    close(unnamed);
    float value = 1;
    const auto write = [&] {
        write_safetensors(folder.path("a"), {{"v", make_tensor(&value, SMLA_F32, {1})}});
    };
    EXPECT_EQ(names_given(folder, write), std::vector<std::string>{"a"});
    const std::vector<std::string> again = names_given(folder, write);
    ASSERT_EQ(again.size(), 2u);
    EXPECT_EQ(again[0].rfind("a.smla-part.", 0), 0u) << again[0];
    EXPECT_EQ(again[1], "a");
    EXPECT_EQ(folder.count(), 1u);
}

// What a killed process left goes with the next write; what a living one writes, and what is not ours, stays.
TEST(SafetensorsWrite, RemovesWhatAKilledProcessLeft) {
    Folder folder;
    for (const char* name : {"a", "a.smla-part.1.0", "a.smla-part.2.0", "a.smla-part", "b.smla-part.1.0"})
        folder.write(name, "some");
    const int living = open(folder.path("a.smla-part.2.0").c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(flock(living, LOCK_EX), 0);
    float value = 1;
    write_safetensors(folder.path("a"), {{"v", make_tensor(&value, SMLA_F32, {1})}});
    EXPECT_EQ(folder.read("a.smla-part.1.0"), "");
    EXPECT_EQ(folder.count(), 4u);
    EXPECT_EQ(folder.read("a.smla-part.2.0"), "some");
    close(living);
    write_safetensors(folder.path("a"), {{"v", make_tensor(&value, SMLA_F32, {1})}});
    EXPECT_EQ(folder.count(), 3u);
}

TEST(SafetensorsWrite, WritersOfOneFileLeaveEachOtherAlone) {
    Folder folder;
    folder.write("a", "old");
    OutputFile first(folder.path("a"));
    {
        OutputFile second(folder.path("a"));
        second.write("second", 6);
        second.commit();
    }
    first.write("first", 5);
    first.commit();
    EXPECT_EQ(folder.read("a"), "first");
    EXPECT_EQ(folder.count(), 1u);
}

TEST(SafetensorsWrite, ReplacesAFile) {
    Folder folder;
    float value = 1;
    folder.write("a", "something old");
    write_safetensors(folder.path("a"), {{"v", make_tensor(&value, SMLA_F32, {1})}});
    EXPECT_EQ(load_one<float>(SafetensorsFile::open(folder.path("a")).tensor("v").view, 0), 1.f);
}

}  // namespace
}  // namespace smla
