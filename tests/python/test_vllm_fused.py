"""The fused kernels before vLLM's indexer, on stages, against float64."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

import numpy as np
import smla
from smla.vllm import caches, fused

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
E4M3 = torch.float8_e4m3fn
TOKENS, PAGES, PAGE = 7, 3, 4
SLOTS = torch.tensor([5, 9, -1, 3, 10, 11, 0])  # the third token writes nothing
BYTES = {"auto": 576, "fp8_ds_mla": 656, "fp8_e4m3": 576}


def normal(rng, *shape):
    return torch.randn(shape, generator=rng)


def table_of(width=64, positions=50, mscale=1.25, dtype=torch.float32):
    """vLLM's table of cosines and sines. mscale: what YaRN multiplies both with."""
    angle = torch.arange(positions)[:, None] * 1e4 ** -(torch.arange(width // 2) * 2 / width)
    return (torch.cat([angle.cos(), angle.sin()], -1) * mscale).to(dtype)


def turned(x, positions, table, interleaved):
    """The row with its first channels rotated, pair by pair, in float64."""
    out, half = x.double().clone(), table.shape[-1] // 2
    for t, position in enumerate(positions.tolist()):
        for i in range(half):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
            cos, sin = table[position, i].double(), table[position, half + i].double()
            first, second = x[t, ..., a].double(), x[t, ..., b].double()
            out[t, ..., a], out[t, ..., b] = first * cos - second * sin, second * cos + first * sin
    return out


def rms(x, weight, eps):
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()


def layer_norm(x, weight, bias, eps):
    centred = x.double() - x.double().mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double() + bias.double()


def power_scale(values, floor):
    return torch.exp2(torch.ceil(torch.log2(values.abs().amax(-1, keepdim=True).clamp(min=floor) / 448)))


def to(device, *values):
    """Tensors on a device, other values as they are."""
    return [x.to(device) if isinstance(x, torch.Tensor) else x for x in values]


def step_of(kind, interleaved, has_indexer=True, dtype=torch.bfloat16):
    rng = torch.Generator().manual_seed(5)
    lora = normal(rng, TOKENS, 96 + 512 + 64).to(dtype)  # one product's output, split
    q_c, kv_c, k_pe = lora.split([96, 512, 64], -1)
    index = normal(rng, TOKENS, 128 + 8).to(dtype)
    cache_dtype = dtype if kind == "auto" else torch.uint8
    step = {
        "positions": torch.randint(0, 50, (TOKENS,), generator=rng),
        "q_c": q_c,
        "q_rms_norm_w": normal(rng, 96).to(dtype),
        "q_rms_eps": 1e-2,
        "kv_c": kv_c,
        "kv_rms_norm_w": normal(rng, 512).to(dtype),
        "kv_rms_eps": 1e-3,
        "k_pe": k_pe,
        "k_rope_cos_sin_cache": table_of(),
        "index_k": index[:, :128] if has_indexer else None,
        "index_k_layer_norm_w": normal(rng, 128) if has_indexer else None,
        "index_k_layer_norm_bias": normal(rng, 128) if has_indexer else None,
        "index_k_layer_norm_eps": 1e-1,
        "index_k_rope_cos_sin_cache": table_of(mscale=0.75) if has_indexer else None,
        "topk_indices_buffer": torch.full((TOKENS + 2, 6), 9, dtype=torch.int32),
        "slot_mapping": torch.cat([SLOTS, torch.tensor([1, 2])]),  # buffers are longer than the step
        "indexer_k_cache": torch.full((PAGES, PAGE, 132), 7, dtype=torch.uint8) if has_indexer else None,
        "mla_kv_cache": torch.full((PAGES, PAGE, BYTES[kind]), 7, dtype=cache_dtype),
        "mla_kv_cache_dtype": kind,
        "mla_k_scale": torch.tensor([0.5]),
        "has_indexer": has_indexer,
        "index_rope_interleave": interleaved,
        "kv_c_out": torch.zeros(TOKENS, 512, dtype=dtype),
        "k_pe_out": torch.zeros(TOKENS, 64, dtype=dtype),
        "index_k_out": torch.zeros(TOKENS, 128, dtype=dtype) if has_indexer else None,
    }
    return step


def rows_read(cache, kind):
    """The rows that SLOTS name, decoded by hand, in float64; and whether other rows are as before."""
    rows = cache.flatten(0, 1)
    others = [i for i in range(len(rows)) if i not in SLOTS.tolist()]
    assert (rows[others] == 7).all()
    rows = rows[SLOTS[SLOTS >= 0]]
    if kind == "auto":
        return rows.double()
    if kind == "fp8_e4m3":
        return rows.view(E4M3).double() * 0.5
    scale = rows[:, 512:528].contiguous().view(torch.float32).double().repeat_interleave(128, -1)
    tail = rows[:, 528:].contiguous().view(torch.bfloat16).double()
    return torch.cat([rows[:, :512].contiguous().view(E4M3).double() * scale, tail], -1)


def index_rows_read(cache):
    """The index keys that SLOTS name: values of a page lie before its scales."""
    pages = cache.view(PAGES, -1)
    codes = pages[:, : PAGE * 128].reshape(-1, 128).view(E4M3).double()
    scales = pages[:, PAGE * 128 :].reshape(-1, 4).contiguous().view(torch.float32).double()
    return (codes * scales)[SLOTS[SLOTS >= 0]]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("kind", list(BYTES))
def test_norms_rotations_and_cache_writes(kind, interleaved, device):
    step = step_of(kind, interleaved)
    step = dict(zip(step, to(device, *step.values()), strict=True))
    q_c = fused.fused_norm_rope(**step).cpu()
    step = dict(zip(step, to("cpu", *step.values()), strict=True))
    written = SLOTS >= 0
    wanted_q = rms(step["q_c"], step["q_rms_norm_w"], 1e-2)
    latent = rms(step["kv_c"], step["kv_rms_norm_w"], 1e-3)
    tail = turned(step["k_pe"], step["positions"], step["k_rope_cos_sin_cache"], True)
    bf16 = {"rtol": 2**-8, "atol": 1e-6}
    assert q_c.dtype is torch.bfloat16
    torch.testing.assert_close(q_c.double(), wanted_q, **bf16)
    torch.testing.assert_close(step["kv_c_out"].double(), latent, **bf16)
    torch.testing.assert_close(step["k_pe_out"].double(), tail, rtol=2**-8, atol=1e-5)
    got, wanted = rows_read(step["mla_kv_cache"], kind), torch.cat([latent, tail], -1)[written]
    if kind == "auto":
        torch.testing.assert_close(got, wanted, rtol=2**-8, atol=1e-5)
    else:  # half a step of e4m3: 2^-4 of a value, or half of its smallest step times the scale
        step_of_code = 2**-10 * (0.5 if kind == "fp8_e4m3" else wanted[:, :512].abs().max() / 224)
        error = (got - wanted).abs() - wanted.abs() * 2**-4
        assert (error <= step_of_code + 1e-5).all()
    keys = layer_norm(step["index_k"], step["index_k_layer_norm_w"], step["index_k_layer_norm_bias"], 1e-1)
    keys = turned(keys, step["positions"], step["index_k_rope_cos_sin_cache"], interleaved)
    torch.testing.assert_close(step["index_k_out"].double(), keys, rtol=2**-8, atol=1e-5)
    scale = power_scale(keys, 1e-4)[written]
    error = (index_rows_read(step["indexer_k_cache"]) - keys[written]).abs() - keys[written].abs() * 2**-4
    assert (error <= scale * 2**-10 + 1e-5).all()
    assert (step["topk_indices_buffer"][:TOKENS] == -1).all()
    assert (step["topk_indices_buffer"][TOKENS:] == 9).all()


def test_a_layer_without_an_indexer_keeps_the_list():
    step = step_of("auto", True, has_indexer=False)
    fused.fused_norm_rope(**step)
    assert (step["topk_indices_buffer"] == 9).all()
    assert step["mla_kv_cache"].flatten(0, 1)[5].ne(7).any()


def test_a_profiling_run_writes_no_cache():
    step = step_of("auto", True)
    for name in ("slot_mapping", "mla_kv_cache", "indexer_k_cache"):
        step[name] = None
    assert fused.fused_norm_rope(**step).shape == (TOKENS, 96)
    step["mla_kv_cache"] = step["indexer_k_cache"] = torch.empty(0)  # before there is memory for them
    step["slot_mapping"] = SLOTS
    assert fused.fused_norm_rope(**step).shape == (TOKENS, 96)


def test_index_keys_have_slots_of_their_own():
    step = step_of("auto", True)
    step["indexer_slot_mapping"], step["slot_mapping"] = SLOTS, torch.full_like(SLOTS, -1)
    fused.fused_norm_rope(**step)
    assert step["indexer_k_cache"].ne(7).any() and (step["mla_kv_cache"] == 7).all()


def test_outputs_go_where_they_are_asked_for():
    step = step_of("auto", True)
    step["q_c_out"] = torch.zeros(TOKENS, 96, dtype=torch.bfloat16)
    out = fused.fused_norm_rope(**step)
    assert out is step["q_c_out"] and out.ne(0).any()


def test_other_layouts_and_quantised_queries_are_refused():
    step = step_of("auto", True)
    with pytest.raises(smla.Unsupported, match="indexer_cache_shuffled: got True"):
        fused.fused_norm_rope(**step, indexer_cache_shuffled=True)
    with pytest.raises(smla.Unsupported, match="quantize_mqa: got True"):
        fused.fused_q(*[None] * 8, 1.0, 1.0)


def test_prepared_writes_serve_all_caches_and_keep_none():
    writes, step = caches._writes, step_of("auto", True)
    writes.clear()
    shape, held = step["mla_kv_cache"].shape, []
    for _ in range(3):
        memory = np.zeros(shape.numel() * 2, np.uint8)
        held.append(weakref.ref(memory))
        step["mla_kv_cache"] = torch.from_numpy(memory).view(torch.bfloat16).view(shape)
        fused.fused_norm_rope(**step)
        assert len(writes) == 2 and memory.any()
    del memory
    step.clear()
    gc.collect()
    assert [each() for each in held] == [None] * 3


def index_queries(rng):
    q, weights = normal(rng, TOKENS, 5, 128).bfloat16(), normal(rng, TOKENS, 9).bfloat16()[:, 2:7]
    return torch.randint(0, 50, (TOKENS,), generator=rng), q, weights


def check_index_queries(codes, weights, wanted, w, floor):
    """Codes within half a step, and weights that have taken the queries' scale."""
    scale = power_scale(wanted, floor)
    assert codes.dtype is E4M3 and weights.dtype is torch.float32
    torch.testing.assert_close(weights.double(), w.double() * scale[..., 0] * 0.125, rtol=1e-6, atol=0)
    error = (codes.double() * scale - wanted).abs() - wanted.abs() * 2**-4
    assert (error <= scale * 2**-10 + 1e-6).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("has_indexer", [True, False])
def test_queries(interleaved, has_indexer, device):
    rng = torch.Generator().manual_seed(6)
    positions, index_q, index_weights = index_queries(rng)
    q_pe, table, other = normal(rng, TOKENS, 3, 64).bfloat16(), table_of(), table_of(mscale=0.75)
    index = (index_q, other) if has_indexer else (None, None)
    arguments = positions, q_pe, table, *index, torch.zeros(TOKENS, 3, 512), torch.ones(1)
    arguments = to(device, *arguments, index_weights if has_indexer else None)
    named = {"has_indexer": has_indexer, "index_rope_interleave": interleaved, "quantize_mqa": False}
    codes, weights, rope = to("cpu", *fused.fused_q(*arguments, 0.25, 0.5, **named))
    assert rope.dtype is torch.bfloat16
    torch.testing.assert_close(rope.double(), turned(q_pe, positions, table, True), rtol=2**-8, atol=1e-5)
    if not has_indexer:
        assert codes is None and weights is None
        return
    check_index_queries(codes, weights, turned(index_q, positions, other, interleaved), index_weights, 1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_neox", [True, False])
def test_queries_of_the_generic_model(is_neox, device):
    """Rotated channels are rounded to bf16 first, and tiny queries keep their size."""
    rng = torch.Generator().manual_seed(7)
    positions, q, weights = index_queries(rng)
    q[0] *= 2.0**-20
    table = table_of()
    arguments = to(device, positions, q, table, weights)
    codes, w = to("cpu", *fused.fused_indexer_q_rope_quant(*arguments, 0.25, 0.5, is_neox))
    wanted = turned(q, positions, table, not is_neox).float().bfloat16().double()
    check_index_queries(codes, w, wanted, weights, 1e-10)


def test_queries_of_the_generic_model_are_traced():
    rng = torch.Generator().manual_seed(8)
    positions, q, weights = index_queries(rng)
    call = lambda *x: fused.fused_indexer_q_rope_quant(*x, table_of(), weights, 0.25, 0.5, True)  # noqa: E731
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    for got, wanted in zip(compiled(positions, q), call(positions, q), strict=True):
        assert got.float().equal(wanted.float())
