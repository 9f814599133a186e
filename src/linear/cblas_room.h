// Memory and threads that OpenBLAS needs. OpenBLAS 0.3.21 maps a buffer of 128 MiB in each of its threads and
// for each caller, and repeats a failing mapping forever (driver/others/memory.c). A thread that does not
// start ends the process (driver/others/blas_server.c). Trial mappings and trial threads therefore come
// first. A trial does not detect another thread that allocates the memory before OpenBLAS does.
#pragma once

#include "core/library_threads.h"

#include <optional>
#include <string>

namespace smla {

struct Cblas;

// Exists while the library is loaded and its threads start; exit() waits for its end.
class CblasLoading {
public:
    CblasLoading();
    ~CblasLoading();
    CblasLoading(const CblasLoading&) = delete;
    CblasLoading& operator=(const CblasLoading&) = delete;
};

constexpr const char* kCblasThreads = "smla-blas";  // name of the library's threads

// Before loading: starts trial threads for the library's threads and for the loading thread, and maps their
// buffers, one caller's buffer, and as much again for the rest of the process. Returns what is missing; empty
// if nothing is.
std::string what_cblas_lacks();

// After loading: runs a product in which every thread takes part, so that each thread then has its buffer.
void start_threads_of(const Cblas& library);

// Exists during a product; fork() and exit() wait for its end. OpenBLAS keeps its buffers, so only a new
// maximum of concurrent callers needs a trial; OpenBLAS then maps the buffers immediately. A caller without a
// buffer waits until another caller leaves.
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
