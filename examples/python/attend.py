"""Runs sparse attention of DeepSeek-V3.2 on NumPy arrays: writes tokens to fp8 caches, selects some of them
for each query with the indexer, and attends to the selected tokens.

python examples/python/attend.py
"""

import numpy as np

# [README.begin]
import smla

# [README.end]

TOKENS, HEADS, LATENT, ROPE, TOPK = 300, 16, 512, 64, 64
INDEX_HEADS, CHANNELS = 64, 128
rng = np.random.default_rng(0)


def normal(*shape):
    return rng.standard_normal(shape).astype("float32")


latent, k_rope, index_k = normal(TOKENS, LATENT), normal(TOKENS, ROPE), normal(TOKENS, CHANNELS)
q, index_q, index_weights = (
    normal(2, HEADS, LATENT + ROPE),
    normal(2, INDEX_HEADS, CHANNELS),
    normal(2, INDEX_HEADS),
)
slots, ends = np.arange(TOKENS), np.full(2, TOKENS, "int32")
scale = (128 + ROPE) ** -0.5

# [README.begin]
cache = smla.Cache.empty("fp8_656", pages=5, page_tokens=64)  # 656 bytes per token
index_cache = smla.Cache.empty("index_fp8_132", pages=5, page_tokens=64)
smla.write_kv(latent, slots, cache, tail=k_rope)  # [T,512] and [T,64], quantized to fp8
smla.write_index(index_k, slots, index_cache)  # [T,128]

scores = smla.score(index_q, index_weights, index_cache, ends)  # the lightning indexer
chosen = smla.select(scores, TOPK)  # the exact best tokens of each query
attended = smla.attend(q, cache, chosen.indices, softmax_scale=scale)  # .out: [T,H,512]
# [README.end]

# Compare with plain NumPy on the unquantized values.
worst = 0.0
for t, listed in enumerate(chosen.indices):
    logits = np.maximum(index_q[t] @ index_k.T, 0)
    exact = np.argsort(index_weights[t] @ logits)[-TOPK:]
    assert len(np.intersect1d(exact, listed)) > 0.9 * TOPK
    keys = np.concatenate([latent[listed], k_rope[listed]], axis=1)
    logits = scale * q[t] @ keys.T
    weights = np.exp(logits - logits.max(1, keepdims=True))
    out = weights / weights.sum(1, keepdims=True) @ latent[listed]
    worst = max(worst, np.linalg.norm(attended.out[t] - out) / np.linalg.norm(out))

print(f"{smla.default_context().description}: out {attended.out.shape}")
print(f"relative error against float32 keys: {worst:.3f} (e4m3 keeps 4 significant bits)")
assert worst < 0.08, worst
