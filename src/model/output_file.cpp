#include "model/output_file.h"

#include "core/status.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace smla {

namespace {

namespace fs = std::filesystem;

// Where symbolic links lead, even if nothing is there yet.
fs::path followed(fs::path path) {
    std::error_code error;
    for (int i = 0; i < 40 && fs::is_symlink(path, error); ++i) {
        const fs::path to = fs::read_symlink(path, error);
        if (error) break;
        path = path.parent_path() / to;
    }
    return path;
}

std::string folder_of(const std::string& path) {
    const fs::path folder = fs::path(path).parent_path();
    return folder.empty() ? "." : folder.string();
}

std::string link_to(int fd) { return text("/proc/self/fd/", fd); }

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(path), target_(followed(path).string()) {
    struct stat old {};
    const bool exists = ::stat(target_.c_str(), &old) == 0;
    if (exists && S_ISDIR(old.st_mode)) fail(SMLA_IO_ERROR, path_, "a folder", "a file");
    regular_ = !exists || S_ISREG(old.st_mode);
    if (!regular_) {
        fd_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC);
        if (fd_ < 0) give_up("something that can be written to");
        return;
    }
    if (exists && ::access(target_.c_str(), W_OK) != 0) give_up("a file that may be replaced");
    open_beside();
    if (exists) ::fchmod(fd_, old.st_mode & 07777);  // if it fails: as a new file
}

OutputFile::~OutputFile() {
    if (fd_ >= 0) ::close(fd_);
    if (named_) ::unlink(temporary_.c_str());
}

void OutputFile::open_beside() {
    static std::atomic<uint64_t> counter{0};
    temporary_ = target_ + text(".", ::getpid(), ".", counter.fetch_add(1), ".tmp");
    fd_ = ::open(folder_of(target_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (fd_ >= 0 && ::access(link_to(fd_).c_str(), F_OK) == 0) return;
    if (fd_ >= 0) ::close(fd_);  // without /proc it could get no name later
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) give_up("a file that can be created");
    named_ = true;
}

void OutputFile::write(const char* data, size_t size) {
    while (size > 0) {
        const ssize_t n = ::write(fd_, data, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) give_up("space for all of the file");
        data += n;
        size -= size_t(n);
    }
}

void OutputFile::commit() {
    if (regular_) put_in_place();
    const int closed = fd_ < 0 ? 0 : ::close(fd_);
    fd_ = -1;
    if (closed != 0) give_up("space for all of the file");
}

void OutputFile::put_in_place() {
    if (::fsync(fd_) != 0) give_up("data on the disk");
    if (!named_)
        named_ =
            ::linkat(AT_FDCWD, link_to(fd_).c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) == 0;
    if (!named_ || ::rename(temporary_.c_str(), target_.c_str()) != 0)
        give_up("a file that can be put in place");
    named_ = false;
    // The new name must outlive a power cut too; not every file system can sync a folder, and the file is
    // whole.
    const int folder = ::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    ::fsync(folder);
    ::close(folder);
}

void OutputFile::check(const std::string& path) {
    struct stat old {};
    const bool exists = ::stat(path.c_str(), &old) == 0;
    if (exists && !S_ISREG(old.st_mode) && !S_ISDIR(old.st_mode)) return;  // to open a pipe may wait
    OutputFile probe(path);
}

void OutputFile::give_up(const char* wanted) const {
    fail(SMLA_IO_ERROR, path_, std::strerror(errno), wanted);
}

}  // namespace smla
