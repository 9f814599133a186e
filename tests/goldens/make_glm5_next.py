#!/usr/bin/env python3
"""Golden files of GLM-5.3-Flash's sparse layers: python make_glm5_next.py FOLDER [CASE...]

Outputs and intermediates are those of transformers' own modules (glm5_next; 5.23.0 wrote the files here) in
float32 on a CPU. `ref.*` is the float64 model below, which shares no code with them. Both must agree, and
so must a run of the modules in steps through their own cache, or nothing is written.
"""

import hashlib
import json
import pathlib
import struct
import sys

import numpy as np
import torch
import transformers
from transformers.cache_utils import DynamicCache
from transformers.models.glm5_next import configuration_glm5_next, modeling_glm5_next

SMALL = {
    "hidden_size": 37,
    "num_attention_heads": 3,
    "q_lora_rank": 19,
    "kv_lora_rank": 22,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 0,
    "v_head_dim": 7,
    "index_n_heads": 5,
    "index_head_dim": 16,
    "index_topk": 12,
    "index_kpool": 4,
    "index_kpool_always_select_tail": True,
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["deepseek_sparse_attention"],
    "indexer_types": ["full"] * 4,
}
PUBLISHED = {
    **SMALL,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "q_lora_rank": 40,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 256,
    "v_head_dim": 256,
    "index_n_heads": 16,
    "index_head_dim": 128,
    "index_topk": 64,
    "index_kpool": 16,
}
SPARSE = ["deepseek_sparse_attention"] * 2
CASES = {
    "N1": {
        "config": SMALL,
        "tokens": 43,
        "seed": 5300,
        "pins": "pools of 4 (which do not overlap, as V4's of 4 do), 3 of them selected, and an open tail",
        "chunk_plans": [[1] * 43, [3, 2, 6, 32], [20, 4, 4, 15]],
    },
    "N1_pool1": {
        "config": {**SMALL, "index_kpool": 1, "index_topk": 5},
        "tokens": 20,
        "seed": 5310,
        "pins": "pools of one token: no tail, and the softmax over a pool is 1",
        "chunk_plans": [[7, 1, 12]],
    },
    "N2": {
        "config": {
            **SMALL,
            "index_kpool": 16,
            "index_topk": 32,
            "num_hidden_layers": 2,
            "layer_types": SPARSE,
            "indexer_types": ["full", "shared"],
        },
        "tokens": 84,
        "batch": 2,
        "seed": 5320,
        "pins": "pools of 16, two sequences, a layer that shares the selection",
        "chunk_plans": [[15, 1, 1, 31, 36], [50, 34]],
    },
    "N3": {
        "config": PUBLISHED,
        "tokens": 200,
        "seed": 5330,
        "rows": [0, 1, 14, 15, 16, 31, 79, 80, 100, 143, 144, 198, 199],
        "pins": "head geometry of the published model: latent 512, keys and values 256, index 16 x 128",
        "chunk_plans": [[1, 15, 16, 17, 151], [100] + [1] * 100],
    },
}
GAP = 0.1  # least distance of the last selected score to the next, over the rms of the scores


def bf16(values):
    return torch.from_numpy(np.asarray(values)).to(torch.bfloat16).to(torch.float64).numpy()


def draw_weights(module, rng):
    out = {}
    for name, parameter in module.named_parameters():
        noise = rng.standard_normal(tuple(parameter.shape))
        if name.endswith(("bias", "ape")):
            value = 0.5 * noise
        elif noise.ndim == 1:
            value = 1 + 0.2 * noise
        else:
            value = noise / np.sqrt(noise.shape[1])
        out[name] = bf16(value)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(out[name]))
    return out


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * weight + bias


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


class Indexer:
    """Scores of pools in float64, token by token."""

    def __init__(self, config, weights):
        self.c, self.w = config, weights
        self.pool, self.count = config["index_kpool"], config["index_topk"] // config["index_kpool"]
        self.k, self.gate, self.keys = [], [], []

    def token(self, x, commit):
        """(scores of the pools that a further token x sees, its row of each intermediate)."""
        c, w = self.c, self.w
        row = {"qr": rms(x @ w["q_a_proj.weight"].T, w["q_a_layernorm.weight"], c["rms_norm_eps"])}
        row["index_q"] = (row["qr"] @ w["indexer.wq_b.weight"].T).reshape(c["index_n_heads"], -1)
        k = layer_norm(
            x @ w["indexer.wk.weight"].T, w["indexer.k_norm.weight"], w["indexer.k_norm.bias"]
        )
        row["index_k"], gate = k, x @ w["indexer.index_kpool_compress_gate"].T
        factor = (c["index_n_heads"] * c["index_head_dim"]) ** -0.5
        row["index_w"] = x @ w["indexer.weights_proj.weight"].T * factor
        all_k, all_gate, keys = [*self.k, k], [*self.gate, gate], list(self.keys)
        if len(all_k) % self.pool == 0:
            share = softmax(np.array(all_gate[-self.pool :]) + w["indexer.index_kpool_compress_ape"], 0)
            keys.append((share * np.array(all_k[-self.pool :])).sum(0))
        if commit:
            self.k, self.gate, self.keys = all_k, all_gate, keys
        if not keys:
            return np.zeros(0), row
        return np.maximum(row["index_q"] @ np.array(keys).T, 0).T @ row["index_w"], row

    def gap(self, scores):
        if len(scores) <= self.count:
            return np.inf
        ordered = np.sort(scores)[::-1]
        return (ordered[self.count - 1] - ordered[self.count]) / np.sqrt((scores**2).mean())

    def select(self, scores):
        best = np.sort(np.argsort(-scores, kind="stable")[: self.count])
        return np.pad(best, (0, self.count - len(best)), constant_values=-1)


def draw_hidden(config, weights, tokens, rng):
    """Hidden rows whose selections are clear, and (in float64) what the indexer makes of them."""
    width = config["hidden_size"]
    if weights is None:  # shares a selection
        return bf16(rng.standard_normal((tokens, width))), {}, np.inf
    indexer, hidden, seen, least = Indexer(config, weights), [], {}, np.inf
    scores = np.full((tokens, tokens // indexer.pool), -np.inf)
    topk = []
    for t in range(tokens):
        for _ in range(1000):
            x = bf16(rng.standard_normal(width))
            if indexer.gap(indexer.token(x, False)[0]) > GAP:
                break
        else:
            raise RuntimeError(f"token {t}: no clear draw")
        own, row = indexer.token(x, True)
        least = min(least, indexer.gap(own))
        scores[t, : len(own)] = own
        topk.append(indexer.select(own))
        hidden.append(x)
        for name, value in row.items():
            seen.setdefault(name, []).append(value)
    seen = {name: np.array(values) for name, values in seen.items()}
    seen["entries_index"] = np.array(indexer.keys)
    seen["index_score"] = scores
    seen["topk"] = np.array(topk, np.int32)
    return np.array(hidden), seen, least


def attention(config, weights, hidden, topk):
    """The layer's output in float64, from what its tokens select."""
    c, w, pool = config, weights, config["index_kpool"]
    tokens, heads, nope = len(hidden), c["num_attention_heads"], c["qk_nope_head_dim"]
    seen = {"qr": rms(hidden @ w["q_a_proj.weight"].T, w["q_a_layernorm.weight"], c["rms_norm_eps"])}
    seen["latent"] = rms(
        hidden @ w["kv_a_proj_with_mqa.weight"].T, w["kv_a_layernorm.weight"], c["rms_norm_eps"]
    )
    seen["q_rot"] = (seen["qr"] @ w["q_b_proj.weight"].T).reshape(tokens, heads, nope)
    kv = (seen["latent"] @ w["kv_b_proj.weight"].T).reshape(tokens, heads, -1)
    core = np.zeros((tokens, heads, c["v_head_dim"]))
    for t in range(tokens):
        rows = [p * pool + i for p in topk[t] if p >= 0 for i in range(pool)]
        rows += range((t + 1) // pool * pool, t + 1)
        logits = np.einsum("hd,jhd->hj", seen["q_rot"][t], kv[rows, :, :nope]) * nope**-0.5
        core[t] = np.einsum("hj,jhd->hd", softmax(logits, 1), kv[rows, :, nope:])
    seen["core_out"] = core
    return core.reshape(tokens, -1) @ w["o_proj.weight"].T, seen


def watched(module, c):
    """Hooks that keep the intermediates of the module's last call, by name."""
    seen, indexer, heads = {}, module.indexer, c["num_attention_heads"]

    def keep(layer, name, *shape):
        def hook(_, given, out):
            seen[name] = out.detach().reshape(*out.shape[:2], *shape)

        layer.register_forward_hook(hook)

    def keep_core(_, given):
        seen["core_out"] = given[0].detach().reshape(*given[0].shape[:2], heads, -1)

    keep(module.q_a_layernorm, "qr", c["q_lora_rank"])
    keep(module.q_b_proj, "q_rot", heads, c["qk_nope_head_dim"])
    keep(module.kv_a_layernorm, "latent", c["kv_lora_rank"])
    module.o_proj.register_forward_pre_hook(keep_core)
    if indexer is None:
        return seen
    keep(indexer.wq_b, "index_q", c["index_n_heads"], c["index_head_dim"])
    keep(indexer.k_norm, "index_k", c["index_head_dim"])
    keep(indexer, "positions", -1)
    pooled = indexer.get_pooled_states

    def keep_pools(*args, **named):
        out = pooled(*args, **named)
        seen["entries_index"] = out[0].detach()
        return out

    indexer.get_pooled_states = keep_pools
    return seen


def selected_pools(positions, first, config):
    """Pools [B,S,k] of the positions [B,S,K] that tokens first, first + 1, ... attend to."""
    pool, count = config["index_kpool"], config["index_topk"] // config["index_kpool"]
    out = np.full((*positions.shape[:2], count), -1, np.int32)
    for b, t in np.ndindex(*positions.shape[:2]):
        listed = sorted(p for p in positions[b, t].tolist() if p >= 0)
        seen = first + t + 1
        pools = sorted({p // pool for p in listed if p < seen // pool * pool})
        whole = [p * pool + i for p in pools for i in range(pool)]
        if listed != whole + list(range(seen // pool * pool, seen)):
            raise RuntimeError(f"token {first + t}: positions are not whole pools and the tail")
        out[b, t, : len(pools)] = pools
    return out


def run_modules(modules, hidden, config, cache=None, first=0):
    """(outputs, intermediates) of each layer for tokens first, first + 1, ... of every sequence."""
    outs, shared = [], None
    for module, x in zip(modules, hidden):
        seen = module.seen
        seen.clear()
        mask = torch.ones(x.shape[:2], dtype=torch.bool)
        y, _, positions = module(x, mask, past_key_values=cache, prev_topk_indices=shared)
        shared = positions if positions is not None else shared
        found = {name: value.numpy() for name, value in seen.items()}
        if "positions" in found:
            found["topk"] = selected_pools(found.pop("positions"), first, config)
        outs.append((y.detach().numpy(), found))
    return outs


def difference(a, b):
    return float(np.abs(a - b).max() / np.sqrt((b * b).mean()))


def write_safetensors(path, tensors):
    names = {"float64": "F64", "float32": "F32", "int32": "I32"}
    header, blobs, at = {}, [], 0
    order = sorted(tensors, key=lambda name: (tensors[name].dtype.itemsize * -1, name))
    order = [n for n in order if n[:2] != "w."] + [n for n in order if n[:2] == "w."]
    for name in order:
        value = tensors[name]
        raw = np.ascontiguousarray(value).tobytes()
        kind = names[str(value.dtype)]
        if name.startswith("w."):  # all are bf16
            bits = value.astype(np.float32).view(np.uint32)
            assert not (bits & 0xFFFF).any(), name
            raw, kind = (bits >> 16).astype("<u2").tobytes(), "BF16"
        span = [at, at + len(raw)]
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": span}
        blobs.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def make_modules(c, rng):
    hf = configuration_glm5_next.Glm5NextTextConfig(num_key_value_heads=c["num_attention_heads"], **c)
    hf._attn_implementation = "eager"
    modules, weights = [], []
    for layer, kind in enumerate(c["layer_types"]):
        if kind == "linear_attention":
            continue
        module = modeling_glm5_next.Glm5NextTextAttention(hf, layer).float().eval()
        weights.append(draw_weights(module, rng))
        module.seen = watched(module, c)
        modules.append(module)
    return hf, modules, weights


def make_reference(c, modules, weights, tokens, batch, rng):
    """(hidden, output, intermediates) of each layer, in float64, and the least gap of a selection."""
    layers, least = [], np.inf
    for module, own in zip(modules, weights):
        full = module.indexer is not None
        hidden, ys, all_seen = [], [], []
        for b in range(batch):
            x, seen, gap = draw_hidden(c, own if full else None, tokens, rng)
            least = min(least, gap)
            topk = seen["topk"] if full else layers[-1][2]["topk"][b]
            y, more = attention(c, own, x, topk)
            hidden.append(x)
            ys.append(y)
            all_seen.append({"topk": topk, **seen, **more})
        stacked = {name: np.stack([each[name] for each in all_seen]) for name in all_seen[0]}
        layers.append((np.stack(hidden), np.stack(ys), stacked))
    return layers, least


def compare_runs(name, spec, hf, modules, layers):
    """The modules' outputs, checked against float64 and against steps through their own cache."""
    c, tokens = spec["config"], spec["tokens"]
    hidden = [torch.from_numpy(layer[0]).float() for layer in layers]
    whole = run_modules(modules, hidden, c)
    worst, chunked = 0.0, 0.0
    for (y, seen), (_, want, reference) in zip(whole, layers):
        worst = max(worst, difference(y, want))
        for each, value in seen.items():
            if each == "topk":
                assert (value == reference[each]).all(), f"{name}: {each}"
            else:
                worst = max(worst, difference(value, reference[each]))
    for plan in spec["chunk_plans"]:
        cache, first = DynamicCache(config=hf), 0
        for n in plan:
            part = [x[:, first : first + n] for x in hidden]
            for (y, _), (all_y, _) in zip(run_modules(modules, part, c, cache, first), whole):
                chunked = max(chunked, difference(y, all_y[:, first : first + n]))
            first += n
        assert first == tokens
    assert worst < 1e-5 and chunked < 1e-5, (name, worst, chunked)
    return whole, worst, chunked


def make(name, folder):
    spec = CASES[name]
    c, tokens, batch = spec["config"], spec["tokens"], spec.get("batch", 1)
    hf, modules, weights = make_modules(c, np.random.default_rng(spec["seed"]))
    rng = np.random.default_rng(spec["seed"] + 1)
    layers, least = make_reference(c, modules, weights, tokens, batch, rng)
    whole, worst, chunked = compare_runs(name, spec, hf, modules, layers)

    rows = np.array(spec.get("rows", []), np.int32)
    positions = np.tile(np.arange(tokens, dtype=np.int32), (batch, 1))
    tensors = {"in.position_ids": positions, **({"rows.index": rows} if len(rows) else {})}
    described = []
    for i, (module, own, (hidden, y, seen)) in enumerate(zip(modules, weights, layers)):
        suffix = f".layer{i}" if i else ""
        prefix = f"model.layers.{module.layer_idx}.self_attn."
        tensors.update({f"w.{prefix}{key}": value for key, value in own.items()})
        tensors[f"in.hidden{suffix}"] = hidden.astype(np.float32)
        tensors[f"ref.y{suffix}"], tensors[f"out.y{suffix}"] = y, whole[i][0]
        for key, value in {**seen, **whole[i][1]}.items():  # transformers' own, where it shows them
            value = value if value.dtype == np.int32 else value.astype(np.float32)
            if len(rows) and key not in ("topk", "index_score", "index_w", "entries_index"):
                tensors[f"rows.{key}{suffix}"] = value[:, rows]
            else:
                tensors[f"mid.{key}{suffix}"] = value
        full = "shared" if module.skip_topk else "full"
        described.append(
            {"layer_idx": module.layer_idx, "prefix": prefix, "suffix": suffix, "indexer": full}
        )
    write_safetensors(folder / f"{name}.safetensors", tensors)
    files = (configuration_glm5_next.__file__, modeling_glm5_next.__file__)
    meta = {
        "case": name,
        "set": "dev",
        "family": "dsa",
        "model_type": "glm5_next",
        "pins": spec["pins"],
        "config": c,
        "hf_config_kwargs": json.loads(hf.to_json_string(use_diff=False)),
        "layers": described,
        "batch": batch,
        "seq_len": tokens,
        "chunk_plans": spec["chunk_plans"],
        "suggested_page_sizes": [4, 16] if name != "N3" else [64],
        "softmax_scale": c["qk_nope_head_dim"] ** -0.5,
        "weight_seed": spec["seed"],
        "input_seed": spec["seed"] + 1,
        "min_gap_over_rms": least if np.isfinite(least) else None,
        "oracle": f"transformers {transformers.__version__}, torch {torch.__version__}, float32, eager",
        "float32_vs_ref": worst,
        "chunked_vs_whole": chunked,
        "tolerance": {
            "fp64_vs_ref.y": 1e-10,
            "measure": "max |a-b| / rms(b)",
            "fp32_mid": 2e-5,
            "fp32_y": 5e-5,
            "topk": "exact set per query in fp32",
        },
        "sha256": {
            pathlib.Path(file).name: hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()
            for file in files
        },
    }
    (folder / f"{name}.json").write_text(json.dumps(meta, indent=1) + "\n")
    print(f"{name}: gap {least:.3f}, float32 {worst:.1e}, in steps {chunked:.1e}")


if __name__ == "__main__":
    for each in sys.argv[2:] or CASES:
        make(each, pathlib.Path(sys.argv[1]))
