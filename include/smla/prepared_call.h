/* smla/prepared_call.h: prepared calls. A stage call or the forward call of an attention backend is checked
 * and planned once, then run any number of times with varying addresses.
 *
 * Shapes, strides, dtypes, devices and numbers are fixed at creation. `moving` lists the addresses that each
 * run provides, as byte offsets in the argument struct: offsetof(smla_attend_args, q.data) for a tensor,
 * primary.cache.data for a cache, primary.cache.scale_device or softmax_scale_device for an f32 on the
 * device. All other addresses are also fixed; their memory must stay valid until the last run has finished.
 *
 * A run rejects the same addresses as the plain call. In a workspace of smla_call_bytes bytes, a run has the
 * same results as the plain call, bit for bit. A run allocates no device memory and may be captured
 * in a CUDA graph, whose replays use the captured addresses. If the alignment of an address (up to 256 bytes)
 * differs from its alignment at creation, the run is planned like a plain call and takes as long as one.
 *
 * Lifetime: the context must outlive the call; so must the backend and the metadata of a forward call.
 * Threads: several threads may run a call concurrently, each with a separate workspace. */
#ifndef SMLA_PREPARED_CALL_H
#define SMLA_PREPARED_CALL_H

#include <smla/backend.h>
#include <smla/stages.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smla_call smla_call;

/* Prepares a stage call. `args` are valid arguments of a run. Their memory is not accessed, except for the
 * scale of a cache in host memory. Each offset in `moving` must name an address that is not null; no offset
 * may be listed twice. `budget` is as in smla_workspace_size.
 * Errors: the errors of the stage; SMLA_INVALID_ARGUMENT for an invalid offset. */
SMLA_API smla_status smla_call_create(smla_context* context, smla_stage stage, const void* args,
                                      const size_t* moving, int32_t moving_count, size_t budget,
                                      smla_call** out);

/* Prepares smla_backend_forward. `moving` lists offsets in smla_backend_forward_args. args->metadata must not
 * be null; the metadata may be rebuilt between runs. */
SMLA_API smla_status smla_backend_call_create(const smla_backend* backend,
                                              const smla_backend_forward_args* args, const size_t* moving,
                                              int32_t moving_count, smla_call** out);

/* Writes the number of bytes of workspace that a run needs at most. */
SMLA_API smla_status smla_call_bytes(const smla_call* call, size_t* bytes);

/* Runs the call with moving_count addresses, in the order of `moving`. Only the address of a tensor or cache
 * without elements may be null. Returns the status of the plain call. */
SMLA_API smla_status smla_call_run(const smla_call* call, const void* const* addresses,
                                   smla_workspace workspace, smla_stream stream);

/* Destroys the call. All runs must have returned; work that they queued on a stream may still be running.
 * `call` may be null. */
SMLA_API void smla_call_destroy(smla_call* call);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_PREPARED_CALL_H */
