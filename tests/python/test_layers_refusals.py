"""Calls that layers and sessions refuse. Each refusal leaves the session as it was."""

import json

import numpy as np
import pytest
import smla
from golden_files import read_safetensors, worst, write_safetensors


@pytest.mark.parametrize(
    "requests,field",
    [
        ([(0, 3)], "hidden"),
        ([(2, 4)], r"requests\[0\].request"),
        ([(-1, 4)], r"requests\[0\].request"),
        ([(0, 2), (0, 2)], r"requests\[1\].request"),
        ([(0, 4), (1, -1)], r"requests\[1\].tokens"),
        ([(0, 50)], r"requests\[0\].tokens"),
        ([(0, 1), (1, 1), (0, 2)], "requests"),
        ([(2**32, 4)], "requests"),
        ([(0, 4.0)], "requests"),
        ([(0,)], "requests"),
        ([7], "requests"),
        (7, "requests"),
        ([], "hidden"),
    ],
)
def test_steps_that_are_refused(checkpoint, requests, field):
    golden, folder = checkpoint("D2")
    hidden = golden.rows("in.hidden")
    session = smla.Layer.from_pretrained(folder, 0).session(max_requests=2, max_tokens=40, max_step_tokens=36)
    y = session.forward(hidden[:36])
    with pytest.raises(smla.InvalidArgument, match=field) as caught:
        session.forward(hidden[36:], requests)
    assert caught.value.field and caught.value.wanted
    assert (session.length(0), session.length(1)) == (36, 0)
    y = np.concatenate([y, session.forward(hidden[36:])])
    assert worst(y, golden.wanted()) < golden.tolerance["fp32_y"]


@pytest.mark.parametrize("wrong", [-1, 2**32, 2**32 + 3, 2**64, 2**64 + 3, 1.0, "0", None], ids=str)
def test_numbers_that_are_refused(checkpoint, wrong):
    """A request's number or length with more bits than C takes is not the one of its low bits."""
    golden, folder = checkpoint("D1")
    session = smla.Layer.from_pretrained(folder, 0).session(max_requests=2, max_tokens=8)
    hidden = golden.rows("in.hidden")[:4]
    session.forward(hidden)
    for call, field in (
        (lambda: session.length(wrong), "request"),
        (lambda: session.end_request(wrong), "request"),
        (lambda: session.truncate(wrong), "tokens"),
        (lambda: session.truncate(3, request=wrong), "request"),
        (lambda: session.copy_request(wrong, 1), "source"),
        (lambda: session.copy_request(0, wrong), "target"),
        (lambda: session.reorder([wrong]), "sources"),
        (lambda: session.forward(hidden, [(wrong, 4)]), "request"),
        (lambda: session.forward(hidden, [(1, wrong)]), "requests"),
    ):
        with pytest.raises(smla.InvalidArgument) as caught:
            call()
        assert field in caught.value.field, caught.value
        assert (session.length(0), session.length(1)) == (4, 0)


def test_arrays_that_are_refused(checkpoint):
    golden, folder = checkpoint("D2")
    session = smla.Layer.from_pretrained(folder, 0).session(max_tokens=40)
    hidden = golden.rows("in.hidden")
    read_only = np.zeros((40, 64), np.float32)
    read_only.flags.writeable = False
    for field, arguments in {
        "hidden": {"hidden": hidden[:, :-1]},
        "hidden.dtype": {"hidden": hidden.astype(np.int32)},
        "hidden.ndim": {"hidden": hidden[0]},
        "out": {"hidden": hidden, "out": np.empty((39, 64), np.float32)},
        "out.dtype": {"hidden": hidden, "out": np.empty((40, 64), np.int64)},
        "read-only": {"hidden": hidden, "out": read_only},
        "rope_positions": {"hidden": hidden, "rope_positions": np.zeros(39, np.int32)},
        "rope_positions.dtype": {"hidden": hidden, "rope_positions": np.zeros(40, np.float32)},
        "forced_topk": {"hidden": hidden, "forced_topk": np.zeros((39, 6), np.int32)},
    }.items():
        with pytest.raises(smla.InvalidArgument, match=field):
            session.forward(**arguments)
        assert session.length() == 0
    for request in (1, -1):
        with pytest.raises(smla.InvalidArgument, match="request"):
            session.length(request)
        with pytest.raises(smla.InvalidArgument, match="request"):
            session.end_request(request)


@pytest.mark.parametrize(
    "options,error,text",
    [
        ({"kv_format": "fp8_656"}, smla.Unsupported, "kv_format"),
        ({"index_format": "index_fp8_132"}, smla.Unsupported, "index_format"),
        ({"kv_format": "bf17"}, smla.InvalidArgument, "kv_format: got 'bf17', wanted one of"),
        ({"page_tokens": -1}, smla.InvalidArgument, "page_tokens"),
        ({"max_requests": -1}, smla.InvalidArgument, "max_requests"),
        ({"max_tokens": 2**32 + 8}, smla.InvalidArgument, "max_tokens: got 4294967304, wanted an integer"),
        ({"max_step_tokens": 8.5}, smla.InvalidArgument, "max_step_tokens: got 8.5, wanted an integer"),
        ({"stage_budget": -1}, smla.InvalidArgument, "stage_budget"),
        ({"kv_scale": "1"}, smla.InvalidArgument, "kv_scale"),
        ({"kv_writer": smla.Writer.BF16_FIRST}, smla.InvalidArgument, "kv_writer: got 2, wanted 0, because"),
    ],
)
def test_sessions_that_are_refused(checkpoint, options, error, text):
    layer = smla.Layer.from_pretrained(checkpoint("D2")[1], 0)
    with pytest.raises(error, match=text):
        layer.session(**options)


@pytest.mark.parametrize(
    "options,error,text",
    [
        ({"layer": 1000000}, smla.InvalidArgument, "layer"),
        ({"layer": -1}, smla.InvalidArgument, "layer"),
        ({"layer": 2**32}, smla.InvalidArgument, "layer: got 4294967296"),
        ({"layer": 1}, smla.DataError, "layers.1.self_attn.q_a_proj.weight"),
        ({"activations": "f64"}, smla.InvalidArgument, "activations"),
        (
            {"activations": "f16"},
            smla.InvalidArgument,
            "activations: got .*, wanted 0 .f32., f32, bf16 or f64",
        ),
        ({"activations": "f33"}, smla.InvalidArgument, "activations: got 'f33', wanted one of"),
        ({"queries": "i32"}, smla.InvalidArgument, "queries"),
        ({"folder": "/nowhere"}, smla.IoError, "nowhere"),
        ({"config": "/nowhere/config.json"}, smla.IoError, "nowhere"),
    ],
)
def test_layers_that_are_refused(checkpoint, options, error, text):
    with pytest.raises(error, match=text):
        smla.Layer.from_pretrained(**{"folder": checkpoint("D2")[1], "layer": 0, **options})


def test_one_error_lists_every_missing_or_misshapen_tensor(checkpoint, tmp_path):
    golden, folder = checkpoint("D2")
    tensors = read_safetensors(folder / "model.safetensors")
    prefix = "model.layers.0.self_attn."
    del tensors[prefix + "kv_b_proj.weight"], tensors[prefix + "indexer.k_norm.bias"]
    dtype, array = tensors[prefix + "o_proj.weight"]
    tensors[prefix + "o_proj.weight"] = dtype, array[:, :-1]
    write_safetensors(tmp_path / "weights.safetensors", tensors)
    (tmp_path / "dims.json").write_text(json.dumps(golden.config()))
    with pytest.raises(smla.DataError) as caught:
        smla.Layer.from_pretrained(tmp_path / "weights.safetensors", 0, config=tmp_path / "dims.json")
    for name in ("kv_b_proj.weight", "indexer.k_norm.bias", "o_proj.weight"):
        assert prefix + name in str(caught.value)
    assert "q_a_proj" not in str(caught.value)


def test_a_file_with_its_config_elsewhere(checkpoint, tmp_path):
    golden, folder = checkpoint("D2")
    config = tmp_path / "dims.json"
    config.write_text(json.dumps(golden.config()))
    layer = smla.Layer.from_pretrained(str(folder / "model.safetensors"), 0, config=config)
    y = layer.session().forward(golden.rows("in.hidden"))
    assert worst(y, golden.wanted()) < golden.tolerance["fp32_y"]


def test_the_class_is_not_called():
    for arguments in (("folder", 0), (5, 5), ()):
        with pytest.raises(smla.InvalidArgument, match="Layer.from_pretrained or Layer.from_tensors"):
            smla.Layer(*arguments)
