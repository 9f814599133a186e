"""What smla.torch refuses, and how: tensors that want a derivative, and wrong arguments."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import smla
from torch.autograd import forward_ad
from torch_cases import (
    CASES,
    PAGE,
    SLOTS,
    H,
    K,
    T,
    W,
    array_of,
    bound,
    compiled,
    integers,
    memory,
    normal,
    row_cache,
    rows,
    same,
)


def floats(case):
    for key, value in bound(case)[1].items():
        value = array_of(value)
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.itemsize > 1:
            yield case, key


@pytest.mark.parametrize("case, key", [pair for case in CASES for pair in floats(case)])
def test_grad_is_refused_by_name(case, key):
    call, arguments = bound(case)
    array_of(arguments[key]).requires_grad_(True)
    before = {name: memory(value) for name, value in arguments.items()}
    wanted = f"{key}(_device)?: got a tensor that requires grad"
    with pytest.raises(smla.Unsupported, match=wanted) as error:
        call(**arguments)
    assert error.value.field.removesuffix("_device") == key
    with pytest.raises(RuntimeError, match=wanted):
        compiled(lambda **named: call(**named))(**arguments)
    for name, value in before.items():
        assert same(memory(arguments[name]), value), name
    with torch.no_grad():
        call(**arguments)


def test_outputs_that_require_grad_are_refused():
    call, arguments = bound("attend")
    out = torch.zeros(T, H, W, requires_grad=True)
    with pytest.raises(smla.Unsupported, match="out: got a tensor that requires grad"):
        call(**arguments, out=out)
    assert not out.detach().any()


def test_other_derivatives_are_refused_too():
    call, arguments = bound("attend")
    q = arguments.pop("q")

    def loss(q):
        return call(q, **arguments).out.sum()

    with pytest.raises(smla.Unsupported, match="q: got a tensor that requires grad"):
        torch.func.grad(loss)(q)
    with pytest.raises(smla.Unsupported, match="q: got a tensor that has a tangent"):
        torch.func.jvp(loss, (q,), (q,))
    with forward_ad.dual_level():
        with pytest.raises(smla.Unsupported, match="q: got a tensor that has a tangent"):
            loss(forward_ad.make_dual(q, q))
        loss(q)
    with torch.enable_grad():
        assert not loss(q).requires_grad


def test_autograd_notices_what_was_written():
    """A tensor that was saved for a backward pass may not change unseen."""
    for case, key in (
        ("write_kv", "cache"),
        ("gather", "out"),
        ("copy_pages", "target"),
        ("map", "positions"),
    ):
        call, arguments = bound(case)
        written = array_of(arguments[key])
        if case == "map":
            written.copy_(written.clamp(min=0))
            arguments["rows"] = written
        weight = torch.ones(4, dtype=torch.float64, requires_grad=True)
        saved = written if written.is_floating_point() else written.float()
        version = written._version
        loss = (weight.float()[0] * saved).sum()
        call(**arguments)
        assert written._version == version + 1
        if saved is written:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
    call, arguments = bound("attend")
    version = [array_of(arguments[key])._version for key in ("q", "cache", "rows")]
    call(**arguments)
    assert version == [array_of(arguments[key])._version for key in ("q", "cache", "rows")]


def test_inference_tensors():
    with torch.inference_mode():
        call, arguments = bound("write_kv")
        assert arguments["cache"].array.is_inference()
        call(**arguments)
    call(**arguments)


def attend(**more):
    call, arguments = bound("attend")
    return call(**{**arguments, **more})


def raw(**more):
    call = {
        "softmax_scale": 0.2,
        "cache_format": "row_f32",
        "cache_page_tokens": PAGE,
        "cache_width": W,
        **more,
    }
    return torch.ops.smla.attend(normal(T, H, W), row_cache().array.contiguous(), rows(), **call)


def host_cache():
    return smla.Cache(np.zeros((4, PAGE, W), "f4"), "row_f32", PAGE)


def norm(*more, **named):
    return smla.torch.norm(normal(T, 1, W), *more, **named)


def quantise(**more):
    return smla.torch.quant_index_q(normal(T, 4, 128), normal(T, 4), factor=1.0, **more)


def score_of_a_line():
    keys = {"keys_format": "row_f32", "keys_page_tokens": PAGE, "keys_width": W}
    return torch.ops.smla.score(normal(T, 4, W), normal(T, 4), normal(SLOTS * W), integers(0, 9, T), **keys)


TENSOR = ", wanted a torch.Tensor"
BAD = [
    (lambda: attend(cache=row_cache().array), "cache: got Tensor, wanted a smla.Cache"),
    (lambda: attend(cache=host_cache()), f"cache.data: got ndarray{TENSOR}"),
    (lambda: attend(extra=5), "extra: got int, wanted a smla.Cache"),
    (lambda: attend(q=smla.tensor(np.zeros((T, H, W), "u2"), "bf16")), f"q: got ndarray{TENSOR}"),
    (lambda: attend(q=np.zeros((T, H, W), "f4")), "type 'Tensor' for argument 'q'"),
    (lambda: attend(q=normal(T, W)), "q.ndim: got 2, wanted 3"),
    (lambda: attend(q=normal(T, H, W + 1)), "cache.width: got 32, wanted 33 (the width of q)"),
    (lambda: attend(rows=rows().long()), "rows.dtype: got i64"),
    (lambda: attend(rows=rows().to_sparse()), "rows: got layout torch.sparse_coo"),
    (lambda: attend(rows=rows()[:2]), "rows.shape"),
    (lambda: attend(lengths=integers(0, K, T + 1)), "lengths.shape"),
    (lambda: attend(softmax_scale=None), "softmax_scale: got None"),
    (lambda: attend(softmax_scale=torch.ones(2)), "softmax_scale: got f32 [2]"),
    (lambda: attend(precision="high"), "precision: got 'high'"),
    (lambda: attend(out_dtype="f7"), "out_dtype: got 'f7'"),
    (lambda: attend(out=torch.zeros(T, H, W + 1)), "out.shape[2]: got 33"),
    (lambda: attend(lse=torch.zeros(T)), "lse.shape: got [5]"),
    (lambda: attend(context="cpu"), "context: got str, wanted a smla.Context"),
    (lambda: raw(context=10**9), "context: got 1000000000, wanted the id of an existing smla.Context"),
    (lambda: attend(workspace=smla.default_context().workspace()), "Unknown keyword argument 'workspace'"),
    (lambda: norm(None, None, 1), "smla.torch.norm: got 4 arguments, wanted at most 3"),
    (lambda: norm(x=1, eps=1e-6), "smla.torch.norm: got x twice"),
    (lambda: norm(), "missing value for argument 'eps'"),
    (lambda: smla.torch.copy_pages(), "missing value for argument 'target'"),
    (lambda: smla.torch.select(normal(T, 9)), "k: got None"),
    (lambda: smla.torch.select(normal(T, 9), -2), "k: got -2"),
    (lambda: attend(value_width=-4), "value_width: got -4"),
    (lambda: attend(cache=None), "missing value for argument 'cache'"),
    (lambda: quantise(dtype="int4"), "dtype: got 'int4'"),
    (lambda: quantise(dtype="u8"), "q_out"),
    (lambda: raw(cache_format="fp8"), "cache.format: got 'fp8', wanted one of fp8_512"),
    (lambda: raw(extra=row_cache().array, extra_format="row_f31"), "extra.format: got 'row_f31'"),
    (lambda: raw(cache_page_tokens=0), "cache.page_tokens: got 0"),
    (lambda: raw(cache_page_tokens=PAGE + 1), "cache.data: got 1536 bytes, wanted at least 2048"),
    (lambda: raw(cache_pages=5), "cache.data: got 1536 bytes, wanted at least 1920"),
    (lambda: raw(cache_scale_device=torch.ones(2)), "cache.scale: got"),
    (lambda: score_of_a_line(), "columns: got None, wanted a number"),
]  # fmt: skip


@pytest.mark.parametrize("call, text", BAD, ids=[text for _, text in BAD])
def test_bad_arguments(call, text):
    with pytest.raises((smla.InvalidArgument, RuntimeError, TypeError)) as error:
        call()
    assert text in str(error.value)


def test_bad_arguments_in_compiled_code():
    call, arguments = bound("attend")
    with pytest.raises(RuntimeError, match="q.ndim: got 2, wanted 3"):
        compiled(lambda **named: call(**named))(**{**arguments, "q": normal(T, W)})
    with pytest.raises(smla.InvalidArgument, match="rows.dtype: got i64"):
        compiled(lambda **named: call(**named))(**{**arguments, "rows": rows().long()})
