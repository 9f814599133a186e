// Signal mask and names of the threads that the library starts.
#pragma once

#include <csignal>
#include <functional>

namespace smla {

// During the lifetime of an object, threads started by the calling thread, directly or in another library,
// block signals. They do not block faults of their own instructions, and SIGPROF, which sampling profilers
// need. A signal therefore never runs the caller's handler, or ends the process, in a thread that the caller
// did not start.
class LibraryThreads {
public:
    LibraryThreads();
    ~LibraryThreads();
    LibraryThreads(const LibraryThreads&) = delete;
    LibraryThreads& operator=(const LibraryThreads&) = delete;

private:
    sigset_t before_;
};

// Names the calling thread; at most 15 characters. Threads that it starts inherit the name.
void name_thread(const char* name);

// Calls body() on a new thread with this mask and name, which threads started by body() inherit, and waits
// for its end. The calling thread keeps its mask and name. Rethrows exceptions of body(). Throws
// SMLA_OUT_OF_MEMORY if the thread does not start.
void run_on_library_thread(const char* name, const std::function<void()>& body);

}  // namespace smla
