// The host's CBLAS, loaded at run time: SMLA_CBLAS names a library, else the usual ones are tried.
// Projections that no kernel of the engine takes go through it, else through plain loops.
#pragma once

#include <cstdint>
#include <string>

namespace smla {

struct Cblas {
    // Row-major C[m,n] = A[m,k] * op(B); B is [n,k] with leading dimension ldb if transposed, else [k,n].
    using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                           const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);
    Sgemm sgemm = nullptr;
    std::string library;  // what was loaded; empty: none
    // The processor whose kernels OpenBLAS has taken; null: another library.
    const char* (*core_name)() = nullptr;
    // OpenBLAS's own buffers (cblas_room.h); null: another library.
    void* (*take_buffer)(int unused) = nullptr;
    void (*give_buffer)(void*) = nullptr;
};

// Throws SMLA_OUT_OF_MEMORY where the library would have no room; a later call tries again.
const Cblas& cblas();

}  // namespace smla
