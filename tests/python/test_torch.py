"""smla.torch: operators against the stages, against PyTorch in float64, and under PyTorch's own machinery."""

import inspect
import math

import pytest

torch = pytest.importorskip("torch")

import smla
from smla.torch._ops import OPERATORS
from smla.torch._schema import name_of
from torch_cases import (
    CASES,
    PAGE,
    SLOTS,
    H,
    K,
    T,
    W,
    integers,
    memory,
    normal,
    recorded,
    row_cache,
    rows,
    same,
)

STAGES = sorted({make()[0] for make in CASES.values()})
OUTPUTS = {  # of stages that allocate: keywords of outputs, in the order of the result
    "norm": ["out"], "rope": ["out"], "inverse_rope": ["out"], "project": ["out"], "absorb": ["out"],
    "up_project": ["out"], "out_project": ["out"], "quant_index_q": ["q_out", "scales", "w_out"],
    "score": ["logits"], "select": ["indices", "counts", "selected"],
    "score_select": ["indices", "counts", "selected"], "map": ["rows"],
    "score_select_blocks": ["indices", "counts", "selected", "block_maxima", "best_blocks"],
    "attend": ["out", "lse", "max_logits"], "merge": ["out", "lse_out"],
}  # fmt: skip


def run(call, args, more):
    """Results, and then the arguments, which a call may have written."""
    results = call(*args, **more)
    results = results if isinstance(results, tuple) else (results,)
    return [memory(value) for value in (*results, *args, *more.values())]


def expect_stage(case, call=None):
    """smla.torch computes and writes what smla does, bit for bit."""
    name, args, more = CASES[case]()
    wanted = run(getattr(smla, name), args, more)
    _, args, more = CASES[case]()
    got = run(call or getattr(smla.torch, name), args, more)
    assert len(got) == len(wanted)
    for i, (a, b) in enumerate(zip(got, wanted)):
        assert same(a, b), f"{case}: value {i}"


def poisoned(tensor):
    """Memory for a result of this shape: rows farther apart than they are long, of bytes 0xff (NaN, -1)."""
    wide = torch.empty(*tensor.shape[:-1], tensor.shape[-1] + 32, dtype=tensor.dtype)
    wide.view(torch.uint8).fill_(255)
    return wide[..., : tensor.shape[-1]]


def with_outputs(case):
    """The call with all its outputs given."""
    name, args, more = CASES[case]()
    results = getattr(smla, name)(*args, **more)
    results = results if isinstance(results, tuple) else (results,)
    given = {key: poisoned(value) for key, value in zip(OUTPUTS[name], results) if value is not None}
    drop = ("dtype", "out_dtype", "value_width")
    return name, args, {key: value for key, value in more.items() if key not in drop} | given, results


ALLOCATING = [case for case, make in CASES.items() if make()[0] in OUTPUTS]


def test_every_stage_has_operators_and_cases():
    assert STAGES == sorted(smla.torch._OPERATORS)
    for name in STAGES:
        assert hasattr(torch.ops.smla, name)
        assert hasattr(torch.ops.smla, f"{name}_out") == (name in OUTPUTS)
        taken = set(inspect.signature(getattr(smla, name)).parameters) - {"workspace", "stream"}
        assert set(inspect.signature(getattr(smla.torch, name)).parameters) == taken
        schemas = [getattr(torch.ops.smla, operator).default._schema for operator in (name, f"{name}_out")
                   if hasattr(torch.ops.smla, operator)]  # fmt: skip
        assert taken <= {argument.name for schema in schemas for argument in schema.arguments}


def test_every_key_of_a_layout_is_an_argument():
    """Whatever smla.Cache takes besides the memory, a cache has in its layout and every operator takes."""
    keys = set()
    for cache in (
        smla.Cache(torch.zeros(4096), "row_f32", 2, width=4, pages=2, page_rows=3, page_stride_bytes=64,
                   row_stride_bytes=32),
        smla.Cache(torch.zeros(4096, dtype=torch.uint8), "fp8_512", 2, scale=0.0),
        smla.Cache(torch.zeros(2112, dtype=torch.uint8), "fp8_528_g32", 2, writer=1),
    ):  # fmt: skip
        keys |= set(cache.layout)
    assert keys == set(inspect.signature(smla.Cache).parameters) - {"data"}
    for name, operator in OPERATORS.items():
        arguments = {name_of(text) for text in operator.arguments.keyword}
        for cache in operator.arguments.caches:
            assert {f"{cache}_{key}" for key in keys} <= arguments, name


@pytest.mark.parametrize("case", CASES)
def test_as_the_stage(case):
    expect_stage(case)
    with torch.no_grad():
        expect_stage(case)
    with torch.inference_mode():
        expect_stage(case)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", CASES)
def test_compiled_as_the_stage(case, backend):
    torch._dynamo.reset()
    call = getattr(smla.torch, CASES[case]()[0])
    expect_stage(case, torch.compile(lambda *a, **m: call(*a, **m), fullgraph=True, backend=backend))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("case", ALLOCATING)
def test_given_outputs(case, compiled):
    name, args, more, wanted = with_outputs(case)
    call = getattr(smla.torch, name)
    if compiled:
        torch._dynamo.reset()
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    got = call(*args, **more)
    got = got if isinstance(got, tuple) else (got,)
    for key, mine, theirs in zip(OUTPUTS[name], got, wanted):
        assert same(memory(mine), memory(theirs)), key
        if theirs is not None:
            assert same(memory(more[key]), memory(theirs)), f"{key} as given"
            beyond = more[key].as_strided((32,), (1,), more[key].shape[-1]).view(torch.uint8)
            assert (beyond == 255).all(), f"past {key}"
            assert compiled or mine is more[key]


@pytest.mark.parametrize("case", CASES)
def test_opcheck(case):
    name, args, more = CASES[case]()
    calls = [recorded(name, args, more)]
    if name in OUTPUTS:
        calls.append(recorded(*with_outputs(case)[:3]))
    for function, arguments, keywords in calls:
        checks = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic", "test_schema"]
        tensors = [v for v in (*arguments, *keywords.values()) if isinstance(v, torch.Tensor)]
        if any("float8" in str(tensor.dtype) for tensor in tensors):
            checks.remove("test_schema")  # multiplies by 1 to copy: PyTorch cannot with fp8
        torch.library.opcheck(function, arguments, keywords, test_utils=checks)


@pytest.mark.parametrize("case", CASES)
def test_exactly_what_the_schema_says_is_written(case):
    name, args, more = CASES[case]()
    calls = [recorded(name, args, more)]
    if name in OUTPUTS:
        calls.append(recorded(*with_outputs(case)[:3]))
    for operator, args, more in calls:
        arguments = operator._schema.arguments
        values = {**dict(zip((argument.name for argument in arguments), args)), **more}
        before = {key: memory(value) for key, value in values.items()}
        operator(*args, **more)
        for argument in arguments:
            written = argument.alias_info is not None and argument.alias_info.is_write
            if before.get(argument.name) is not None:
                changed = not same(memory(values[argument.name]), before[argument.name])
                assert changed == written, f"{operator}: {argument.name}"


@pytest.mark.parametrize("case", ["norm", "rope", "rope half", "inverse_rope", "map"])
def test_in_place(case):
    name, args, more = CASES[case]()
    wanted = getattr(smla, name)(*args, **more)
    output = OUTPUTS[name][0]
    for compiled in (False, True):
        torch._dynamo.reset()
        wide = torch.cat([args[0], args[0]], -1)
        x = wide[..., args[0].shape[-1] :]
        call = getattr(smla.torch, name)
        if compiled:
            call = torch.compile(
                lambda x, *a, call=call: call(x, *a, **more, **{output: x}), backend="aot_eager"
            )
            call(x, *args[1:])
        else:
            function, *call = recorded(name, (x, *args[1:]), {**more, output: x})
            assert function is getattr(torch.ops.smla, f"{name}_").default
            wide.copy_(torch.cat([args[0], args[0]], -1))
            torch.library.opcheck(function, *call)
            function(*call[0], **call[1])
        assert torch.equal(x, wanted) and torch.equal(wide[..., : x.shape[-1]], args[0])
    counts = torch.zeros(T, dtype=torch.int32)
    if name == "map":
        smla.torch.map(x.copy_(args[0]), *args[1:], **more, rows=x, counts=counts)
        assert torch.equal(counts, (wanted >= 0).sum(1, dtype=torch.int32)) and torch.equal(x, wanted)


def exact_attention(q, keys, listed, lengths, scale, sink):
    """[T,H,W], [T,H] in float64. keys: dequantised rows by their number, one cache behind the other."""
    out, lse = torch.zeros(*q.shape, dtype=torch.float64), torch.full(q.shape[:2], -math.inf).double()
    for t in range(q.shape[0]):
        valid = [
            r for part, n in zip(listed, lengths) for r in part[t, : max(0, int(n[t]))].tolist() if r >= 0
        ]
        if valid:
            logits = scale * q[t].double() @ keys[valid].double().T
            lse[t] = logits.logsumexp(-1)
            below = torch.logaddexp(lse[t], sink.double())
            out[t] = (logits - below[:, None]).exp() @ keys[valid].double()
    return out, lse


@pytest.mark.parametrize("compiled", [False, True])
def test_attend_in_float64(compiled):
    call = (
        torch.compile(smla.torch.attend, fullgraph=True, backend="aot_eager")
        if compiled
        else smla.torch.attend
    )
    cache, extra = row_cache(), row_cache(seed=6, pages=2)
    listed, others = rows(), integers(-2, 2 * PAGE, T, 2)
    listed[listed >= SLOTS] = -1
    lengths, of_others = integers(-1, K + 1, T), integers(0, 3, T)
    q, sink = normal(T, 2 * H, W)[:, ::2], normal(H)
    seen = {int(r) for t in range(T) for r in listed[t, : max(0, int(lengths[t]))] if r >= 0}
    for slot in set(range(SLOTS)) - seen:
        cache.array.view(-1, PAGE, W)[slot // PAGE, slot % PAGE] = torch.nan
    got = call(q, cache, listed, lengths, softmax_scale=0.3, extra=extra, extra_rows=others,
               extra_lengths=of_others, sink=sink, lse=True)  # fmt: skip
    assert 0 < len(seen) < SLOTS
    keys = torch.cat([cache.array.reshape(SLOTS, W), extra.array.reshape(-1, W)])
    shifted = torch.where(others < 0, others, others + SLOTS)
    out, lse = exact_attention(q, keys, (listed, shifted), (lengths, of_others), 0.3, sink)
    torch.testing.assert_close(got.out.double(), out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.lse.double(), lse, rtol=1e-5, atol=1e-6)
    assert got.max_logits is None


def test_attend_of_a_packed_cache_in_float64():
    cache = smla.Cache.empty("fp8_656", 4, PAGE, like=torch.empty(0))
    slots = torch.tensor([5, 0, -1, 11, 7])
    smla.torch.write_kv(normal(T, 512) * 3, slots, cache, tail=normal(T, 64))
    record = cache.array.view(SLOTS, 656)
    scales = record[:, 512:528].contiguous().view(torch.float32).repeat_interleave(128, 1)
    latent = record[:, :512].view(torch.float8_e4m3fn).float() * scales
    keys = torch.cat([latent, record[:, 528:].contiguous().view(torch.bfloat16).float()], 1)
    assert (keys[slots[slots >= 0]].abs().sum(1) > 100).all()  # written
    listed = torch.tensor([[5, -1, 0], [11, 7, 5], [-1, -1, -1]], dtype=torch.int32)
    got = smla.torch.attend(normal(3, H, 576), cache, listed, softmax_scale=torch.tensor([0.02]), lse=True)
    out, lse = exact_attention(normal(3, H, 576), keys, (listed,), (torch.full((3,), 3),), 0.02,
                               torch.full((H,), -math.inf))  # fmt: skip
    torch.testing.assert_close(got.out.double(), out[..., :512], rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(got.lse.double(), lse, rtol=1e-5, atol=1e-5)


def test_score_and_select_in_float64():
    keys, q, w = row_cache(), normal(T, 4, W), normal(T, 4)
    starts, ends = integers(-2, 4, T), integers(0, SLOTS + 3, T)
    logits = smla.torch.score(q, w, keys, ends, starts=starts)
    products = (q.double() @ keys.array.reshape(SLOTS, W).double().T).relu()
    exact = (w.double()[:, :, None] * products).sum(1)
    column = torch.arange(SLOTS)
    outside = (column < starts[:, None]) | (column >= ends[:, None])
    torch.testing.assert_close(logits.double(), exact.masked_fill(outside, -math.inf), rtol=1e-5, atol=1e-5)

    scores = torch.round(normal(T, 40) * 3)  # ties
    scores[1, ::3], scores[2, 5] = torch.nan, -torch.inf
    first, last = integers(-3, 9, T).clamp(0), integers(0, 50, T).clamp(max=40)
    got = smla.torch.select(scores, 6, starts=first, ends=last, selected=True)
    assert got.counts.dtype == torch.int32
    for t in range(T):
        line = scores[t].tolist()
        order = sorted(range(int(first[t]), int(last[t])),
                       key=lambda j: (1, 0, j) if math.isnan(line[j]) else (0, -line[j], j))  # fmt: skip
        best = sorted(order[:6])
        assert got.counts[t] == len(best)
        assert got.indices[t].tolist() == best + [-1] * (6 - len(best))
        wanted = torch.tensor([line[j] for j in best] + [-math.inf] * (6 - len(best)))
        torch.testing.assert_close(got.selected[t], wanted, rtol=0, atol=0, equal_nan=True)
    both = smla.torch.score_select(q, w, keys, ends, 4, starts=starts)
    apart = smla.torch.select(logits, 4, starts=starts, ends=ends)
    assert torch.equal(both.indices, apart.indices) and both.selected is None
