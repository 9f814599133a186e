"""Runs a step of a serving engine with a plan, paged caches, the indexer and attention of smla.

Two requests, one in decode and one in prefill, share the pages of an index cache and of a KV cache.

    python examples/python/serve.py
"""

import numpy as np
import smla

PAGE, HEADS, INDEX_HEADS, TOPK = 64, 8, 16, 48
rng = np.random.default_rng(1)


def normal(*shape):
    return rng.standard_normal(shape).astype("float32")


# Request 0 has 150 cached tokens and decodes one; request 1 has 40 cached tokens and adds 20.
seq_lens = np.array([151, 60], "int32")
query_start_loc = np.array([0, 1, 21], "int32")
block_table = np.array([[4, 2, 0], [1, -1, -1]], "int32")  # pages in any order
kv = smla.Cache.empty("fp8_656", pages=5, page_tokens=PAGE)
index = smla.Cache.empty("index_fp8_132", pages=5, page_tokens=PAGE)

# Fill the caches with the earlier tokens.
for request, held in enumerate(seq_lens - np.diff(query_start_loc)):
    positions = np.arange(held, dtype="int32")[None]
    slots = smla.map(positions, np.array([request], "int32"), block_table, page_tokens=PAGE)[0]
    smla.write_kv(normal(held, 512), slots, kv, tail=normal(held, 64))
    smla.write_index(normal(held, 128), slots, index, hadamard=True)

# Once per step: the request, the slots and the visible tokens of each token.
plan = smla.Plan(["primary", "index"], max_tokens=32, max_requests=4, max_seq_len=192, speculative_tokens=1)
group = smla.PlanGroup(block_table, page_tokens=PAGE)
plan.build(query_start_loc, seq_lens, primary=group, index=group)
request_of_token, ends = plan.field("request_of_token"), plan.field("score_end")

# Once per layer: cache the step's tokens, select, attend.
tokens = int(query_start_loc[-1])
smla.write_kv(normal(tokens, 512), plan.field("primary_slot"), kv, tail=normal(tokens, 64))
smla.write_index(normal(tokens, 128), plan.field("index_slot"), index, hadamard=True)
query = smla.quant_index_q(
    normal(tokens, INDEX_HEADS, 128),
    normal(tokens, INDEX_HEADS),
    factor=INDEX_HEADS**-0.5 * 128**-0.5,
    hadamard=True,
)
chosen = smla.score_select(
    smla.tensor(query.q, "e4m3"),
    query.w,
    index,
    ends,
    TOPK,
    block_table=block_table,
    request_of_token=request_of_token,
)
rows = smla.map(chosen.indices, request_of_token, block_table, page_tokens=PAGE)
out = smla.attend(normal(tokens, HEADS, 576), kv, rows, chosen.counts, softmax_scale=0.06).out

assert np.isfinite(out).all()
assert (chosen.counts == np.minimum(ends, TOPK)).all()
print(f"decode token attends to {chosen.counts[0]} of {ends[0]} tokens, first rows {rows[0, :6]}")
print(f"last prefill token attends to {chosen.counts[-1]} of {ends[-1]}, out {out.shape}")
