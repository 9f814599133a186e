// Shared by the tests of this folder: files in a folder of their own, safetensors images byte by byte,
// expected errors.
#pragma once

#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace smla::test {

class Folder {
public:
    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "smla_model_XXXXXX").string();
        path_ = ::mkdtemp(name.data()) ? name : "";
    }
    ~Folder() {
        std::error_code error;
        std::filesystem::remove_all(path_, error);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    std::string path() const { return path_; }
    std::string path(const std::string& name) const { return path_ + "/" + name; }
    void write(const std::string& name, const std::string& content) const {
        std::ofstream(path(name), std::ios::binary) << content;
    }
    std::string read(const std::string& name) const {
        std::ifstream in(path(name), std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    size_t count() const {
        const std::filesystem::directory_iterator begin(path_), end;
        return size_t(std::distance(begin, end));
    }

private:
    std::string path_;
};

inline std::string length_prefix(uint64_t length) {
    std::string out;
    for (int i = 0; i < 8; ++i) out += char(length >> (8 * i) & 255);
    return out;
}

// A file image: the header as given, then data.
inline std::string image(const std::string& header, const std::string& data = "") {
    return length_prefix(header.size()) + header + data;
}

inline SafetensorsFile parse(const std::string& content, const std::string& name = "m.safetensors") {
    const std::shared_ptr<char[]> copy(
        new char[content.size()]);  // exact size: a sanitizer sees reads past it
    std::memcpy(copy.get(), content.data(), content.size());
    return SafetensorsFile::from_bytes({copy, copy.get(), content.size()}, name);
}

// The error that `action` throws; a failure if it throws none.
inline Error error_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error;
    }
    ADD_FAILURE() << "no error";
    return Error(SMLA_OK, "", "", "");
}

inline void expect_error(const std::function<void()>& action, smla_status status, const std::string& field,
                         const std::string& got, const std::string& wanted = "") {
    const Error error = error_of(action);
    EXPECT_EQ(error.status, status) << error.what();
    EXPECT_EQ(error.field, field);
    EXPECT_EQ(error.got, got);
    if (!wanted.empty()) {
        EXPECT_EQ(error.wanted, wanted);
    }
}

}  // namespace smla::test
