#include "model/mapped_file.h"

#include "core/huge_pages.h"
#include "core/status.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
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

// Owner of a mapping, by which read_range() finds the file.
struct Unmap {
    std::shared_ptr<const Descriptor> file;
    size_t size;
    void operator()(const void* at) const { ::munmap(const_cast<void*>(at), size); }
};

constexpr size_t kAlignment = 64;  // a cache line; suits every dtype
constexpr size_t kMostAtOnce = size_t(1) << 30;

}  // namespace

Bytes map_file(const std::string& path) {
    // O_NONBLOCK, because opening a FIFO must not wait for a writer
    const auto owner =
        std::make_shared<const Descriptor>(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    const Descriptor& file = *owner;
    if (file.fd < 0) fail(SMLA_IO_ERROR, path, text("cannot open the file: ", std::strerror(errno)), "");
    struct stat info;
    if (::fstat(file.fd, &info) != 0)
        fail(SMLA_IO_ERROR, path, text("cannot open the file: ", std::strerror(errno)), "");
    if (!S_ISREG(info.st_mode))
        fail(SMLA_IO_ERROR, path, S_ISDIR(info.st_mode) ? "a folder" : "a device or pipe", "a regular file");
    Bytes out;
    out.size = size_t(info.st_size);
    if (out.size == 0) return out;
    void* at = ::mmap(nullptr, out.size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (at == MAP_FAILED) {
        const int error = errno;
        fail(error == ENOMEM ? SMLA_OUT_OF_MEMORY : SMLA_IO_ERROR, path,
             text("cannot map ", out.size, " bytes: ", std::strerror(error)), "");
    }
    out.memory = std::shared_ptr<const void>(at, Unmap{owner, out.size});
    out.data = static_cast<const char*>(at);
    return out;
}

Bytes read_range(const Bytes& bytes, const std::string& name, size_t begin, size_t size) {
    const Unmap* const mapped = std::get_deleter<Unmap>(bytes.memory);
    if (!mapped) return {bytes.memory, bytes.data + begin, size};
    Bytes out;
    out.size = size;
    if (size == 0) return out;
    char* const to = static_cast<char*>(allocate_block(size, kAlignment));
    if (!to) fail(SMLA_OUT_OF_MEMORY, name, text("cannot allocate ", size, " bytes of host memory"), "");
    out.memory = std::shared_ptr<const void>(to, std::free);
    out.data = to;
    for (size_t done = 0; done < size;) {
        const ssize_t n =
            ::pread(mapped->file->fd, to + done, std::min(size - done, kMostAtOnce), off_t(begin + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            fail(SMLA_IO_ERROR, name,
                 n < 0 ? text("cannot read the file: ", std::strerror(errno))
                       : text("the file was truncated to ", begin + done, " of ", bytes.size,
                              " bytes while it was open"),
                 "");
        done += size_t(n);
    }
    return out;
}

std::string read_text_file(const std::string& path, size_t limit) {
    const Bytes bytes = map_file(path);
    if (bytes.size > limit)
        fail(SMLA_IO_ERROR, path, text("a file of ", bytes.size, " bytes"),
             text("at most ", limit, " bytes"));
    const Bytes copy = read_range(bytes, path, 0, bytes.size);
    return std::string(copy.data ? copy.data : "", copy.size);
}

}  // namespace smla
