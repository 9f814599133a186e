"""What stage calls share: kernels by name, float types, other libraries, calls that compute nothing."""

import numpy as np
import pytest
import smla
from arrays import WITH_TORCH, World
from numpy_model import Source, attend
from smla import stages

try:
    import torch
except ImportError:
    torch = None

STAGES = [name for name in dir(stages) if callable(getattr(stages, name)) and name[0].islower()]


def attention(seed=0, tokens=6, heads=2, width=16, k=5):
    """(arguments, options, what the model says) of a small smla.attend."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((4, 3, width)).astype(np.float32)
    q = rng.standard_normal((tokens, heads, width)).astype(np.float32)
    rows = rng.integers(-1, 12, (tokens, k), dtype=np.int32)
    want = attend(q.astype(np.float64), [Source(values, rows)], 0.3, width)
    return (q, smla.Cache(values, "row_f32", 3), rows), {"softmax_scale": 0.3}, want


def calls():
    """One good call of each stage: name: (arguments, options, names of outputs that may be given)."""
    f32, i32 = np.float32, np.int32
    x, w = np.ones((2, 3, 8), f32), np.ones((3, 5, 8), f32)
    positions, frequencies = np.arange(2, dtype=i32), np.ones(2)
    cache = smla.Cache.empty("row_f32", 2, 4, width=8)
    state = smla.Cache.empty("state_f32", 2, 4, width=32)
    rows, table, of_token = np.zeros((2, 3), i32), np.zeros((1, 2), i32), np.zeros(2, i32)
    slots, ends, index_w = np.arange(2), np.full(2, 4, i32), np.ones((2, 3), f32)
    kv, due = np.ones((2, 16), f32), {"ratio": 4, "eps": 1e-6}
    projections = {name: ((x, w), {}) for name in ("project", "absorb", "up_project", "out_project")}
    ropes = {name: ((x, positions, frequencies), {}) for name in ("rope", "inverse_rope")}
    return {
        **projections,
        **ropes,
        "norm": ((x,), {"eps": 1e-6}),
        "quant_index_q": ((x, index_w), {"factor": 1.0, "dtype": "f32"}),
        "write_kv": ((x[:, 0], slots, cache), {}),
        "write_index": ((x[:, 0], slots, cache), {}),
        "save_state": ((kv, kv, np.ones((4, 16), f32), positions, slots, state), {}),
        "compress": ((state, table, of_token, positions + 3, slots, x[0, 0], frequencies, cache), due),
        "gather": ((cache, table, np.array([0, 3], i32), np.ones((3, 8), f32)), {}),
        "copy_pages": ((cache, cache, np.array([[0, 1]], i32)), {}),
        "map": ((rows, of_token, table), {"page_tokens": 4}),
        "score": ((x, index_w, cache, ends), {}),
        "select": ((index_w, 2), {}),
        "score_select": ((x, index_w, cache, ends, 2), {}),
        "score_select_blocks": ((x, index_w, cache, ends, 2), {"block_size": 2, "blocks": rows}),
        "attend": ((x, cache, rows), {"softmax_scale": 1.0}),
        "merge": ((np.ones((2, 2, 3, 8), f32), np.ones((2, 2, 3), f32)), {}),
    }  # fmt: skip


def test_every_stage_has_a_call_here():
    assert sorted(calls()) == sorted(STAGES) and len(STAGES) == len(smla._abi.Stage) - 1  # COUNT
    assert all(getattr(smla, name) is getattr(stages, name) for name in STAGES)


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("name", sorted(calls()))
def test_explain_check_and_prepare(name, engine):
    arguments, options = calls()[name]
    call, context = getattr(smla, name), World("numpy", engine).context
    before = [array.copy() for array in arguments if isinstance(array, np.ndarray)]
    explained = smla.explain_call(call, *arguments, context=context, **options)
    assert explained["stage"] == name and explained["runs_on"] == context.description
    chosen = [row["kernel"] for row in explained["candidates"] if row["chosen"]]
    assert len(chosen) == 1 and all(
        row["refusal"] or row["chosen"] is not None for row in explained["candidates"]
    )
    assert smla.check_call(call, *arguments, context=context, **options) is None
    assert smla.prepare_call(call, *arguments, context=context, **options) is None
    for array, old in zip([array for array in arguments if isinstance(array, np.ndarray)], before):
        np.testing.assert_array_equal(array, old)  # nothing was computed
    call(*arguments, context=context, **options)
    if engine == "cpu":
        demanded = smla.Context("cpu", threads=1, kernel=f"{name}={chosen[0]}")
        call(*arguments, context=demanded, **options)


def test_a_kernel_that_cannot_run_is_refused():
    scores = np.zeros((2, 9))  # f64, which only the generic kernel supports
    names = [row["kernel"] for row in smla.explain_call(smla.select, scores, 2)["candidates"]]
    for kernel in names:
        if "generic" in kernel:
            continue
        try:
            context = smla.Context("cpu", threads=1, kernel=f"select={kernel}")
        except smla.Unsupported:  # an instruction set that this machine lacks
            continue
        with pytest.raises(smla.Unsupported) as caught:
            smla.select(scores, 2, context=context)
        assert kernel in str(caught.value)


def test_check_call_names_the_first_bad_value():
    (q, cache, rows), options, _ = attention()
    rows[:] = 1
    rows[4, 2], rows[5, 1] = 12, -7
    with pytest.raises(smla.DataError) as caught:
        smla.check_call(smla.attend, q, cache, rows, **options)
    assert caught.value.field == "args.primary.rows[4,2]" and caught.value.got == "12"
    rows[4, 2] = rows[5, 1] = -1
    smla.check_call(smla.attend, q, cache, rows, **options)


FLOATS = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "bf16": np.uint16}


@pytest.mark.parametrize("name", FLOATS)
def test_every_float_type_that_the_documents_name(name):
    """As docs/python/stages.md uses the word float; score takes no f16."""

    def ones(*shape):
        return smla.tensor(np.ones(shape, FLOATS[name]), name)

    cache = smla.Cache(np.zeros((1, 4, 8), np.float32), "row_f32", 4)
    sums = np.float64 if name == "f64" else np.float32
    slots, positions = np.array([1]), np.array([0])
    smla.norm(ones(1, 1, 8), ones(8), eps=1e-6)
    smla.rope(ones(1, 1, 8), positions, np.ones(2))
    smla.project(ones(1, 1, 8), ones(1, 2, 8))
    smla.write_kv(ones(1, 5), slots, cache, tail=ones(1, 3))
    smla.attend(ones(1, 1, 8), cache, np.array([[1]], np.int32), softmax_scale=1.0)
    smla.merge(ones(2, 1, 1, 8), np.ones((2, 1, 1), sums))
    smla.quant_index_q(ones(1, 2, 8), ones(1, 2), factor=1.0)
    smla.select(ones(1, 4), 2)
    smla.gather(
        cache,
        np.array([[0]], np.int32),
        np.array([0, 4], np.int32),
        smla.tensor(np.ones((4, 8), FLOATS[name]), name),
    )
    score = (ones(1, 2, 8), np.ones((1, 2), sums), cache, np.array([3], np.int32))
    if name == "f16":
        with pytest.raises(smla.InvalidArgument, match="q.dtype: got f16"):
            smla.score(*score)
    else:
        smla.score(*score)


def test_calls_that_compute_nothing_take_one_stage():
    arguments, options, _ = attention()
    ran = []
    for ask in (smla.explain_call, smla.check_call, smla.prepare_call):
        with pytest.raises(smla.InvalidArgument, match="smla.stages"):
            ask(ran.append, 1)
        with pytest.raises(smla.InvalidArgument, match="smla.stages"):
            ask(smla.default_context)
        with pytest.raises(smla.InvalidArgument, match="one at a time"):
            ask(smla.explain_call, smla.attend, *arguments, **options)
    assert not ran and smla.attend(*arguments, **options).out.any()  # and calls compute again


# the same calls on another library's memory, and on a GPU

DEVICES = [pytest.param("cpu", marks=WITH_TORCH), pytest.param("cuda", marks=(*WITH_TORCH, pytest.mark.gpu))]


def random_call(name, seed=7):
    """calls()[name] with random values: half of every cache's records, and all floats."""
    rng = np.random.default_rng(seed)
    arguments, options = calls()[name]
    for value in arguments:
        if isinstance(value, smla.Cache):
            values = rng.standard_normal(value.array.size // 4).astype(np.float32)
            value.array.view(np.float32)[...] = values
        elif isinstance(value, np.ndarray) and value.dtype == np.float32:
            value[...] = rng.standard_normal(value.shape)
    return arguments, options


def same_as_with_numpy(name, asarray, asnumpy, kind, tolerance):
    """A stage with NumPy's arrays and with another library's, of type `kind`: the same results, what is
    written in place too. The other library's results.
    """

    def moved(value):
        if isinstance(value, smla.Cache):
            memory = asarray(value.array.copy())
            return smla.Cache(memory, value.format, value.page_tokens, width=value.width, pages=value.pages)
        return asarray(value.copy()) if isinstance(value, np.ndarray) else value

    def memory_of(value):  # None of what is no array
        array = value.array if isinstance(value, smla.Cache) else value
        array = asnumpy(array) if isinstance(array, kind) else array
        return array.view(np.float32) if isinstance(value, smla.Cache) else array

    arguments, options = random_call(name)
    given = [moved(value) for value in arguments]
    if name == "copy_pages":  # source and target are one cache
        given[1] = given[0]
    got = getattr(smla, name)(*given, **{option: moved(value) for option, value in options.items()})
    want = getattr(smla, name)(*arguments, **options)
    got, want = (value if isinstance(value, tuple) else (value,) for value in (got, want))
    compared = 0
    for mine, wanted in zip((*got, *given), (*want, *arguments), strict=True):
        wanted = memory_of(wanted)
        if isinstance(wanted, np.ndarray):
            np.testing.assert_allclose(memory_of(mine), wanted, rtol=tolerance, atol=tolerance)
            compared += 1
    assert compared
    return [mine for mine in got if mine is not None]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(calls()))
def test_every_stage_on_torch_memory(name, device):
    """As with NumPy, to what bf16 keys lose on a GPU; results stay on the device."""
    got = same_as_with_numpy(
        name,
        lambda array: torch.from_numpy(array).to(device),
        lambda tensor: tensor.cpu().numpy(),
        torch.Tensor,
        1e-6 if device == "cpu" else 2.0**-7,
    )
    assert all(mine.device.type == device for mine in got)


@pytest.mark.gpu
@pytest.mark.skipif(torch is None, reason="no PyTorch")
def test_calls_run_on_the_current_stream():
    """A call behind slow work of a side stream sees that work's result."""
    stream, x = torch.cuda.Stream(), torch.zeros(1, 1, 512, device="cuda")
    slow = torch.ones(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(20):
            slow = slow @ slow / 4096
        x += slow[0, 0]
        out = smla.norm(x, eps=1e-6)
    stream.synchronize()
    assert torch.allclose(out, torch.ones_like(out))


def test_one_element_repeated_everywhere_is_no_dense_array():
    x = np.broadcast_to(np.float32(2), (2, 1, 4))
    assert not any(x.strides)
    y = np.asarray(smla.norm(x, eps=1e-6))
    assert np.allclose(y, 1, atol=1e-5) and y.shape == (2, 1, 4)
