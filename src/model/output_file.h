// Files that are written as a whole or not at all.
#pragma once

#include <cstddef>
#include <string>

namespace smla {

// What lies at `path` stays until commit() puts the new file in its place, with the old one's permissions; a
// symbolic link stays one. Where the file system allows it the new file has no name before that; elsewhere it
// has a temporary one in the same folder, and where it replaces another it has one for a moment. A process
// that is killed there leaves it, and the next write to `path` removes it. What is no regular file (a pipe,
// /dev/null) is written to as it is. Throws SMLA_IO_ERROR.
class OutputFile {
public:
    explicit OutputFile(const std::string& path);
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    void write(const char* data, size_t size);
    void commit();

    // Throws what writing there would throw, as far as that is known before, and leaves nothing behind.
    static void check(const std::string& path);

private:
    void open_beside();
    bool open_named();
    void remove_left_over() const;
    void put_in_place();
    [[noreturn]] void give_up(const char* wanted) const;

    std::string path_, target_, temporary_;
    int fd_ = -1;
    bool regular_ = true;  // or something that is not replaced
    bool named_ = false;   // lies at `temporary_`
    bool fresh_ = false;   // nothing was at `target_`
};

}  // namespace smla
