"""Runs decode steps of an attention layer of DeepSeek-V3.2 between its projections: caches the new tokens,
selects 2048 tokens per request with the indexer, and attends to them.

If PyTorch finds a GPU and the library has the CUDA engine, the step is captured as a CUDA graph and replayed.
Otherwise it runs on NumPy arrays on the CPU. Every step is compared with the reference engine.

    python examples/python/decode_step.py
"""

import importlib.util

import numpy as np
import smla

R, HEADS, INDEX_HEADS, TOPK, PAGE, PAGES, STEPS = 3, 16, 64, 2048, 64, 40, 3  # PAGES: per request
rng = np.random.default_rng(3)
CONFIG = {  # the attention members of DeepSeek-V3.2's config.json
    "model_type": "deepseek_v32",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_n_heads": INDEX_HEADS,
    "index_head_dim": 128,
    "index_topk": TOPK,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}


def random(*shape):
    return rng.uniform(-1, 1, shape).astype("float32")


class State:
    """What a layer keeps between steps. Its memory lies where the context runs and never moves."""

    def __init__(self, context, place):
        self.context, self.place = context, place  # place: an array of the host as one that stages take
        self.layer = smla.layer_info(CONFIG, 3)
        self.table, self.starts, self.lengths = (place(np.zeros(n, "int32")) for n in ((R, PAGES), R + 1, R))
        self.kv = smla.Cache.empty("fp8_656", R * PAGES, PAGE, like=self.table)
        self.keys = smla.Cache.empty("index_fp8_132", R * PAGES, PAGE, like=self.table)
        self.plan = smla.Plan(
            ["primary", "index"], max_tokens=R, max_requests=R, max_seq_len=PAGE * PAGES, context=context
        )


# [README.begin]
def decode_step(x, state, stream=None):
    """Attends for one new token of each of R requests. x: outputs of the layer's projections.

    state.layer: smla.layer_info("DeepSeek-V3.2/config.json", 3); softmax_scale includes YaRN's magnitude.
    """
    table, kv, keys, on = state.table, state.kv, state.keys, {"context": state.context}
    pages = smla.PlanGroup(table, page_tokens=PAGE)  # both caches use the same pages
    state.plan.build(state.starts, state.lengths, tokens=R, primary=pages, index=pages, stream=stream)
    names = "primary_slot", "index_slot", "request_of_token", "score_end"
    kv_slots, index_slots, request, ends = (state.place(state.plan.field(name)) for name in names)

    smla.write_kv(x["latent"], kv_slots, kv, tail=x["k_rope"], **on)
    smla.write_index(x["index_k"], index_slots, keys, hadamard=True, **on)
    scale = (INDEX_HEADS * 128) ** -0.5
    query = smla.quant_index_q(
        x["index_q"], x["index_w"], factor=scale, hadamard=True, amax_floor=1e-10, **on
    )
    q8 = smla.tensor(query.q, "e4m3")
    logits = smla.score(q8, query.w, keys, ends, block_table=table, request_of_token=request, **on)
    cached = {"rows": True, "row_table": table, "request_of_token": request, "page_tokens": PAGE}
    chosen = smla.select(logits, TOPK, ends=ends, **cached, **on)
    softmax = {"softmax_scale": state.layer["softmax_scale"]}
    out = smla.attend(x["q"], kv, chosen.rows, chosen.counts, **softmax, **on).out
    return out, logits, chosen.indices, chosen.rows


def captured(torch, x, state):
    """Captures the step as a CUDA graph. A first run loads kernels, which a capture cannot."""
    decode_step(x, state)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = decode_step(x, state, torch.cuda.current_stream().cuda_stream)
    return graph.replay, results  # a replay uses the current contents of x, table and lengths
    # [README.end]


def new_inputs():
    return {
        "latent": random(R, 512),
        "k_rope": random(R, 64),
        "q": random(R, HEADS, 576),  # absorbed and rotated
        "index_k": random(R, 128),
        "index_q": random(R, INDEX_HEADS, 128),
        "index_w": random(R, INDEX_HEADS),
    }


def put(array, values):
    """Writes new values to an array in place."""
    array[...] = values if isinstance(array, np.ndarray) else array.new_tensor(values)


def fill(states, lengths):
    """Fills the block tables with alternating pages, and the caches with the earlier tokens."""
    table = np.arange(PAGES * R, dtype="int32").reshape(PAGES, R).T
    slots = [table[r, np.arange(n) // PAGE] * PAGE + np.arange(n) % PAGE for r, n in enumerate(lengths)]
    slots = np.concatenate(slots).astype("int64")
    latent, rope, key = random(len(slots), 512), random(len(slots), 64), random(len(slots), 128)
    for state in states:
        put(state.table, table)
        put(state.starts, np.arange(R + 1, dtype="int32"))
        put(state.lengths, lengths)
        at, place = state.place(slots), state.place
        smla.write_kv(place(latent), at, state.kv, tail=place(rope), context=state.context)
        smla.write_index(place(key), at, state.keys, hadamard=True, context=state.context)


def check(results, exact, x, reference, lengths):
    """Compares the selection and attention of a step with the reference; returns the largest error."""
    out, _, chosen, rows = (np.asarray(array.cpu() if hasattr(array, "cpu") else array) for array in results)
    for r, length in enumerate(lengths):
        scores, taken = exact[1][r, :length], np.zeros(length, bool)
        taken[chosen[r][chosen[r] >= 0]] = True
        assert taken.sum() == min(length, TOPK)
        # A score is an f32 sum of 64 weighted products of 128 codes, with 192 roundings. Partial sums may be
        # several times larger than the result, because weights have both signs.
        slack = 8 * 192 * 2**-24 * np.abs(scores).max()
        assert taken.all() or scores[taken].min() >= scores[~taken].max() - slack
    magnitude = 0.1 * np.log(40) + 1  # YaRN's factor for queries and keys
    scale = magnitude**2 * (128 + 64) ** -0.5
    same_rows = smla.attend(x["q"], reference.kv, rows, softmax_scale=scale, context=reference.context).out
    error = np.linalg.norm(out - same_rows, axis=-1) / np.linalg.norm(same_rows, axis=-1)
    # Kernels may round queries and weights to bf16 (f16 on a GPU): at most 2^-9 each.
    assert error.max() < 2 * 2**-9, error.max()
    return error.max()


def torch_on_gpu():
    """Returns PyTorch and a CUDA context, or (None, None) without a GPU, PyTorch or the CUDA engine."""
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            try:
                return torch, smla.Context("cuda")
            except smla.Unsupported:
                pass
    return None, None


def main():
    torch, gpu = torch_on_gpu()
    reference = State(smla.Context("reference"), np.array)
    place = np.array if torch is None else lambda array: torch.as_tensor(array, device="cuda")
    state = State(gpu or smla.Context("cpu"), place)
    lengths = np.array([2500, 70, 2047], "int32")
    fill((state, reference), lengths)
    x = {name: place(values) for name, values in new_inputs().items()}
    replay, results = captured(torch, x, state) if torch else (None, None)
    print(f"{state.context.description}, {'replayed as one graph' if torch else 'without a graph'}")
    for step in range(STEPS):
        inputs = new_inputs()
        for name, values in inputs.items():
            put(x[name], values)
        lengths += 1
        for each in (state, reference):
            put(each.lengths, lengths)
        if replay:
            replay()
        else:
            results = decode_step(x, state)
        exact = decode_step(inputs, reference)
        print(f"step {step}: error of out {check(results, exact, inputs, reference, lengths):.1e}: ok")


if __name__ == "__main__":
    main()
