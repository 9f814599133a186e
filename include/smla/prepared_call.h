/* smla/prepared_call.h: prepared calls. A stage call, or the forward of an attention backend, is checked and
 * planned once, then run any number of times with other addresses.
 *
 * Shapes, strides, dtypes, devices and numbers are those of creation. `moving` lists the addresses that each
 * run provides, as byte offsets in the argument struct: offsetof(smla_attend_args, q.data) for a tensor,
 * primary.cache.data for a cache, primary.cache.scale_device or softmax_scale_device for an f32 on the
 * device. All other addresses are fixed; their memory must stay valid for as long as the call is run.
 *
 * A run refuses what the plain call with the same memory would refuse, and gives the bits of the plain call
 * in a workspace of smla_call_bytes bytes. It allocates nothing on a device and may be captured in a CUDA
 * graph, whose replays use the captured addresses. A run with addresses whose alignment (up to 256 bytes)
 * differs from that of creation is planned like a plain call, and takes as long as one.
 *
 * Lifetime: the context (smla_backend_call_create: the backend and the metadata, too) must outlive the call.
 * Threads: any number may run a call at once, each with its own workspace. */
#ifndef SMLA_PREPARED_CALL_H
#define SMLA_PREPARED_CALL_H

#include <smla/backend.h>
#include <smla/stages.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct smla_call smla_call;

/* Prepares a stage call. `args`: valid arguments of a first run; their memory is not accessed, except for the
 * scale of a cache in host memory. Each offset in `moving` names an address that is not null, once. `budget`:
 * as in smla_workspace_size. Errors: those of the stage; SMLA_INVALID_ARGUMENT for a wrong offset. */
SMLA_API smla_status smla_call_create(smla_context* context, smla_stage stage, const void* args,
                                      const size_t* moving, int32_t moving_count, size_t budget,
                                      smla_call** out);

/* Prepares smla_backend_forward. Offsets are those in smla_backend_forward_args. args->metadata must not be
 * null, and may be built anew between runs. */
SMLA_API smla_status smla_backend_call_create(const smla_backend* backend,
                                              const smla_backend_forward_args* args, const size_t* moving,
                                              int32_t moving_count, smla_call** out);

/* Bytes of workspace that a run may need. */
SMLA_API smla_status smla_call_bytes(const smla_call* call, size_t* bytes);

/* Runs the call with moving_count addresses, in the order of `moving`. Only the address of a tensor or cache
 * without elements may be null. Returns what the plain call returns. */
SMLA_API smla_status smla_call_run(const smla_call* call, const void* const* addresses,
                                   smla_workspace workspace, smla_stream stream);

/* All runs must have returned; work that they queued on a stream need not be done. Null is allowed. */
SMLA_API void smla_call_destroy(smla_call* call);

#ifdef __cplusplus
}
#endif
#endif /* SMLA_PREPARED_CALL_H */
