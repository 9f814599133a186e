// Room for what OpenBLAS takes without asking. OpenBLAS 0.3.21 maps a buffer of 128 MiB in each of its
// threads and for each caller, and repeats that for ever where it fails (driver/others/memory.c); a thread
// that does not start ends the process (driver/others/blas_server.c). So the room is tried first, and its
// absence is an error. The trial does not see somebody else take the room before OpenBLAS does.
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

// Before the library is loaded: starts as many threads as it will start, and maps the buffers of these and of
// one caller, all for trial. Throws SMLA_OUT_OF_MEMORY.
void check_room_to_load_cblas();

// After it is loaded: runs a product in which every thread takes part, so that each has its buffer from then
// on.
void start_threads_of(const Cblas& library);

// Held during a product; fork() and exit() wait for its end. OpenBLAS keeps its buffers, so a trial is due
// only when there are more callers at once than ever before; after it OpenBLAS maps their buffers at once.
// Throws SMLA_OUT_OF_MEMORY.
class CblasCaller {
public:
    explicit CblasCaller(const Cblas& library);
    ~CblasCaller();
    CblasCaller(const CblasCaller&) = delete;
    CblasCaller& operator=(const CblasCaller&) = delete;
};

}  // namespace smla
