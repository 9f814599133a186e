// Signal mask and names of the threads that the library starts.
#pragma once

#include <csignal>
#include <functional>

namespace smla {

// While an object of this class exists, threads that the calling thread starts, directly or in another
// library, block all signals except those that their own instructions raise, and SIGPROF, which sampling
// profilers need. A signal therefore never runs the caller's handler, or ends the process, in a thread that
// the caller does not know.
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
// for its end. The calling thread keeps its mask and name. Rethrows the exception of body(). Throws
// SMLA_OUT_OF_MEMORY if the thread does not start.
void run_on_library_thread(const char* name, const std::function<void()>& body);

}  // namespace smla
