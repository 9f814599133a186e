"""What all stage calls share: contexts, kernels by name, workspaces, threads, calls that compute nothing."""

import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import smla
from arrays import WITH_TORCH, World, worlds
from numpy_model import Source, U, attend
from smla import _run, stages

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
    arguments, options, _ = attention()
    names = [row["kernel"] for row in smla.explain_call(smla.attend, *arguments, **options)["candidates"]]
    for kernel in names[:-1]:  # all but the generic one want other widths
        try:
            context = smla.Context("cpu", threads=1, kernel=f"attend={kernel}")
        except smla.Unsupported:  # an instruction set that this machine lacks
            continue
        with pytest.raises(smla.Unsupported) as caught:
            smla.attend(*arguments, context=context, **options)
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


@worlds()
def test_bad_indices_are_noted_and_run_on_as_holes(world):
    (q, cache, rows), options, _ = attention()
    context = smla.Context(world.engine, check_indices=True)
    rows[:] = 1
    q, rows = world.wrap(q, "f32"), world.wrap(rows, "i32")
    good = world.bits(smla.attend(q, cache, rows, context=context, **options).out).copy()
    assert context.read_error() is None
    world.bits(rows)[3, 4] = 1000
    workspace = context.workspace()
    assert workspace.read_error() is None  # no memory yet
    for given, reader in ((None, context), (workspace, workspace)):
        got = world.bits(smla.attend(q, cache, rows, context=context, workspace=given, **options).out)
        want = {"kind": "row", "stage": "attend", "token": 3, "column": 4, "value": 1000}
        assert reader.read_error() == want
        assert reader.read_error() is None  # taken out
        np.testing.assert_array_equal(np.delete(got, 3, 0), np.delete(good, 3, 0))
        assert np.isfinite(got).all()


def test_a_workspace_within_a_budget(tokens=4, heads=8, width=128):
    rng = np.random.default_rng(1)
    q = rng.standard_normal((tokens, heads, width)).astype(np.float32)
    keys = smla.Cache(rng.standard_normal((256, 64, width)).astype(np.float32), "row_f32", 64)
    w, ends = np.ones((tokens, heads), np.float32), np.full(tokens, 256 * 64, np.int32)
    context = smla.Context("cpu", threads=2)
    want = smla.select(smla.score(q, w, keys, ends), 33).indices
    taken = []
    for budget in (1, 300_000, 0):
        workspace = context.workspace(budget=budget)
        got = smla.score_select(q, w, keys, ends, 33, workspace=workspace, context=context)
        np.testing.assert_array_equal(got.indices, want)
        taken.append(workspace.bytes)
    assert taken[0] <= taken[1] <= 300_000 < taken[2]


def test_a_workspace_grows_and_serves_on():
    context = smla.Context("cpu", threads=1)
    workspace = context.workspace()
    assert workspace.bytes == 0
    workspace.reserve(100)
    first = workspace.bytes
    assert first >= 4096 and workspace.abi.data % 64 == 0
    workspace.reserve(first)
    assert workspace.bytes == first
    workspace.reserve(3 * first + 1)
    assert workspace.bytes > 3 * first and workspace.abi.data % 64 == 0
    (q, cache, rows), options, want = attention()
    got = smla.attend(q, cache, rows, workspace=workspace, context=context, **options)
    assert (np.abs(got.out - want.out) <= 64 * U * want.magnitude).all()
    workspace.reset()
    np.testing.assert_array_equal(smla.attend(q, cache, rows, workspace=workspace, **options).out, got.out)


def test_a_size_is_asked_for_once_for_calls_that_are_alike(monkeypatch):
    """Alike: all but what lies in the arrays, and where, if aligned as far as kernels look."""
    asked = []
    ask = _run.lib.smla_workspace_size
    monkeypatch.setattr(
        _run, "lib", SimpleNamespace(smla_workspace_size=lambda *given: asked.append(given) or ask(*given))
    )
    context = smla.Context("cpu", threads=1)
    (q, cache, rows), options, _ = attention()
    memory = np.zeros(2 * q.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 16
    aligned, moved = (
        memory[start + offset :][: q.nbytes].view(np.float32).reshape(q.shape) for offset in (0, 4)
    )
    other = attention(seed=1)[0]
    workspace = context.workspace(budget=1 << 20)
    longer = smla.Cache(np.zeros((5, 3, 16), np.float32), "row_f32", 3)

    def times(q=aligned, cache=cache, rows=rows, **more):
        before = len(asked)
        for _ in range(3):
            smla.attend(q, cache, rows, **{"context": context} | options | more)
        return len(asked) - before

    assert times() == 1 and times(aligned.copy()) == 0
    assert times(other[0], rows=other[2]) == 0
    different = [
        dict(q=moved),
        dict(cache=longer),
        dict(rows=rows[:, :4]),
        dict(sink=np.zeros(2, np.float32)),
        dict(lse=True),
        dict(max_logits=True),
        dict(softmax_scale=np.float32(0.5)),
        dict(workspace=workspace),
        dict(context=smla.Context("cpu", threads=2)),
    ]
    for changed in different:
        assert [times(**changed), times(**changed)] == [1, 0], changed
    assert times() == 0


def test_sizes_that_are_remembered_are_bounded():
    context = smla.Context("cpu", threads=1)
    x = np.ones((1, 1, 4), np.float32)
    for n in range(5000):
        smla.norm(x, eps=1.0 + n, context=context)
    assert 0 < len(context._sizes) <= 4096


def test_a_workspace_does_not_hold_the_arrays_of_its_first_call():
    context = smla.Context("cpu", threads=1, check_indices=True)  # its calls need a workspace
    (q, cache, rows), options, _ = attention()
    held = weakref.ref(q)
    out = smla.attend(q, cache, rows, context=context, **options).out
    del q, out
    assert held() is None


@pytest.mark.parametrize("context", [None, "cpu", "reference"])
def test_threads_call_at_once(context, threads=6, rounds=30):
    """Each thread's results are its own, though contexts are shared."""
    context = context and World("numpy", context).context
    problems = [attention(seed, tokens=3 + seed) for seed in range(threads)]
    keys = smla.Cache(np.random.default_rng(9).standard_normal((9, 4, 16)).astype(np.float32), "row_f32", 4)
    failures, gate = [], threading.Barrier(threads)

    def work(i):
        try:
            (q, cache, rows), options, want = problems[i]
            w, ends = np.full(q.shape[:2], 1.0 + i, np.float32), np.full(len(q), 36, np.int32)
            first = None
            gate.wait()
            for _ in range(rounds):
                got = smla.attend(q, cache, rows, lse=True, context=context, **options)
                assert (np.abs(got.out - want.out) <= 64 * U * want.magnitude).all()
                picked = smla.score_select(q, w, keys, ends, 7, context=context).indices
                first = picked if first is None else first
                np.testing.assert_array_equal(picked, first)
                with pytest.raises(smla.InvalidArgument) as caught:
                    smla.attend(q, cache, rows[: i + 1], context=context, **options)
                assert f"[{i + 1},5]" in caught.value.got  # errors are of the thread, too
        except BaseException as error:  # noqa: BLE001 - reported below
            failures.append((i, error))

    pool = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in pool)


def test_threads_explain_and_note_errors_for_themselves():
    (q, cache, rows), options, want = attention()
    context = smla.Context("cpu", threads=1, check_indices=True)
    bad = np.full_like(rows, 99)
    inside, done, answers = threading.Event(), threading.Event(), []

    def slow(*arguments, **keywords):
        inside.set()
        done.wait(30)
        return smla.attend(*arguments, **keywords)

    def work():
        smla.attend(q, cache, bad, context=context, **options)
        answers.append(smla.explain_call(slow, q, cache, rows, context=context, **options))
        answers.append(context.read_error())

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(30)
    got = smla.attend(q, cache, np.maximum(rows, 0), context=context, **options).out
    assert np.isfinite(got).all() and got.any()  # computed, though another thread explains
    assert context.read_error() is None  # the bad row was the other thread's
    done.set()
    thread.join(30)
    assert answers[0]["stage"] == "attend" and answers[1]["value"] == 99


def test_errors_are_read_behind_their_stream(monkeypatch):
    """Streams mean nothing to a processor, but each has a workspace of its own."""
    (q, cache, rows), options, _ = attention()
    context, waited = smla.Context("cpu", threads=1, check_indices=True), []
    read_error = smla.Workspace.read_error
    monkeypatch.setattr(
        smla.Workspace, "read_error", lambda own, at=None: waited.append(at) or read_error(own, at)
    )
    for stream, row in ((64, 70), (0, 71), (128, 72)):
        smla.attend(q, cache, np.full_like(rows, row), context=context, stream=stream, **options)
    assert [context.read_error()["value"] for _ in range(3)] == [70, 71, 72]
    assert waited == [64, 64, 0, 64, 0, 128] and context.read_error() is None


FLOATS = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "bf16": np.uint16}


@pytest.mark.parametrize("name", FLOATS)
def test_every_float_type_that_the_documents_name(name):
    """As docs/python/stages.md uses the word float; score takes no f16, and attend f64 on one engine."""

    def ones(*shape):
        return smla.tensor(np.ones(shape, FLOATS[name]), name)

    cache = smla.Cache(np.zeros((1, 4, 8), np.float32), "row_f32", 4)
    sums = np.float64 if name == "f64" else np.float32
    slots, positions = np.array([1]), np.array([0])
    smla.norm(ones(1, 1, 8), ones(8), eps=1e-6)
    smla.rope(ones(1, 1, 8), positions, np.ones(2))
    smla.project(ones(1, 1, 8), ones(1, 2, 8))
    smla.write_kv(ones(1, 5), slots, cache, tail=ones(1, 3))
    context = smla.Context("reference") if name == "f64" else None
    smla.attend(ones(1, 1, 8), cache, np.array([[1]], np.int32), softmax_scale=1.0, context=context)
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


def test_default_contexts():
    context = smla.default_context()
    assert (
        context
        is smla.default_context("cpu")
        is smla.default_context((0, 0))
        is smla.default_context("cpu:0")
    )
    assert context.description.startswith("cpu") and context.description in repr(context)
    for device in ("gpu", "cuda:x", "cuda:²", 5, None):
        with pytest.raises(smla.InvalidArgument):
            smla.default_context(device)


def test_the_default_context_is_chosen():
    before, mine = smla.default_context(), smla.Context("reference", threads=1)
    seen = []
    try:
        smla.set_default_context(mine)
        thread = threading.Thread(target=lambda: seen.append(smla.default_context()))
        thread.start()
        thread.join()
        assert seen == [mine] and smla.default_context("cpu") is mine
        x = np.ones((1, 1, 8), np.float32)
        assert smla.explain_call(smla.norm, x, eps=1e-6)["runs_on"] == mine.description != before.description
    finally:
        smla.set_default_context(before)
    assert smla.default_context() is before
    for wrong in (None, "cpu", 3):
        with pytest.raises(smla.InvalidArgument) as caught:
            smla.set_default_context(wrong)
        assert caught.value.field == "context"


@pytest.mark.parametrize("mark", [pytest.param(None, marks=WITH_TORCH)])
def test_default_context_of_a_torch_device(mark):
    assert smla.default_context(torch.device("cpu")) is smla.default_context()
    assert smla.default_context(torch.ones(1).device) is smla.default_context()


@pytest.mark.parametrize(
    "options, field",
    [
        ({"engine": "gpu"}, "context.engine"),
        ({"isa": "sse"}, "context.isa"),
        ({"threads": -1}, "args.threads"),
        ({"threads": 2**32 + 1}, "context.threads"),
        ({"threads": "2"}, "context.threads"),
        ({"device": 0.5}, "context.device"),
        ({"kernel": "attend=fastest"}, "args.kernel"),
        ({"kernel": "cook=cpu_generic_norm"}, "args.kernel"),
        ({"kernel": 7}, "args.kernel"),
    ],
    ids=str,
)
def test_contexts_that_cannot_be(options, field):
    with pytest.raises(smla.InvalidArgument) as caught:
        smla.Context(**{"engine": "cpu", **options})
    assert caught.value.field == field


def test_engines_and_instruction_sets():
    (q, cache, rows), options, want = attention()
    ran = []
    for isa in ("scalar", "avx2", "avx512", "avx512_bf16", "amx", "neon"):
        try:
            context = smla.Context("cpu", isa=isa, threads=1, batch_invariant=True)
        except smla.Unsupported as error:  # this machine lacks it
            assert isa in error.got
            continue
        ran.append(isa)
        assert isa in context.description
        got = smla.attend(q, cache, rows, context=context, **options)
        assert (np.abs(got.out - want.out) <= 64 * U * want.magnitude).all()
    assert "scalar" in ran
    assert smla.Context("auto").description.startswith(("cpu", "cuda"))


@pytest.mark.parametrize(
    "options, field",
    [
        ({"context": "cpu"}, "context"),
        ({"workspace": np.zeros(4096, np.uint8)}, "workspace"),
        ({"stream": "0"}, "stream"),
        ({"stream": -1}, "stream"),
    ],
    ids=str,
)
def test_what_no_call_takes(options, field):
    with pytest.raises(smla.InvalidArgument) as caught:
        smla.norm(np.ones((1, 1, 4), np.float32), eps=1e-6, **options)
    assert caught.value.field == field


def test_calls_that_compute_nothing_take_one_stage():
    arguments, options, _ = attention()
    for ask in (smla.explain_call, smla.check_call, smla.prepare_call):
        with pytest.raises(smla.InvalidArgument, match="smla.stages"):
            ask(len, [])
        with pytest.raises(smla.InvalidArgument, match="one at a time"):
            ask(smla.explain_call, smla.attend, *arguments, **options)
    assert smla.attend(*arguments, **options).out.any()  # and calls compute again


@pytest.mark.parametrize("budget", [-1, 0.5, "1", 2**63])
def test_budgets_that_cannot_be(budget):
    with pytest.raises(smla.InvalidArgument, match="workspace.budget"):
        smla.default_context().workspace(budget=budget)


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
