/* smla/context.h: contexts, memory, workspaces, log and interrupt functions.
 *
 * Only create calls allocate memory that grows with a problem. Stages use the caller's workspace as scratch
 * and the heap only for bookkeeping; the reference engine also allocates its scratch on the heap.
 *
 * Exceptions: no C++ exception leaves a function of this library. If the caller's alloc, parallel_for or
 * interrupt function throws, the call returns SMLA_CANCELLED (SMLA_OUT_OF_MEMORY for std::bad_alloc) with the
 * message of the exception; the context and handles stay usable. Exceptions of a log function are ignored. An
 * exception of the free function ends the process. */
#ifndef SMLA_CONTEXT_H
#define SMLA_CONTEXT_H

#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t smla_engine;
enum {
    /* The engine named by the environment variable SMLA_ENGINE, otherwise the CPU, even if there is a GPU. */
    SMLA_ENGINE_AUTO = 0,
    /* Plain loops in f64 if the tensors are f64, otherwise in f32. */
    SMLA_ENGINE_REFERENCE = 1,
    SMLA_ENGINE_CPU = 2,
    /* Any NVIDIA GPU since Ampere, in builds with CUDA. If CUDA_MODULE_LOADING is unset, creating the context
     * sets it to EAGER in the environment, because kernels must not load during a capture. The variable only
     * has an effect if the process has not used CUDA before; otherwise, call smla_prepare before a
     * capture. */
    SMLA_ENGINE_CUDA = 3
};

/* Instruction sets of the CPU engine, weakest first. AUTO selects the set in the environment variable
 * SMLA_ISA (scalar, avx2, avx512, avx512_bf16, amx, neon), or the best set of the machine if SMLA_ISA is
 * unset, empty or "auto". An unknown name, or a set that the machine lacks, is an error. */
typedef int32_t smla_isa;
enum {
    SMLA_ISA_AUTO = 0,
    SMLA_ISA_SCALAR = 1,
    SMLA_ISA_AVX2 = 2,
    SMLA_ISA_AVX512 = 3,
    SMLA_ISA_AVX512_BF16 = 4,
    SMLA_ISA_AMX = 5, /* AVX512_BF16 and bf16 tiles */
    SMLA_ISA_NEON = 6 /* 64-bit Arm */
};

/* Host memory from the caller. `alloc` returns null if there is no memory. */
typedef struct smla_allocator {
    void* (*alloc)(void* user, size_t bytes, size_t alignment_bytes);
    void (*free)(void* user, void* memory);
    void* user;
} smla_allocator;

/* Runs body(user, i) for every i in [0, count), in any order, on any threads; returns when all are done. The
 * function may throw only after every body that it started has returned; body never throws. */
typedef void (*smla_parallel_for)(void* pool, int64_t count, void (*body)(void* user, int64_t i), void* user);

typedef struct smla_context_args {
    uint32_t struct_size;
    /* SMLA_VERSION of the caller's headers. The major version must be the library's; before 1.0, the minor
     * version must be the library's as well. */
    int32_t version;
    smla_engine engine;
    /* Instruction set of the CPU engine. */
    smla_isa isa;
    /* Threads of the CPU engine. 0 means the number in SMLA_THREADS or, if that is unset, one per core that
     * the affinity mask and a container's CPU limit allow. The threads block all signals except SIGSEGV,
     * SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS and SIGPROF. Threads are named smla-1, smla-2, ... shortly
     * after their start. */
    int32_t threads;
    /* 1: the bits of a token do not depend on the rest of the batch, except in products of a BLAS library. */
    int32_t batch_invariant;
    /* Required kernels by name, "attend=cpu_avx512_bf16_attend,score=..."; null means the value of
     * SMLA_KERNEL. A stage with a required kernel runs that kernel or fails. */
    const char* kernel;
    /* Allocator for sessions and smla_allocate on a CPU. If all members are null, malloc is used. */
    smla_allocator allocator;
    /* Parallel loop of the CPU engine; null means smla's own thread pool. */
    smla_parallel_for parallel_for;
    void* parallel_for_pool;
    /* 1: calls scan their indices and store the first invalid value for smla_read_error. A call with indices
     * needs the first 4 KiB of a workspace; on a GPU, the call launches one more kernel. */
    int32_t check_indices;
    /* CUDA engine: number of the GPU in the CUDA runtime. Tensors and workspaces of calls must be on it. */
    int32_t device_index;
} smla_context_args;

/* Any number of threads may use a context concurrently. */
typedef struct smla_context smla_context;

/* Creates a context. SMLA_UNSUPPORTED: this build or machine lacks the engine or the instruction set.
 * SMLA_INVALID_ARGUMENT: no GPU has device_index, a kernel is unknown, the version is incompatible, or an
 * environment variable has an invalid value (docs/environment.md; `smla list environment`). */
SMLA_API smla_status smla_context_create(const smla_context_args* args, smla_context** out);
/* Destroys a context, which may be null. Destroy everything that was created from the context first. */
SMLA_API void smla_context_destroy(smla_context* context);

/* Returns a description such as "cpu avx512_bf16, 2 threads", which is valid until the context is
 * destroyed. */
SMLA_API const char* smla_context_description(const smla_context* context);

/* Writes the device of the context. Tensors, caches and workspaces of its calls must be on that device. */
SMLA_API smla_status smla_context_device(const smla_context* context, smla_device_type* device_type,
                                         int32_t* device_index);

/* Allocates memory on the context's device, aligned to 64 bytes on a CPU and 256 on a GPU. The contents are
 * undefined. Callers that manage their memory do not need this function or the next three. */
SMLA_API smla_status smla_allocate(smla_context* context, size_t bytes, void** out);
/* Frees memory, which may be null. Calls that use the memory must have finished: on a GPU, wait for their
 * stream first. */
SMLA_API void smla_release(smla_context* context, void* memory);
/* Copies host memory to memory on the context's device, in stream order. `from` may be reused when the call
 * returns. Fails while the stream is captured, because a replay would read `from` again. */
SMLA_API smla_status smla_upload(smla_context* context, void* to, const void* from, size_t bytes,
                                 smla_stream stream);
/* Copies memory on the context's device to host memory in stream order, and waits for the copy. Fails while
 * the stream is captured. */
SMLA_API smla_status smla_download(smla_context* context, void* to, const void* from, size_t bytes,
                                   smla_stream stream);

/* Scratch memory of a call, owned by the caller. The first 4 KiB contain counters and the error word.
 * smla_workspace_init zeroes them once; every call leaves the counters zero, and the error word keeps its
 * value until it is read. The rest of a workspace may have any contents. A call that needs no scratch accepts
 * {0}. A workspace serves one call at a time, on a GPU one stream. Concurrent calls that share a workspace
 * are not detected and overwrite each other's scratch. */
typedef struct smla_workspace {
    /* Address on the context's device, aligned to 64 bytes. */
    void* data;
    size_t bytes;
} smla_workspace;

/* Receives one line of the log. `level`: 0 error, 1 warning, 2 info. The function must not call smla. */
typedef void (*smla_log_function)(void* user, int32_t level, const char* line);
/* Sets the log function of the process, which receives every line, regardless of SMLA_LOG. Without a function
 * (null), lines up to the level in the environment variable SMLA_LOG are written to stderr, and none if
 * SMLA_LOG is unset. */
SMLA_API void smla_set_log(smla_log_function function, void* user);

/* Returns 0 to continue the call, or any other value to end it. The function must not call smla. */
typedef int32_t (*smla_interrupt_function)(void* user);
/* Sets the interrupt function for later calls of the calling thread on the CPU and the reference engine; null
 * removes it. A call runs the function after 50 ms and then about every 50 ms, on the thread that made the
 * call and between two pieces of its work; one product of a BLAS library is one piece. If parallel_for runs
 * no body on that thread, the call runs the function only between stages. The other threads finish their
 * pieces before the call returns SMLA_CANCELLED. Afterwards, context, workspace and handles are usable, and
 * the requests of a session have the same tokens as before the step. Remove the function before `user`
 * becomes invalid. */
SMLA_API void smla_set_interrupt(smla_interrupt_function function, void* user);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_CONTEXT_H */
