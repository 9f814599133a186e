/* smla/context.h: a context chooses the engine and owns its threads. Memory that grows with a problem is
 * allocated by create calls alone; stages take scratch from the caller's workspace, and of the heap only
 * bookkeeping (the reference engine: whatever it likes). */
#ifndef SMLA_CONTEXT_H
#define SMLA_CONTEXT_H

#include <smla/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t smla_engine;
enum {
    SMLA_ENGINE_AUTO = 0, /* cpu, also where there is a GPU */
    SMLA_ENGINE_REFERENCE =
        1, /* plain loops in the arithmetic of the tensors: f64 where they are f64, else f32 */
    SMLA_ENGINE_CPU = 2,
    SMLA_ENGINE_CUDA_MMA = 3 /* any NVIDIA GPU since Ampere. Creating sets CUDA_MODULE_LOADING=EAGER in the
                                environment where it is unset: kernels must not load during a capture. That
                                counts only if the process has not used CUDA before: else see smla_prepare */
};

/* Instruction sets of the cpu engine, weakest first. AUTO takes what SMLA_ISA of the environment names
 * (scalar, avx2, avx512, avx512_bf16; a name that is unknown or a set that the machine lacks is refused);
 * unset, empty or "auto": the best that the machine has. */
typedef int32_t smla_isa;
enum {
    SMLA_ISA_AUTO = 0,
    SMLA_ISA_SCALAR = 1,
    SMLA_ISA_AVX2 = 2,
    SMLA_ISA_AVX512 = 3,
    SMLA_ISA_AVX512_BF16 = 4
};

typedef struct smla_allocator {
    void* (*alloc)(void* user, size_t bytes, size_t alignment); /* null return: out of memory */
    void (*free)(void* user, void* ptr);
    void* user;
} smla_allocator;

/* Runs body(user, i) for every i in [0, count), in any order, on any threads; returns when all are done. */
typedef void (*smla_parallel_for)(void* pool, int64_t count, void (*body)(void* user, int64_t i), void* user);

typedef struct smla_context_args {
    uint32_t struct_size; /* sizeof(smla_context_args) */
    int32_t version;      /* SMLA_VERSION of the caller's headers; refused if the major version differs */
    smla_engine engine;
    smla_isa isa;             /* cpu engine; a set the machine lacks is refused */
    int32_t threads;          /* cpu engine; 0: one per core that this process may use */
    int32_t batch_invariant;  /* 1: a token's bits never depend on what else is in the batch */
    const char* kernel;       /* demand kernels by name, "attend=cpu_avx512_bf16_576,score=..."; none: null */
    smla_allocator allocator; /* of sessions on a CPU: caches and scratch; all null: malloc */
    smla_parallel_for parallel_for; /* cpu engine; null: smla's own pool */
    void* parallel_for_pool;
    int32_t check_indices; /* 1: calls scan their indices and note the first bad value for smla_read_error.
                              Slower; calls with indices then need the first 4 KiB of a workspace */
    int32_t device_index;  /* of CUDA engines: tensors and workspaces of calls lie there */
} smla_context_args;

typedef struct smla_context smla_context;

SMLA_API smla_status smla_context_create(const smla_context_args* args, smla_context** out);
SMLA_API void smla_context_destroy(smla_context* context);

/* Text for people, one line a call; `level` 0 error, 1 warning, 2 info. For the whole process. The function
 * gets every line, whatever SMLA_LOG says, and must not call smla. Without one (null), lines up to
 * the level that SMLA_LOG of the environment names go to stderr; unset, none does. */
typedef void (*smla_log_function)(void* user, int32_t level, const char* line);
SMLA_API void smla_set_log(smla_log_function function, void* user);

/* What the context runs on, e.g. "cpu avx512_bf16, 2 threads". Lives as long as the context. */
SMLA_API const char* smla_context_description(const smla_context* context);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_CONTEXT_H */
