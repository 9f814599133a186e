"""Which backend serves what, what a backend says of itself, and what it refuses."""

import numpy as np
import pytest
import smla
from backend_world import FAMILY, LATENT, MAXIMA, PUBLISHED, SHARED, World, options_of
from numpy_formats import scale_of

V32 = {"heads": 20, "topk": 2048, **PUBLISHED, **MAXIMA}
V4 = {"heads": 20, "topk": 512, "ratio": 4, "softmax_scale": 0.04, **MAXIMA}
V41 = {**V4, "ratio": 2}


@pytest.fixture(autouse=True)
def nobody_wants_one(monkeypatch):
    monkeypatch.delenv("SMLA_BACKEND", raising=False)


MODEL = {"dsa": V32, "hybrid": V4, "hybrid_shared": V41}


def family_of(name):
    return FAMILY[name]


def published(name, **more):
    return {**MODEL[family_of(name)], **more}


def test_backends():
    assert sorted(smla.backends()) == sorted(FAMILY)


@pytest.mark.parametrize("name", FAMILY)
def test_info(name):
    latent, shared = name in LATENT, name in SHARED
    info = smla.Backend(name, family_of(name), **published(name)).info
    padded = {  # heads that the published kernel is compiled for
        "FLASHMLA_SPARSE": 64,
        "FLASHMLA_SPARSE_DSV4": 64,
        "FLASHINFER_MLA_SPARSE_DSV4": 64,
        "FLASHMLA_SPARSE_DSV41": 64,
    }
    packed = {"hybrid": "fp8_584", "hybrid_shared": "fp8_528_g32"}
    format = "row_bf16" if latent or name.startswith("FLASHINFER") else packed[family_of(name)]
    assert info == {
        "name": name,
        "family": family_of(name),
        "kv_cache_dtype": format,
        "format": format,
        "head_size": 576 if latent else 512,
        "page_tokens": 64 if latent else 128 if shared else 256,
        "window_page_tokens": 0 if latent else 32 if shared else 64,
        "reorder_threshold": 2,
        "padded_heads": padded.get(name, 32),
        "graph_support": "uniform_batch",
        "compressed_format": "none" if latent else format,
    }
    small = smla.Backend(
        name, **options_of(name, 2 if shared else 4, page_tokens=8, window_page_tokens=0 if latent else 5)
    ).info
    assert (small["format"], small["head_size"], small["page_tokens"]) == ("row_f32", 32 if latent else 20, 8)
    assert small["window_page_tokens"] == (0 if latent else 5)


def test_names_and_aliases():
    assert smla.Backend("FLASHMLA_SPARSE_VLLM_V1", "dsa", **V32).info["name"] == "FLASHMLA_SPARSE"
    assert smla.Backend(None, "dsa", **V32).info["name"] == smla.select_backend("dsa", **V32)["backend"]
    for call in (smla.Backend, smla.why_not):
        with pytest.raises(smla.InvalidArgument, match="backend: got FLASH, wanted one of FLASHMLA_SPARSE, "):
            call("FLASH", "dsa", **V32)
    with pytest.raises(smla.InvalidArgument, match="backend: got FLASH"):
        smla.select_backend("dsa", wanted="FLASH", **V32)


@pytest.mark.parametrize(
    "name,kind,group,shape,dtype,stride",
    [
        ("FLASHMLA_SPARSE", "fp8_ds_mla", "primary", (64, 656), "u8", 64 * 656),
        ("SPARSE_MLA_SM120", "auto", "primary", (64, 576), "bf16", 64 * 1152),
        ("TRITON_MLA_SPARSE", "row_f32", "primary", (64, 576), "f32", 64 * 2304),
        ("TRITON_MLA_SPARSE", "fp8_576", "primary", (64, 576), "e4m3", 64 * 576),
        ("FLASHMLA_SPARSE_DSV4", "fp8_ds_mla", "window", (64, 584), "u8", 65 * 576),
        ("DSV4_SPARSE_MLA_SM120", "fp8", "compressed", (64, 584), "u8", 65 * 576),
        ("FLASHINFER_MLA_SPARSE_DSV4", "fp8_e4m3", "compressed", (64, 512), "e4m3", 64 * 512),
        ("FLASHINFER_MLA_SPARSE_DSV4", "auto", "window", (64, 512), "bf16", 64 * 1024),
        ("FLASHMLA_SPARSE_DSV41", "nvfp4_ds_mla", "window", (32, 528), "u8", 32 * 528),
        ("FLASHINFER_MLA_SPARSE_DSV41", "fp8_528_g32_split", "compressed", (64, 528), "u8", 66 * 512),
    ],
)
def test_cache_shape(name, kind, group, shape, dtype, stride):
    backend = smla.Backend(name, family_of(name), **published(name, kv_cache_dtype=kind))
    wanted = {"shape": (7, *shape), "dtype": dtype, "page_stride_bytes": stride, "bytes": 7 * stride}
    assert backend.cache_shape(7, group) == wanted
    assert backend.cache_shape(0, group)["bytes"] == 0
    other = "window" if group == "primary" else "primary"
    for field, arguments in {"group": (7, other), "pages": (-1, group), "group: got 'kv'": (7, "kv")}.items():
        with pytest.raises(smla.InvalidArgument, match=field.replace("group: got 'kv'", "groups: got 'kv'")):
            backend.cache_shape(*arguments)
    memory = np.zeros(7 * stride, np.uint8)
    format, width = backend.info["format"], backend.info["head_size"]
    width = width if format.startswith("row") else 0
    cache = smla.Cache(memory, format, shape[0], width=width, scale=scale_of(format))
    assert cache.pages == 7 and cache.bytes == 7 * stride


def test_pages_of_two_entries():
    """256 tokens of ratio 128: rows and exponents, 1168 bytes, in whole rows."""
    backend = smla.Backend("FLASHMLA_SPARSE_DSV4", "hybrid", **{**V4, "ratio": 128})
    assert backend.cache_shape(3, "compressed")["shape"] == (3, 2, 584)
    assert backend.cache_shape(3, "compressed")["page_stride_bytes"] == 3 * 576
    with pytest.raises(smla.InvalidArgument, match="multiple of the ratio"):
        smla.Backend("FLASHMLA_SPARSE_DSV4", "hybrid", **{**V4, "ratio": 128, "page_tokens": 192})


# Selection.


@pytest.mark.parametrize(
    "device,dsa,hybrid",
    [
        (None, "TRITON_MLA_SPARSE", "FLASHMLA_SPARSE_DSV4"),
        ("cpu", "TRITON_MLA_SPARSE", "FLASHMLA_SPARSE_DSV4"),
        ("sm_80", "TRITON_MLA_SPARSE", "FLASHMLA_SPARSE_DSV4"),
        ("sm_90", "FLASHMLA_SPARSE", "FLASHMLA_SPARSE_DSV4"),
        ("sm_100", "FLASHMLA_SPARSE", "FLASHMLA_SPARSE_DSV4"),
        ("sm_120", "SPARSE_MLA_SM120", "DSV4_SPARSE_MLA_SM120"),
        ({"capability": 121}, "SPARSE_MLA_SM120", "DSV4_SPARSE_MLA_SM120"),
        ({"type": "cpu", "multiprocessors": 4}, "TRITON_MLA_SPARSE", "FLASHMLA_SPARSE_DSV4"),
    ],
)
def test_selection_on_devices(device, dsa, hybrid):
    shared = "FLASHINFER_MLA_SPARSE_DSV41" if "SM120" in hybrid else "FLASHMLA_SPARSE_DSV41"
    for family, wanted in (("dsa", dsa), ("hybrid", hybrid), ("hybrid_shared", shared)):
        options = MODEL[family]
        chosen = smla.select_backend(family, device=device, **options)
        names = [name for name in FAMILY if FAMILY[name] == family]
        assert chosen["backend"] == wanted and not chosen["forced"]
        assert sorted(each["backend"] for each in chosen["candidates"]) == sorted(names)
        for each in chosen["candidates"]:
            assert each["chosen"] == (each["backend"] == wanted)
            assert each["can_serve"] == (not each["refusals"])
            published_says = smla.why_not(each["backend"], family, device=device, original=True, **options)
            assert each["original"] == published_says
            reasons = smla.why_not(each["backend"], family, device=device, **options)
            engine = [chosen["engine_refusal"]] if chosen["engine_refusal"] else []
            assert reasons == each["refusals"] + engine


def test_pools_of_tokens():
    """GLM-5.3-Flash, with index_kpool or with lists that an engine makes as wide as it likes."""
    flash = {**V32, "rope_dim": -1, "nope_dim": 256, "v_head_dim": 256}
    for options in (flash, {**flash, "ratio": 16}, {**flash, "topk": 2048 + 15}):
        for name in LATENT:
            assert smla.why_not(name, "dsa", **options) == []
            assert smla.Backend(name, "dsa", **options).info["head_size"] == 512
    with pytest.raises(smla.InvalidArgument, match="plan_groups: got 8, wanted 0: smla_plan_create"):
        smla.Backend(None, "dsa", **flash, ratio=16, plan_groups=["index"])


def test_a_wanted_backend(monkeypatch):
    forced = smla.select_backend("dsa", wanted="SPARSE_MLA_SM120", **V32)
    assert (forced["backend"], forced["forced"]) == ("SPARSE_MLA_SM120", True)
    monkeypatch.setenv("SMLA_BACKEND", "FLASHMLA_SPARSE_VLLM_V1")
    assert smla.select_backend("dsa", **V32)["backend"] == "FLASHMLA_SPARSE"
    assert smla.select_backend("dsa", wanted="TRITON_MLA_SPARSE", **V32)["backend"] == "TRITON_MLA_SPARSE"
    assert smla.Backend(None, "dsa", **V32).info["name"] == "FLASHMLA_SPARSE"
    none = smla.select_backend("hybrid", **V4)  # of another family
    assert none["backend"] is None and none["forced"]
    with pytest.raises(smla.Unsupported, match="FLASHMLA_SPARSE: it supports DeepSeek-V3.2"):
        smla.Backend(None, "hybrid", **V4)


@pytest.mark.parametrize(
    "name,change,reason",
    [
        ("TRITON_MLA_SPARSE", {"topk": 0}, "index_topk"),
        ("TRITON_MLA_SPARSE", {"heads": 257}, "257 heads"),
        ("FLASHMLA_SPARSE", {"wants": ["alibi"]}, "ALiBi"),
        ("FLASHMLA_SPARSE", {"wants": ["encoder", "soft_cap"]}, "soft cap"),
        ("SPARSE_MLA_SM120", {"kv_cache_dtype": "fp8_584"}, "fp8_584 is not supported with 576 values"),
        ("SPARSE_MLA_SM120", {"kv_cache_dtype": "fp9"}, "kv_cache_dtype fp9"),
        ("SPARSE_MLA_SM120", {"dtype": "e4m3"}, "e4m3 queries"),
        ("FLASHMLA_SPARSE", {"device": "sm_90"}, "sm_90"),
        ("FLASHMLA_SPARSE_DSV4", {"wants": ["fused_output_quant"]}, "fused output"),
        ("FLASHMLA_SPARSE_DSV4", {"topk": 0}, "index_topk"),
        ("FLASHMLA_SPARSE_DSV41", {"topk": 0, "ratio": 1}, "index_topk"),
        (
            "FLASHMLA_SPARSE_DSV41",
            {"kv_cache_dtype": "nvfp4_288_split"},
            "nvfp4_288_split is not supported with 512 values",
        ),
    ],
)
def test_reasons(name, change, reason):
    options = published(name, **change)
    reasons = smla.why_not(name, family_of(name), **options)
    assert any(reason in each for each in reasons)
    with pytest.raises(smla.Unsupported) as caught:
        smla.Backend(name, family_of(name), **options)
    assert all(each in str(caught.value) for each in reasons)
    assert smla.why_not(name, family_of(name), **published(name)) == []


@pytest.mark.parametrize("name", FAMILY)
def test_reasons_of_the_other_families(name):
    models = {"dsa": "DeepSeek-V3.2 and GLM-5.x", "hybrid": "DeepSeek-V4", "hybrid_shared": "DeepSeek-V4.1"}
    own = family_of(name)
    for other in set(models) - {own}:
        (reason,) = smla.why_not(name, other, **MODEL[other])
        assert reason == f"it supports {models[own]}, not {models[other]}"


def test_the_published_gate_is_narrower():
    """What the original would refuse, and this library serves."""
    options = {**V32, "heads": 20, "page_tokens": 16, "device": "sm_90"}
    reasons = smla.why_not("FLASHMLA_SPARSE", "dsa", original=True, **options)
    assert reasons == [
        "block size 16 is not supported (supported: 64)",
        "20 heads are not supported (supported: divisors and multiples of 64)",
    ]
    assert smla.why_not("FLASHMLA_SPARSE", "dsa", **{**options, "device": None}) == []


@pytest.mark.parametrize(
    "change,text",
    [
        ({"hads": 3}, "hads: got 3, wanted one of heads, kv_lora_rank"),
        ({"family": "moe"}, "family: got 'moe', wanted one of dsa, hybrid, hybrid_shared"),
        ({"heads": 0}, "args.heads"),
        ({"heads": 2**32 + 1}, "heads: got 4294967297, wanted an integer of 32 bits"),
        ({"heads": "20"}, "heads: got '20', wanted an integer"),
        ({"rope_dim": 3}, "args.rope_dim"),
        ({"max_tokens": 0}, "args.max_tokens"),
        ({"softmax_scale": 0}, "args.softmax_scale"),
        ({"softmax_scale": float("nan")}, "args.softmax_scale"),
        ({"softmax_scale": None}, "args.softmax_scale"),
        ({"kv_scale": -1.0}, "args.kv_scale"),
        ({"page_tokens": -1}, "args.page_tokens"),
        ({"dtype": "i32"}, "args.dtype"),
        ({"dtype": "q4"}, "dtype: got 'q4', wanted one of bf16"),
        ({"wants": ["speed"]}, "wants: got 'speed', wanted one of alibi"),
        ({"wants": "alibi"}, "wants: got 'alibi', wanted a list of names"),
        ({"plan_groups": ["kv"]}, "groups: got 'kv', wanted one of compressed"),
        ({"plan_groups": "index"}, "groups: got 'index', wanted a list of names"),
        ({"kv_cache_dtype": 8}, "kv_cache_dtype: got 8, wanted a string"),
        ({"device": "gpu"}, "device: got gpu"),
        ({"device": 90}, "device: got 90, wanted a name"),
        ({"device": {"compute": 9}}, "device.compute: got 9, wanted one of type"),
        ({"device": {"type": "tpu"}}, "device.type: got 'tpu', wanted one of cpu, cuda"),
        ({"device": {"capability": "9"}}, "capability: got '9', wanted an integer"),
    ],
)
def test_options_that_are_refused(change, text):
    options = {"family": "dsa", **V32, **change}
    for call in (smla.select_backend, lambda **o: smla.why_not("TRITON_MLA_SPARSE", **o)):
        with pytest.raises(smla.InvalidArgument, match=text):
            call(**options)
    with pytest.raises(smla.InvalidArgument, match=text):
        smla.Backend(None, **options)


def test_forwards_that_are_refused():
    latent = World("TRITON_MLA_SPARSE", options_of("TRITON_MLA_SPARSE"), 0)
    hybrid = World("FLASHMLA_SPARSE_DSV4", options_of("FLASHMLA_SPARSE_DSV4", 4), 0)
    wrong = smla.Cache(np.zeros((3, 4, 32), np.float64), "row_f64", 4)
    frozen = np.zeros((3, latent.group.page, 32), np.float32)
    frozen.flags.writeable = False
    frozen = smla.Cache(frozen, "row_f32", latent.group.page)
    one, no_keys = np.zeros(1, np.float32), {"k_c": None, "k_pe": None}
    for world, change, text, error in [
        (latent, {"q": latent.q[:, 0]}, "q.ndim: got 2", smla.InvalidArgument),
        (latent, {"q": latent.q[..., :-1]}, "args.q", smla.InvalidArgument),
        (latent, {"q": latent.q[: latent.tokens - 1]}, r"args.q.shape\[0\]", smla.InvalidArgument),
        (latent, {"w_uv": latent.w_uv[0]}, "w_uv.ndim: got 2", smla.InvalidArgument),
        (latent, {"w_uk_t": latent.w_uk[..., :-1]}, "args.w_uk_t", smla.InvalidArgument),
        (latent, {"topk_indices": None}, "args.topk_indices", smla.InvalidArgument),
        (latent, {"topk_indices": latent.topk.astype(np.int64)}, "topk_indices.dtype", smla.InvalidArgument),
        (latent, {"k_pe": None}, "args.k_pe", smla.InvalidArgument),
        (latent, {"kv_cache": wrong}, "args.kv_cache.format", smla.InvalidArgument),
        (latent, {"kv_cache": latent.group.memory}, "kv_cache", smla.InvalidArgument),
        (latent, {"kv_cache": frozen}, "kv_cache.data: got a read-only", smla.InvalidArgument),
        (latent, {"swa_cache": latent.group.cache}, "args.swa_cache", smla.InvalidArgument),
        (latent, {"sink": one}, "args.sink", smla.InvalidArgument),
        (latent, {"out": np.zeros((latent.tokens, 3, 7), np.float32)}, "args.out", smla.InvalidArgument),
        (latent, {"lse": latent.lse[:, :2], **no_keys}, "lse", smla.InvalidArgument),
        (latent, {"w_up": one}, "w_up: got an unknown name, wanted one of", smla.InvalidArgument),
        (latent, {"output_scale": one}, "args.output_scale", smla.Unsupported),
        (hybrid, {"swa_cache": None}, "args.swa_cache.format", smla.InvalidArgument),
        (hybrid, {"kv_cache": None}, "args.kv_cache.format", smla.InvalidArgument),
        (hybrid, {"k_pe": hybrid.k}, "args.k_pe", smla.InvalidArgument),
        (hybrid, {"sink": one}, "args.sink", smla.InvalidArgument),
        (hybrid, {"out": np.zeros((hybrid.tokens, 2, 20), np.float32)}, "args.out", smla.InvalidArgument),
    ]:
        groups = [group for group in (world.group, world.entries) if group]
        before = [group.memory.copy() for group in groups]
        with pytest.raises(error, match=text):
            world.forward(**change)
        assert all(np.array_equal(group.memory, old) for group, old in zip(groups, before)), text
