#include "model/output_file.h"

#include "core/status.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace smla {

namespace {

namespace fs = std::filesystem;

// Returns the target of symbolic links, which need not exist.
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

bool link_as(int fd, const std::string& path) {
    return ::linkat(AT_FDCWD, link_to(fd).c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

// Temporary names consist of the file's name, kMark, process and number.
constexpr const char* kMark = ".smla-part.";

// Removes a file whose lock is free, because its writer has ended. Without file locks, the file is kept.
void remove_unless_locked(const fs::path& path) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    struct stat found {};
    const bool left = ::flock(fd, LOCK_EX | LOCK_NB) == 0 && ::fstat(fd, &found) == 0;
    if (left && S_ISREG(found.st_mode) && found.st_nlink > 0) ::unlink(path.c_str());
    ::close(fd);
}

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(path), target_(followed(path).string()) {
    struct stat old {};
    const bool exists = ::stat(target_.c_str(), &old) == 0;
    if (exists && S_ISDIR(old.st_mode)) fail(SMLA_IO_ERROR, path_, "a folder", "a regular file");
    regular_ = !exists || S_ISREG(old.st_mode);
    fresh_ = !exists;
    if (!regular_) {
        fd_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC);
        if (fd_ < 0) give_up("cannot open for writing");
        return;
    }
    if (exists && ::access(target_.c_str(), W_OK) != 0) give_up("cannot replace the file");
    open_beside();
    if (exists) ::fchmod(fd_, old.st_mode & 07777);  // on failure, the mode stays as for a new file
}

OutputFile::~OutputFile() {
    if (fd_ >= 0) ::close(fd_);
    if (named_) ::unlink(temporary_.c_str());
}

// The lock shows other processes that the writer exists, and ends with the writer.
void OutputFile::open_beside() {
    static std::atomic<uint64_t> counter{0};
    temporary_ = target_ + text(kMark, ::getpid(), ".", counter.fetch_add(1));
    remove_left_over();
    fd_ = ::open(folder_of(target_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (fd_ >= 0 && ::access(link_to(fd_).c_str(), F_OK) == 0) {
        ::flock(fd_, LOCK_EX);
        return;
    }
    if (fd_ >= 0) ::close(fd_);  // without /proc it cannot be named later
    while (!open_named()) ::close(fd_);
}

// Returns false if another process removed the file before it was locked.
bool OutputFile::open_named() {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) give_up("cannot create the file");
    ::flock(fd_, LOCK_EX);
    struct stat now {};
    named_ = ::fstat(fd_, &now) != 0 || now.st_nlink > 0;
    return named_;
}

void OutputFile::remove_left_over() const {
    const std::string begins = fs::path(target_).filename().string() + kMark;
    std::error_code error;
    for (fs::directory_iterator at(folder_of(target_), error), end; !error && at != end; at.increment(error))
        if (at->path().filename().string().rfind(begins, 0) == 0) remove_unless_locked(at->path());
}

void OutputFile::write(const char* data, size_t size) {
    while (size > 0) {
        const ssize_t n = ::write(fd_, data, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) give_up("cannot write the file");
        data += n;
        size -= size_t(n);
    }
}

void OutputFile::commit() {
    if (regular_) put_in_place();
    const int closed = fd_ < 0 ? 0 : ::close(fd_);
    fd_ = -1;
    if (closed != 0) give_up("cannot write the file");
}

void OutputFile::put_in_place() {
    if (::fsync(fd_) != 0) give_up("cannot flush the file to disk");
    // Only a file that replaces another one first needs a temporary name.
    if (named_ || !fresh_ || !link_as(fd_, target_)) {
        if (!named_) named_ = link_as(fd_, temporary_);
        if (!named_ || ::rename(temporary_.c_str(), target_.c_str()) != 0)
            give_up("cannot rename the temporary file");
        named_ = false;
    }
    // Syncs the folder, so that the new name survives a power failure. Not every file system supports this;
    // the file is complete in any case.
    const int folder = ::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    ::fsync(folder);
    ::close(folder);
}

void OutputFile::check(const std::string& path) {
    struct stat old {};
    const bool exists = ::stat(path.c_str(), &old) == 0;
    if (exists && !S_ISREG(old.st_mode) && !S_ISDIR(old.st_mode)) return;  // opening a pipe may wait
    OutputFile probe(path);
}

void OutputFile::give_up(const char* failure) const {
    fail(SMLA_IO_ERROR, path_, text(failure, ": ", std::strerror(errno)), "");
}

}  // namespace smla
