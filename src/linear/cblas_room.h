// Memory and threads that OpenBLAS needs. OpenBLAS 0.3.21 maps a buffer of 128 MiB in each of its threads and
// for each caller, and repeats a failing mapping forever (driver/others/memory.c); a thread that does not
// start ends the process (driver/others/blas_server.c). Both are therefore tried first. The trial does not
// detect another thread that allocates the memory before OpenBLAS does.
#pragma once

#include "core/library_threads.h"

#include <optional>
#include <string>

namespace smla {

struct Cblas;

// Held while the library is loaded and its threads start; exit() waits for its end.
class CblasLoading {
public:
    CblasLoading();
    ~CblasLoading();
    CblasLoading(const CblasLoading&) = delete;
    CblasLoading& operator=(const CblasLoading&) = delete;
};

constexpr const char* kCblasThreads = "smla-blas";  // name of the library's threads

// Before the library is loaded: starts, for trial, as many threads as it will start and the thread that loads
// it, and maps their buffers, the buffer of one caller, and as much again, which remains for the process.
// Returns what is missing; empty if nothing is.
std::string what_cblas_lacks();

// After it is loaded: runs a product in which every thread takes part, so that each has its buffer from then
// on.
void start_threads_of(const Cblas& library);

// Held during a product; fork() and exit() wait for its end. OpenBLAS keeps its buffers, so a trial is only
// needed for the largest number of concurrent callers so far; OpenBLAS then maps their buffers immediately. A
// caller without a buffer waits until another caller leaves.
class CblasCaller {
public:
    explicit CblasCaller(const Cblas& library);
    ~CblasCaller();
    CblasCaller(const CblasCaller&) = delete;
    CblasCaller& operator=(const CblasCaller&) = delete;

private:
    std::optional<LibraryThreads> starting_;  // set if the product may start threads
};

}  // namespace smla
