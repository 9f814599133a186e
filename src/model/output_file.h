// Writes files as a whole or not at all.
#pragma once

#include <cstddef>
#include <string>

namespace smla {

// commit() replaces `path` with the new file, which gets the old permissions; a symbolic link remains a link.
// If the file system allows it, the new file has no name before commit(), or only briefly if it replaces a
// file; elsewhere it has a temporary name in the same folder. If the process is killed then, the temporary
// file remains, and the next write to `path` removes it. Anything but a regular file (a pipe, /dev/null) is
// written directly. Throws SMLA_IO_ERROR.
class OutputFile {
public:
    explicit OutputFile(const std::string& path);
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    void write(const char* data, size_t size);
    void commit();

    // Throws the errors that can be foreseen for writing to `path`, and leaves nothing behind.
    static void check(const std::string& path);

private:
    void open_beside();
    bool open_named();
    void remove_left_over() const;
    void put_in_place();
    [[noreturn]] void give_up(const char* failure) const;

    std::string path_, target_, temporary_;
    int fd_ = -1;
    bool regular_ = true;  // false: written directly, not replaced
    bool named_ = false;   // lies at `temporary_`
    bool fresh_ = false;   // nothing was at `target_`
};

}  // namespace smla
