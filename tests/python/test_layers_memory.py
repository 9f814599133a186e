"""Layers of tensors in memory, and sessions whose requests are cut, copied and reordered."""

import copy
import functools
import gc
import json
import pickle

import numpy as np
import pytest
import smla
from golden_files import Golden, worst

CASES = ["D2", "V5_csa", "V5_hca", "V5_sliding"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """checkpoint(name) -> its Golden, a folder and a dict of its weights as f32 arrays."""

    @functools.cache
    def make(name):
        golden = Golden(name)
        folder = golden.write_checkpoint(tmp_path_factory.mktemp(name))
        weights = {each[2:]: golden[each].astype(np.float32) for each in golden.names("w.")}
        return golden, folder, weights

    return make


def layer_of(golden):
    return golden.layers[0]["layer_idx"]


def bf16(array):
    """The upper halves of f32 values, as bf16."""
    return smla.tensor((np.ascontiguousarray(array).view(np.uint32) >> 16).astype(np.uint16), "bf16")


@pytest.mark.parametrize("storage", ["converted", "as_stored"])
@pytest.mark.parametrize("name", CASES)
def test_tensors_give_the_bits_of_a_folder(checkpoint, name, storage):
    golden, folder, weights = checkpoint(name)
    hidden, index = golden.rows("in.hidden"), layer_of(golden)
    wanted = smla.Layer.from_pretrained(folder, index, weights="converted").session().forward(hidden)
    for config in (golden.config(), folder, folder / "config.json"):
        layer = smla.Layer.from_tensors(config, weights, index, weights=storage)
        assert np.array_equal(layer.session().forward(hidden), wanted)
        info = layer.info
        assert info["borrowed_bytes"] == info["weight_bytes"] == sum(each.nbytes for each in weights.values())


@pytest.mark.parametrize("name", CASES)
def test_bf16_matrices_are_borrowed(checkpoint, name):
    golden, _, weights = checkpoint(name)
    hidden, index = golden.rows("in.hidden"), layer_of(golden)
    halves = {key: bf16(value) if value.ndim == 2 else value for key, value in weights.items()}
    stored = smla.Layer.from_tensors(golden.config(), halves, index)
    converted = smla.Layer.from_tensors(golden.config(), halves, index, weights="converted")
    tables = {key: value for key, value in halves.items() if key.endswith(".ape")}  # always f32
    sizes = [np.prod(each.shape) * 2 for key, each in halves.items() if each is not weights[key]]
    taken = sum(sizes) - sum(2 * np.prod(each.shape) for each in tables.values())
    vectors = sum(each.nbytes for each in weights.values() if each.ndim == 1)
    assert stored.info["borrowed_bytes"] == taken + vectors
    assert converted.info["borrowed_bytes"] == vectors
    assert stored.info["weight_bytes"] < 0.6 * converted.info["weight_bytes"]
    y = converted.session().forward(hidden)
    assert worst(stored.session().forward(hidden), y) < 5e-5


def test_a_layer_keeps_what_it_borrows_and_nothing_else(checkpoint):
    golden, folder, weights = checkpoint("D2")
    hidden = golden.rows("in.hidden")
    wanted = smla.Layer.from_pretrained(folder, 0).session().forward(hidden)
    own = {key: value.copy() for key, value in weights.items()}
    own["model.layers.0.mlp.up_proj.weight"] = np.zeros(3, "c8")  # no dtype of smla
    own["model.layers.10.self_attn.o_proj.weight"] = other = np.zeros(4)
    session = smla.Layer.from_tensors(golden.config(), own).session()
    held = gc.get_referrers(other)
    own.clear()
    gc.collect()
    junk = [np.full_like(value, np.nan) for value in weights.values() for _ in range(8)]
    assert np.array_equal(session.forward(hidden), wanted) and junk
    assert not any(type(each) is list and each is not junk for each in held)


def test_what_is_written_to_borrowed_weights_counts(checkpoint):
    golden, _, weights = checkpoint("D2")
    own = {key: value.copy() for key, value in weights.items()}
    layer = smla.Layer.from_tensors(golden.config(), own)
    own["model.layers.0.self_attn.o_proj.weight"][:] = 0
    assert not layer.session().forward(golden.rows("in.hidden")).any()


def test_views_with_strides_are_copied(checkpoint):
    golden, folder, weights = checkpoint("V5_csa")
    wide = {key: np.repeat(value, 2, -1)[..., ::2] for key, value in weights.items()}
    layer = smla.Layer.from_tensors(golden.config(), wide, layer_of(golden))
    hidden = golden.rows("in.hidden")
    wanted = smla.Layer.from_pretrained(folder, layer_of(golden)).session().forward(hidden)
    assert layer.info["borrowed_bytes"] == 0
    assert np.array_equal(layer.session().forward(hidden), wanted)


def test_errors_of_tensors(checkpoint):
    golden, _, weights = checkpoint("D2")
    at = "model.layers.0.self_attn."
    wrong = {key: value for key, value in weights.items() if "q_a_layernorm" not in key}
    wrong[at + "o_proj.weight"] = weights[at + "o_proj.weight"][1:]
    wrong[at + "kv_b_proj.weight"] = weights[at + "kv_b_proj.weight"].astype(np.int32)
    with pytest.raises(smla.DataError) as error:
        smla.Layer.from_tensors(golden.config(), wrong)
    for part in (
        "q_a_layernorm.weight absent",
        "o_proj.weight",
        "[63,80]",
        '"I32"',
        "kv_b_proj.weight: dtype",
    ):
        assert part in str(error.value)
    with pytest.raises(smla.DataError, match="q_a_proj.weight absent"):
        smla.Layer.from_tensors(golden.config(), {})
    with pytest.raises(smla.InvalidArgument, match="tensors"):
        smla.Layer.from_tensors(golden.config(), list(weights.items()))
    with pytest.raises(smla.InvalidArgument, match="weights"):
        smla.Layer.from_tensors(golden.config(), weights, weights="bf16")
    with pytest.raises(smla.DataError, match="args.config_json: .*q_lora_rank"):
        smla.Layer.from_tensors({**golden.config(), "q_lora_rank": -1}, weights)
    with pytest.raises(smla.InvalidArgument, match="layer"):
        smla.Layer.from_tensors({**golden.config(), "num_hidden_layers": 1}, weights, 2)


def test_torch_parameters_are_borrowed(checkpoint):
    torch = pytest.importorskip("torch", reason="no PyTorch")
    golden, folder, weights = checkpoint("V5_csa")
    parameters = {key: torch.nn.Parameter(torch.from_numpy(value.copy())) for key, value in weights.items()}
    layer = smla.Layer.from_tensors(golden.config(), parameters, layer_of(golden))
    hidden = golden.rows("in.hidden")
    wanted = smla.Layer.from_pretrained(folder, layer_of(golden)).session().forward(hidden)
    assert np.array_equal(layer.session().forward(hidden), wanted)
    assert layer.info["borrowed_bytes"] == layer.info["weight_bytes"]
    halves = {key: each.bfloat16() if each.ndim == 2 else each for key, each in parameters.items()}
    y = smla.Layer.from_tensors(golden.config(), halves, layer_of(golden)).session()
    y = y.forward(torch.from_numpy(hidden.copy()).bfloat16())
    assert y.dtype is torch.bfloat16 and y.isfinite().all()


def test_copies_and_pickles_of_layers(checkpoint):
    _, folder, _ = checkpoint("D2")
    layer = smla.Layer.from_pretrained(folder, 0)
    assert copy.copy(layer) is layer and copy.deepcopy({"layer": layer})["layer"] is layer
    with pytest.raises(TypeError, match="from_pretrained"):
        pickle.dumps(layer)


@pytest.mark.parametrize("name", CASES)
def test_cut_copied_and_reordered_requests(checkpoint, name):
    golden, folder, _ = checkpoint(name)
    hidden, n = golden.rows("in.hidden"), golden.tokens
    layer = smla.Layer.from_pretrained(folder, layer_of(golden))
    options = {"max_tokens": n, "max_step_tokens": n, "page_tokens": 4}
    session = layer.session(max_requests=3, **options)
    half = n // 2
    session.forward(hidden[:half], [(1, half)])
    session.forward(np.full((4, hidden.shape[1]), np.nan, np.float32), [(1, 4)])
    session.truncate(half, 1)
    session.copy_request(1, 0)
    session.reorder(np.array([1, 2, 0]))
    assert [session.length(i) for i in range(3)] == [half, 0, half]
    plain = layer.session(**options)
    plain.forward(hidden[:half])
    wanted = plain.forward(hidden[half:])
    for request in (0, 2):
        assert np.array_equal(session.forward(hidden[half:], [(request, n - half)]), wanted)
    for sources in ([3], [0, -1], [0] * 4):
        with pytest.raises(smla.InvalidArgument):
            session.reorder(sources)
    for sources in (["a"], "01", [0.5], 3, [1 << 40]):
        with pytest.raises(smla.InvalidArgument, match="sources"):
            session.reorder(sources)
    with pytest.raises(smla.InvalidArgument, match="tokens"):
        session.truncate(n + 1)
    with pytest.raises(smla.InvalidArgument, match="target"):
        session.copy_request(0, 3)


@pytest.mark.parametrize("name", CASES)
def test_clones_copies_and_growth(checkpoint, name):
    golden, folder, _ = checkpoint(name)
    hidden, n = golden.rows("in.hidden"), golden.tokens
    session = smla.Layer.from_pretrained(folder, layer_of(golden)).session(
        max_tokens=n // 2, max_step_tokens=n, page_tokens=4, rewind_tokens=3
    )
    first = session.forward(hidden[: n // 2])
    assert worst(first, golden.wanted()[: n // 2]) < golden.tolerance["fp32_y"]
    with pytest.raises(smla.InvalidArgument, match="max_tokens"):
        session.forward(hidden[n // 2 :])
    deep = copy.deepcopy([session, session])
    assert deep[0] is deep[1] and deep[0] is not session and deep[0].layer is session.layer
    assert deep[0].options == session.options
    if session.topk is not None:
        assert np.array_equal(deep[0].topk, session.topk)
    clone = session.clone(max_tokens=n, max_requests=2)
    session.resize(max_tokens=n)
    assert session.options == {**deep[0].options, "max_tokens": n}
    assert session.options["rewind_tokens"] == 3 and session.options["kv_format"] == "row_f32"
    y = session.forward(hidden[n // 2 :])
    assert worst(y, golden.wanted()[n // 2 :]) < golden.tolerance["fp32_y"]
    session.end_request()
    assert np.array_equal(clone.forward(hidden[n // 2 :]), y)
    assert (deep[0].length(), clone.length(), session.length()) == (n // 2, n, 0)
    with pytest.raises(smla.InvalidArgument, match="max_tokens"):
        clone.resize(max_tokens=n - 1)
    with pytest.raises(smla.InvalidArgument, match="kv_format"):
        clone.clone(kv_format="row_bf16")
    for copied in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="deepcopy"):
            copied(session)
    assert json.dumps(session.options)
