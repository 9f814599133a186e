"""Outputs that are given beside an argument that chooses their size or dtype: both agree, or the call is
refused."""

import numpy as np
import pytest
import smla
from smla import rows
from smla._run import CALLS
from smla.tensor import dtype_of, shape_of
from test_stages import calls

try:
    import torch
except ImportError:
    torch = None

# What the calls of test_stages.py need besides, to have every output.
_IN_A_TABLE = {"row_table": np.zeros((1, 2), np.int32), "page_tokens": 4}
MORE = {
    "select": {"selected": True, "rows": True, "request_of_token": np.zeros(2, np.int32), **_IN_A_TABLE},
    "score_select": {"selected": True},
    "score_select_blocks": {"selected": True, "best_blocks": True, "keep": 2},
}
PAIRS = [
    pytest.param(name, argument, dim, output, id=f"{name} {argument} {output}")
    for name, call in CALLS.items()
    for output, argument, dim, _ in call.outputs._choices
    if (name, output) != ("score_select", "rows")  # as in select
]


def good(name):
    arguments, options = calls()[name]
    if name in ("select", "score_select", "score_select_blocks"):
        *arguments, options["k"] = arguments
    return arguments, {**options, **MORE.get(name, {})}


@pytest.mark.parametrize("name", CALLS)
def test_every_choice_is_compared_with_outputs_that_are_given(name):
    """`choices`: parameters that decide on nothing but outputs."""
    call = CALLS[name]
    assert set(call.choices) == {argument for _, argument, _, _ in call.outputs._choices}


@pytest.mark.parametrize("name, argument, dim, output", PAIRS)
def test_outputs_and_choices_agree(name, argument, dim, output):
    arguments, options = good(name)
    got = getattr(smla, name)(*arguments, **options)
    array = dict(zip(CALLS[name].outputs.names, got if isinstance(got, tuple) else (got,)))[output]
    options.pop(argument, None)
    given = {**options, output: array}
    if dim is None:
        same = dtype_of(array, output).name.lower()
        others = [kind for kind in ("bf16", "f32") if kind != same]
    else:
        same = shape_of(array)[dim]
        others = [same - 1, same + 1]
    if argument != "k" or output == "indices":
        getattr(smla, name)(*arguments, **given)  # the output alone decides
    getattr(smla, name)(*arguments, **{**given, argument: same})
    before = array.copy()
    for other in others:
        with pytest.raises(smla.InvalidArgument) as caught:
            getattr(smla, name)(*arguments, **{**given, argument: other})
        part = "dtype" if dim is None else f"shape[{dim}]"
        assert caught.value.field == argument and caught.value.wanted == f"{same} ({output}.{part})"
        np.testing.assert_array_equal(array, before)


def test_the_value_width_of_an_output_that_is_given_alone_is_its_own():
    (x, cache, listed), options = calls()["attend"]
    for width in (1, 7, 8):
        out = np.full((2, 3, width), np.nan, np.float32)
        assert smla.attend(x, cache, listed, out=out, **options).out is out and (out == 0).all()
    with pytest.raises(smla.InvalidArgument, match=r"args.out.shape\[2\]"):
        smla.attend(x, cache, listed, out=np.zeros((2, 3, 9), np.float32), **options)


@pytest.mark.skipif(torch is None, reason="no PyTorch")
def test_operators_of_pytorch():
    import smla.torch

    cache = smla.Cache(torch.zeros(2, 4, 8), "row_f32", 4)
    x, listed, out = torch.ones(2, 3, 8), torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, 3, 7)
    smla.torch.attend(x, cache, listed, softmax_scale=1.0, out=out, value_width=7, out_dtype="f32")
    with pytest.raises(smla.InvalidArgument, match=r"value_width: got 8, wanted 7 \(out.shape\[2\]\)"):
        smla.torch.attend(x, cache, listed, softmax_scale=1.0, out=out, value_width=8)
    with pytest.raises(smla.InvalidArgument, match="out_dtype: got bf16, wanted f32 .out.dtype."):
        smla.torch.attend(x, cache, listed, softmax_scale=1.0, out=out, out_dtype=torch.bfloat16)
    wide, w = torch.ones(2, 3, 32), torch.ones(2, 3)
    codes, scales = torch.zeros(2, 3, 16, dtype=torch.uint8), torch.zeros(2, 3, 1, dtype=torch.uint8)
    smla.torch.quant_index_q(wide, w, factor=1.0, dtype="e2m1", q_out=codes, scales=scales)
    assert codes.any()
    with pytest.raises(smla.InvalidArgument, match="dtype: got bf16, wanted e2m1 .q_out.dtype."):
        smla.torch.quant_index_q(wide, w, factor=1.0, dtype="bf16", q_out=codes, scales=scales)


def i32(*values):
    return np.array(values, np.int32)


def test_rows():
    combined = {
        "selected": np.zeros((3, 4), np.int32),
        "query_start_loc": i32(0, 3),
        "seq_lens": i32(9),
        "gather_lens": i32(5),
        **{"window": 4, "ratio": 4, "topk": 4, "stride": 20, "entries": 10},
    }
    mixed = {
        "decode_window_rows": np.zeros((1, 4), np.int32),
        "query_start_loc": i32(0, 1),
        "seq_lens": i32(9),
        "request_of_token": i32(0),
        "window_table": np.zeros((1, 3), np.int32),
        **{"window": 4, "ratio": 0, "topk": 0, "window_page_tokens": 4},
    }
    for call, good, outputs, argument, name, dim in (
        (rows.combined_rows, combined, ("rows", "lens"), "columns", "rows", 1),
        (rows.combined_rows, combined, ("rows", "lens"), "tokens", "rows", 0),
        (rows.combined_rows, combined, (), "tokens", "selected", 0),
        (rows.mixed_rows, mixed, ("rows", "lens"), "tokens", "rows", 0),
        (rows.decode_schedule, {"lens": i32(3)}, ("schedule", "splits"), "parts", "schedule", 0),
    ):
        chosen = {"parts": 2} if argument == "parts" else {}
        given = {**good, **dict(zip(outputs, call(**good, **chosen)))}
        same = given[name].shape[dim]
        call(**given, **{argument: same})
        with pytest.raises(smla.InvalidArgument) as caught:
            call(**given, **{argument: same + 1})
        assert caught.value.field == argument
        assert caught.value.wanted == f"{same} ({name}.shape[{dim}])"
