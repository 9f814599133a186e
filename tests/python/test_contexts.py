"""Contexts and workspaces: which engine runs a call, its scratch, calls of many threads, and noted errors."""

import ctypes
import functools
import threading
import weakref

import numpy as np
import pytest
import smla
from arrays import WITH_TORCH, World, worlds
from numpy_model import U
from smla import _run
from test_stages import attention

try:
    import torch
except ImportError:
    torch = None


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


def test_a_size_is_asked_for_where_a_workspace_is_too_small(monkeypatch):
    asked, ask = [], _run.lib.smla_workspace_size
    monkeypatch.setattr(_run.lib, "smla_workspace_size", lambda *given: asked.append(given) or ask(*given))
    context = smla.Context("cpu", threads=1)
    wide, narrow = (smla.Cache(np.zeros((5, 64, width), np.float32), "row_f32", 64) for width in (512, 8))

    def times(cache, **more):
        before, q = len(asked), np.zeros((2, 64, cache.width), np.float32)
        w, ends = np.ones((2, 64), np.float32), np.full(2, 320, np.int32)
        for _ in range(3):
            smla.score_select(q, w, cache, ends, 40, context=context, **more)
        return len(asked) - before

    assert [times(wide), times(wide), times(narrow)] == [1, 0, 0]
    workspace = context.workspace()
    assert [times(wide, workspace=workspace), times(wide, workspace=workspace)] == [1, 0]
    assert workspace.bytes >= ask_size(asked[-1])
    thread = threading.Thread(target=lambda: asked.append(times(wide)))  # uses a separate workspace
    thread.start()
    thread.join()
    assert asked[-1] == 1


def ask_size(call):
    size = ctypes.c_size_t()
    smla._library.check(smla._library.lib.smla_workspace_size(*call[:-1], ctypes.byref(size)))
    return size.value


def test_a_workspace_does_not_hold_the_arrays_of_its_first_call():
    context = smla.Context("cpu", threads=1, check_indices=True)  # its calls need a workspace
    (q, cache, rows), options, _ = attention()
    held = weakref.ref(q)
    out = smla.attend(q, cache, rows, context=context, **options).out
    del q, out
    assert held() is None


@pytest.mark.parametrize("budget", [-1, 0.5, "1", 2**63])
def test_budgets_that_cannot_be(budget):
    with pytest.raises(smla.InvalidArgument, match="workspace.budget"):
        smla.default_context().workspace(budget=budget)


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

    @functools.wraps(smla.attend)
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
