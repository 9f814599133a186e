"""Refused calls: which exception, which field, what was got and wanted; outputs stay as they were."""

import copy
import ctypes as c
import inspect
import pickle
from typing import get_args

import numpy as np
import pytest
import smla
from golden_files import Golden
from smla import _abi, _library
from smla.errors import from_status, integer, invalid, one_of
from smla.stages.attend import _attend
from test_stages import STAGES, attention, calls

KINDS = {
    "InvalidArgument": ValueError,
    "Unsupported": NotImplementedError,
    "WorkspaceTooSmall": smla.Error,
    "OutOfMemory": MemoryError,
    "DeviceError": RuntimeError,
    "DataError": ValueError,
    "IoError": smla.Error,
    "InternalError": RuntimeError,
    "Cancelled": smla.Error,
}


def check_fields(error):
    """Every refusal says all of it, in one line."""
    assert error.field and error.got, repr(error)
    text = str(error)
    said = f"got {error.got}, wanted {error.wanted}" if error.wanted else error.got
    assert f"{error.field}: {said}" in text and "\n" not in text


# the classes


@pytest.mark.parametrize("name", KINDS)
def test_classes(name):
    kind = getattr(smla, name)
    error = kind("x: got 1, wanted 2", "x", "1", "2")
    assert isinstance(error, smla.Error) and isinstance(error, KINDS[name])
    same = from_status(kind.status, "x: got 1, wanted 2", "x", "1", "2")
    assert type(same) is kind and str(same) == str(error)
    for clone in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(clone) is kind and clone.args == error.args
        assert (clone.field, clone.got, clone.wanted, str(clone)) == ("x", "1", "2", "x: got 1, wanted 2")


def test_every_status_has_its_class():
    kinds = {getattr(smla, name).status for name in KINDS}
    assert kinds == set(_abi.Status) - {_abi.Status.OK}
    assert smla.Error("x").field == "" and issubclass(smla.Error, Exception)


def test_helpers():
    check_fields(invalid("x", 3, "less"))
    assert one_of("x", "a", {"a": 1}) == 1
    for value in ("b", None, [], {}, 7):
        with pytest.raises(smla.InvalidArgument, match="one of a, c") as caught:
            one_of("x", value, {"c": 2, "a": 1, _abi.Dtype.F32: 3})
        check_fields(caught.value)
    with pytest.raises(smla.InvalidArgument, match="one of Dtype.F32: [0-9]+, Dtype.BF16: [0-9]+$"):
        one_of("x", "f32", {_abi.Dtype.F32: 1, _abi.Dtype.BF16: 2})
    assert integer("x", np.uint8(7)) == integer("x", True) + 6 == 7 and type(integer("x", np.int64(1))) is int
    assert integer("x", 2**31 - 1) == 2**31 - 1 and integer("x", -(2**63), 64) == -(2**63)
    for value, options in (
        (2**31, {}),
        (-1, {"least": 0}),
        (1.0, {}),
        ("1", {}),
        (None, {}),
        (2**63, {"bits": 64}),
    ):
        with pytest.raises(smla.InvalidArgument) as caught:
            integer("x", value, **options)
        check_fields(caught.value)


def test_errors_of_the_library_itself():
    """One of each that can be had without a GPU and without a bug."""
    (q, cache, rows), options, _ = attention()
    with pytest.raises(smla.DataError) as data:
        smla.check_call(smla.attend, q, cache, rows + 100, **options)
    with pytest.raises(smla.IoError) as io:
        smla.Layer.from_pretrained("/nowhere/at/all", 0)
    scores = np.zeros((1, 4), np.float64)
    with pytest.raises(smla.Unsupported) as unsupported:
        f32_only = smla.Context("cpu", threads=1, kernel="select=cpu_scalar_threshold_select")
        smla.select(scores, 2, context=f32_only)
    assert "cpu_scalar_threshold_select does not support this call: f64 scores" in str(unsupported.value)
    assert len(str(unsupported.value)) < 300
    with pytest.raises(smla.InvalidArgument) as argument:
        smla.select(scores, 2, selected=np.zeros((1, 2), np.int32))
    with pytest.raises(smla.WorkspaceTooSmall) as workspace:
        call_without_a_workspace(q, cache, rows)
    for caught in (data, io, unsupported, argument, workspace):
        check_fields(caught.value)
        assert pickle.loads(pickle.dumps(caught.value)).got == caught.value.got


def test_numbers_that_are_none():
    (q, cache, rows), options, _ = attention()
    for wrong, got, wanted in (
        ("x", "str", "a number, or an array of one f32"),
        ([1.0], "list", "a number, or an array of one f32"),
        (None, "None", "a number"),
    ):
        with pytest.raises(smla.InvalidArgument) as caught:
            smla.attend(q, cache, rows, **{**options, "softmax_scale": wrong})
        assert (caught.value.field, caught.value.got, caught.value.wanted) == ("softmax_scale", got, wanted)
    for field, call in {
        "eps": lambda: smla.norm(q, eps=None),
        "factor": lambda: smla.quant_index_q(q, q[..., 0], factor=None),
        "page_tokens": lambda: smla.map(rows, rows[:, 0], rows, page_tokens=None),
    }.items():
        with pytest.raises(smla.InvalidArgument, match=f"^{field}: got None, wanted a number$"):
            call()


def test_text_with_a_nul_character_is_refused():
    """A char* ends there: another file would be opened, another name be looked up."""
    golden = Golden("D1")
    weights = {f"{name[2:]}\0": golden[name] for name in golden.names("w.")}
    for field, call in {
        "config": lambda: smla.layer_info("a\0b", 3),
        "folder": lambda: smla.Layer.from_pretrained("a\0b", 0),
        "config ": lambda: smla.Layer.from_pretrained("a", 0, config=b"a\0b"),
        "tensors": lambda: smla.Layer.from_tensors(golden.config(), weights),
        "context.kernel": lambda: smla.Context(kernel="attend=a\0b"),
        "device": lambda: smla.select_backend("dsa", device="sm_90\0"),
        "name": lambda: smla.Backend("FLASHMLA_SPARSE\0", "dsa"),
        "config  ": lambda: smla.capacity("a\0b"),
    }.items():
        with pytest.raises(smla.InvalidArgument, match="wanted text without NUL characters") as caught:
            call()
        assert caught.value.field == field.strip()
        check_fields(caught.value)


def test_an_array_that_is_not_contiguous_is_refused_with_what_makes_it_so():
    (q, cache, rows), options, want = attention()
    with pytest.raises(smla.InvalidArgument) as caught:
        smla.attend(np.asfortranarray(q), cache, rows, **options)
    assert caught.value.field == "args.q.stride_elems[2]" and caught.value.got == str(len(q) * q.shape[1])
    assert str(caught.value).endswith("x.contiguous() (PyTorch) or numpy.ascontiguousarray(x) (NumPy)")
    spread = np.repeat(np.repeat(q, 2, 0), 3, 1)[::2, ::3]  # other dimensions may have any distance
    np.testing.assert_allclose(smla.attend(spread, cache, rows[:, :], **options).out, want.out, atol=1e-5)


def test_double_is_computed_in_double_by_every_stage_of_a_cpu():
    """NumPy's default dtype: the engines of a CPU agree to rounding."""
    (q, cache, rows), options, want = attention()
    for engine in ("cpu", "reference"):
        context = smla.Context(engine)
        out = smla.attend(q.astype(np.float64), cache, rows, context=context, **options).out
        assert out.dtype == np.float64
        np.testing.assert_allclose(out, want.out, rtol=1e-12, atol=1e-14)


def call_without_a_workspace(q, cache, rows):
    """What Python never does: it sizes workspaces itself."""
    context, out = smla.Context("cpu", threads=1, check_indices=True), np.zeros_like(q)
    values = {"softmax_scale": 1.0, "q": q, "cache": cache, "rows": rows, "out": out}
    args = _attend.struct.fill(values, [])
    _library.check(_library.lib.smla_attend(context.handle, c.byref(args), _abi.Workspace(), None))


def test_the_last_error_is_the_threads_own():
    with pytest.raises(smla.InvalidArgument, match="args.eps"):
        smla.norm(np.ones((1, 1, 4), np.float32), eps=-1.0)
    smla.norm(np.ones((1, 1, 4), np.float32), eps=1.0)
    with pytest.raises(smla.InvalidArgument, match="args.first"):
        smla.rope(np.ones((1, 1, 4), np.float32), np.zeros(1, np.int32), np.ones(1), first=3)


# Bits and smallest value of the parameters that hold integers.
PARAMETERS = {c.c_int32: (32, -(2**31)), c.c_int64: (64, -(2**63)), c.c_size_t: (64, 0)}
INTEGERS = [
    pytest.param(function, name, *PARAMETERS[kind], id=f"{function} {name}")
    for function, (_, parameters) in _abi.FUNCTIONS.items()
    for name, kind in parameters.items()
    if kind in PARAMETERS
]


@pytest.mark.parametrize("function, name, bits, least", INTEGERS)
def test_an_integer_that_a_parameter_cannot_hold(function, name, bits, least):
    """Its low bits would be another request, another stage, another size."""
    parameters = _abi.FUNCTIONS[function][1]
    for wrong in (1 << bits, (1 << bits) + 3, 1 << (bits - 1), least - 1, -(1 << bits), "1", 1.0, None):
        empty = {c.c_void_p: None, c.c_char_p: None, _abi.Workspace: _abi.Workspace()}
        arguments = [wrong if own == name else empty.get(kind, 0) for own, kind in parameters.items()]
        with pytest.raises(smla.InvalidArgument) as caught:
            getattr(_library.lib, function)(*arguments)
        assert caught.value.field == name and caught.value.got == repr(wrong)
        check_fields(caught.value)


@pytest.mark.parametrize("stream", [-1, 2**64, 2**64 + 3, 1.0, "0"], ids=str)
def test_streams_that_are_no_addresses(stream):
    x, workspace = np.ones((1, 1, 4), np.float32), smla.Context("cpu", threads=1).workspace()
    workspace.reserve(1)
    for call in (
        lambda: smla.norm(x, eps=1.0, stream=stream),
        lambda: workspace.reserve(1 << 20, stream),
        lambda: workspace.reset(stream),
        lambda: workspace.read_error(stream),
    ):
        with pytest.raises(smla.InvalidArgument) as caught:
            call()
        assert caught.value.field == "stream"
        check_fields(caught.value)


def test_no_parameter_is_narrower_than_the_check_knows():
    kinds = {kind for _, parameters in _abi.FUNCTIONS.values() for kind in parameters.values()}
    assert kinds == {*PARAMETERS, c.c_void_p, c.c_char_p, _abi.Workspace}


# every stage, every argument


def arrays_of(name):
    """(position, parameter) of the arrays and caches that a stage is called with."""
    parameters = list(inspect.signature(getattr(smla, name)).parameters)
    arguments = calls()[name][0]
    return [
        (i, parameters[i]) for i, value in enumerate(arguments) if isinstance(value, (np.ndarray, smla.Cache))
    ]


# What the library calls an argument that has another name in Python.
C_NAMES = {("attend", "cache"): "primary.cache", ("attend", "rows"): "primary.rows"}
INPUT_BREAKERS = {
    "a dimension more": lambda x: x[None],
    "a dimension less": lambda x: x[0],
    "bool": lambda x: x.astype(bool),
    "the wrong number": lambda x: x.astype(np.int64 if x.dtype != np.int64 else np.float32),
    "backwards": lambda x: np.repeat(x, 2, -1)[..., ::-2],
    "a list": lambda x: x.tolist(),
    "none": lambda x: None,
    "not aligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
}
CACHE_BREAKERS = {
    "its array": lambda x: x.array,
    "none": lambda x: None,
    "another format": lambda x: smla.Cache.empty("fp8_656" if x.width == 8 else "index_fp8_132", 2, 4),
    "another width": lambda x: smla.Cache.empty(x.format, 2, 4, width=x.width + 2),
}
CASES = [
    pytest.param(name, index, parameter, breaker, id=f"{name} {parameter} {breaker}")
    for name in STAGES
    for index, parameter in arrays_of(name)
    for breaker in (INPUT_BREAKERS if isinstance(calls()[name][0][index], np.ndarray) else CACHE_BREAKERS)
]
HARMLESS = {  # what is no mistake in this place
    "the wrong number": {("rope", "positions"), ("inverse_rope", "positions"), ("save_state", "positions"),
                         ("compress", "positions")},
    "none": {("save_state", "ape"), ("compress", "norm_weight")},
}  # fmt: skip


@pytest.mark.parametrize("name, index, parameter, breaker", CASES)
def test_a_wrong_argument_is_named_and_nothing_is_written(name, index, parameter, breaker):
    arguments, options = calls()[name]
    breakers = INPUT_BREAKERS if isinstance(arguments[index], np.ndarray) else CACHE_BREAKERS
    broken = breakers[breaker](arguments[index])
    outputs = poisoned_outputs(name, arguments, options)
    given = [*arguments[:index], broken, *arguments[index + 1 :]]
    before = [memory.copy() for memory in memories(given, outputs)]
    if (name, parameter) in HARMLESS.get(breaker, ()):
        getattr(smla, name)(*given, **options, **outputs)
        return
    with pytest.raises((smla.InvalidArgument, smla.Unsupported)) as caught:
        getattr(smla, name)(*given, **options, **outputs)
    check_fields(caught.value)
    for memory, old in zip(memories(given, outputs), before):
        np.testing.assert_array_equal(memory, old)
    if breaker not in (
        "another format",
        "another width",
        "a dimension more",
        "a dimension less",
    ):  # may be any partner's
        assert C_NAMES.get((name, parameter), parameter) in caught.value.field


def memories(arguments, outputs):
    arrays = [
        value.array if isinstance(value, smla.Cache) else value for value in (*arguments, *outputs.values())
    ]
    return [array for array in arrays if isinstance(array, np.ndarray)]


def poisoned_outputs(name, arguments, options):
    """An array of NaN, or of 77, for each output of the call."""
    made = getattr(smla, name)(*arguments, **options)
    names = {
        "attend": ["out"],
        "merge": ["out"],
        "select": ["indices", "counts"],
        "score_select": ["indices", "counts"],
        "score_select_blocks": ["indices", "counts"],
        "score": ["logits"],
        "map": ["rows"],
        "quant_index_q": ["q_out", None, "w_out"],
    }.get(name, ["out"] if name not in ("gather", "copy_pages") and made is not None else [])
    values = made if isinstance(made, tuple) else (made,)
    return {
        key: np.full_like(value, np.nan if value.dtype.kind == "f" else 77)
        for key, value in zip(names, values)
        if key is not None
    }


OUTPUT_BREAKERS = {
    "too small": lambda x: x[..., :-1],
    "a dimension less": lambda x: x[0],
    "another type": lambda x: x.astype(bool),
    "read only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "shared": lambda x: np.lib.stride_tricks.as_strided(x, x.shape, (0,) * x.ndim),
    "a list": lambda x: x.tolist(),
}


FREE = (
    "attend out",
    "select indices",
    "score_select indices",
    "score_select_blocks indices",
    "score logits",
)  # their last extent is a choice


@pytest.mark.parametrize("breaker", OUTPUT_BREAKERS)
@pytest.mark.parametrize("name", [name for name in STAGES if poisoned_outputs(name, *calls()[name])])
def test_a_wrong_output_is_named_and_nothing_is_written(name, breaker):
    arguments, options = calls()[name]
    if name in ("select", "score_select", "score_select_blocks"):
        arguments = arguments[:-1]  # without k: the outputs tell it
    outputs = poisoned_outputs(name, *calls()[name])
    for key in outputs:
        if breaker == "too small" and f"{name} {key}" in FREE:
            continue
        broken = {**outputs, key: OUTPUT_BREAKERS[breaker](outputs[key])}
        before = [memory.copy() for memory in memories(arguments, broken)]
        with pytest.raises((smla.InvalidArgument, smla.Unsupported)) as caught:
            getattr(smla, name)(*arguments, **options, **broken)
        check_fields(caught.value)
        assert key in caught.value.field, caught.value
        for memory, old in zip(memories(arguments, broken), before):
            np.testing.assert_array_equal(memory, old)


# numbers and choices


@pytest.mark.parametrize(
    "name, bad, field",
    [
        ("norm", {"eps": 0.0}, "args.eps"),
        ("norm", {"eps": "small"}, "eps"),
        ("norm", {"eps": np.nan}, "args.eps"),
        ("norm", {"kind": "batch"}, "kind"),
        ("norm", {"bias": np.ones(8, np.float32)}, "args.bias"),
        ("rope", {"first": -1}, "args.first"),
        ("rope", {"first": 2**31}, "first"),
        ("rope", {"first": 1.5}, "first"),
        ("rope", {"style": None}, "style"),
        ("project", {"out_dtype": "fp8"}, "out_dtype"),
        ("project", {"out_dtype": "i32"}, "args.out.dtype"),
        ("quant_index_q", {"factor": None}, "factor"),
        ("quant_index_q", {"amax_floor": -1.0}, "args.amax_floor"),
        ("quant_index_q", {"dtype": "i64"}, "args.q_out.dtype"),
        ("score", {"columns": -1}, "columns"),
        ("score", {"columns": 2**40}, "columns"),
        ("score", {"block_table": np.zeros((1, 2), np.int32)}, "args.request_of_token"),
        ("score", {"request_of_token": np.zeros(2, np.int32)}, "args.request_of_token"),
        ("score", {"block_table": np.zeros(2, np.int32)}, "block_table.ndim"),
        ("score", {"q_scales": np.zeros((2, 3, 1), np.uint8)}, "args.q_scales"),
        ("select", {"indices": np.zeros((2, 3), np.int32)}, "k"),
        ("select", {"ids": np.zeros((2, 3), np.int32), "relative": True}, "args.relative"),
        ("score", {"precision": "double"}, "precision"),
        ("score_select", {"columns": 2**31}, "columns"),
        ("score_select", {"precision": "double"}, "precision"),
        ("score_select_blocks", {"columns": 2**31}, "columns"),
        ("score_select_blocks", {"block_size": 0, "block_maxima": True}, "block_size"),
        ("score_select_blocks", {"best_blocks": True}, "keep"),
        ("map", {"page_tokens": 0}, "args.page_tokens"),
        ("map", {"page_rows": 3}, "args.page_rows"),
        ("map", {"page_tokens": "4"}, "page_tokens"),
        ("compress", {"ratio": 0}, "args.ratio"),
        ("compress", {"eps": -1.0}, "args.eps"),
        ("gather", {"raw": True}, "args.cache.format"),
        ("merge", {"lse_base": 2}, "lse_base"),
        ("attend", {"softmax_scale": 0.0}, "args.softmax_scale"),
        ("attend", {"softmax_scale": None}, "softmax_scale"),
        ("attend", {"softmax_scale": np.inf}, "args.softmax_scale"),
        ("attend", {"softmax_scale": "1"}, "softmax_scale"),
        ("attend", {"softmax_scale": np.ones(2, np.float32)}, "softmax_scale"),
        ("attend", {"softmax_scale": np.ones(1)}, "softmax_scale"),
        ("attend", {"q_scale": 1.0}, "q_scale"),
        ("attend", {"value_width": -1}, "value_width"),
        ("attend", {"value_width": 9}, "args.out.shape[2]"),
        ("attend", {"value_width": 4.0}, "value_width"),
        ("attend", {"precision": "double"}, "precision"),
        ("attend", {"lse_base": "log10"}, "lse_base"),
        ("attend", {"out_dtype": "f64"}, "args.out.dtype"),
        ("attend", {"extra_rows": np.zeros((2, 1), np.int32)}, "extra"),
        ("attend", {"extra_lengths": np.zeros(2, np.int32)}, "extra"),
        ("attend", {"extra": smla.Cache.empty("row_f32", 1, 2, width=8)}, "args.extra.rows"),
        ("attend", {"sink": np.zeros(4, np.float32)}, "args.sink"),
    ],
    ids=str,
)
def test_wrong_options_are_named(name, bad, field):
    arguments, options = calls()[name]
    if name == "select" and "relative" in bad:
        arguments = (*arguments[:1], 2)
    with pytest.raises(smla.InvalidArgument) as caught:
        getattr(smla, name)(*arguments, **{**options, **bad})
    assert caught.value.field.startswith(field), caught.value
    check_fields(caught.value)


def integers_of(function):
    """Names of a function's integers and flags."""
    return [
        name
        for name, each in inspect.signature(function).parameters.items()
        if {int, bool} & {each.annotation, *get_args(each.annotation)} and name != "stream"
    ]


@pytest.mark.parametrize("name", STAGES)
def test_no_stage_takes_an_integer_that_is_none(name):
    function, (arguments, options) = getattr(smla, name), calls()[name]
    given = inspect.signature(function).bind(*arguments, **options).arguments
    if name == "score_select_blocks":
        given |= {"best_blocks": True, "keep": 1}  # else nothing asks for `keep`
    for parameter in integers_of(function):
        for wrong in ("x", "2", 1.5, 2**32, 2**64, object(), [1]):
            with pytest.raises(smla.Error) as caught:
                function(**{**given, parameter: wrong})
            assert parameter in caught.value.field, (parameter, wrong, str(caught.value))
            check_fields(caught.value)


def test_map_of_pools_of_none():
    arguments, options = calls()["map"]
    with pytest.raises(smla.InvalidArgument) as caught:
        smla.map(*arguments, **options, pool_tokens=None)
    assert caught.value.field == "pool_tokens"


def test_select_without_k():
    with pytest.raises(smla.InvalidArgument, match="how many") as caught:
        smla.select(np.zeros((1, 3), np.float32))
    assert caught.value.field == "k"
    for k in (-1, 2.5, "2", 2**31):
        with pytest.raises(smla.InvalidArgument) as caught:
            smla.select(np.zeros((1, 3), np.float32), k)
        check_fields(caught.value)


@pytest.mark.parametrize("wrong", ["w", "ends", "starts", "block_table", "request_of_token"])
def test_wrong_dtypes_come_with_the_conversion(wrong):
    """Indices and weights of other types than smla wants, as PyTorch makes them by default."""
    keys = smla.Cache(np.zeros((2, 4, 8), np.float32), "row_f32", 4)
    arguments = {
        "q": np.ones((1, 2, 8), np.float32),
        "w": np.ones((1, 2), np.float32),
        "keys": keys,
        "ends": np.array([5], np.int32),
        "starts": np.array([0], np.int32),
        "block_table": np.array([[0, 1]], np.int32),
        "request_of_token": np.array([0], np.int32),
    }
    smla.score(**arguments)
    arguments[wrong] = arguments[wrong].astype(np.float16 if wrong == "w" else np.int64)
    for call, more in ((smla.score, {}), (smla.score_select, {"k": 2})):
        with pytest.raises(smla.InvalidArgument) as caught:
            call(**arguments, **more)
        assert caught.value.field.endswith(f"{wrong}.dtype")
        how = "x.astype('float32')" if wrong == "w" else "x.astype('int32')"
        assert str(caught.value).endswith(f"{how} of NumPy")
