"""Prepared calls: same bits as plain calls with other memory, object lifetimes, and rejected arguments."""

import gc
import threading
import weakref

import numpy as np
import pytest
import smla
from arrays import WITH_TORCH
from test_stages import attention

try:
    import torch
except ImportError:
    torch = None


def address(array):
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()


@pytest.mark.parametrize("own", [True, False], ids=["own workspace", "given workspace"])
@pytest.mark.parametrize("of", [np.asarray, pytest.param(lambda x: torch.from_numpy(x), marks=WITH_TORCH)])
def test_a_call_gives_the_bits_of_the_plain_call_in_other_memory(of, own):
    context = smla.Context("cpu", threads=2)
    workspace = None if own else context.workspace()
    (q, cache, rows), options, _ = attention(tokens=3)
    arrays = [of(np.array(each)) for each in (q, rows)]
    call = smla.Call(
        smla.attend, ["q", "rows", "out"], arrays[0], cache, arrays[1], context=context, **options
    )
    assert call.moving == ("q", "rows", "out") and call.bytes >= 4096
    for seed in range(4):
        (q, _, rows), _, _ = attention(seed, tokens=3)
        want = smla.attend(q, cache, rows, context=context, **options).out
        memory = np.full(want.nbytes + 4 * seed, 7, np.uint8)  # with another alignment
        out = of(memory[4 * seed :].view(np.float32).reshape(want.shape))
        q, rows = of(np.array(q)), of(np.array(rows))
        call(address(q), address(rows), address(out), workspace=workspace)
        np.testing.assert_array_equal(np.asarray(out), want)


def test_a_cache_and_its_scale_move():
    rng = np.random.default_rng(3)
    scale, slots = np.ones(1, np.float32), np.array([2, -1, 0])
    caches = [smla.Cache.empty("fp8_576", 1, 4, scale=np.full(1, each, np.float32)) for each in (1, 0.25)]
    heads = [rng.standard_normal((3, 576)).astype(np.float32) for _ in range(2)]
    call = smla.Call(smla.write_kv, ["head", "cache", "cache.scale"], heads[0], slots, caches[0])
    for head, cache in zip(heads, caches):
        want = smla.Cache.empty("fp8_576", 1, 4, scale=cache.layout["scale"])
        smla.write_kv(head, slots, want)
        call(address(head), address(cache.array), address(cache.layout["scale"]))
        np.testing.assert_array_equal(cache.array, want.array)
    scale[0] = 0
    with pytest.raises(smla.InvalidArgument) as caught:
        call(address(heads[0]), address(caches[0].array), address(scale))
    assert caught.value.field == "args.cache.scale_device"


def test_a_call_keeps_what_does_not_move():
    (q, cache, rows), options, want = attention()
    given = smla.Cache(np.array(cache.array), **cache.layout)
    held = [weakref.ref(each) for each in (given.array, q, rows)]
    out = np.zeros(want.out.shape, np.float32)
    call = smla.Call(smla.attend, ["q"], q, given, rows, out=out, **options)
    again = np.array(q)
    plain = smla.attend(again, cache, rows, **options).out
    del given, q, rows
    gc.collect()
    assert [each() is not None for each in held] == [True, False, True]
    call(address(again))
    np.testing.assert_array_equal(out, plain)
    del call
    gc.collect()
    assert [each() for each in held] == [None] * 3


def test_a_moving_cache_is_not_kept():
    (q, cache, rows), options, _ = attention()
    given = smla.Cache(np.array(cache.array), **cache.layout)
    held = weakref.ref(given.array)
    call = smla.Call(smla.attend, ["cache", "out"], q, given, rows, **options)
    del given
    gc.collect()
    assert held() is None
    out = np.zeros((*q.shape[:2], 16), np.float32)
    call(address(cache.array), address(out))
    np.testing.assert_array_equal(out, smla.attend(q, cache, rows, **options).out)


def test_a_call_outlives_the_names_of_its_context():
    (q, cache, rows), options, _ = attention()
    context = smla.Context("cpu", threads=1)
    held = weakref.ref(context)
    call = smla.Call(smla.attend, ["out"], q, cache, rows, context=context, **options)
    del context
    gc.collect()
    out = np.zeros((*q.shape[:2], 16), np.float32)
    call(address(out))
    assert held() is not None
    del call
    gc.collect()
    assert held() is None


REFUSED = {
    "an output that nobody sees": (lambda make: make(["q"]), "out"),
    "a name of no argument": (lambda make: make(["out", "x"]), "moving"),
    "the scale of no cache": (lambda make: make(["out", "q.scale"]), "moving"),
    "a scale that is absent": (lambda make: make(["out", "cache.scale"]), "moving[1]"),
    "a name twice": (lambda make: make(["out", "q", "q"]), "moving[2]"),
    "a number": (lambda make: make(["out", "precision"]), "moving[1]"),
    "an absent array": (lambda make: make(["out", "sink"]), "moving[1]"),
    "wrong arguments": (lambda make: make(["out"], sink=np.zeros(1, np.float32)), "args.sink.shape"),
    "too few addresses": (lambda make: make(["q", "out"])(1), "addresses"),
    "an address that is no integer": (lambda make: make(["out"])("x"), "addresses"),
    "arrays instead of addresses": (lambda make: make(["out"])(np.zeros(3)), "addresses"),
    "no list of names": (lambda make: make("out"), "moving"),
    "names that are no strings": (lambda make: make([1, "out"]), "moving"),
    "no workspace": (lambda make: make(["out"])(64, workspace=5), "workspace"),
    "a null address": (lambda make: make(["out"])(0), "addresses[0]"),
    "a misaligned address": (lambda make: make(["out"])(1 << 20 | 2), "args.out.data"),
    "another function": (lambda make: smla.Call(len, [], ()), "call"),
    "a call within a call": (lambda make: smla.explain_call(lambda: make(["out"])), "call"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_call_refuses(case):
    (q, cache, rows), options, _ = attention()
    run, field = REFUSED[case]
    with pytest.raises(smla.InvalidArgument) as caught:
        run(lambda moving, **more: smla.Call(smla.attend, moving, q, cache, rows, **options, **more))
    assert caught.value.field == field
    assert len(str(caught.value)) < 300


def test_threads_run_one_call(threads=4, runs=50):
    (q, cache, rows), options, _ = attention(tokens=4)
    call, wrong = smla.Call(smla.attend, ["q", "out"], q, cache, rows, **options), []

    def work(seed):
        mine = attention(seed, tokens=4)[0][0]
        want, out = smla.attend(mine, cache, rows, **options).out, np.zeros((4, 2, 16), np.float32)
        for _ in range(runs):
            out[:] = np.nan
            call(address(mine), address(out))
            wrong.extend([] if np.array_equal(out, want) else [seed])

    each = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    assert not wrong


def test_a_step_of_a_backend_is_prepared_and_built_anew():
    on = smla.Backend(
        "FLASHMLA_SPARSE",
        "dsa",
        heads=3,
        max_tokens=4,
        max_requests=2,
        max_seq_len=64,
        topk=8,
        softmax_scale=0.1,
        dtype="f32",
        kv_cache_dtype="row_f32",
    )
    rng, step = np.random.default_rng(5), on.metadata()
    cache = smla.Cache(rng.standard_normal((4, 16, 576)).astype(np.float32), "row_f32", 16)
    topk = np.array([[0, 3, -1, 5, 2, -1, 1, 0]] * 2, np.int32)

    def build(table):
        group = smla.PlanGroup(np.array(table, np.int32), page_tokens=16)
        step.build(np.array([0, 1, 2], np.int32), np.array([7, 9], np.int32), primary=group)

    build([[0], [1]])
    q, out = rng.standard_normal((2, 3, 576)).astype(np.float32), np.zeros((2, 3, 512), np.float32)
    call = on.call(step, ["q", "out"], q=q, out=out, topk_indices=topk, kv_cache=cache)
    seen = []
    for table in ([[0], [1]], [[2], [3]]):
        build(table)
        q = rng.standard_normal((2, 3, 576)).astype(np.float32)
        want = on.forward(step, q, topk_indices=topk, kv_cache=cache)
        call(address(q), address(out))
        np.testing.assert_array_equal(out, want)
        seen.append(out.copy())
    assert not np.array_equal(*seen)
    with pytest.raises(smla.InvalidArgument) as caught:
        on.call(None, ["q"], q=q, out=out, topk_indices=topk, kv_cache=cache)
    assert caught.value.field == "args.metadata"
    with pytest.raises(smla.InvalidArgument) as caught:
        on.call(step, ["k"], q=q, out=out, topk_indices=topk, kv_cache=cache)
    assert caught.value.field == "moving"
