// Room for what OpenBLAS takes without asking. OpenBLAS 0.3.21 maps a buffer of 128 MiB in each of its
// threads and for each caller, and repeats that for ever where it fails (driver/others/memory.c); a thread
// that does not start ends the process (driver/others/blas_server.c). So the room is tried first, and its
// absence is an error. What is not seen: somebody who takes the room between the trial and its use.
#pragma once

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

// Before the library is loaded: its threads, started for trial, the buffers of these and of one caller.
// Throws SMLA_OUT_OF_MEMORY.
void check_room_to_load_cblas();

// After it: a product in which every thread takes part, so that each has its buffer from then on.
void start_threads_of(const Cblas& library);

// Held during a product; fork() and exit() wait for its end. The library keeps its buffers, so only more
// callers at once than ever before need a trial; then the buffers are mapped at once. Throws
// SMLA_OUT_OF_MEMORY.
class CblasCaller {
public:
    explicit CblasCaller(const Cblas& library);
    ~CblasCaller();
    CblasCaller(const CblasCaller&) = delete;
    CblasCaller& operator=(const CblasCaller&) = delete;
};

}  // namespace smla
