"""What smla.compat.vllm_ops writes to caches and gathers from them, byte by byte."""

import math

import pytest

torch = pytest.importorskip("torch")

from smla.compat import vllm_ops as ops
from vllm_ops_world import DEVICES, E4M3, ints, keys_of, pages_of, row, view_of, with_holes
from vllm_ops_world import rng as rng


def power_of_two_scale(amax, floor, before):
    """2^ceil(log2(.)) of amax / 448 with a floor before or after the division, exactly."""
    ratio = amax.clamp(min=floor) / 448 if before else (amax / 448).clamp(min=floor)
    mantissa, exponent = torch.frexp(ratio)
    return torch.ldexp(torch.ones_like(ratio), exponent - (mantissa == 0.5).int())


def tiles(x, width, floor, before):
    """e4m3 codes and the scale of each tile."""
    part = x.float().unflatten(-1, (-1, width))
    scale = power_of_two_scale(part.abs().amax(-1), floor, before)
    return (part / scale[..., None]).clamp(-448, 448).to(E4M3).flatten(-2), scale


def record_656(latent, rope):
    codes, scale = tiles(latent, 128, 1e-4, before=False)
    return torch.cat(
        [codes.view(torch.uint8), scale.view(torch.uint8), rope.bfloat16().view(torch.uint8)], -1
    )


def slots_of(rng, tokens, pages, page_tokens):
    """Distinct slots in any order; some are -1."""
    return with_holes(rng, torch.randperm(pages * page_tokens, generator=rng)[:tokens])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [64, 3])
@pytest.mark.parametrize("kind", ["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla"])
def test_concat_and_cache_mla(rng, device, page, kind):
    tokens, pages, k_scale = 11, 6, 0.37
    latent, rope = keys_of(rng, tokens + 4)
    latent[tokens:] = rope[tokens:] = math.nan  # padding of CUDA graphs
    slots = slots_of(rng, tokens, pages, page)
    if kind in ("auto", "bfloat16"):
        records, dtype = torch.cat([latent, rope], -1), torch.bfloat16
    elif kind == "fp8_ds_mla":
        records, dtype = record_656(latent, rope), torch.uint8
    else:
        both = torch.cat([latent, rope], -1).float() / torch.tensor(k_scale)
        records, dtype = both.clamp(-448, 448).to(E4M3).view(torch.uint8), torch.uint8
    memory, cache = pages_of(pages, page, records.shape[-1], device, dtype, fill=7)
    expected_memory, expected = memory.clone(), None
    expected = expected_memory.as_strided(cache.shape, cache.stride())
    for t, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[slot // page, slot % page] = records[t].to(device)
    ops.concat_and_cache_mla(
        view_of(latent.to(device), math.nan),
        view_of(rope.to(device), math.nan),
        cache,
        slots.to(device),
        kv_cache_dtype=kind,
        scale=torch.tensor(k_scale, device=device),
    )
    assert torch.equal(memory, expected_memory)


def test_concat_and_cache_mla_takes_an_empty_cache(rng):
    latent, rope = keys_of(rng, 3)
    slots = torch.zeros(3, dtype=torch.int64)
    ops.concat_and_cache_mla(latent, rope, torch.tensor([]), slots, "auto", torch.ones(1))
    cache = torch.full((2, 4, 576), 3.0, dtype=torch.float32)
    ops.concat_and_cache_mla(latent.float(), rope.float(), cache, slots[:0], "auto", torch.ones(1))
    assert (cache == 3).all()


def page_584(k):
    """Bytes of one page of V4's cache."""
    codes, scale = tiles(k[:, :448], 64, 1e-4, before=True)
    rows = torch.cat([codes.view(torch.uint8), k[:, 448:].bfloat16().contiguous().view(torch.uint8)], -1)
    exponents = torch.frexp(scale)[1] - 1 + 127
    exponents = torch.cat([exponents.to(torch.uint8), torch.zeros(len(k), 1, dtype=torch.uint8)], -1)
    return torch.cat([rows.flatten(), exponents.flatten()])


def v4_cache(rng, pages, page, device):
    """A full V4 cache written by hand, as vLLM's view of padded pages, and what it holds in float64."""
    stride = -(-584 * page // 576) * 576 + 576
    memory = torch.full((pages * stride,), 0x7F, dtype=torch.uint8)  # 0x7F: NaN
    k, _ = keys_of(rng, pages * page)
    for p in range(pages):
        memory[p * stride : p * stride + 584 * page] = page_584(k[p * page : (p + 1) * page])
    codes, scale = tiles(k[:, :448], 64, 1e-4, before=True)
    values = torch.cat([codes.double() * scale.double().repeat_interleave(64, -1), k[:, 448:].double()], -1)
    memory = memory.to(device)
    return memory, memory.as_strided((pages, page, 584), (stride, 584, 1)), k, values.bfloat16()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [64, 2])
@pytest.mark.parametrize("flat", [False, True])
def test_quantize_and_insert_k_cache(rng, device, page, flat):
    pages = 3
    expected, cache, k, _ = v4_cache(rng, pages, page, device)
    memory = torch.full_like(expected, 0x7F)
    view = memory.as_strided(cache.shape, cache.stride())
    if flat:
        view = memory.view(pages, -1)
    order = torch.randperm(pages * page, generator=rng)
    slots = torch.cat([order, torch.tensor([-1, -1])]).to(device)
    tokens = torch.cat([k[order], torch.full((3, 512), math.nan, dtype=k.dtype)]).to(device)
    ops.quantize_and_insert_k_cache(tokens, view, slots, block_size=page)
    assert torch.equal(memory, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page, whole", [(64, False), (2, False), (3, True)])
def test_dequantize_and_gather_k_cache(rng, device, page, whole):
    _, cache, _, values = v4_cache(rng, 8, page, device)
    table = torch.randperm(8, generator=rng).view(4, 2).int()
    lens = ints(rng, 0, 2 * page + 1, 4)
    gathered = lens if whole else torch.minimum(lens, ints(rng, 0, page + 1, 4))
    offset = 5
    out = torch.full((5, 2 * page + offset + 3, 512), 9.0, dtype=torch.bfloat16, device=device)
    expected = out.clone()
    for r in range(4):
        for i in range(int(gathered[r])):
            expected[r, offset + i] = values[row(table, r, int(lens[r] - gathered[r]) + i, page)].to(device)
    ops.dequantize_and_gather_k_cache(
        out,
        cache,
        lens.to(device),
        None if whole else gathered.to(device),
        view_of(table.to(device), 10**6),
        page,
        offset,
    )
    assert torch.equal(out, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [64, 5])
@pytest.mark.parametrize("offsets", [False, True])
def test_cp_gather_and_upconvert_fp8_kv_cache(rng, device, page, offsets):
    latent, rope = keys_of(rng, 8 * page)
    memory, cache = pages_of(8, page, 656, device)
    cache.copy_(record_656(latent, rope).view(8, page, 656))
    codes, scale = tiles(latent, 128, 1e-4, before=False)
    values = codes.double() * scale.double().repeat_interleave(128, -1)
    values = torch.cat([values, rope.double()], -1).bfloat16()
    table = torch.randperm(8, generator=rng).view(4, 2).int()
    first = ints(rng, 0, page, 3) if offsets else torch.zeros(3, dtype=torch.int32)
    counts = ints(rng, 0, page + 1, 3)
    starts = torch.cat([torch.tensor([2]), 2 + counts.cumsum(0)[:-1]]).int()
    rows = 2 + int(counts.sum())
    dst = torch.full((rows + 2, 576), 9.0, dtype=torch.bfloat16, device=device)
    expected = dst.clone()
    for r in range(3):
        for i in range(int(counts[r])):
            expected[int(starts[r]) + i] = values[row(table, r, int(first[r]) + i, page)].to(device)
    ops.cp_gather_and_upconvert_fp8_kv_cache(
        cache, dst[:rows], table.to(device), starts.to(device), 3, first.to(device) if offsets else None
    )
    assert torch.equal(dst, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [64, 3])
def test_index_keys_are_written_and_gathered_bit_for_bit(rng, device, page):
    pages = 6
    keys, _ = keys_of(rng, 13, width=128)
    slots = slots_of(rng, 13, pages, page)
    memory, cache = pages_of(pages, page, 132, device)
    codes, scale = tiles(keys, 128, 1e-4, before=True)
    expected_memory = memory.clone()
    expected = expected_memory.as_strided((pages, page * 132), (cache.stride(0), 1))
    for t, slot in enumerate(slots.tolist()):
        if slot >= 0:
            part, at = expected[slot // page], slot % page
            part[at * 128 : (at + 1) * 128] = codes[t].view(torch.uint8).to(device)
            part[page * 128 + at * 4 : page * 128 + at * 4 + 4] = scale[t].view(torch.uint8).to(device)
    padded = torch.cat([keys, torch.full((2, 128), math.nan, dtype=keys.dtype)]).to(device)
    ops.indexer_k_quant_and_cache(padded, cache, slots.to(device), 128, "ue8m0")
    assert torch.equal(memory, expected_memory)

    table = torch.randperm(pages, generator=rng).view(3, 2).int()
    counts = ints(rng, 0, 2 * page + 1, 3)
    cu = torch.cat([torch.zeros(1, dtype=torch.int32), counts.cumsum(0).int()])
    total = int(cu[-1])
    dst_k = torch.full((total + 2, 128), 0x55, dtype=torch.uint8, device=device)
    dst_scale = torch.full((total + 2, 4), 0x55, dtype=torch.uint8, device=device)
    want_k, want_scale = dst_k.clone(), dst_scale.clone()
    for r in range(3):
        for i in range(int(counts[r])):
            slot = row(table, r, i, page)
            part, at = expected[slot // page], slot % page
            want_k[int(cu[r]) + i] = part[at * 128 : (at + 1) * 128]
            want_scale[int(cu[r]) + i] = part[page * 128 + at * 4 : page * 128 + at * 4 + 4]
    ops.cp_gather_indexer_k_quant_cache(cache, dst_k, dst_scale, table.to(device), cu.to(device))
    assert torch.equal(dst_k, want_k) and torch.equal(dst_scale, want_scale)
    plain = torch.zeros(total + 2, 1, device=device)
    ops.cp_gather_indexer_k_quant_cache(cache, dst_k.view(E4M3), plain, table.to(device), cu.to(device))
    assert torch.equal(plain[:total].view(torch.uint8), want_scale[:total])
