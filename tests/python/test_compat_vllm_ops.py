"""Logits, top-k and attention of smla.compat.vllm_ops, and its calls in a CUDA graph."""

import math

import pytest

torch = pytest.importorskip("torch")

import smla
from smla.compat import vllm_ops as ops
from vllm_ops_world import (
    DEVICES,
    E4M3,
    ints,
    keys_of,
    normal,
    padded,
    pages_of,
    row,
    same,
    table_of,
    view_of,
    with_holes,
)
from vllm_ops_world import rng as rng


def codes_of(rng, *shape):
    return normal(rng, *shape).mul(60).clamp(-448, 448).to(E4M3)


def rounds(device):
    """Whether products of e4m3 are rounded: on Hopper."""
    return device == "cuda" and torch.cuda.get_device_capability()[0] == 9


def logits_of(q, weights, keys, scale, device):
    """[M,N] in float64, and how far from it a result may be: what f32 may lose of the sum of absolute terms;
    where products are rounded, docs/kernels/cuda_score.md bounds one logit."""
    q, weights, keys, scale = q.double(), weights.double()[:, :, None], keys.double(), scale.double()
    weighted = weights * torch.einsum("mhd,nd->mhn", q, keys).relu()
    if rounds(device):
        sizes = weights.abs() * torch.einsum("mhd,nd->mhn", q.abs(), keys.abs())
        return weighted.sum(1) * scale, 132 * 2**-12 * sizes.sum(1) * scale
    return weighted.sum(1) * scale, 2**-20 * weighted.abs().sum(1) * scale + 1e-30


def assert_logits(got, wanted, bound, inside):
    got = got.cpu().double()
    assert (got[~inside] == -math.inf).all()
    got, wanted = got[inside], wanted[inside]
    assert ((got - wanted).abs() <= bound[inside]).all()
    # DeepGEMM's measure of all of them
    assert 2 * (got * wanted).sum() >= (1 - 5e-6) * (got.square() + wanted.square()).sum()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads, keys", [(64, 200), (1, 1), (5, 67)])
def test_fp8_mqa_logits(rng, device, heads, keys):
    tokens = 9
    q, k = codes_of(rng, tokens, heads, 128), codes_of(rng, keys, 128)
    scale, weights = torch.rand(keys, generator=rng) + 0.1, normal(rng, tokens, heads)
    starts, ends = ints(rng, 0, keys + 1, tokens), ints(rng, 0, keys + 1, tokens)  # empty windows too
    k.view(torch.uint8)[: int(starts.min())] = 0x7F  # NaN where no token looks
    got = ops.fp8_mqa_logits_triton(
        view_of(q.view(torch.uint8), 0x7F).view(E4M3).to(device),
        (k.to(device), scale[:, None].to(device)),
        weights.to(device),
        starts.to(device),
        ends.to(device),
    )
    columns = torch.arange(keys)
    inside = (columns >= starts[:, None]) & (columns < ends[:, None])
    assert got.shape == (tokens, keys) and got.dtype == torch.float32
    assert_logits(got, *logits_of(q, weights, k, scale, device), inside)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("next_n, page, per_token", [(1, 64, False), (3, 16, False), (2, 5, True)])
def test_fp8_paged_mqa_logits(rng, device, next_n, page, per_token):
    batch, heads, blocks, columns = 5, 7, 4, 4 * page + 9  # more columns than the table has
    pages = batch * blocks
    memory, cache = pages_of(pages, page, 132, "cpu", gap=44, fill=0x7F)
    k, scale = codes_of(rng, pages * page, 128), torch.rand(pages * page, generator=rng) + 0.1
    for p in range(pages):
        part = slice(p * page, (p + 1) * page)
        page_bytes = torch.cat([k[part].view(torch.uint8).flatten(), scale[part].view(torch.uint8).flatten()])
        memory[p * cache.stride(0) : p * cache.stride(0) + 132 * page] = page_bytes
    table = torch.randperm(pages, generator=rng).view(batch, blocks).int()
    q, weights = codes_of(rng, batch, next_n, heads, 128), normal(rng, batch * next_n, heads)
    lens = ints(rng, 0, blocks * page + 1, batch)
    lens[0] = 0  # a request of padding
    seen = (lens[:, None] - next_n + 1 + torch.arange(next_n)).clamp(min=0).int()
    if per_token:
        seen = ints(rng, 0, blocks * page + 1, batch, next_n)
    memory = memory.to(device)
    cache = memory.as_strided((pages, page, 1, 132), (cache.stride(0), 132, 132, 1))
    got = ops.fp8_paged_mqa_logits_triton(
        q.to(device),
        cache,
        weights.to(device),
        (seen if per_token else lens).to(device),
        table.to(device),
        columns,
    )
    assert got.shape == (batch * next_n, columns)
    inside = torch.zeros(batch * next_n, columns, dtype=torch.bool)
    wanted, bound = torch.zeros(2, batch * next_n, columns, dtype=torch.float64)
    for b in range(batch):
        rows = [row(table, b, p, page) for p in range(blocks * page)]
        lines = slice(b * next_n, (b + 1) * next_n)
        wanted[lines, : len(rows)], bound[lines, : len(rows)] = logits_of(
            q[b], weights[lines], k[rows], scale[rows], device
        )
        inside[lines] = torch.arange(columns) < seen[b][:, None]
    assert_logits(got, wanted, bound, inside)


@pytest.mark.parametrize("device", DEVICES)
def test_warm_ups_compute_nothing_and_refuse_what_calls_refuse(device):
    for heads in (64, 3):
        ops.warmup_fp8_mqa_logits_triton(num_heads=heads, head_dim=128, device=torch.device(device))
        ops.warmup_fp8_paged_mqa_logits_triton(heads, 128, 64, torch.device(device))
    with pytest.raises(smla.InvalidArgument, match=r"kv\[0\]"):
        ops.warmup_fp8_mqa_logits_triton(64, 96, torch.device(device))
    with pytest.raises(smla.InvalidArgument, match="kv_cache"):
        ops.warmup_fp8_paged_mqa_logits_triton(64, 96, 64, torch.device(device))


def best(line, start, end, k):
    """The k best columns of line[start:end], counted from start, ascending; ties to the lowest."""
    order = sorted(range(start, end), key=lambda j: (-line[j], j))[:k]
    return sorted(j - start for j in order)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("k", [5, 128])
def test_top_k_per_row_prefill(rng, device, k):
    rows, columns = 9, 70
    scores = normal(rng, rows + 1, columns).mul(4).round() / 4  # many ties
    starts, ends = ints(rng, 0, columns, rows + 1), ints(rng, 0, columns + 1, rows + 1)
    wanted = [best(scores[t].tolist(), int(starts[t]), int(ends[t]), k) for t in range(rows)]
    outside = (torch.arange(columns) < starts[:, None]) | (torch.arange(columns) >= ends[:, None])
    logits = view_of(torch.where(outside, math.nan, scores).to(device), math.nan)
    out = torch.full((rows + 2, k + 3), 99, dtype=torch.int32, device=device)
    ops.top_k_per_row_prefill(
        logits, starts.to(device), ends.to(device), out, rows, logits.stride(0), logits.stride(1), k
    )
    same(out[:rows, :k], padded(wanted, k))
    assert (out[rows:] == 99).all() and (out[:, k:] == 99).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("next_n, per_token", [(1, False), (3, False), (2, True)])
def test_top_k_per_row_decode(rng, device, next_n, per_token):
    batch, columns, k = 6, 70, 8
    rows = batch * next_n
    scores = normal(rng, rows, columns)
    lens = ints(rng, 0, columns + 1, batch)
    seen = (lens[:, None] - next_n + 1 + torch.arange(next_n)).clamp(min=0).int()
    if per_token:
        lens = seen = ints(rng, 0, columns + 1, batch, next_n)
    scores[torch.arange(columns) >= seen.flatten()[:, None]] = math.nan
    out = torch.full((rows, k), 99, dtype=torch.int32, device=device)
    ops.top_k_per_row_decode(scores.to(device), next_n, lens.to(device), out, rows, columns, 1, k)
    same(out, padded([best(scores[t].tolist(), 0, int(seen.flatten()[t]), k) for t in range(rows)], k))


def attention(q, keys, rows, scale, width):
    """out, lse, largest logit in float64."""
    out = torch.zeros(*q.shape[:2], width, dtype=torch.float64)
    lse, largest = torch.full((2, *q.shape[:2]), -math.inf, dtype=torch.float64)
    for t, listed in enumerate(rows.tolist()):
        some = keys[[r for r in listed if 0 <= r < len(keys)]].double()
        if len(some):
            logits = scale * q[t].double() @ some.T
            lse[t], largest[t] = logits.logsumexp(-1), logits.amax(-1)
            out[t] = logits.softmax(-1) @ some[:, :width]
    return out, lse, largest


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads, listed, splits", [(16, 48, None), (5, 7, 1), (1, 0, 4), (128, 33, 0)])
def test_triton_mla_sparse_attention(rng, device, heads, listed, splits):
    tokens, rows, scale = 4, 90, 192**-0.5
    q, keys = (
        normal(rng, tokens, heads, 576, dtype=torch.bfloat16),
        normal(rng, rows, 576, dtype=torch.bfloat16),
    )
    index = with_holes(rng, ints(rng, 0, rows + 3, tokens, listed))  # rows past the end too
    index[-1] = -1  # a token without rows
    unlisted = [r for r in range(rows) if r not in index.flatten().tolist()]
    keys[unlisted] = math.nan
    kv = view_of(keys.to(device), math.nan)[:, None]
    arguments = view_of(q.to(device), math.nan), kv, index[:, None].to(device)
    wanted, lse, largest = attention(q, keys, index, scale, 512)
    got = ops.triton_mla_sparse_attention(*arguments, sm_scale=scale, num_kv_splits=splits, sm_count=132)
    assert got.shape == (tokens, heads, 512) and got.dtype == torch.bfloat16
    assert torch.allclose(got.cpu().double(), wanted, rtol=2**-6, atol=2**-6)
    assert (got[-1] == 0).all()
    out, got_largest, got_lse = ops.triton_bf16_mla_sparse_interface(*arguments, scale)
    assert torch.equal(out, got)
    assert torch.allclose(got_lse.cpu().double(), lse, rtol=1e-3, atol=2e-3)
    assert torch.allclose(got_largest.cpu().double(), largest, rtol=1e-3, atol=2e-3)
    narrow = ops.triton_bf16_mla_sparse_interface(*arguments, scale, d_v=64)[0]
    assert torch.allclose(narrow.cpu().double(), wanted[..., :64], rtol=2**-6, atol=2**-6)


def test_attention_over_no_keys():
    q, kv = torch.ones(2, 3, 576, dtype=torch.bfloat16), torch.zeros(0, 1, 576, dtype=torch.bfloat16)
    index = torch.zeros(2, 1, 16, dtype=torch.int32)
    assert (ops.triton_mla_sparse_attention(q, kv, index, 1.0) == 0).all()


@pytest.mark.gpu
def test_calls_may_be_captured_in_a_cuda_graph():
    rng = torch.Generator().manual_seed(0)
    table, positions = (x.cuda() for x in table_of(rng, 3, 6, 64))
    request = ints(rng, 0, 3, 7).cuda()
    latent, rope = (x.cuda() for x in keys_of(rng, 7))
    cache = torch.zeros(64, 64, 656, dtype=torch.uint8, device="cuda")
    slots = torch.randperm(4096, generator=rng)[:7].cuda()

    def step():
        ops.concat_and_cache_mla(latent, rope, cache, slots, "fp8_ds_mla", torch.ones(1))
        rows, lens = ops.triton_convert_req_index_to_global_index(
            request, table, positions, NUM_TOPK_TOKENS=19, return_valid_counts=True
        )
        return rows, lens

    for _ in range(2):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    positions.copy_(ints(rng, 0, 300, 7, 19).cuda())
    latent.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    replayed, written = [x.clone() for x in captured], cache.clone()
    cache.zero_()
    for got, wanted in zip(replayed, step(), strict=True):
        assert torch.equal(got, wanted)
    assert torch.equal(cache, written)
