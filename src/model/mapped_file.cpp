#include "model/mapped_file.h"

#include "core/status.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>

namespace smla {

namespace {

struct Descriptor {
    int fd;
    explicit Descriptor(int fd) : fd(fd) {}
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
};

}  // namespace

Bytes map_file(const std::string& path) {
    // O_NONBLOCK: opening a FIFO must not wait for a writer
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.fd < 0) fail(SMLA_IO_ERROR, path, std::strerror(errno), "a readable file");
    struct stat info;
    if (::fstat(file.fd, &info) != 0) fail(SMLA_IO_ERROR, path, std::strerror(errno), "a readable file");
    if (!S_ISREG(info.st_mode))
        fail(SMLA_IO_ERROR, path, S_ISDIR(info.st_mode) ? "a folder" : "no regular file", "a file");
    Bytes out;
    out.size = size_t(info.st_size);
    if (out.size == 0) return out;
    void* at = ::mmap(nullptr, out.size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (at == MAP_FAILED)
        fail(SMLA_IO_ERROR, path, std::strerror(errno), text("a mapping of ", out.size, " bytes"));
    const size_t size = out.size;
    out.memory =
        std::shared_ptr<const void>(at, [size](const void* p) { ::munmap(const_cast<void*>(p), size); });
    out.data = static_cast<const char*>(at);
    return out;
}

std::string read_text_file(const std::string& path, size_t limit) {
    const Bytes bytes = map_file(path);
    if (bytes.size > limit) fail(SMLA_IO_ERROR, path, text(bytes.size, " bytes"), text("at most ", limit));
    return std::string(bytes.data ? bytes.data : "", bytes.size);
}

}  // namespace smla
