/* smla/context.h: a context chooses the engine, owns its threads, and hands out memory where calls run.
 *
 * Memory that grows with a problem is allocated by create calls alone. Stages take scratch from the caller's
 * workspace; of the heap they take bookkeeping only (the reference engine: whatever it needs).
 *
 * Exceptions: no C++ exception leaves a function of this library. If the caller's alloc, parallel_for or
 * interrupt function throws, the call ends with SMLA_CANCELLED (std::bad_alloc: SMLA_OUT_OF_MEMORY) and the
 * message of the exception; context and handles stay usable. Exceptions of a log function are ignored. An
 * exception of the free function ends the process. */
#ifndef SMLA_CONTEXT_H
#define SMLA_CONTEXT_H

#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t smla_engine;
enum {
    /* The engine that the environment variable SMLA_ENGINE names, else the CPU, even if there is a GPU. */
    SMLA_ENGINE_AUTO = 0,
    /* Plain loops in the arithmetic of the tensors: f64 where they are f64, else f32. */
    SMLA_ENGINE_REFERENCE = 1,
    SMLA_ENGINE_CPU = 2,
    /* Any NVIDIA GPU since Ampere, in builds with CUDA. Creating the context sets CUDA_MODULE_LOADING=EAGER
     * in the environment where it is unset: kernels must not load during a capture. This has an effect only
     * if the process has not used CUDA before; otherwise call smla_prepare before a capture. */
    SMLA_ENGINE_CUDA = 3
};

/* Instruction sets of the CPU engine, weakest first. AUTO takes the set that the environment variable
 * SMLA_ISA names (scalar, avx2, avx512, avx512_bf16, amx, neon), or the machine's best where it is unset,
 * empty or "auto". An unknown name, or a set that the machine lacks, is refused. */
typedef int32_t smla_isa;
enum {
    SMLA_ISA_AUTO = 0,
    SMLA_ISA_SCALAR = 1,
    SMLA_ISA_AVX2 = 2,
    SMLA_ISA_AVX512 = 3,
    SMLA_ISA_AVX512_BF16 = 4,
    SMLA_ISA_AMX = 5, /* AVX512_BF16 and tiles of bf16 */
    SMLA_ISA_NEON = 6 /* 64-bit Arm */
};

/* Host memory from the caller. `alloc` returns null when there is none. */
typedef struct smla_allocator {
    void* (*alloc)(void* user, size_t bytes, size_t alignment_bytes);
    void (*free)(void* user, void* memory);
    void* user;
} smla_allocator;

/* Runs body(user, i) for every i in [0, count), in any order, on any threads; returns when all are done. It
 * may throw only after every body that it started has returned; body never throws. */
typedef void (*smla_parallel_for)(void* pool, int64_t count, void (*body)(void* user, int64_t i), void* user);

typedef struct smla_context_args {
    uint32_t struct_size;
    /* SMLA_VERSION of the caller's headers. Refused: another major version; before 1.0, another minor one. */
    int32_t version;
    smla_engine engine;
    /* CPU engine. */
    smla_isa isa;
    /* CPU engine; 0: the number in SMLA_THREADS, else one per core that this process may use, by its affinity
     * mask and a container's CPU limit. The threads block all signals except SIGSEGV, SIGBUS, SIGFPE, SIGILL,
     * SIGTRAP, SIGSYS and SIGPROF. Shortly after they start, they name themselves smla-1, smla-2, ... */
    int32_t threads;
    /* 1: a token's bits never depend on what else is in the batch, except where a BLAS library multiplies. */
    int32_t batch_invariant;
    /* Required kernels by name, "attend=cpu_avx512_bf16_attend,score=..."; null: the kernels in
     * SMLA_KERNEL. A stage with a required kernel runs that kernel or fails. */
    const char* kernel;
    /* CPU and reference engine: for sessions and smla_allocate. All null: malloc. */
    smla_allocator allocator;
    /* CPU engine; null: smla's own pool. */
    smla_parallel_for parallel_for;
    void* parallel_for_pool;
    /* 1: calls scan their indices and store the first invalid value for smla_read_error. A call with indices
     * needs the first 4 KiB of a workspace; on a GPU, it launches one more kernel. */
    int32_t check_indices;
    /* CUDA engine: the GPU, counted as the CUDA runtime counts. Tensors and workspaces of calls lie there. */
    int32_t device_index;
} smla_context_args;

/* Any number of threads may use a context at once. */
typedef struct smla_context smla_context;

/* SMLA_UNSUPPORTED: this build or machine lacks the engine or the instruction set. SMLA_INVALID_ARGUMENT: no
 * GPU has device_index; an unknown kernel; an incompatible version; an invalid value of an environment
 * variable (docs/environment.md; `smla list environment`). */
SMLA_API smla_status smla_context_create(const smla_context_args* args, smla_context** out);
/* Destroy everything that was made from the context first. Null is allowed. */
SMLA_API void smla_context_destroy(smla_context* context);

/* What the context runs on, e.g. "cpu avx512_bf16, 2 threads". Lives as long as the context. */
SMLA_API const char* smla_context_description(const smla_context* context);

/* Where tensors, caches and workspaces of the context's calls lie. */
SMLA_API smla_status smla_context_device(const smla_context* context, smla_device_type* device_type,
                                         int32_t* device_index);

/* Memory where the context runs, aligned to 64 bytes on a CPU and to 256 on a GPU. Its contents are
 * undefined. A caller that has such memory needs neither this call nor the next three. */
SMLA_API smla_status smla_allocate(smla_context* context, size_t bytes, void** out);
/* Calls that use the memory must be done: on a GPU, wait for their stream first. Null is allowed. */
SMLA_API void smla_release(smla_context* context, void* memory);
/* Copies host memory to the context's memory, in the order of the stream. `from` may be reused when the call
 * returns. Refused while the stream is captured: a replay would read `from` again. */
SMLA_API smla_status smla_upload(smla_context* context, void* to, const void* from, size_t bytes,
                                 smla_stream stream);
/* Copies the context's memory to host memory once the stream is done, and waits for that. Refused while the
 * stream is captured. */
SMLA_API smla_status smla_download(smla_context* context, void* to, const void* from, size_t bytes,
                                   smla_stream stream);

/* Scratch of a call. The caller owns it. Its first 4 KiB are counters and the error word: smla_workspace_init
 * zeroes them once and every call leaves them zero (the error word: until it is read). The rest may hold
 * anything. A call that needs no scratch accepts {0}.
 * A workspace serves one call at a time, on a GPU one stream. It is plain memory: concurrent calls that share
 * a workspace are not detected and overwrite each other's scratch. */
typedef struct smla_workspace {
    /* Aligned to 64 bytes, where the context runs. */
    void* data;
    size_t bytes;
} smla_workspace;

/* Gets one line of text for people; `level`: 0 error, 1 warning, 2 info. Must not call smla. */
typedef void (*smla_log_function)(void* user, int32_t level, const char* line);
/* For the whole process. The function gets every line, whatever SMLA_LOG says. Null: lines go to stderr, up
 * to the level that the environment variable SMLA_LOG names; if it is unset, none does. */
SMLA_API void smla_set_log(smla_log_function function, void* user);

/* Returns 0 to continue the call, or any other value to end it. Must not call smla. */
typedef int32_t (*smla_interrupt_function)(void* user);
/* Sets the function for later calls of the calling thread on the CPU and the reference engine; null: none. A
 * call runs the function after 50 ms and then about every 50 ms, on the thread that made the call and between
 * two pieces of its work; one product of a BLAS library is one piece. If parallel_for runs no body on that
 * thread, the call runs it only between stages. The other threads finish their piece before the call returns
 * SMLA_CANCELLED. Afterwards context, workspace and handles are usable, and a request of a session holds the
 * same tokens as before the step. Unset the function before `user` becomes invalid. */
SMLA_API void smla_set_interrupt(smla_interrupt_function function, void* user);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_CONTEXT_H */
