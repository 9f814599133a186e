"""Attention backends: forward against attention in NumPy, and what they say of themselves."""

import numpy as np
import numpy_formats as formats
import pytest
import smla
from backend_world import KINDS, LATENT, PUBLISHED, World, options_of
from golden_files import l2, worst

F32 = 2e-5  # as the golden files bound f32 intermediates
BF16_L2 = 1e-2  # as `smla verify` bounds bf16 arithmetic on the same cache bytes


def check_out(world, out, got_lse, bound):
    """out [N,>=H,...] of a forward that began with 7 everywhere."""
    wanted, lse = world.wanted()
    tokens = world.tokens
    if np.abs(wanted).max(initial=0):
        assert bound(out[:tokens, : world.heads], wanted)
    assert not out[:tokens, world.heads :].any()  # heads that q has not
    assert world.latent or not out[: world.used][~world.valid].any()
    assert not out[world.used : tokens].any()
    assert (out[tokens:] == 7).all() and (got_lse[tokens:] == 7).all()
    seen = np.isfinite(lse)
    assert np.array_equal(np.isfinite(got_lse[:tokens]), seen) and (got_lse[:tokens][~seen] == -np.inf).all()
    assert np.abs(got_lse[:tokens][seen] - lse[seen]).max(initial=0) < 2e-5 * max(
        1, np.abs(lse[seen]).max(initial=0)
    )


def check_written(world):
    """The step's keys stand in their rows, exactly or rounded once; no other byte changed."""
    values, rows = world.group.values(), world.slots[world.valid]
    if world.backend.info["format"] == "row_f32":
        assert np.array_equal(values[rows], world.k[: world.used][world.valid].astype(np.float64))
    return rows


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name,ratio", KINDS)
def test_forward_of_random_steps(name, ratio, seed):
    world = World(name, options_of(name, ratio), seed, written=seed == 1, invalid=seed >= 2)
    before = world.group.memory.copy(), world.entries and world.entries.memory.copy()
    width = world.options["v_head_dim"] if world.latent else world.width
    more = 0 if world.latent else seed
    out = np.full((world.tokens + 2, world.heads + more, width), 7, np.float32)
    assert world.forward(out=out) is out
    check_out(world, out, world.lse, lambda a, b: worst(a, b) < F32)
    changed = (world.group.memory != before[0]).any(-1)
    if world.written:
        assert not changed.any()
    else:
        pages = np.unique(check_written(world) // world.group.page)
        assert not np.setdiff1d(np.flatnonzero(changed), pages).size
    assert world.entries is None or np.array_equal(world.entries.memory, before[1])


@pytest.mark.parametrize("name,ratio", KINDS)
def test_a_refused_step_writes_nothing(name, ratio):
    """Every stage is checked before the first one writes keys."""
    world = World(name, options_of(name, ratio), 0)
    before = world.group.memory.copy()
    with pytest.raises(smla.InvalidArgument, match="lse"):
        world.forward(lse=np.zeros((len(world.lse), world.heads + 1), np.float32))
    assert np.array_equal(world.group.memory, before)
    world.forward()
    assert not np.array_equal(world.group.memory, before)


RECORDS = [
    *[(name, 0, kind, "fp8_656", PUBLISHED) for name in LATENT for kind in ("fp8_ds_mla", "fp8")],
    ("TRITON_MLA_SPARSE", 0, "auto", "row_bf16", PUBLISHED),
    ("SPARSE_MLA_SM120", 0, "fp8_576", "fp8_576", {**PUBLISHED, "kv_scale": 0.25}),
    ("FLASHMLA_SPARSE", 0, "fp8", "fp8_528", {**PUBLISHED, "rope_dim": -1}),
    ("TRITON_MLA_SPARSE", 16, "auto", "row_bf16", {**PUBLISHED, "rope_dim": -1}),  # index_kpool
    ("FLASHMLA_SPARSE_DSV4", 4, "auto", "fp8_584", {"head_dim": 512, "rope_dim": 64, "softmax_scale": 0.04}),
    (
        "DSV4_SPARSE_MLA_SM120",
        128,
        "fp8",
        "fp8_584",
        {"head_dim": 512, "rope_dim": 64, "softmax_scale": 0.04},
    ),
    ("FLASHINFER_MLA_SPARSE_DSV4", 4, "auto", "row_bf16", {"head_dim": 512, "rope_dim": 64}),
    ("FLASHINFER_MLA_SPARSE_DSV4", 128, "fp8", "fp8_512", {"head_dim": 512, "kv_scale": 0.125}),
    ("FLASHMLA_SPARSE_DSV41", 1, "auto", "fp8_528_g32", {"head_dim": 512, "rope_dim": 64}),
    ("FLASHMLA_SPARSE_DSV41", 2, "nvfp4_ds_mla", "fp8_528_g32", {"head_dim": 512, "rope_dim": 64}),
    (
        "FLASHINFER_MLA_SPARSE_DSV41",
        1,
        "nvfp4_288_split",
        "fp8_528_g32_split",
        {"head_dim": 512, "rope_dim": 64},
    ),
    ("FLASHINFER_MLA_SPARSE_DSV41", 2, "fp8", "fp8_512", {"head_dim": 512, "kv_scale": 0.125}),
]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name,ratio,kind,format,dims", RECORDS)
def test_forward_over_published_records(name, ratio, kind, format, dims, dtype):
    options = options_of(name, ratio, **{"softmax_scale": 0.04, **dims})
    options |= {"dtype": dtype, "kv_cache_dtype": kind, "heads": 5}
    world = World(name, options, 11)
    assert world.backend.info["format"] == (format if dtype == "bf16" or format != "row_bf16" else "row_f32")
    if dtype == "bf16":  # NumPy computed with the values that were given
        for attribute in ("q", "w_uk", "w_uv"):
            if hasattr(world, attribute):
                values = formats.rounded(getattr(world, attribute), "bf16")
                setattr(world, attribute, values.astype(np.float32))
    out = world.forward()
    out = formats.from_bits(out, "bf16") if dtype == "bf16" else out
    wanted, _ = world.wanted()
    assert out.shape == (world.tokens + 2, *wanted.shape[1:])
    error = l2 if dtype == "bf16" else worst
    assert error(out[: world.tokens], wanted) < (BF16_L2 if dtype == "bf16" else F32)


ROUNDING = [
    ("FLASHMLA_SPARSE", 0, "fp8_576", PUBLISHED),
    ("FLASHINFER_MLA_SPARSE_DSV4", 4, "fp8_e4m3", {"head_dim": 512, "rope_dim": 64, "softmax_scale": 0.04}),
]


@pytest.mark.parametrize("name,ratio,kind,dims", ROUNDING)
def test_precision_decides_whether_keys_are_rounded(name, ratio, kind, dims, monkeypatch):
    """One scale, 0.3: code * scale is no bf16."""
    options = options_of(name, ratio, kv_cache_dtype=kind, kv_scale=0.3, **{**dims, "softmax_scale": 0.04})
    outs = []
    for precision in ("default", "exact", "rounded"):
        world = World(name, {**options, "precision": precision}, 3, written=True)
        if precision == "rounded":
            for group in filter(None, (world.group, world.entries)):
                values = formats.rounded(group.values().astype(np.float32), "bf16").astype(np.float64)
                monkeypatch.setattr(group, "values", lambda values=values: values)
        outs.append(world.forward()[: world.tokens])
        assert worst(outs[-1], world.wanted()[0]) < F32
    assert np.array_equal(outs[0], outs[1]) and worst(outs[2], outs[1]) > 10 * F32
    with pytest.raises(smla.InvalidArgument, match="precision"):
        smla.Backend(name, **{**options, "precision": "sloppy"})


def e4m3(values):
    """The nearest codes of f32 values within +-448."""
    distance = np.abs(values[..., None] - np.nan_to_num(formats.E4M3, nan=1e9))
    return distance.argmin(-1).astype(np.uint8)


@pytest.mark.parametrize("ratio", [0, 4, 128])
def test_e4m3_queries_and_their_scales(ratio):
    dims = {"head_dim": 512, "rope_dim": 64, "heads": 2, "q_scale": 0.25, "kv_scale": 0.125}
    options = options_of("FLASHINFER_MLA_SPARSE_DSV4", ratio, dtype="e4m3", kv_cache_dtype="fp8_e4m3", **dims)
    world = World("FLASHINFER_MLA_SPARSE_DSV4", {**options, "softmax_scale": 0.02}, 5)
    codes = e4m3(np.nan_to_num(world.q) * 20)
    out = world.forward(q=smla.tensor(codes, "e4m3"))
    wanted, _ = world.wanted(formats.E4M3[codes[: world.used]] * 0.25)
    assert out.dtype == np.uint16  # bf16 beside e4m3
    assert l2(formats.from_bits(out, "bf16")[: world.tokens], wanted) < BF16_L2


def test_a_query_of_two_parts_and_the_attended_latent():
    """q absorbed already, its rope part apart; without w_uv out is the latent itself."""
    world = World("SPARSE_MLA_SM120", options_of("SPARSE_MLA_SM120"), 3)
    nope = world.options["nope_dim"]
    absorbed = np.einsum("thn,hnl->thl", world.q[..., :nope].astype(np.float64), world.w_uk).astype(
        np.float32
    )
    q_pe = np.ascontiguousarray(world.q[..., nope:])
    out = world.forward(q=absorbed, q_pe=q_pe, w_uk_t=None)
    wanted, _ = world.wanted()
    assert worst(out[: world.tokens], wanted) < F32
    flat = np.full((world.tokens + 2, 18), 7, np.float32)  # [N,H * v]
    world.forward(q=absorbed, q_pe=q_pe, w_uk_t=None, out=flat)
    assert np.array_equal(flat[: world.tokens], out[: world.tokens].reshape(-1, 18))
    latent = world.forward(q=np.concatenate([absorbed, q_pe], -1), w_uk_t=None, w_uv=None)
    assert latent.shape == (world.tokens + 2, 3, 24)
    projected = np.einsum("thl,hlv->thv", latent.astype(np.float64), world.w_uv)
    assert worst(projected[: world.tokens], wanted) < F32


def test_tensors_of_pytorch():
    torch = pytest.importorskip("torch", reason="no PyTorch")
    world = World("FLASHMLA_SPARSE", options_of("FLASHMLA_SPARSE"), 9)
    arrays = {
        name: torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value
        for name, value in world.arguments.items()
    }
    out = world.backend.forward(world.metadata, **arrays)
    wanted, lse = world.wanted()
    assert isinstance(out, torch.Tensor) and out.dtype == torch.float32
    assert worst(out.numpy()[: world.tokens], wanted) < F32
    assert np.allclose(arrays["lse"].numpy()[: world.tokens], lse, atol=1e-4)


@pytest.mark.parametrize("name,ratio", [("TRITON_MLA_SPARSE", 0), ("FLASHMLA_SPARSE_DSV4", 4)])
def test_warm_up_zeroes_out_and_leaves_caches(name, ratio):
    world = World(name, options_of(name, ratio), 4)
    groups = [group for group in (world.group, world.entries) if group]
    before = [group.memory.copy() for group in groups]
    out = world.backend.forward(None, **world.arguments)
    assert out.dtype == np.float32 and not out.any()  # rows behind the tokens too
    assert all(np.array_equal(group.memory, bytes_) for group, bytes_ in zip(groups, before))
    only_q = world.backend.forward(None, world.arguments["q"])  # before there are caches
    assert only_q.shape[:2] == out.shape[:2] and not only_q.any()
    with pytest.raises(smla.InvalidArgument, match="kv_cache.format"):
        world.backend.forward(world.metadata, **{**world.arguments, "kv_cache": None})
