// The host's CBLAS, loaded at run time: the library that SMLA_CBLAS names, else one with a usual name. CBLAS
// computes projections that no kernel of the engine supports; without CBLAS, plain loops do.
#pragma once

#include <cstdint>
#include <string>

namespace smla {

struct Cblas {
    // Row-major C[m,n] = A[m,k] * op(B); B is [n,k] with leading dimension ldb if transposed, else [k,n].
    using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                           const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);
    Sgemm sgemm = nullptr;
    std::string library;   // name of the loaded library; empty: none
    std::string why_none;  // reason, if none is loaded
    // Returns the processor whose kernels OpenBLAS uses; null for another library.
    const char* (*core_name)() = nullptr;
    // Returns 1 if OpenBLAS starts its threads when it is loaded. If this is null or returns another value,
    // threads may start in any product.
    int (*parallel)() = nullptr;
    // OpenBLAS's own buffers (cblas_room.h); null for another library.
    void* (*take_buffer)(int unused) = nullptr;
    void (*give_buffer)(void*) = nullptr;
};

// Loads the library at the first call. If memory or threads for it are not available then, no library is used
// for the life of the process, so that results do not depend on when a call runs. Throws
// SMLA_INVALID_ARGUMENT if the library that SMLA_CBLAS names cannot be loaded.
const Cblas& cblas();

}  // namespace smla
