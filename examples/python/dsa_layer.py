"""Builds a layer of DeepSeek Sparse Attention (DeepSeek-V3.2, GLM-5.x) from smla's stages, on NumPy arrays.

Runs two requests, with prompts in chunks followed by single tokens, and compares them with float64 NumPy.
docs/python/recipe_dsa.md explains the steps.

python examples/python/dsa_layer.py
"""

import numpy as np
import smla

# V3.2: X 7168, 128 heads, q_lora 1536, latent 512, nope 128, rope 64, v 128, Hi 64, D 128, k 2048.
X, HEADS, Q_LORA, LATENT, NOPE, ROPE, V = 192, 8, 96, 64, 32, 16, 24
HI, D, TOPK = 16, 32, 20
THETA, EPS, PAGE = 10000.0, 1e-6, 16
SHAPES = {  # shapes of the tensors in the checkpoint, [out,in]
    "q_a_proj": (Q_LORA, X),
    "q_b_proj": (HEADS * (NOPE + ROPE), Q_LORA),
    "kv_a_proj_with_mqa": (LATENT + ROPE, X),
    "kv_b_proj": (HEADS * (NOPE + V), LATENT),
    "o_proj": (X, HEADS * V),
    "indexer.wq_b": (HI * D, Q_LORA),
    "indexer.wk": (D, X),
    "indexer.weights_proj": (HI, X),
    "q_a_layernorm": (Q_LORA,),
    "kv_a_layernorm": (LATENT,),
    "indexer.k_norm.weight": (D,),
    "indexer.k_norm.bias": (D,),
}
FREQUENCIES = THETA ** (-np.arange(0, ROPE, 2) / ROPE)  # without YaRN


# [README.begin]
class DsaLayer:
    """weights: [out,in] by their names in the checkpoint. The caches of all requests share pages."""

    def __init__(self, weights, pages):
        self.weights = weights
        # kv_b_proj maps a latent to the key and value of every head. Its two halves are views without a copy:
        # W_UK [H,latent,nope] maps queries to the latent space, W_UV [H,v,latent] maps latents to values.
        heads = weights["kv_b_proj"].reshape(HEADS, NOPE + V, LATENT)
        self.w_uk, self.w_uv = heads[:, :NOPE].transpose(0, 2, 1), heads[:, NOPE:]
        self.cache = smla.Cache.empty("row_f32", pages, PAGE, width=LATENT + ROPE)
        self.keys = smla.Cache.empty("row_f32", pages, PAGE, width=D)

    def linear(self, name, x):
        """Returns x [T,in] times a weight: [T,1,out]."""
        return smla.project(x[:, None], self.weights[name][None])

    def forward(self, hidden, positions, request_of_token, block_table):
        """Returns [T,X] for the tokens of a step.

        hidden: [T,X]. positions, request_of_token: [T] i32. block_table: [R,MB] i32.
        """
        weights = self.weights
        tokens = len(hidden)
        slots = smla.map(positions[:, None], request_of_token, block_table, page_tokens=PAGE)[:, 0]

        # Queries and the latent. RoPE is interleaved: channels 2i and 2i + 1 are a pair.
        q_latent = smla.norm(self.linear("q_a_proj", hidden), weights["q_a_layernorm"], eps=EPS)
        q = self.linear("q_b_proj", q_latent[:, 0]).reshape(tokens, HEADS, NOPE + ROPE)
        smla.rope(q, positions, FREQUENCIES, first=NOPE, out=q)
        kv = self.linear("kv_a_proj_with_mqa", hidden)[:, 0]
        smla.write_kv(  # also norms the latent and rotates the rope part
            kv[:, :LATENT],
            slots,
            self.cache,
            tail=kv[:, LATENT:],
            norm_weight=weights["kv_a_layernorm"],
            eps=EPS,
            positions=positions,
            frequencies=FREQUENCIES,
            rope_first=LATENT,
        )

        # The indexer. RoPE comes first. V3.2 pairs channels i and i + ROPE/2; GLM interleaves pairs.
        index_q = self.linear("indexer.wq_b", q_latent[:, 0]).reshape(tokens, HI, D)
        smla.rope(index_q, positions, FREQUENCIES, style="half", first=0, out=index_q)
        smla.write_index(
            self.linear("indexer.wk", hidden)[:, 0],
            slots,
            self.keys,
            norm_weight=weights["indexer.k_norm.weight"],
            norm_bias=weights["indexer.k_norm.bias"],
            norm_kind="layer",
            eps=EPS,
            positions=positions,
            frequencies=FREQUENCIES,
            rope_style="half",
        )
        # The queries are not quantized, so these two factors are the only scales of the weights.
        index_w = self.linear("indexer.weights_proj", hidden)[:, 0] * np.float32(HI**-0.5 * D**-0.5)
        selected = smla.score_select(
            index_q,
            index_w,
            self.keys,
            positions + 1,  # a token sees itself and all earlier tokens
            TOPK,
            block_table=block_table,
            request_of_token=request_of_token,
            rows=True,  # also return rows of the KV cache
            row_table=block_table,
            page_tokens=PAGE,
        )

        # Attention in the latent space. The scale is 1/sqrt(nope + rope) and not 1/sqrt of the row's width.
        absorbed = np.concatenate([smla.absorb(q[..., :NOPE], self.w_uk), q[..., NOPE:]], axis=-1)
        attended = smla.attend(
            absorbed, self.cache, selected.rows, softmax_scale=(NOPE + ROPE) ** -0.5, value_width=LATENT
        )
        values = smla.up_project(attended.out, self.w_uv)
        return self.linear("o_proj", values.reshape(tokens, HEADS * V))[:, 0]


# [README.end]


def rotate(x, position, half):
    """Returns x with RoPE applied to the last dimension, in float64."""
    angle = position * FREQUENCIES
    a, b = (x[..., : ROPE // 2], x[..., ROPE // 2 :]) if half else (x[..., ::2], x[..., 1::2])
    turned = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    return np.concatenate(turned, -1) if half else np.stack(turned, -1).reshape(x.shape)


def plain(weights, hidden):
    """Returns the layer's output for one request, hidden [T,X], in float64, with separate keys for each head.

    Also returns the smallest difference between the last selected score of a token and the next score.
    """
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    hidden = hidden.astype(np.float64)

    def rms(x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight

    kv = hidden @ w["kv_a_proj_with_mqa"].T
    latent = rms(kv[:, :LATENT], w["kv_a_layernorm"])
    k_rope = np.stack([rotate(row, t, half=False) for t, row in enumerate(kv[:, LATENT:])])
    key_value = (latent @ w["kv_b_proj"].T).reshape(len(hidden), HEADS, NOPE + V)
    index_k = hidden @ w["indexer.wk"].T
    index_k = index_k - index_k.mean(-1, keepdims=True)
    index_k = rms(index_k, w["indexer.k_norm.weight"]) + w["indexer.k_norm.bias"]
    for t, row in enumerate(index_k):
        row[:ROPE] = rotate(row[:ROPE].copy(), t, half=True)

    out, margin = [], np.inf
    for t in range(len(hidden)):
        q_latent = rms(w["q_a_proj"] @ hidden[t], w["q_a_layernorm"])
        q = (w["q_b_proj"] @ q_latent).reshape(HEADS, NOPE + ROPE)
        q_rope = rotate(q[:, NOPE:], t, half=False)
        index_q = (w["indexer.wq_b"] @ q_latent).reshape(HI, D)
        index_q[:, :ROPE] = rotate(index_q[:, :ROPE].copy(), t, half=True)
        products = np.maximum(index_q @ index_k[: t + 1].T, 0)
        scores = (w["indexer.weights_proj"] @ hidden[t]) @ products / np.sqrt(HI * D)
        order = np.argsort(-scores, kind="stable")
        best = order[:TOPK]
        if len(order) > TOPK:
            margin = min(margin, scores[order[TOPK - 1]] - scores[order[TOPK]])
        heads = []
        for h in range(HEADS):
            logits = key_value[best, h, :NOPE] @ q[h, :NOPE] + k_rope[best] @ q_rope[h]
            logits /= np.sqrt(NOPE + ROPE)
            weights_of_keys = np.exp(logits - logits.max())
            heads.append(weights_of_keys / weights_of_keys.sum() @ key_value[best, h, NOPE:])
        out.append(w["o_proj"] @ np.concatenate(heads))
    return np.stack(out), margin


def main(lengths=(70, 45), chunk=32, decodes=3):
    rng = np.random.default_rng(0)
    weights = {}
    for name, shape in SHAPES.items():
        values = rng.standard_normal(shape)
        weights[name] = (values / np.sqrt(shape[1]) if len(shape) > 1 else 1 + values / 8).astype(np.float32)
    hidden = [rng.standard_normal((length, X)).astype(np.float32) for length in lengths]

    # Pages of the two requests alternate. A server would allocate them from a list of free pages.
    blocks = -(-max(lengths) // PAGE)
    block_table = np.arange(2 * blocks, dtype=np.int32).reshape(blocks, 2).T.copy()
    layer = DsaLayer(weights, pages=2 * blocks)
    out = [np.zeros((length, X), np.float32) for length in lengths]
    done = [0, 0]
    steps = 0
    while done != list(lengths):
        parts = []  # (request, positions) of the batch
        for request, length in enumerate(lengths):
            prompt_left = length - decodes - done[request]
            count = min(chunk, prompt_left) if prompt_left > 0 else min(1, length - done[request])
            parts.append((request, np.arange(done[request], done[request] + count, dtype=np.int32)))
            done[request] += count
        batch = np.concatenate([hidden[request][positions] for request, positions in parts])
        positions = np.concatenate([positions for _, positions in parts])
        request_of_token = np.concatenate([np.full(len(p), r, np.int32) for r, p in parts])
        got = layer.forward(batch, positions, request_of_token, block_table)
        for request, _ in parts:
            mine = request_of_token == request
            out[request][positions[mine]] = got[mine]
        steps += 1

    for request, length in enumerate(lengths):
        wanted, margin = plain(weights, hidden[request])
        error = np.linalg.norm(out[request] - wanted) / np.linalg.norm(wanted)
        print(f"request {request}: {length} tokens, error against float64 {error:.1e}")
        assert margin > 1e-5, f"two scores differ only by {margin}: rounding may select other tokens"
        assert error < 1e-5, error
    print(f"{smla.default_context().description}: {steps} steps, {layer.cache}, {layer.keys}")


if __name__ == "__main__":
    main()
