"""smla.compat.deep_gemm against sums in float64: hostile windows, poison in what must not be read."""

import inspect

import pytest

torch = pytest.importorskip("torch")

import smla  # noqa: E402
from smla.compat import deep_gemm as dg  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
INF, NAN = float("inf"), float("nan")
E4M3 = torch.float8_e4m3fn
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
LOWEST, HIGHEST = -(2**31), 2**31 - 1


def i32(values):
    return torch.tensor(values, dtype=torch.int32)


def on(device, *xs):
    """Tensors, and tuples of them, on the device; anything else as it is."""
    return [
        tuple(on(device, *x)) if type(x) is tuple else x.to(device) if hasattr(x, "to") else x for x in xs
    ]


class Rows:
    """Random rows of queries or keys. given: what DeepGEMM takes; values: in float64, scales included."""

    def __init__(self, shape, kind, seed, keys=False):
        make = torch.Generator().manual_seed(seed)
        *lead, width = shape
        if kind == "fp8":
            codes = torch.randn(shape, generator=make).mul(2).to(E4M3)
            scales = torch.rand(lead, generator=make) + 0.01 if keys else None
            self.values = codes.double() * (scales.double()[..., None] if keys else 1)
        else:
            codes = torch.randint(0, 256, (*lead, width // 2), generator=make, dtype=torch.uint8)
            nibbles = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).long()
            exponents = torch.randint(120, 132, (*lead, 4), generator=make, dtype=torch.uint8)
            exponents[..., width // 32 :] = 255  # NaN, of channels that do not exist
            each = torch.exp2(exponents.double() - 127).repeat_interleave(32, -1)[..., :width]
            self.values = E2M1[nibbles] * each
            scales = exponents.view(torch.int32).squeeze(-1)
            codes = codes.view(torch.int8)
        self.kind, self.codes, self.scales = kind, codes, scales

    @property
    def given(self):
        return self.codes, self.scales

    def poison(self, rows):
        """NaN where nobody may look. rows: of keys."""
        if self.kind == "fp8":
            self.codes.view(torch.uint8)[rows] = 0x7F
            self.scales[rows] = NAN
        else:
            self.scales.view(torch.uint8).view(-1, 4)[rows] = 255

    def pages(self, block, padding):
        """[pages,block,1,bytes] u8: per page all values, then all scales, then `padding` bytes of 0xFF."""
        values = self.codes.view(torch.uint8)
        scales = self.scales.unsqueeze(-1).view(torch.uint8)
        count, row = values.shape
        pages = -(-count // block)
        memory = torch.full((pages, block * (row + 4) + padding), 0xFF, dtype=torch.uint8)
        for i in range(count):
            page, at = divmod(i, block)
            memory[page, at * row : (at + 1) * row] = values[i]
            begin = block * row + at * 4
            memory[page, begin : begin + 4] = scales[i]
        size = block * (row + 4)
        return memory.as_strided((pages, block, 1, row + 4), (size + padding, row + 4, row + 4, 1))


def expected(q, k, w):
    """(logits, magnitude of what is summed) of [T,H,D], [N,D], [T,H] in float64: [T,N]."""
    w = w.double()
    dots = torch.einsum("thd,nd->thn", q, k)
    sizes = torch.einsum("thd,nd->thn", q.abs(), k.abs())
    return (dots.relu() * w[..., None]).sum(1), (sizes * w.abs()[..., None]).sum(1)


def check(logits, wanted, size, window, clean):
    """window: [T,N] bool. f32 sums of some 200 terms: an error of at most 4e-6 of their sizes."""
    got = logits.cpu().double()
    assert got.shape == wanted.shape
    error = (got - wanted).abs()[window]
    assert torch.all(error <= 4e-6 * size[window])  # NaN fails
    if clean:
        assert torch.all(got[~window] == -INF)


def window_of(starts, ends, columns):
    column = torch.arange(columns)
    return (column >= starts.long()[:, None]) & (column < ends.long()[:, None])


# --- the calls themselves

PARAMETERS = {
    "fp8_fp4_mqa_logits": "q kv weights cu_seq_len_k_start cu_seq_len_k_end clean_logits=True max_seqlen_k=0 "
    "logits_dtype=torch.float32",
    "fp8_fp4_paged_mqa_logits": "q kv_cache weights context_lens block_table schedule_meta max_context_len "
    "clean_logits=False logits_dtype=torch.float32 indices=None",
    "fp8_mqa_logits": "q kv weights cu_seq_len_k_start cu_seq_len_k_end clean_logits=True max_seqlen_k=0",
    "fp8_paged_mqa_logits": "q kv_cache weights context_lens block_table schedule_meta max_context_len "
    "clean_logits=False indices=None",
    "get_paged_mqa_logits_metadata": "context_lens block_kv num_sms indices=None",
    "get_num_sms": "",
    "set_num_sms": "new_num_sms",
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_names_order_and_defaults(name):
    found = inspect.signature(getattr(dg, name)).parameters.values()
    words = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in found]
    assert " ".join(words) == PARAMETERS[name]
    assert name in dg.__all__ and len(dg.__all__) == len(PARAMETERS)


# --- dense keys

HOSTILE = [
    (0, 30),
    (3, 3),
    (29, 30),
    (20, 10),
    (-5, 7),
    (12, 1000),
    (LOWEST, HIGHEST),
    (HIGHEST, LOWEST),
    (5, LOWEST),
]


def dense_case(kind="fp8", key_kind=None, width=128, heads=5, keys=30, windows=HOSTILE, seed=0):
    q = Rows((len(windows), heads, width), kind, seed)
    k = Rows((keys, width), key_kind or kind, seed + 1, keys=True)
    w = torch.randn((len(windows), heads), generator=torch.Generator().manual_seed(seed + 2))
    starts, ends = (i32(list(edge)) for edge in zip(*windows, strict=True))
    return q, k, w, starts, ends


@on_devices
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("width", [128, 64, 32, 96])
@pytest.mark.parametrize("kind, key_kind", [("fp8", "fp8"), ("fp4", "fp4"), ("fp8", "fp4"), ("fp4", "fp8")])
def test_dense(kind, key_kind, width, clean, device):
    q, k, w, starts, ends = dense_case(kind, key_kind, width)
    wanted, size = expected(q.values, k.values, w)
    logits = dg.fp8_fp4_mqa_logits(*on(device, q.given, k.given, w, starts, ends), clean)
    check(logits, wanted, size, window_of(starts, ends, 30), clean)
    assert logits.dtype is torch.float32 and logits.device.type == device


@on_devices
def test_dense_reads_nothing_outside_windows(device):
    q, k, w, starts, ends = dense_case(windows=[(4, 9), (6, 20), (11, 11)])
    wanted, size = expected(q.values, k.values, w)
    k.poison([0, 1, 2, 3, 20, 21, 29])
    logits = dg.fp8_mqa_logits(*on(device, q.codes, k.given, w, starts, ends))
    check(logits, wanted, size, window_of(starts, ends, 30), True)


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


# --- dense keys where they lie

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
    check(logits, wanted, size, window_of(starts, ends, 30), True)
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


# --- columns counted from the window's first key


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


# --- pages


def paged_case(kind="fp8", width=128, heads=3, block=64, lens=((130,), (7,), (64,)), padding=0, poison=True):
    """Requests of `lens` keys, in pages in random order among pages of NaN; tables end in what is no page.

    Returns the arguments of the call, the queries, and the keys of each request in float64.
    poison: NaN in keys that lie in a page of a request, but past all its lens.
    """
    make = torch.Generator().manual_seed(0)
    lens = i32(lens)
    batch, next_n = lens.shape
    longest = lens.amax(1).clamp(min=1).tolist()
    blocks = [-(-n // block) for n in longest]
    first = [sum(blocks[:b]) for b in range(batch)]
    k = Rows((sum(blocks) * block, width), kind, 0, keys=True)
    for b in range(batch if poison else 0):
        k.poison(slice(first[b] * block + longest[b], (first[b] + blocks[b]) * block))
    pages = k.pages(block, padding)
    order = torch.randperm(2 * len(pages), generator=make)[: len(pages)]
    memory = torch.full((2 * len(pages), pages.stride(0)), 0xFF, dtype=torch.uint8)
    cache = memory.as_strided((2 * len(pages), *pages.shape[1:]), pages.stride())
    cache[order] = pages
    table = (
        i32([HIGHEST, LOWEST, -1, 2 * len(pages)])
        .repeat(batch, max(blocks))[:, : max(blocks) + 2]
        .contiguous()
    )
    for b, n in enumerate(blocks):
        table[b, :n] = order[first[b] : first[b] + n]
    keys = [k.values[first[b] * block : (first[b] + n) * block] for b, n in enumerate(blocks)]
    q = Rows((batch, next_n, heads, width), kind, 1)
    arguments = {
        "q": q.given,
        "kv_cache": cache,
        "weights": torch.randn((batch * next_n, heads), generator=make),
        "context_lens": lens,
        "block_table": table,
        "schedule_meta": None,
        "max_context_len": max(blocks) * block,
    }
    return arguments, q, keys


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
    check(logits.masked_fill(outside, -INF), wanted, size, window, clean)


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


# --- results


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


# --- the schedule


def check_schedule(found, units, end, parts, last_get_more=True):
    """units: (atom, split) of all work, in order, of which each multiprocessor takes the next few."""
    assert found.dtype is torch.int32 and found.shape == (parts + 1, 2)
    few, more = divmod(len(units), parts)
    sizes = [few] * (parts - more) + [few + 1] * more
    sizes = sizes if last_get_more else sizes[::-1]
    begins = [sum(sizes[:i]) for i in range(parts + 1)]
    assert found.tolist() == [list((units + [(end, 0)])[begin]) for begin in begins]


def units_of(lens, atoms=1):
    splits = [-(-max(n, 0) // 256) for n in lens]
    return [(b * atoms + a, s) for b, n in enumerate(splits) for a in range(atoms) for s in range(n)]


LENS = [[1000, 3, 0, 256, 257, 70000], [0, 0, 0], [5], [0, 513], [512, 0, 0], [-1000, 300, -7], []]


@on_devices
@pytest.mark.parametrize("parts", [1, 2, 7, 132])
@pytest.mark.parametrize("lens", LENS)
def test_schedule(lens, parts, device):
    last = device == "cpu" or torch.cuda.get_device_capability()[0] < 10
    found = dg.get_paged_mqa_logits_metadata(i32(lens).to(device), 64, parts)
    assert found.device.type == device
    check_schedule(found, units_of(lens), len(lens), parts, last)
    for next_n in (1, 2, 3, 6):
        rows = torch.randint(0, 5000, (len(lens), next_n), dtype=torch.int32)
        rows[:, -1] = i32(lens)
        atoms = (next_n + 1) // 2
        found = dg.get_paged_mqa_logits_metadata(rows.to(device), 64, parts)
        check_schedule(found, units_of(lens, atoms), len(lens) * atoms, parts, last)


def test_schedule_of_long_keys():
    lens = [HIGHEST, HIGHEST - 255, 1]
    found = dg.get_paged_mqa_logits_metadata(i32(lens), 64, 2).tolist()
    splits = [2**23, 2**23, 1]
    half = sum(splits) // 2
    assert found == [[0, 0], [1, half - splits[0]], [3, 0]]


@pytest.mark.parametrize(
    "indices", [[0, 1, 2, 3, 4, 5], [7, 7, 7, 7, 7, 7], [1, 1, 0, 0, 0, 1], [2, 5, 5, 2, 2, 2]]
)
def test_schedule_of_pairs(indices):
    lens = [300, 1000, 0, 256, 600, 257]
    units, t = [], 0
    while t < 6:
        pair = t + 1 < 6 and indices[t] == indices[t + 1]
        units += [(t, s) for s in range(-(-lens[t + pair] // 256))]
        t += 1 + pair
    for shape in ((6,), (6, 1)):
        found = dg.get_paged_mqa_logits_metadata(i32(lens).view(shape), 64, 5, i32(indices))
        check_schedule(found, units, 6, 5)
    none = dg.get_paged_mqa_logits_metadata(i32([]), 64, 5, i32([]))
    check_schedule(none, [], 0, 5)


def test_schedule_where_the_first_get_more(monkeypatch):
    monkeypatch.setattr(dg, "_first_get_more", lambda device: True)
    for lens in LENS:
        for parts in (1, 2, 7, 132):
            found = dg.get_paged_mqa_logits_metadata(i32(lens), 64, parts)
            check_schedule(found, units_of(lens), len(lens), parts, last_get_more=False)


def test_num_sms():
    own = dg.get_num_sms()
    try:
        assert own >= 1
        dg.set_num_sms(1)
        assert dg.get_num_sms() == 1
        dg.set_num_sms(0)
        assert dg.get_num_sms() == own
        for bad, got in ((-1, "-1"), (2.0, "2.0"), (None, "None")):
            with pytest.raises(smla.InvalidArgument) as error:
                dg.set_num_sms(bad)
            assert (error.value.field, error.value.got) == ("new_num_sms", got)
    finally:
        dg.set_num_sms(0)


# --- refusals


def refuses(field, call, *arguments, **keywords):
    with pytest.raises(smla.InvalidArgument) as error:
        call(*arguments, **keywords)
    assert error.value.field == field and error.value.got and error.value.wanted
    return error.value


def wrong_dense():
    q, k, w, starts, ends = dense_case()
    good = dict(q=q.given, kv=k.given, weights=w, cu_seq_len_k_start=starts, cu_seq_len_k_end=ends)
    q4 = Rows((len(HOSTILE), 5, 128), "fp4", 0)
    yield "q", good | {"q": q.codes}
    yield "q", good | {"q": (q.codes,)}
    yield "q", good | {"q": ([1.0], None)}
    yield "q.shape", good | {"q": (q.codes[0], None)}
    yield "q.dtype", good | {"q": (q.codes.float(), None)}
    yield "q.shape", good | {"q": (torch.zeros((len(HOSTILE), 5, 256)).to(E4M3), None)}
    yield "q.shape", good | {"q": (q4.codes[..., :24], q4.scales)}
    yield "q_sf", good | {"q": (q.codes, q4.scales)}
    yield "q_sf", good | {"q": (q4.codes, None)}
    yield "q_sf.dtype", good | {"q": (q4.codes, q4.scales.float())}
    yield "q_sf.shape", good | {"q": (q4.codes, q4.scales[:, :4])}
    yield "kv", good | {"kv": k.codes}
    yield "kv", good | {"kv": (None, k.scales)}
    yield "kv.shape", good | {"kv": (k.codes[:, :64], k.scales)}
    yield "kv.dtype", good | {"kv": (k.codes.float(), k.scales)}
    yield "kv_sf", good | {"kv": (k.codes, None)}
    yield "kv_sf.dtype", good | {"kv": (k.codes, k.scales.view(torch.int32))}
    yield "kv_sf.shape", good | {"kv": (k.codes, k.scales[:, None])}
    yield "kv.device", good | {"kv": (k.codes.to("meta"), k.scales.to("meta"))}
    yield "kv_sf.device", good | {"kv": (k.codes, k.scales.to("meta"))}
    yield "weights.shape", good | {"weights": w[:, :4]}
    yield "weights.dtype", good | {"weights": w.double()}
    yield "weights.device", good | {"weights": w.to("meta")}
    yield "cu_seq_len_k_start.shape", good | {"cu_seq_len_k_start": starts[1:]}
    yield "cu_seq_len_k_start.dtype", good | {"cu_seq_len_k_start": starts.long()}
    yield "cu_seq_len_k_end.dtype", good | {"cu_seq_len_k_end": ends.float()}
    yield "max_seqlen_k", good | {"max_seqlen_k": -1}
    yield "max_seqlen_k", good | {"max_seqlen_k": 2.5}
    yield "logits_dtype", good | {"logits_dtype": torch.float16}


@pytest.mark.parametrize("field, arguments", list(wrong_dense()))
def test_refusals_of_dense(field, arguments):
    refuses(field, dg.fp8_fp4_mqa_logits, **arguments)


def wrong_paged():
    good, *_ = paged_case(lens=[[130, 9], [7, 7], [64, 64]])
    cache = good["kv_cache"]
    yield "kv_cache.shape", good | {"kv_cache": cache[..., :131]}
    yield "kv_cache.shape", good | {"kv_cache": cache.expand(-1, -1, 2, -1)}
    yield "kv_cache.dtype", good | {"kv_cache": torch.zeros((6, 64, 1, 132))}
    wide = torch.zeros((6, 64, 1, 264), dtype=torch.uint8)
    yield "kv_cache.stride", good | {"kv_cache": wide[..., :132]}
    narrow = Rows((3, 2, 3, 64), "fp8", 0).codes
    yield "kv_cache.stride", good | {"q": (narrow, None), "kv_cache": wide[..., :68]}
    odd = wide.flatten().as_strided((6, 64, 1, 132), (8449, 132, 132, 1))
    yield "cache.page_stride_bytes", good | {"kv_cache": odd}
    yield "kv_cache", good | {"kv_cache": None}
    yield "weights.shape", good | {"weights": good["weights"].view(3, 2, -1)}
    yield "context_lens.shape", good | {"context_lens": good["context_lens"][:, :1]}
    yield "context_lens.shape", good | {"context_lens": good["context_lens"].flatten()}
    yield "context_lens.dtype", good | {"context_lens": good["context_lens"].long()}
    yield "context_lens", good | {"context_lens": [130, 7, 64]}
    yield "block_table.shape", good | {"block_table": good["block_table"][:2]}
    yield "block_table.dtype", good | {"block_table": good["block_table"].long()}
    yield "max_context_len", good | {"max_context_len": good["context_lens"]}
    yield "max_context_len", good | {"max_context_len": -1}
    yield "indices", good | {"indices": i32([0, 0, 1])}
    yield "indices.shape", good | {"indices": i32([0, 0])}
    yield "logits_dtype", good | {"logits_dtype": "float32"}


@pytest.mark.parametrize("field, arguments", list(wrong_paged()))
def test_refusals_of_paged(field, arguments):
    refuses(field, dg.fp8_fp4_paged_mqa_logits, **arguments)


def test_refusals_of_schedules():
    lens, call = i32([[3, 4], [5, 6]]), dg.get_paged_mqa_logits_metadata
    refuses("context_lens", call, [3], 64, 132)
    refuses("context_lens.dtype", call, lens.long(), 64, 132)
    refuses("context_lens.shape", call, lens[None], 64, 132)
    refuses("context_lens.shape", call, lens[:, :0], 64, 132)
    refuses("block_kv", call, lens, 0, 132)
    refuses("num_sms", call, lens, 64, 0)
    refuses("indices", call, lens, 64, 132, i32([0, 0]))
    refuses("indices.shape", call, lens[:, 0], 64, 132, i32([0]))


def test_legacy_calls_refuse_alike():
    arguments, q, _ = paged_case()
    arguments["q"] = q.codes
    refuses("indices.shape", dg.fp8_paged_mqa_logits, **arguments, indices=i32([0]))
    refuses("q_sf", dg.fp8_paged_mqa_logits, **arguments | {"q": Rows((3, 1, 3, 128), "fp4", 0).codes})
    q, k, w, starts, ends = dense_case("fp4")
    refuses("q_sf", dg.fp8_mqa_logits, q.codes, k.given, w, starts, ends)


def test_grad_is_refused():
    q, k, w, starts, ends = dense_case()
    with pytest.raises(smla.Unsupported):
        dg.fp8_mqa_logits(q.codes, k.given, w.requires_grad_(), starts, ends)
    with torch.no_grad():
        dg.fp8_mqa_logits(q.codes, k.given, w, starts, ends)


# --- on a GPU only


@needs_gpu
def test_num_sms_of_the_gpu():
    most = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    assert dg.get_num_sms() == most
    refuses("new_num_sms", dg.set_num_sms, most + 1)


@needs_gpu
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
