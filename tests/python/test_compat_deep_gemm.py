"""Logits of smla.compat.deep_gemm over dense and paged keys."""

import pytest

torch = pytest.importorskip("torch")

import smla
from deep_gemm_world import (
    E4M3,
    HIGHEST,
    HOSTILE,
    INF,
    LOWEST,
    NAN,
    Rows,
    dense_case,
    i32,
    on_devices,
    paged_case,
    refuses,
)
from smla.compat import deep_gemm as dg


def on(device, *xs):
    """Tensors, and tuples of them, on the device; anything else as it is."""
    return [
        tuple(on(device, *x)) if type(x) is tuple else x.to(device) if hasattr(x, "to") else x for x in xs
    ]


def expected(q, k, w):
    """(logits, magnitude of what is summed) of [T,H,D], [N,D], [T,H] in float64: [T,N]."""
    w = w.double()
    dots = torch.einsum("thd,nd->thn", q, k)
    sizes = torch.einsum("thd,nd->thn", q.abs(), k.abs())
    return (dots.relu() * w[..., None]).sum(1), (sizes * w.abs()[..., None]).sum(1)


def rounds(device, *kinds):
    """Whether products are rounded: of e4m3 with e4m3, on Hopper."""
    return device == "cuda" and torch.cuda.get_device_capability()[0] == 9 and set(kinds) == {"fp8"}


def check(logits, wanted, size, window, clean, rounded=False):
    """window: [T,N] bool. f32 sums of some 200 terms: an error of at most 4e-6 of their sizes. docs/kernels/
    cuda_score.md bounds one logit of rounded products, DeepGEMM's own measure all of them."""
    got = logits.cpu().double()
    assert got.shape == wanted.shape
    error = (got - wanted).abs()[window]
    assert torch.all(error <= (132 * 2**-12 if rounded else 4e-6) * size[window])  # NaN fails
    mine, theirs = got[window], wanted[window]
    assert 2 * (mine * theirs).sum() >= (1 - 5e-6) * (mine.square() + theirs.square()).sum()
    if clean:
        assert torch.all(got[~window] == -INF)


def window_of(starts, ends, columns):
    column = torch.arange(columns)
    return (column >= starts.long()[:, None]) & (column < ends.long()[:, None])


@on_devices
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("width", [128, 64, 32, 96])
@pytest.mark.parametrize("kind, key_kind", [("fp8", "fp8"), ("fp4", "fp4"), ("fp8", "fp4"), ("fp4", "fp8")])
def test_dense(kind, key_kind, width, clean, device):
    q, k, w, starts, ends = dense_case(kind, key_kind, width)
    wanted, size = expected(q.values, k.values, w)
    logits = dg.fp8_fp4_mqa_logits(*on(device, q.given, k.given, w, starts, ends), clean)
    check(logits, wanted, size, window_of(starts, ends, 30), clean, rounds(device, kind, key_kind))
    assert logits.dtype is torch.float32 and logits.device.type == device


@on_devices
def test_dense_reads_nothing_outside_windows(device):
    q, k, w, starts, ends = dense_case(windows=[(4, 9), (6, 20), (11, 11)])
    wanted, size = expected(q.values, k.values, w)
    k.poison([0, 1, 2, 3, 20, 21, 29])
    logits = dg.fp8_mqa_logits(*on(device, q.codes, k.given, w, starts, ends))
    check(logits, wanted, size, window_of(starts, ends, 30), True, rounds(device, "fp8"))


def test_nan_reaches_its_own_logits_only():
    q, k, w, starts, ends = dense_case(windows=[(0, 30)] * 3)
    wanted, size = expected(q.values, k.values, w)
    k.poison([7])
    logits = dg.fp8_mqa_logits(q.codes, k.given, w, starts, ends)
    assert torch.all(logits[:, 7].isnan())
    logits[:, 7] = wanted[:, 7].float()
    check(logits, wanted, size, window_of(starts, ends, 30), True)


@on_devices
@pytest.mark.parametrize("heads", [1, 32, 64])
def test_exact_sums_are_exact(heads, device):
    make = torch.Generator().manual_seed(heads)
    q = torch.randint(-2, 3, (4, heads, 128), generator=make).float().to(E4M3)
    k = torch.randint(-2, 3, (70, 128), generator=make).float().to(E4M3)
    scales = torch.exp2(torch.randint(-3, 4, (70,), generator=make).float())
    w = torch.exp2(torch.randint(-2, 3, (4, heads), generator=make).float()) * (-1) ** torch.arange(heads)
    wanted, _ = expected(q.double(), k.double() * scales.double()[:, None], w)
    got = dg.fp8_mqa_logits(*on(device, q, (k, scales), w, i32([0] * 4), i32([70] * 4)))
    assert torch.equal(got.cpu().double(), wanted)


def test_views_of_any_stride():
    q, k, w, starts, ends = dense_case()
    plain = dg.fp8_mqa_logits(q.codes, k.given, w, starts, ends)

    def apart(x, dim):  # every second slice of a larger tensor of poison
        poison = x.clone().fill_(NAN if x.is_floating_point() else -1)
        both = torch.stack((x, poison), dim + 1).flatten(dim, dim + 1)
        return both[(slice(None),) * dim + (slice(None, None, 2),)]

    q, k = (apart(q.codes, 1), None), (apart(k.codes, 0), apart(k.scales, 0))
    views = dg.fp8_fp4_mqa_logits(q, k, apart(w, 1), apart(starts, 0), apart(ends, 0))
    assert not k[0].is_contiguous() and torch.equal(views, plain)
    q, k, w, starts, ends = dense_case("fp4")
    plain = dg.fp8_fp4_mqa_logits(q.given, k.given, w, starts, ends)
    q, k = (apart(q.codes, 0), apart(q.scales, 1)), (apart(k.codes, 0), apart(k.scales, 0))
    assert torch.equal(dg.fp8_fp4_mqa_logits(q, k, w, starts, ends), plain)


def test_packed_fp4_under_other_dtypes():
    q, k, w, starts, ends = dense_case("fp4")
    plain = dg.fp8_fp4_mqa_logits(q.given, k.given, w, starts, ends)
    for dtype in (torch.uint8, getattr(torch, "float4_e2m1fn_x2", torch.int8)):
        pair = [(x.codes.view(dtype), x.scales) for x in (q, k)]
        assert torch.equal(dg.fp8_fp4_mqa_logits(*pair, w, starts, ends), plain)


ROW = {"fp8": 128, "fp4": 64}


def in_workspace(k, scales_at, before=0, size=None, device="cpu"):
    """Rows of k from byte `before` on, scales from `scales_at` on, in one allocation of 8 KB or `size`."""
    memory = torch.full((size or 8192,), 0xFF, dtype=torch.uint8, device=device)
    codes = memory[before : before + k.codes.numel()].view(k.codes.dtype).view(k.codes.shape)
    scales = memory[scales_at : scales_at + 4 * len(k.codes)].view(k.scales.dtype)
    codes.copy_(k.codes)
    scales.copy_(k.scales)
    return codes, scales


def strided_scales(k):
    codes, scales = in_workspace(k, 30 * ROW[k.kind])
    twice = scales.as_strided((30,), (2,))
    twice.copy_(k.scales)
    return codes, twice


@pytest.fixture
def packs(monkeypatch):
    """How often keys were copied."""
    calls, pack = [], dg._pack
    monkeypatch.setattr(dg, "_pack", lambda *a: calls.append(a) or pack(*a))
    return calls


@on_devices
@pytest.mark.parametrize("kind", ["fp8", "fp4"])
@pytest.mark.parametrize("room", [30, 31, 64])
@pytest.mark.parametrize("before", [0, 256])
def test_workspaces_are_not_copied(packs, kind, room, before, device):
    q, k, w, starts, ends = dense_case(kind)
    wanted, size = expected(q.values, k.values, w)
    row = ROW[kind]
    pair = in_workspace(k, before + room * row, before, before + room * (row + 4), device)
    logits = dg.fp8_fp4_mqa_logits(*on(device, q.given), pair, *on(device, w, starts, ends))
    check(logits, wanted, size, window_of(starts, ends, 30), True, rounds(device, kind))
    assert not packs


@pytest.mark.parametrize("kind", ["fp8", "fp4"])
@pytest.mark.parametrize(
    "how", ["before", "not a multiple", "past the end", "not aligned", "apart", "strided"]
)
def test_other_keys_are_copied(packs, kind, how):
    q, k, w, starts, ends = dense_case(kind)
    row = ROW[kind]
    pair = {
        "before": lambda: in_workspace(k, 128, before=4096),
        "not a multiple": lambda: in_workspace(k, 30 * row + 4),
        "past the end": lambda: in_workspace(k, 40 * row, size=40 * row + 120),
        "not aligned": lambda: in_workspace(k, 4 + 30 * row, before=4),
        "apart": lambda: k.given,
        "strided": lambda: strided_scales(k),
    }[how]()
    logits = dg.fp8_fp4_mqa_logits(q.given, pair, w, starts, ends)
    wanted, size = expected(q.values, k.values, w)
    check(logits, wanted, size, window_of(starts, ends, 30), True)
    assert len(packs) == 1


@on_devices
@pytest.mark.parametrize("kind, width", [("fp8", 128), ("fp4", 128), ("fp8", 64)])
@pytest.mark.parametrize("columns", [1, 13, 30, 300])
def test_compressed(kind, width, columns, device):
    windows = HOSTILE + [(7, 25), (7, 12), (8, 25)]
    q, k, w, starts, ends = dense_case(kind, width=width, windows=windows)
    arguments = on(device, q.given, k.given, w, starts, ends)
    absolute = dg.fp8_fp4_mqa_logits(*arguments).cpu()
    logits = dg.fp8_fp4_mqa_logits(*arguments, True, columns).cpu()
    wanted = torch.full((len(windows), columns), -INF)
    for t, (first, last) in enumerate(zip(starts.clamp(0, 30), ends.clamp(0, 30), strict=True)):
        part = absolute[t, first : max(first, last)][:columns]
        wanted[t, : len(part)] = part
    assert torch.equal(logits, wanted)  # bit for bit


def test_compressed_reads_nothing_outside_windows():
    q, k, w, starts, ends = dense_case(windows=[(4, 9), (6, 20), (11, 11)])
    plain = dg.fp8_mqa_logits(q.codes, k.given, w, starts, ends, max_seqlen_k=14)
    k.poison([0, 1, 2, 3, 20, 21, 29])
    assert torch.equal(dg.fp8_mqa_logits(q.codes, k.given, w, starts, ends, max_seqlen_k=14), plain)


def check_paged(arguments, q, keys, ends, clean, device="cpu"):
    there = dict(zip(arguments, on(device, *arguments.values()), strict=True))
    if device != "cpu":  # .to() packs padded pages
        memory = arguments["kv_cache"].untyped_storage()
        whole = torch.empty(0, dtype=torch.uint8).set_(memory).to(device)
        there["kv_cache"] = whole.as_strided(arguments["kv_cache"].shape, arguments["kv_cache"].stride())
    logits = dg.fp8_fp4_paged_mqa_logits(**there, clean_logits=clean).cpu()
    columns = arguments["max_context_len"]
    batch, next_n = q.values.shape[:2]
    wanted = torch.zeros((batch * next_n, columns), dtype=torch.float64)
    size, paged = wanted.clone(), i32([0] * batch * next_n)
    for b, k in enumerate(keys):
        rows, n = slice(b * next_n, (b + 1) * next_n), min(columns, len(k))
        wanted[rows, :n], size[rows, :n] = expected(q.values[b], k[:n], arguments["weights"][rows])
        paged[rows] = len(k)
    ends = ends.flatten()
    outside = window_of(paged, ends, columns)  # keys that a row should see, but that are in no page
    assert torch.all(logits[outside] == -INF)
    window = window_of(torch.zeros_like(paged), torch.minimum(ends, paged), columns)
    check(logits.masked_fill(outside, -INF), wanted, size, window, clean, rounds(device, q.kind))


@on_devices
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("block, padding", [(64, 0), (32, 64), (1, 4), (7, 0), (256, 12)])
@pytest.mark.parametrize("kind, width", [("fp8", 128), ("fp4", 128), ("fp8", 64), ("fp8", 32), ("fp4", 64)])
def test_paged(kind, width, block, padding, clean, device):
    arguments, q, keys = paged_case(kind, width, block=block, padding=padding)
    check_paged(arguments, q, keys, arguments["context_lens"], clean, device)


@on_devices
@pytest.mark.parametrize("next_n", [1, 2, 3, 5])
def test_paged_rows_of_a_request(next_n, device):
    make = torch.Generator().manual_seed(next_n)
    lens = torch.randint(0, 300, (6, next_n), generator=make, dtype=torch.int32)  # in no order
    lens[2] = 0
    lens[3, 0] = -4
    arguments, q, keys = paged_case(lens=lens.tolist())
    check_paged(arguments, q, keys, lens, True, device)


@on_devices
@pytest.mark.parametrize("next_n", [1, 2, 4])
def test_paged_lens_of_requests(next_n, device):
    lens = i32([130, 2, 0, 64, LOWEST])
    arguments, q, keys = paged_case(lens=[[max(int(n), 1)] * next_n for n in lens])
    arguments["context_lens"] = lens
    ends = lens.clamp(min=0)[:, None] + torch.arange(1 - next_n, 1)
    check_paged(arguments, q, keys, ends, True, device)


@on_devices
@pytest.mark.parametrize("width", [128, 64])
def test_paged_past_table_and_columns(width, device):
    arguments, q, keys = paged_case(width=width, poison=False)
    arguments["context_lens"] = i32([[HIGHEST], [7], [200]])
    arguments["max_context_len"] = 1000
    check_paged(arguments, q, keys, arguments["context_lens"], True, device)
    arguments["max_context_len"] = 40
    check_paged(arguments, q, keys, arguments["context_lens"], True, device)


def test_paged_equals_dense():
    arguments, q, _ = paged_case(lens=[[190], [190]])
    paged = dg.fp8_paged_mqa_logits(q.codes, *list(arguments.values())[1:], clean_logits=True)
    k = Rows((384, 128), "fp8", 0, keys=True)  # those of paged_case
    for b in range(2):
        part = slice(192 * b, 192 * b + 192)
        dense = dg.fp8_mqa_logits(
            q.codes[b], (k.codes[part], k.scales[part]), arguments["weights"][b : b + 1], i32([0]), i32([190])
        )
        assert torch.equal(paged[b], dense[0])


def test_paged_arguments_that_change_nothing():
    arguments, *_ = paged_case(lens=[[130], [7], [64], [64]])
    plain = dg.fp8_fp4_paged_mqa_logits(**arguments, clean_logits=True)
    arguments["schedule_meta"] = dg.get_paged_mqa_logits_metadata(arguments["context_lens"], 64, 132)
    arguments["kv_cache"] = arguments["kv_cache"].squeeze(2)
    again = dg.fp8_fp4_paged_mqa_logits(**arguments, clean_logits=True, indices=i32([3, 3, 8, 8]))
    assert torch.equal(plain, again)
    legacy = dg.fp8_paged_mqa_logits(
        arguments["q"][0], *list(arguments.values())[1:], True, i32([3, 3, 8, 8])
    )
    assert torch.equal(plain, legacy)


@pytest.mark.parametrize("kind, format", [("e4m3", "index_fp8_132"), ("e2m1", "index_mxfp4_68")])
def test_reads_what_smla_writes(kind, format):
    make = torch.Generator().manual_seed(1)
    keys, queries = torch.randn((100, 128), generator=make), torch.randn((3, 8, 128), generator=make)
    cache = smla.Cache.empty(format, 2, 64, like=keys)
    smla.write_index(keys, torch.arange(100), cache)
    query = smla.quant_index_q(queries, torch.ones(3, 8), factor=0.1, dtype=kind)
    q = (query.q[None], None)
    if kind == "e2m1":
        q = (query.q[None].view(torch.int8), query.scales[None].view(torch.int32).squeeze(-1))
    pages = cache.array.view(2, 64, 1, -1)
    lens = i32([[100, 99, 5]])
    logits = dg.fp8_fp4_paged_mqa_logits(q, pages, query.w, lens, i32([[0, 1]]), None, 128, True)
    values = query.q if kind == "e4m3" else smla.tensor(query.q, "e2m1")
    same = smla.score(values, query.w, cache, lens[0], q_scales=query.scales, columns=128)
    assert torch.equal(logits, same)
    wanted, _ = expected(queries.double(), keys.double(), torch.full((3, 8), 0.1))
    error = (logits[0, :100] - wanted[0]).norm() / wanted[0].norm()
    assert error < (0.02 if kind == "e4m3" else 0.1)  # what quantisation costs


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("most", [0, 25])
def test_bf16_logits_are_rounded_once(weights, most):
    q, k, w, starts, ends = dense_case(windows=HOSTILE[:3])
    w = w.to(weights)
    wide = dg.fp8_fp4_mqa_logits(q.given, k.given, w, starts, ends, True, most)
    narrow = dg.fp8_fp4_mqa_logits(q.given, k.given, w, starts, ends, True, most, torch.bfloat16)
    assert torch.equal(narrow, wide.to(torch.bfloat16)) and narrow.dtype is torch.bfloat16
    same = dg.fp8_fp4_mqa_logits(q.given, k.given, w.float(), starts, ends, True, most)
    assert torch.equal(wide, same)
    arguments, *_ = paged_case()
    wide = dg.fp8_fp4_paged_mqa_logits(**arguments, clean_logits=True)
    narrow = dg.fp8_fp4_paged_mqa_logits(**arguments, clean_logits=True, logits_dtype=torch.bfloat16)
    assert torch.equal(narrow, wide.to(torch.bfloat16))


def test_rows_lie_as_far_apart_as_in_deep_gemm():
    def up(n, multiple):
        return (n + multiple - 1) // multiple * multiple

    for keys in (1, 255, 256, 257):
        q, k, w, starts, ends = dense_case(keys=keys, windows=[(0, 1)])
        for dtype, elements in ((torch.float32, 256), (torch.bfloat16, 512)):
            arguments = (q.given, k.given, w, starts, ends)
            wide = dg.fp8_fp4_mqa_logits(*arguments, logits_dtype=dtype)
            assert wide.shape == (1, keys) and wide.stride() == (up(keys + 256, elements), 1)
            short = dg.fp8_fp4_mqa_logits(*arguments, False, keys, dtype)
            assert short.shape == (1, keys) and short.stride() == (up(up(keys, 256), elements), 1)
            paged, *_ = paged_case()
            paged["max_context_len"] = keys
            paged = dg.fp8_fp4_paged_mqa_logits(**paged, logits_dtype=dtype)
            assert paged.shape == (3, keys) and paged.stride() == (up(up(keys, 256), elements), 1)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("most", [0, 20])
def test_what_is_written(monkeypatch, clean, most):
    q, k, w, starts, ends = dense_case(windows=[(4, 9), (6, 20), (11, 11)])
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **kw: empty(*a, **kw).fill_(12345))
    logits = dg.fp8_mqa_logits(q.codes, k.given, w, starts, ends, clean, most)
    inside = window_of(torch.zeros_like(starts), ends - starts, 20) if most else window_of(starts, ends, 30)
    assert torch.all(logits[~inside] == (-INF if clean else 12345)) and torch.all(
        logits[inside].abs() < 12345
    )
    arguments, *_ = paged_case()
    logits = dg.fp8_fp4_paged_mqa_logits(**arguments, clean_logits=clean)
    inside = window_of(i32([0] * 3), arguments["context_lens"].flatten(), 192)
    assert torch.all(logits[~inside] == (-INF if clean else 12345)) and torch.all(
        logits[inside].abs() < 12345
    )


@pytest.mark.parametrize("most", [0, 6])
def test_nothing_to_do(most):
    q, k, w, starts, ends = dense_case()
    nothing = i32([])
    none = dg.fp8_mqa_logits(q.codes[:0], k.given, w[:0], nothing, nothing, max_seqlen_k=most)
    assert none.shape == (0, most or 30)
    none = dg.fp8_mqa_logits(q.codes, (k.codes[:0], k.scales[:0]), w, starts, ends, max_seqlen_k=most)
    assert none.shape == (len(HOSTILE), most) and torch.all(none == -INF)


def test_nothing_to_do_in_pages():
    arguments, *_ = paged_case()
    without_pages = arguments | {"kv_cache": arguments["kv_cache"][:0]}
    assert torch.all(dg.fp8_fp4_paged_mqa_logits(**without_pages) == -INF)
    no_columns = dg.fp8_fp4_paged_mqa_logits(**arguments | {"max_context_len": 0})
    assert no_columns.shape == (3, 0)
    for width in (128, 64):
        arguments, *_ = paged_case(width=width)
        q, _ = arguments["q"]
        some = {name: arguments[name][:0] for name in ("weights", "context_lens", "block_table")}
        assert dg.fp8_fp4_paged_mqa_logits(**arguments | some | {"q": (q[:0], None)}).shape == (0, 192)
        some = {"q": (q[:, :0], None), "weights": arguments["weights"][:0]}
        for lens in (i32([[], [], []]), i32([5, 5, 5])):
            none = dg.fp8_fp4_paged_mqa_logits(**arguments | some | {"context_lens": lens})
            assert none.shape == (0, 192)
        no_table = arguments | {"block_table": i32([[], [], []])}
        assert torch.all(dg.fp8_fp4_paged_mqa_logits(**no_table, clean_logits=True) == -INF)


@pytest.mark.gpu
def test_num_sms_of_the_gpu():
    most = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    assert dg.get_num_sms() == most
    refuses("new_num_sms", dg.set_num_sms, most + 1)


@pytest.mark.gpu
def test_graphs():
    q, k, w, starts, ends = dense_case(heads=64)
    dense = on("cuda", q.given, k.given, w, starts, ends)
    arguments, *_ = paged_case(heads=64, poison=False)
    paged = dict(zip(arguments, on("cuda", *arguments.values()), strict=True))
    lens = paged["context_lens"]

    def calls():
        return (
            dg.fp8_fp4_mqa_logits(*dense),
            dg.fp8_fp4_mqa_logits(*dense, True, 20),
            dg.fp8_fp4_paged_mqa_logits(**paged, clean_logits=True),
            dg.get_paged_mqa_logits_metadata(lens, 64, 132),
        )

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        captured = calls()
    lens.copy_(i32([[100], [0], [3]]))
    graph.replay()
    torch.cuda.synchronize()
    for eager, replayed in zip(calls(), captured, strict=True):
        assert torch.equal(eager, replayed)


@pytest.mark.gpu
def test_the_first_pages_of_a_next_n_in_a_capture():
    arguments, *_ = paged_case(heads=64, lens=((126, 127, 128, 129, 130),), poison=False)
    paged = dict(zip(arguments, on("cuda", *arguments.values()), strict=True))
    dg._requests.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = dg.fp8_fp4_paged_mqa_logits(**paged, clean_logits=True)
    graph.replay()
    assert not dg._requests[paged["weights"].device, 5]
    eager = dg.fp8_fp4_paged_mqa_logits(**paged, clean_logits=True)
    assert torch.equal(eager, captured)
    assert torch.equal(dg._requests[paged["weights"].device, 5][0][:7].cpu(), i32([0, 0, 0, 0, 0, 1, 1]))


@pytest.mark.parametrize("next_n", [1, 2, 3])
def test_many_rows_of_pages(next_n):
    """More rows than are known at first; those known before stay, as a graph may read them."""
    cpu = torch.device("cpu")
    few = dg._request_of_rows(5, next_n, cpu)
    many = dg._request_of_rows(200_000, next_n, cpu)
    assert torch.equal(many, torch.arange(200_000) // next_n) and many.dtype is torch.int32
    assert torch.equal(few, many[:5]) and dg._requests[cpu, next_n][0].data_ptr() == few.data_ptr()
