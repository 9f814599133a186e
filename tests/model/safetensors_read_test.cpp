#include "files.h"

#include <sys/stat.h>

namespace smla {
namespace {

using test::error_of;
using test::expect_error;
using test::Folder;
using test::image;
using test::parse;

std::string bytes(size_t n, char first = 0) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += char(first + char(i));
    return out;
}

// Opening fails, and the error names exactly this.
void bad(const std::string& content, const std::string& field, const std::string& got,
         const std::string& wanted = "") {
    SCOPED_TRACE(content.substr(8, 120));
    expect_error([&] { parse(content); }, SMLA_DATA_ERROR, "m.safetensors: " + field, got, wanted);
}

// One tensor "a" whose members are given as text; 8 bytes of data.
void bad_tensor(const std::string& members, const std::string& member, const std::string& got,
                const std::string& wanted = "") {
    bad(image("{\"a\":{" + members + "}}", bytes(8)), "tensor a: " + member, got, wanted);
}

TEST(SafetensorsRead, TensorsOfEveryDtype) {
    const std::string header = R"({"__metadata__":{"format":"pt"},)"
                               R"("d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                               R"("l":{"dtype":"I64","shape":[1],"data_offsets":[8,16]},)"
                               R"("f":{"dtype":"F32","shape":[2,1],"data_offsets":[16,24]},)"
                               R"("i":{"dtype":"I32","shape":[],"data_offsets":[24,28]},)"
                               R"("h":{"dtype":"F16","shape":[1],"data_offsets":[28,30]},)"
                               R"("b":{"dtype":"BF16","shape":[1,1,1],"data_offsets":[30,32]},)"
                               R"("q":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[32,35]},)"
                               R"("s":{"dtype":"F8_E8M0","shape":[1],"data_offsets":[35,36]},)"
                               R"("u":{"dtype":"U8","shape":[1],"data_offsets":[36,37]},)"
                               R"("z":{"dtype":"F32","shape":[0,5],"data_offsets":[37,37]},)"
                               R"("c":{"dtype":"I8","shape":[1],"data_offsets":[37,38]}})";
    const std::string data = bytes(38);
    const SafetensorsFile file = parse(image(header, data));
    const struct {
        const char* name;
        smla_dtype dtype;
        int64_t elements;
        size_t at;
    } expected[] = {{"d", SMLA_F64, 1, 0},   {"l", SMLA_I64, 1, 8},   {"f", SMLA_F32, 2, 16},
                    {"i", SMLA_I32, 1, 24},  {"h", SMLA_F16, 1, 28},  {"b", SMLA_BF16, 1, 30},
                    {"q", SMLA_E4M3, 3, 32}, {"s", SMLA_E8M0, 1, 35}, {"u", SMLA_U8, 1, 36},
                    {"c", SMLA_U8, 1, 37}};
    EXPECT_EQ(file.names().size(), 11u);
    EXPECT_EQ(file.metadata().at("format"), "pt");
    for (const auto& each : expected) {
        const HostTensor tensor = file.tensor(each.name);
        EXPECT_EQ(tensor.view.dtype, each.dtype) << each.name;
        ASSERT_EQ(element_count(tensor.view), each.elements) << each.name;
        const size_t size = size_t(each.elements) * size_t(dtype_bits(each.dtype) / 8);
        EXPECT_EQ(std::memcmp(tensor.view.data, data.data() + each.at, size), 0) << each.name;
        EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view.data) % uintptr_t(dtype_bits(each.dtype) / 8), 0u)
            << each.name;
    }
    EXPECT_EQ(file.tensor("i").view.ndim, 1);  // a scalar is [1]: ndim 0 would be an absent tensor
    EXPECT_EQ(file.tensor("f").view.shape[0], 2);
    EXPECT_EQ(file.tensor("z").view.shape[1], 5);
    EXPECT_EQ(element_count(file.tensor("z").view), 0);
}

TEST(SafetensorsRead, UnalignedTensorsAreCopiedAndAlignedOnesAreNot) {
    for (const size_t padding : {0, 1, 2, 3, 5, 7}) {
        const std::string header =
            R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})" + std::string(padding, ' ');
        const float values[2] = {1.5f, -2.25f};
        const std::string content = image(header, std::string(reinterpret_cast<const char*>(values), 8));
        const std::shared_ptr<char[]> memory(new char[content.size()]);
        std::memcpy(memory.get(), content.data(), content.size());
        const SafetensorsFile file = SafetensorsFile::from_bytes({memory, memory.get(), content.size()}, "m");
        const HostTensor tensor = file.tensor("x");
        const float* at = static_cast<const float*>(tensor.view.data);
        EXPECT_EQ(at[0], 1.5f);
        EXPECT_EQ(at[1], -2.25f);
        const char* in_place = memory.get() + 8 + header.size();
        const bool aligned = reinterpret_cast<uintptr_t>(in_place) % 4 == 0;
        EXPECT_EQ(tensor.view.data == in_place, aligned);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view.data) % 4, 0u);
    }
}

TEST(SafetensorsRead, ViewsOutliveTheFile) {
    Folder folder;
    const int64_t values[2] = {7, -9};
    write_safetensors(folder.path("a.safetensors"), {{"v", make_tensor(values, SMLA_I64, {2})}});
    HostTensor tensor;
    {
        const SafetensorsFile file = SafetensorsFile::open(folder.path("a.safetensors"));
        tensor = file.tensor("v");
    }
    std::filesystem::remove(folder.path("a.safetensors"));
    EXPECT_EQ(static_cast<const int64_t*>(tensor.view.data)[1], -9);
}

TEST(SafetensorsRead, Sizes) {
    const Error empty = error_of([] { parse(""); });
    EXPECT_EQ(empty.field, "m.safetensors: size");
    EXPECT_EQ(empty.got, "0 bytes");
    EXPECT_EQ(error_of([] { parse("1234567"); }).got, "7 bytes");
    bad(test::length_prefix(0), "header", "nothing", "{");
    bad(test::length_prefix(3) + "{}", "header length", "3", "at most 2 (the bytes that follow)");
    bad(test::length_prefix(100000001) + "{}", "header length", "100000001", "at most 100000000");
    bad(test::length_prefix(~uint64_t(0)) + "{}", "header length", "18446744073709551615",
        "at most 100000000");
}

TEST(SafetensorsRead, HeaderIsAnObject) {
    bad(image("[]"), "header", "a first byte other than {", "{");
    bad(image(" {}"), "header", "a first byte other than {", "{");
    EXPECT_EQ(error_of([] { parse(image("{\"a\":")); }).field, "m.safetensors: header");
    EXPECT_EQ(error_of([] { parse(image("{} x")); }).wanted, "valid JSON");
    EXPECT_EQ(error_of([] { parse(image("{\"a\xff\":1}")); }).wanted, "valid JSON");  // not UTF-8
    EXPECT_EQ(error_of([] { parse(image(std::string("{}\0", 3))); }).wanted, "valid JSON");
    bad(image("{\"a\":3}"), "tensor a", "3", "an object");
    bad(image("{\"__metadata__\":[]}"), "__metadata__", "a list of 0", "an object of strings");
    bad(image("{\"__metadata__\":{\"k\":1}}"), "__metadata__.k", "1", "a string");
    EXPECT_TRUE(parse(image("{}   ")).names().empty());
}

TEST(SafetensorsRead, DuplicateKeys) {
    const std::string a = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
    bad(image("{" + a + "," + a + "}", bytes(1)), "header", "a duplicate key \"a\"");
    bad(image(R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", bytes(1)), "header",
        "a duplicate key \"shape\"");
    bad(image(R"({"__metadata__":{"x":"1","x":"2"}})"), "header", "a duplicate key \"x\"");
    // the same key written in another way
    bad(image(R"({"__metadata__":{"x":"1","\u0078":"2"}})"), "header", "a duplicate key \"x\"");
}

TEST(SafetensorsRead, NestingIsBounded) {
    const std::string deep(1000000, '[');
    bad(image("{\"a\":" + deep), "header", "values nested more than 4 deep");
}

TEST(SafetensorsRead, Members) {
    bad_tensor(R"("shape":[8],"data_offsets":[0,8])", "dtype", "absent");
    bad_tensor(R"("dtype":"U8","data_offsets":[0,8])", "shape", "absent");
    bad_tensor(R"("dtype":"U8","shape":[8])", "data_offsets", "absent");
    bad_tensor(R"("dtype":"U8","shape":[8],"data_offsets":[0,8],"more":1)", "more", "1",
               "only dtype, shape and data_offsets");
    bad_tensor(R"("dtype":8,"shape":[8],"data_offsets":[0,8])", "dtype", "8", "a string");
    bad_tensor(R"("dtype":"U8","shape":8,"data_offsets":[0,8])", "shape", "8", "a list of integers");
    bad_tensor(R"("dtype":"U8","shape":[-8],"data_offsets":[0,8])", "shape[0]", "-8",
               "an integer, 0 or more");
    bad_tensor(R"("dtype":"U8","shape":[1,8.0],"data_offsets":[0,8])", "shape[1]", "8.0",
               "an integer, 0 or more");
    bad_tensor(R"("dtype":"U8","shape":["8"],"data_offsets":[0,8])", "shape[0]", "\"8\"");
    bad_tensor(R"("dtype":"U8","shape":[8],"data_offsets":8)", "data_offsets", "8");
    bad_tensor(R"("dtype":"U8","shape":[8],"data_offsets":[8])", "data_offsets", "a list of 1");
    bad_tensor(R"("dtype":"U8","shape":[8],"data_offsets":[0,4,8])", "data_offsets", "a list of 3");
    bad_tensor(R"("dtype":"U8","shape":[8],"data_offsets":[-1,8])", "data_offsets[0]", "-1");
    bad_tensor(R"("dtype":"U8","shape":[8],"data_offsets":[0,8.5])", "data_offsets[1]", "8.5");
    bad_tensor(R"("dtype":"U8","shape":[8],"data_offsets":[0,null])", "data_offsets[1]", "null");
}

TEST(SafetensorsRead, Offsets) {
    bad_tensor(R"("dtype":"U8","shape":[8],"data_offsets":[8,0])", "data_offsets", "[8, 0]",
               "an end that is not before the begin");
    bad_tensor(R"("dtype":"U8","shape":[9],"data_offsets":[0,9])", "data_offsets", "[0, 9]",
               "an end within the 8 data bytes of the file");
    bad_tensor(R"("dtype":"U8","shape":[8],"data_offsets":[0,18446744073709551615])", "data_offsets",
               "[0, 18446744073709551615]");
    bad_tensor(R"("dtype":"U8","shape":[7],"data_offsets":[0,8])", "data_offsets", "[0, 8], 8 bytes",
               "7 bytes: 7 of U8");
    bad_tensor(R"("dtype":"F32","shape":[1,1],"data_offsets":[0,8])", "data_offsets", "[0, 8], 8 bytes",
               "4 bytes: 1 of F32");
    bad_tensor(R"("dtype":"BOOL","shape":[7],"data_offsets":[0,8])", "data_offsets", "[0, 8], 8 bytes");
    bad_tensor(R"("dtype":"U8","shape":[7],"data_offsets":[1,8])", "data_offsets", "[1, 8]",
               "a begin at 0 (the end of the previous tensor), without a gap");
    bad(image(R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,7]}})", bytes(8)), "data", "8 bytes",
        "7 bytes (the end of the last tensor)");
    bad(image("{}", bytes(1)), "data", "1 bytes", "0 bytes (the end of the last tensor)");
}

TEST(SafetensorsRead, TensorsFollowOneAnother) {
    const auto two = [](const char* a, const char* b) {
        return image(std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + a +
                         R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
                     bytes(8));
    };
    EXPECT_EQ(parse(two("[4,8]", "[0,4]")).names().size(), 2u);  // any order of names
    bad(two("[0,4]", "[3,7]"), "tensor b: data_offsets", "[3, 7]",
        "a begin at 4 (the end of the previous tensor), without overlap");
    bad(two("[0,4]", "[0,4]"), "tensor b: data_offsets", "[0, 4]",
        "a begin at 4 (the end of the previous tensor), without overlap");
    const std::string hole = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})";
    bad(image(hole, bytes(8)), "tensor b: data_offsets", "[4, 8]",
        "a begin at 2 (the end of the previous tensor), without a gap");
}

TEST(SafetensorsRead, ShapesThatOverflow) {
    bad_tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])", "shape[1]",
               "4294967296", "at most 2^48 elements in total");
    bad_tensor(R"("dtype":"F32","shape":[9223372036854775807],"data_offsets":[0,8])", "shape[0]",
               "9223372036854775807");
    bad_tensor(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8])", "shape[0]",
               "18446744073709551615");
    bad_tensor(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8])", "shape[0]",
               "1.8446744073709552e+19");
    // no elements, yet the strides would overflow
    bad_tensor(R"("dtype":"U8","shape":[0,281474976710656,281474976710656],"data_offsets":[0,0])", "shape[2]",
               "281474976710656");
}

TEST(SafetensorsRead, TensorsThatCannotBeServedDoNotSpoilTheFile) {
    const SafetensorsFile file =
        parse(image(R"({"flags":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]},)"
                    R"("new":{"dtype":"F4_NEW","shape":[3],"data_offsets":[3,5]},)"
                    R"("deep":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[5,6]},)"
                    R"("good":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})",
                    bytes(8)));
    EXPECT_EQ(static_cast<const uint8_t*>(file.tensor("good").view.data)[0], 6);
    expect_error([&] { file.tensor("flags"); }, SMLA_DATA_ERROR, "m.safetensors: tensor flags: dtype",
                 "\"BOOL\"");
    expect_error([&] { file.tensor("new"); }, SMLA_DATA_ERROR, "m.safetensors: tensor new: dtype",
                 "\"F4_NEW\"");
    expect_error([&] { file.tensor("deep"); }, SMLA_DATA_ERROR, "m.safetensors: tensor deep: shape",
                 "5 dimensions", "at most 4");
    expect_error([&] { file.tensor("no\n"); }, SMLA_DATA_ERROR, "m.safetensors: tensor no\\x0a", "absent");
}

TEST(SafetensorsRead, LongNamesAreCutInErrors) {
    const std::string name(100000, 'n');
    const Error error = error_of([&] { parse(image("{\"" + name + "\":1}")); });
    EXPECT_LT(error.field.size(), 300u);
    EXPECT_NE(error.field.find("..."), std::string::npos);
}

TEST(SafetensorsRead, PathsThatAreNoFiles) {
    Folder folder;
    expect_error([&] { SafetensorsFile::open(folder.path("none")); }, SMLA_IO_ERROR, folder.path("none"),
                 "cannot open the file: No such file or directory");
    expect_error([&] { SafetensorsFile::open(folder.path()); }, SMLA_IO_ERROR, folder.path(), "a folder",
                 "a regular file");
    ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
    expect_error([&] { SafetensorsFile::open(folder.path("pipe")); }, SMLA_IO_ERROR, folder.path("pipe"),
                 "a device or pipe");  // and does not wait for a writer
    folder.write("empty.safetensors", "");
    expect_error([&] { SafetensorsFile::open(folder.path("empty.safetensors")); }, SMLA_DATA_ERROR,
                 "empty.safetensors: size", "0 bytes");
}

// Every prefix of a good file is refused: a download that stopped anywhere is noticed.
TEST(SafetensorsRead, EveryTruncation) {
    const std::string good = image(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", bytes(8));
    EXPECT_NO_THROW(parse(good));
    for (size_t n = 0; n < good.size(); ++n) EXPECT_THROW(parse(good.substr(0, n)), Error) << n;
}

// Time is linear in the number of tensors (nlohmann's callback parser took quadratic time here).
TEST(SafetensorsRead, ManyTensors) {
    std::string header = "{";
    const int count = 20000;
    for (int i = 0; i < count; ++i)
        header += text(i ? "," : "", "\"t", i, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[", i,
                       ",", i + 1, "]}");
    const SafetensorsFile file = parse(image(header + "}", std::string(count, 'x')));
    EXPECT_EQ(file.names().size(), size_t(count));
}

}  // namespace
}  // namespace smla
