/* Sparse attention from C, with one token, one head and three list entries, one of which is masked. Checks
 * the result. */
#include <smla/smla.h>

#include <math.h>
#include <stdio.h>

static int failed(const char* call) {
    fprintf(stderr, "%s: %s\n", call, smla_last_error());
    return 1;
}

int main(void) {
    /* [README.begin] */
    float keys[2][4] = {{1, 0, 2, 0}, {0, 3, 0, 1}}; /* a cache: one page of two rows */
    float q[4] = {0.5f, 0.25f, -0.5f, 1}, out[4], lse;
    int32_t rows[3] = {1, -1, 0}; /* the token's list; negative rows are masked entries */
    smla_attend_args args = {
        .struct_size = sizeof args,
        .softmax_scale = 0.5,
        .q = smla_dense(q, SMLA_F32, 3, 1, 1, 4, 0), /* [T,H,Dqk] = [1,1,4] */
        .primary.cache = {.data = keys, .format = SMLA_ROW_F32, .width = 4, .page_tokens = 2, .pages = 1},
        .primary.rows = smla_dense(rows, SMLA_I32, 2, 1, 3, 0, 0),
        .out = smla_dense(out, SMLA_F32, 3, 1, 1, 4, 0),
        .lse = smla_dense(&lse, SMLA_F32, 2, 1, 1, 0, 0),
    };
    smla_context_args create = {.struct_size = sizeof create, .version = SMLA_VERSION};
    smla_context* context;
    if (smla_context_create(&create, &context) != SMLA_OK) return failed("smla_context_create");
    smla_workspace scratch = {0}; /* the caller's memory; its size follows from the shapes */
    if (smla_workspace_size(context, SMLA_STAGE_ATTEND, &args, 0, &scratch.bytes) != SMLA_OK ||
        smla_allocate(context, scratch.bytes, &scratch.data) != SMLA_OK ||
        smla_workspace_init(context, scratch, NULL) != SMLA_OK)
        return failed("scratch");
    if (smla_attend(context, &args, scratch, NULL) != SMLA_OK) return failed("smla_attend");
    /* [README.end] */

    int wrong = 0;
    const double e0 = exp(0.5 * (0.5 * 1 - 0.5 * 2)), e1 = exp(0.5 * (0.25 * 3 + 1));
    for (int d = 0; d < 4; ++d) {
        const double wanted = (e0 * keys[0][d] + e1 * keys[1][d]) / (e0 + e1);
        /* a few f32 roundings of values below 3 */
        if (!(fabs(out[d] - wanted) < 3 * 16 * 0x1p-24)) wrong = 1;
    }
    if (!(fabs(lse - log(e0 + e1)) < 1e-6)) wrong = 1;
    printf("out %.6f %.6f %.6f %.6f, lse %.6f: %s\n", out[0], out[1], out[2], out[3], lse,
           wrong ? "WRONG" : "ok");
    smla_release(context, scratch.data);
    smla_context_destroy(context);
    return wrong;
}
