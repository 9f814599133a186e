"""Layers and sessions against the golden files, with the files' own tolerances."""

import functools
import gc
import math

import numpy as np
import pytest
import smla
from golden_files import Golden, cases, cosine, from_bf16, l2, worst

SMALL = [name for name in cases() if name not in ("D6", "G3", "V6_csa", "V6_hca", "V6_sliding")]
CHUNKED = [name for name in cases() if Golden(name).meta["chunk_plans"]]
CHUNKS_OF_THE_WHOLE = 2e-5  # chunks against the whole in f32, as `smla verify` bounds it
REFERENCE = functools.cache(lambda: smla.Context("reference"))


def run_sessions(golden, folder, chunks, layer_options, force=False, **session_options):
    """[(y [B*S,X], selection or None)] of each layer: the batch's sequences in step, `chunks` tokens a time.

    force: attend to the file's own selection.
    """
    batch, tokens, layers, sessions = golden.batch, golden.tokens, {}, {}
    for entry in golden.layers:
        layer = smla.Layer.from_pretrained(folder, entry["layer_idx"], **layer_options)
        options = {"max_requests": batch, "max_tokens": tokens, "max_step_tokens": batch * max(chunks)}
        source = sessions.get(layer.info["entries_of"])  # not yet there: the layer's own
        layers[entry["layer_idx"]] = layer
        sessions[entry["layer_idx"]] = layer.session(**options, **session_options, entries_of=source)
    ys = {index: np.empty_like(golden.wanted()) for index in layers}
    selected = {
        index: np.empty((batch * tokens, layer.info["topk"]), np.int32)
        for index, layer in layers.items()
        if layer.info["topk"]
    }
    first = 0
    for n in chunks:
        at = (np.arange(batch)[:, None] * tokens + np.arange(first, first + n)).ravel()
        for entry in golden.layers:
            index, session = entry["layer_idx"], sessions[entry["layer_idx"]]
            info, more = layers[index].info, {}
            if force and golden.has("mid.topk" + entry["suffix"]):
                more["forced_topk"] = golden.topk(info["topk"], entry["suffix"])[at]
            elif info["selection_of"] not in (-1, index):
                more["forced_topk"] = sessions[info["selection_of"]].topk
            if info["candidates_of"] not in (-1, index):
                more["candidates"] = sessions[info["candidates_of"]].candidates
            hidden = golden.rows("in.hidden" + entry["suffix"])[at]
            ys[index][at] = session.forward(
                hidden.astype(np.float64) if layer_options.get("activations") == "f64" else hidden,
                [(request, n) for request in range(batch)],
                rope_positions=golden["in.position_ids"].ravel()[at],
                **more,
            )
            if index in selected and not force:
                selected[index][at] = session.topk
        first += n
    for session in sessions.values():
        assert [session.length(request) for request in range(batch)] == [tokens] * batch
    return [(ys[index], None if force else selected.get(index)) for index in layers]


def check_selection(golden, results):
    for entry, (_, selected) in zip(golden.layers, results):
        if selected is None:
            continue
        if golden.has("mid.topk" + entry["suffix"]):
            assert np.array_equal(selected, golden.topk(selected.shape[1], entry["suffix"])), entry
        else:  # too few tokens for an entry
            assert golden.tokens < 4 and (selected == -1).all()


@pytest.mark.parametrize("name", cases())
def test_whole_sequences_in_f32_and_their_selection(checkpoint, name):
    golden, folder = checkpoint(name)
    results = run_sessions(golden, folder, [golden.tokens], {})
    for entry, (y, _) in zip(golden.layers, results):
        assert worst(y, golden.wanted(entry["suffix"])) < golden.tolerance["fp32_y"]
    check_selection(golden, results)


@pytest.mark.parametrize("name", SMALL)
def test_in_f64_on_the_reference_engine(checkpoint, name):
    golden, folder = checkpoint(name)
    options = {"activations": "f64", "context": REFERENCE()}
    results = run_sessions(golden, folder, [golden.tokens], options, page_tokens=3)
    for entry, (y, _) in zip(golden.layers, results):
        assert worst(y, golden.wanted(entry["suffix"])) < golden.tolerance["fp64_vs_ref.y"]
    check_selection(golden, results)


@pytest.mark.parametrize("name", cases())
def test_cache_and_queries_of_bf16(checkpoint, name):
    """As models are served. The index keys stay f32, so that the selection is the file's."""
    golden, folder = checkpoint(name)
    options = {"kv_format": "row_bf16", "index_format": "row_f32"}
    for entry, (y, _) in zip(
        golden.layers, run_sessions(golden, folder, [golden.tokens], {"queries": "bf16"}, **options)
    ):
        wanted, limit = golden.wanted(entry["suffix"]), golden.tolerance
        assert l2(y, wanted) < limit["bf16_y_L2"]
        assert worst(y, wanted) < limit["bf16_y_max"]
        assert cosine(y, wanted) > limit["bf16_y_cosine"]


def test_queries_of_bf16_are_rounded(checkpoint):
    """Which the bounds above cannot tell, as f32 queries are nearer."""
    golden, folder = checkpoint("D6")
    options = {"kv_format": "row_bf16", "index_format": "row_f32"}
    ((fine, _),) = run_sessions(golden, folder, [golden.tokens], {"queries": "f32"}, **options)
    ((coarse, _),) = run_sessions(golden, folder, [golden.tokens], {"queries": "bf16"}, **options)
    assert 1e-4 < l2(coarse, fine) < golden.tolerance["bf16_y_L2"]


def test_activations_of_bf16(checkpoint):
    """What products read is rounded: within the bounds of bf16, and not what bf16 queries alone give. The
    queries are bf16 too, unless f32 ones are asked for."""
    golden, folder = checkpoint("D6")
    options = {"kv_format": "row_bf16", "index_format": "row_f32"}
    found = []
    for given in (
        {"activations": "bf16"},
        {"activations": "bf16", "queries": "bf16"},
        {"activations": "bf16", "queries": "f32"},
        {"activations": "f32", "queries": "bf16"},
    ):
        ((y, _),) = run_sessions(golden, folder, [golden.tokens], given, **options)
        assert l2(y, golden.wanted()) < golden.tolerance["bf16_y_L2"]
        found.append(y)
    assert np.array_equal(found[0], found[1])
    assert l2(found[0], found[2]) > 1e-4 and l2(found[0], found[3]) > 1e-4


@functools.cache
def gpu():
    return smla.Context("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("format", ["row_f32", "row_bf16"])
@pytest.mark.parametrize("name", ["D3", "D6", "G2", "V5_csa", "V5_hca", "V6_sliding"])
def test_on_a_gpu(checkpoint, name, format):
    golden, folder = checkpoint(name)
    queries = "bf16" if format == "row_bf16" else "f32"
    options = {"kv_format": format, "index_format": "row_f32", "page_tokens": 64}
    results = run_sessions(
        golden, folder, golden.meta["chunk_plans"][0], {"queries": queries, "context": gpu()}, **options
    )
    for entry, (y, _) in zip(golden.layers, results):
        wanted, limit = golden.wanted(entry["suffix"]), golden.tolerance
        if queries == "f32":
            assert worst(y, wanted) < limit["fp32_y"]
        else:
            assert l2(y, wanted) < limit["bf16_y_L2"] and cosine(y, wanted) > limit["bf16_y_cosine"]


@pytest.mark.parametrize("name", CHUNKED)
def test_prefill_in_chunks_then_decode(checkpoint, name):
    golden, folder = checkpoint(name)
    whole = run_sessions(golden, folder, [golden.tokens], {})
    for chunks, page in zip(golden.meta["chunk_plans"], [5, 1, 64]):
        parts = run_sessions(golden, folder, chunks, {}, page_tokens=page)
        for entry, (y, selected), (at_once, of_whole) in zip(golden.layers, parts, whole):
            assert worst(y, golden.wanted(entry["suffix"])) < golden.tolerance["fp32_y"]
            assert worst(y, at_once) < CHUNKS_OF_THE_WHOLE
            assert selected is None or np.array_equal(selected, of_whole)


def interleaved_steps(random, lengths):
    """Steps of [(request, tokens)], in any order, prefill chunks beside decodes, until all are done."""
    done = [0] * len(lengths)
    while done != lengths:
        step = []
        for request in random.permutation(len(lengths)):
            left = lengths[request] - done[request]
            tokens = min(left, int(random.choice([0, 1, 1, 3, 9])))
            if tokens or random.integers(4) == 0:  # a request without tokens may stand in a step
                step.append((int(request), tokens))
                done[request] += tokens
        yield step


@pytest.mark.parametrize("seed", range(3))
def test_requests_of_many_lengths_in_one_session(checkpoint, seed):
    """D5_var0..2 have one model's weights: their sequences are requests of one session, twice over."""
    random = np.random.default_rng(seed)
    goldens = [checkpoint(f"D5_var{i % 3}")[0] for i in range(6)]
    _, folder = checkpoint("D5_var0")
    lengths = [golden.tokens for golden in goldens]
    session = smla.Layer.from_pretrained(folder, 0).session(
        max_requests=6, max_tokens=max(lengths), max_step_tokens=54, page_tokens=4
    )
    for _ in range(2):  # the second time on pages that ended requests gave back
        got = [np.full((n, 64), np.nan, np.float32) for n in lengths]
        done = [0] * 6
        for step in interleaved_steps(random, lengths):
            parts = [(r, slice(done[r], done[r] + n)) for r, n in step]
            hidden = np.concatenate([goldens[r].rows("in.hidden")[part] for r, part in parts] or [[]])
            y = session.forward(hidden.reshape(-1, 64), step)
            picked, at = session.topk, 0
            for request, part in parts:
                n = part.stop - part.start
                got[request][part] = y[at : at + n]
                assert np.array_equal(picked[at : at + n], goldens[request].topk(6)[part])
                done[request] += n
                at += n
        for request, (y, golden) in enumerate(zip(got, goldens)):
            assert worst(y, golden.wanted()) < golden.tolerance["fp32_y"]
            assert session.length(request) == golden.tokens
            session.end_request(request)
            assert session.length(request) == 0


@pytest.mark.parametrize("name", ["V3_S40", "V5_csa", "V3_eps", "V6_csa"])
def test_v4_selects_the_files_entries(checkpoint, name):
    """A session shows no entries: forcing the file's must change no bit, forcing others must show."""
    golden, folder = checkpoint(name)
    ((own, _),) = run_sessions(golden, folder, [golden.tokens], {})
    ((forced, _),) = run_sessions(golden, folder, [golden.tokens], {}, force=True)
    assert np.array_equal(own, forced)
    session = smla.Layer.from_pretrained(folder, golden.layers[0]["layer_idx"]).session()
    others = golden.topk(golden.config()["index_topk"])
    others[-1, 0] = np.setdiff1d(np.arange(9), others[-1])[0]
    y = session.forward(golden.rows("in.hidden"), forced_topk=np.sort(others))
    assert worst(y[-1], own[-1]) > 1e-3
    assert np.array_equal(y[:-1], own[:-1])


def test_positions_turn_the_rope_and_not_the_order(checkpoint):
    golden, folder = checkpoint("D4_gap")
    layer = smla.Layer.from_pretrained(folder, 0)
    positions, hidden = golden["in.position_ids"].ravel(), golden.rows("in.hidden")
    for given in (positions.astype(np.int32), positions.astype(np.int64)):
        y = layer.session().forward(hidden, rope_positions=given)
        assert worst(y, golden.wanted()) < golden.tolerance["fp32_y"]
    assert (
        worst(layer.session().forward(hidden), golden.wanted()) > 1
    )  # positions are what that case is about


@pytest.mark.parametrize(
    "name,kind,groups",
    [
        ("D2", "dsa", ["primary", "index"]),
        ("V1_S9", "sliding", ["window"]),
        ("V3_S9", "compressed_sparse", ["window", "compressed", "index", "state", "index_state"]),
        ("V2_S9", "heavily_compressed", ["window", "compressed", "state"]),
    ],
)
def test_info(checkpoint, name, kind, groups):
    golden, folder = checkpoint(name)
    config = golden.config()
    v4, indexed = kind != "dsa", "index" in groups
    width = config["head_dim"] if v4 else config["kv_lora_rank"] + config["qk_rope_head_dim"]
    assert smla.Layer.from_pretrained(folder, golden.layers[0]["layer_idx"]).info == {
        "kind": kind,
        "hidden_size": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "kv_width": width,
        "index_width": config["index_head_dim"] if indexed else 0,
        "topk": config["index_topk"] if indexed else 0,
        "window": config["sliding_window"] if v4 else 0,
        "ratio": config.get("compress_ratio", 0),
        "plan_groups": groups,
        "weight_bytes": sum(4 * golden[name].size for name in golden.names("w.")),
        "borrowed_bytes": 0,
        "entries_of": -1 if kind in ("dsa", "sliding") else golden.layers[0]["layer_idx"],
        "selection_of": golden.layers[0]["layer_idx"] if indexed else -1,
        "candidates_of": -1,
        "candidate_blocks": 0,
        "index_heads": config["index_n_heads"] if indexed else 0,
        "index_rope_style": "interleaved" if v4 else "half",
        "rope_width": 8,
        "rope_theta": 160000 if "compressed" in groups else 10000,
        # YaRN's magnitude, of queries and of keys, in V3.2 alone
        "softmax_scale": pytest.approx(32**-0.5 if v4 else 20**-0.5 * (0.1 * math.log(40) + 1) ** 2, 1e-15),
    }


def test_info_of_a_shared_layer_and_what_it_needs(checkpoint):
    golden, folder = checkpoint("G2")
    layer = smla.Layer.from_pretrained(folder, 1)
    assert (layer.info["kind"], layer.info["topk"], layer.info["plan_groups"]) == (
        "dsa_shared",
        0,
        ["primary"],
    )
    session = layer.session()
    with pytest.raises(smla.InvalidArgument, match="forced_topk"):
        session.forward(golden.rows("in.hidden.layer1"))
    assert session.topk is None and session.length() == 0


def test_a_session_counts_its_bytes(checkpoint):
    _, folder = checkpoint("D2")
    session = smla.Layer.from_pretrained(folder, 0).session(
        kv_format="row_bf16", index_format="row_f32", page_tokens=4, max_requests=3, max_tokens=9
    )
    pages = 3 * 3  # 9 tokens in pages of 4
    assert session.cache_bytes == pages * 4 * (32 * 2 + 16 * 4)
    small, large = (
        smla.Layer.from_pretrained(folder, 0).session(max_step_tokens=n).workspace_bytes for n in (8, 512)
    )
    assert 0 < small < large


def test_a_session_serves_its_maximum_again_and_again(checkpoint):
    golden, folder = checkpoint("V5_csa")
    session = smla.Layer.from_pretrained(folder, 1).session(
        max_requests=2, max_tokens=40, max_step_tokens=40, page_tokens=4
    )
    for _ in range(3):
        for request in (0, 1):
            y = session.forward(golden.rows("in.hidden"), [(request, 40)])
            assert worst(y, golden.wanted()) < golden.tolerance["fp32_y"]
        with pytest.raises(smla.InvalidArgument, match=r"requests\[0\].tokens"):
            session.forward(golden.rows("in.hidden")[:1], [(0, 1)])
        for request in (0, 1):
            session.end_request(request)


def test_types_of_hidden_and_out(checkpoint):
    """hidden of bf16 and f16 is taken as it is; out is rounded once."""
    golden, folder = checkpoint("G1")
    layer = smla.Layer.from_pretrained(folder, 0)
    hidden = golden.rows("in.hidden")
    for dtype, half_step, given in (
        (np.uint16, 2.0**-8, smla.tensor((hidden.view(np.uint32) >> 16).astype(np.uint16), "bf16")),
        (np.float16, 2.0**-11, hidden.astype(np.float16)),
    ):
        exact = from_bf16(given.array) if dtype is np.uint16 else given.astype(np.float32)
        wanted = layer.session().forward(exact).astype(np.float64)
        got = layer.session().forward(given)
        assert got.dtype == dtype
        values = from_bf16(got) if dtype is np.uint16 else got
        assert (np.abs(values - wanted) <= np.abs(wanted) * half_step * 1.001 + 1e-5).all()
    out = np.full((40, 80), np.nan, np.float32)
    layer.session().forward(hidden, out=out[:, :64])
    assert worst(out[:, :64], golden.wanted()) < golden.tolerance["fp32_y"] and np.isnan(out[:, 64:]).all()


def test_tensors_of_pytorch(checkpoint):
    torch = pytest.importorskip("torch", reason="no PyTorch")
    golden, folder = checkpoint("G1")
    layer = smla.Layer.from_pretrained(folder, 0)
    hidden = torch.from_numpy(golden.rows("in.hidden").copy())
    y = layer.session().forward(hidden)
    assert isinstance(y, torch.Tensor) and y.dtype == torch.float32
    assert worst(y.numpy(), golden.wanted()) < golden.tolerance["fp32_y"]
    strided = torch.full((40, 2, 64), float("nan"), dtype=torch.bfloat16)
    strided[:, 1] = hidden
    coarse = layer.session().forward(strided[:, 1], rope_positions=torch.arange(40))
    assert coarse.dtype == torch.bfloat16
    assert torch.allclose(coarse.float(), y, rtol=2**-8, atol=1e-6)


def test_objects_keep_what_they_stand_on(checkpoint):
    golden, folder = checkpoint("D2")
    session = smla.Layer.from_pretrained(folder, 0, context=smla.Context("cpu", threads=1)).session()
    gc.collect()
    first = session.forward(golden.rows("in.hidden")[:30])
    selected = session.topk
    before = selected.copy()
    session.forward(golden.rows("in.hidden")[30:])
    assert np.array_equal(selected, before) and len(session.topk) == 10
    assert worst(first, golden.wanted()[:30]) < golden.tolerance["fp32_y"]
