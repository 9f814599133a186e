"""Sparse attention on NumPy arrays: write tokens to an fp8 cache of DeepSeek-V3.2's layout, attend to some.

python examples/python/attend.py
"""

import numpy as np
import smla

TOKENS, HEADS, LATENT, ROPE, TOPK = 300, 16, 512, 64, 64
rng = np.random.default_rng(0)

# [README.begin]
# 656 bytes per token: 512 e4m3 values, their 4 scales, 64 bf16 values of the rope part. 5 pages of 64 tokens.
cache = smla.Cache.empty("fp8_656", pages=5, page_tokens=64)
latent = rng.standard_normal((TOKENS, LATENT)).astype("float32")
rope = rng.standard_normal((TOKENS, ROPE)).astype("float32")
smla.write_kv(latent, np.arange(TOKENS, dtype="int64"), cache, tail=rope)

# Two query tokens, each attending to 64 rows of its choice. -1 is a hole, anywhere in the list.
q = rng.standard_normal((2, HEADS, LATENT + ROPE)).astype("float32")
rows = np.stack([rng.permutation(TOKENS)[:TOPK] for _ in q]).astype("int32")
rows[1, 7] = -1
scale = (128 + ROPE) ** -0.5
attended = smla.attend(q, cache, rows, softmax_scale=scale, lse=True)
# [README.end]

# The same in plain NumPy on the values before they were quantised.
worst = 0.0
for t, listed in enumerate(rows):
    listed = listed[listed >= 0]
    keys = np.concatenate([latent[listed], rope[listed]], axis=1)
    logits = scale * q[t] @ keys.T
    weights = np.exp(logits - logits.max(1, keepdims=True))
    out = weights / weights.sum(1, keepdims=True) @ latent[listed]
    worst = max(worst, np.linalg.norm(attended.out[t] - out) / np.linalg.norm(out))

print(f"{smla.default_context().description}: out {attended.out.shape}, lse {attended.lse.shape}")
print(f"relative error against float32 keys: {worst:.3f} (e4m3 keeps 4 significant bits)")
assert worst < 0.08, worst
