"""Rows of attention: FlashMLA's decode and prefill calls, and FlashAttention 3 on listed rows."""

import smla
import torch
from smla.compat import flash_mla as compat

from .inputs import RECORDS, attention, decoded, outputs_check, padded, strided
from .pair import Pair

REQUESTS = 128  # number of requests with separate caches; further requests share these caches


def _peer_heads(heads):
    return 64 if heads <= 64 else 128


def _listed(rows, length):
    """Returns the valid rows of one list."""
    rows = rows if length is None else rows[: int(length)]
    return rows[rows >= 0]


class _Source:
    """A paged fp8 cache with a list of rows for every token, in the forms for smla and for FlashMLA."""

    def __init__(self, inputs, row, tokens, prefix=""):
        batch, s_q = row["batch"], row.get("s_q", 1)
        page, context = row.get(prefix + "page", 64), row.get(prefix + "context", 20000)
        k = row["k"] if not prefix else row["extra"]
        per_request = -(-context // page)
        self.cache = inputs.packed_cache(row.get("width", 576), per_request * REQUESTS, page)
        request = torch.arange(batch, device=inputs.device).repeat_interleave(s_q) % REQUESTS
        kind = row.get("rows", "random") if not prefix else "random"
        if kind == "short contexts":
            count = inputs.integers(2, context + 1, batch, seed=3).long().repeat_interleave(s_q)
        else:
            count = torch.full((tokens,), context, device=inputs.device)
        self.rows = inputs.lists(request * per_request * page, count, k, kind, seed=7 if prefix else 1)
        self.lengths = inputs.lengths(row.get("lengths"), batch, k, seed=13 if prefix else 11)
        shape = batch, s_q, -1
        self.indices = self.rows.view(shape)
        self.peer_indices = padded(self.rows, -(-k // 64) * 64, 1, -1).view(shape)
        self.peer_lengths = self.lengths
        if self.lengths is not None and row.get("width", 576) == 576:  # not supported by FlashMLA
            columns = torch.arange(self.peer_indices.shape[2], device=inputs.device)
            hidden = columns >= self.lengths[:, None, None]
            self.peer_indices = self.peer_indices.masked_fill(hidden, -1).contiguous()
            self.peer_lengths = None

    def keys(self, token, s_q):
        length = None if self.lengths is None else self.lengths[token // s_q]
        return decoded(self.cache, _listed(self.rows[token], length))


def decode(inputs, peer, row):
    """Compares flash_mla_with_kvcache on fp8 caches with the drop-in module of smla. A row that names a
    precision calls smla.attend."""
    batch, s_q, heads, width = row["batch"], row.get("s_q", 1), row["heads"], row.get("width", 576)
    tokens, scale = batch * s_q, width**-0.5
    first = _Source(inputs, row, tokens)
    second = _Source(inputs, row, tokens, "extra_") if "extra" in row else None
    q = inputs.normal(batch, s_q, heads, width).clamp_(-1, 1)
    sink = inputs.normal(heads, seed=5, dtype=torch.float32)
    wide = _peer_heads(heads)
    peer_q, peer_sink = padded(q, wide, 2), padded(sink, wide, 0)
    if row.get("strided"):
        q, peer_q = strided(q), strided(peer_q)

    def call(module, q, sink, schedule, names):
        def of(source, name):
            return getattr(source, name) if source else None

        return module.flash_mla_with_kvcache(
            q,
            first.cache,
            None,
            None,
            512,
            schedule,
            softmax_scale=scale,
            is_fp8_kvcache=True,
            indices=getattr(first, names[0]),
            attn_sink=sink,
            extra_k_cache=of(second, "cache"),
            extra_indices_in_kvcache=of(second, names[0]),
            topk_length=getattr(first, names[1]),
            extra_topk_length=of(second, names[1]),
        )

    schedules = [module.get_mla_metadata()[0] for module in (peer, compat)]

    def ours():
        return call(compat, q, sink, schedules[1], ("indices", "lengths"))

    if "precision" in row:
        ours = _attend(inputs, q.view(tokens, heads, width), first, sink, scale, row["precision"])

    def reference(token):
        sources = [first] if second is None else [first, second]
        keys = torch.cat([source.keys(token, s_q) for source in sources])
        return attention(q[token // s_q, token % s_q], keys, scale, sink)

    return Pair(
        lambda: call(peer, peer_q, peer_sink, schedules[0], ("peer_indices", "peer_lengths")),
        ours,
        outputs_check(tokens, heads, reference),
    )


def _attend(inputs, q, source, sink, scale, precision):
    cache = smla.Cache(source.cache, RECORDS[q.shape[2]][0], source.cache.shape[1])
    out = torch.empty(q.shape[0], q.shape[1], 512, device=inputs.device, dtype=q.dtype)
    lse = torch.empty(q.shape[0], q.shape[1], device=inputs.device)
    return lambda: smla.attend(
        q, cache, source.rows, softmax_scale=scale, sink=sink, precision=precision, out=out, lse=lse
    )


def prefill(inputs, peer, row):
    """Compares flash_mla_sparse_fwd on bf16 rows with smla."""
    tokens, heads, width, k, kv = (row[name] for name in ("tokens", "heads", "width", "k", "kv"))
    q, keys = inputs.normal(tokens, heads, width) / 4, inputs.normal(kv, 1, width, seed=2) / 4
    low = torch.zeros(tokens, device=inputs.device, dtype=torch.int64)
    rows = inputs.lists(low, low + kv, k, row.get("rows", "random"))
    lengths = inputs.lengths(row.get("lengths"), tokens, k)
    scale = width**-0.5
    peer_q, peer_rows = padded(q, _peer_heads(heads), 1), padded(rows, -(-k // 128) * 128, 1, -1)

    def call(module, q, rows):
        return module.flash_mla_sparse_fwd(q, keys, rows[:, None], scale, topk_length=lengths)

    def reference(token):
        listed = _listed(rows[token], None if lengths is None else lengths[token]).long()
        return attention(q[token], keys[listed, 0].double(), scale, None)

    return Pair(
        lambda: call(peer, peer_q, peer_rows),
        lambda: call(compat, q, rows),
        outputs_check(tokens, heads, reference),
    )


def listed(inputs, peer, row):
    """Compares smla.attend with FlashAttention 3 on a page table with pages of one token, as vLLM calls it.
    The cache has 2^20 bf16 rows."""
    tokens, heads, k = row["tokens"], row["heads"], row.get("k", 2048)
    cached = row.get("cached", 1 << 20)
    kv = inputs.keep(("bf16", cached), lambda: inputs.normal(cached // 64, 64, 576, seed=8) / 4)
    q = inputs.normal(tokens, heads, 576) / 4
    low = torch.zeros(tokens, device=inputs.device, dtype=torch.int64)
    rows = inputs.lists(low, low + cached, k)
    lengths = inputs.lengths(row.get("lengths"), tokens, k)
    counts = inputs.full(k, tokens) if lengths is None else lengths
    q_nope, q_rope = q[..., :512].contiguous(), q[..., 512:].contiguous()  # two tensors, as in vLLM
    flat, scale = kv.view(-1, 576), 576**-0.5
    k_cache, v_cache = flat[:, 512:].unflatten(1, (1, 1, 64)), flat[:, :512].unflatten(1, (1, 1, 512))
    starts = inputs.arange(tokens + 1)

    def theirs():  # arguments in the order of vLLM's fork of flash-attention, hopper/flash_api.cpp
        result = peer.fwd(
            q_rope,
            k_cache,
            v_cache,
            None,
            None,
            q_nope,
            None,
            starts,
            None,
            None,
            None,
            counts,
            1,
            k,
            rows,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            scale,
            True,
            -1,
            -1,
            0.0,
            True,
            None,
            0,
            None,
            0,
            None,
            1,
            0,
            None,
        )
        return result[:1]

    cache = smla.Cache(kv, "row_bf16", 64)
    precision = row.get("precision", "rounded")

    def reference(token):
        return attention(q[token], flat[rows[token, : int(counts[token])].long()].double(), scale, None)

    return Pair(
        theirs,
        lambda: smla.attend(q, cache, rows, lengths, softmax_scale=scale, precision=precision)[:1],
        outputs_check(tokens, heads, reference),
    )
