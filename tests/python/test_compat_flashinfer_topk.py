"""The top-k calls of smla.compat.flashinfer against sorts, over scores full of ties, signed zeros, infinities
and NaN.
"""

import zlib

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from smla.compat import flashinfer

BF16, F32 = torch.bfloat16, torch.float32
NAN = float("nan")
INT_MAX = 2**31 - 1


@pytest.fixture
def rng(request):
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


def scores_of(rng, rows, columns, dtype, few):
    """Scores with many ties, zeros of both signs, infinities and NaN."""
    scores = rng.standard_normal((rows, columns))
    if few:
        scores = rng.integers(-2, 3, (rows, columns)).astype(float)
        scores[rng.random(scores.shape) < 0.1] = -0.0
    for odd in (np.inf, -np.inf, np.nan):
        scores[rng.random(scores.shape) < 0.05] = odd
    return torch.from_numpy(scores).to(dtype)


def best(row, begin, end, k, ties=0):
    """Columns of the k best of row[begin:end], counted from begin, in the order of rank."""
    begin = max(0, begin)
    row = row[begin : max(begin, min(end, len(row)))].astype(np.float64)
    column = np.arange(len(row))
    order = np.lexsort((-column if ties == 2 else column, -np.where(np.isnan(row), 0, row), np.isnan(row)))
    return order[:k]


@pytest.mark.parametrize("dtype", [F32, torch.float16, BF16])
@pytest.mark.parametrize(
    "columns, k, few", [(300, 17, False), (70, 64, True), (9, 9, True), (2500, 2048, False)]
)
@pytest.mark.parametrize("ties", [0, 1, 2])
def test_top_k(rng, dtype, columns, k, few, ties):
    scores = torch.full((5, columns + 6), NAN, dtype=dtype)[:, 3:-3]
    scores.copy_(scores_of(rng, 5, columns, dtype, few))
    values, indices = flashinfer.top_k(scores, k, tie_break=ties, deterministic=True)
    assert values.dtype == dtype and indices.dtype == torch.int64
    rows = scores.double().numpy()
    for t in range(5):
        wanted = best(rows[t], 0, columns, k, ties)
        np.testing.assert_array_equal(indices[t], np.sort(wanted))
        np.testing.assert_array_equal(values[t].double(), rows[t, np.sort(wanted)])
    values, indices = flashinfer.top_k(scores, k, True, False, flashinfer.TopKTieBreak(ties), True)
    for t in range(5):
        taken = np.sort(best(rows[t], 0, columns, k, ties))
        wanted = taken[best(rows[t, taken], 0, k, k)]  # equal scores by column
        np.testing.assert_array_equal(indices[t], wanted)
        np.testing.assert_array_equal(values[t].double(), rows[t, wanted])


def windows_of(rng, rows, columns, starts):
    lengths = rng.integers(-2, columns + 30, rows)
    lengths[:3] = [0, 1, INT_MAX]
    first = rng.integers(0, columns // 2, rows)
    numbers = [torch.from_numpy(array.astype(np.int32)) for array in (lengths, first)]
    return numbers[0], numbers[1] if starts else None


def raw_columns(scores, lengths, starts, k, ties):
    rows, wanted = scores.double().numpy(), np.full((len(scores), k), -1)
    for t in range(len(scores)):
        begin = 0 if starts is None else int(starts[t])
        found = np.sort(best(rows[t], begin, begin + max(0, int(lengths[t])), k, ties))
        wanted[t, : len(found)] = found
    return wanted


@pytest.mark.parametrize("page_size", [1, 4, 64])
@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize(
    "shared, raw, ties", [(False, False, 0), (True, True, 1), (True, False, 2), (False, True, 2)]
)
def test_top_k_page_table_transform(rng, page_size, starts, shared, raw, ties):
    rows, columns, k, requests = 12, 130, 33, 4
    scores = scores_of(rng, rows, columns, F32, True)
    lengths, row_starts = windows_of(rng, rows, columns, starts)
    row_to_batch = torch.from_numpy(rng.integers(0, requests, rows).astype(np.int32)) if shared else None
    entries = 3 + -(-columns // page_size)
    table = torch.from_numpy(rng.integers(0, 900, (requests if shared else rows, entries)).astype(np.int32))
    table[:, 2] = -1  # no page
    table_starts = None
    if starts and page_size > 1:
        table_starts = torch.from_numpy(rng.integers(0, 4, rows).astype(np.int32))
    out = torch.full((rows, k), 7, dtype=torch.int32)
    raw_out = torch.full((rows, k), 7, dtype=torch.int32) if raw else None
    returned = flashinfer.top_k_page_table_transform(
        scores, table, lengths, k, row_to_batch, tie_break=ties, row_starts=row_starts,
        page_table_row_starts=table_starts, page_size=page_size, out=out, out_raw_indices=raw_out,
    )  # fmt: skip
    assert returned is out
    wanted = raw_columns(scores, lengths, row_starts, k, ties)
    if raw:
        np.testing.assert_array_equal(raw_out, wanted)
    first = table_starts if table_starts is not None else row_starts
    slots = np.full_like(wanted, -1)
    for t in range(rows):
        pages = table[t if row_to_batch is None else int(row_to_batch[t])]
        for j in np.flatnonzero(wanted[t] >= 0):
            entry = wanted[t, j] // page_size + (0 if first is None else int(first[t]))
            if entry < entries and pages[entry] >= 0:
                slots[t, j] = pages[entry] * page_size + wanted[t, j] % page_size
    np.testing.assert_array_equal(out, slots)
    again = flashinfer.top_k_page_table_transform(
        scores, table, lengths, k, row_to_batch, tie_break=ties, row_starts=row_starts,
        page_table_row_starts=table_starts, page_size=page_size,
    )  # fmt: skip
    assert torch.equal(again, out)


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("ties", [0, 2])
def test_top_k_ragged_transform(rng, starts, ties):
    scores = scores_of(rng, 9, 200, BF16, False)
    lengths, row_starts = windows_of(rng, 9, 200, starts)
    offsets = torch.arange(9, dtype=torch.int32) * 1000 - 50
    offsets[2] = INT_MAX - 3  # what int32 does not hold is no index
    out = flashinfer.top_k_ragged_transform(
        scores, offsets, lengths, 40, tie_break=ties, row_starts=row_starts
    )
    wanted = raw_columns(scores, lengths, row_starts, 40, ties)
    moved = wanted + offsets.numpy().astype(np.int64)[:, None]
    wanted = np.where((wanted < 0) | (moved > INT_MAX), -1, moved)
    assert out.dtype == torch.int32
    np.testing.assert_array_equal(out, wanted)


def test_top_k_of_nothing():
    scores, none = torch.empty(0, 5), torch.empty(0, dtype=torch.int32)
    values, indices = flashinfer.top_k(scores, 3)
    assert values.shape == indices.shape == (0, 3)
    assert flashinfer.top_k_ragged_transform(scores, none, none, 3).shape == (0, 3)
    table = torch.zeros(2, 0, dtype=torch.int32)
    lengths = torch.tensor([5, 0], dtype=torch.int32)
    for ties in (0, 2):
        out = flashinfer.top_k_page_table_transform(torch.empty(2, 0), table, lengths, 3, tie_break=ties)
        assert (out == -1).all()
    out = flashinfer.top_k_page_table_transform(torch.zeros(2, 5), table, lengths, 3)
    assert (out == -1).all()


def on_gpu(value):
    return value.cuda() if isinstance(value, torch.Tensor) else value


@pytest.mark.gpu
@pytest.mark.parametrize("ties", [0, 2])
def test_gpu_top_k_is_that_of_the_cpu(rng, ties):
    scores = scores_of(rng, 12, 5000, F32, True)
    lengths, starts = windows_of(rng, 12, 5000, True)
    table = torch.from_numpy(rng.integers(0, 900, (12, 8000)).astype(np.int32))
    for function, arguments in (
        (flashinfer.top_k, (scores, 2048, True, True, ties)),
        (flashinfer.top_k_ragged_transform, (scores, lengths, lengths, 700, True, ties, True, starts)),
        (
            flashinfer.top_k_page_table_transform,
            (scores, table, lengths, 700, None, True, ties, True, starts),
        ),
    ):
        wanted, got = function(*arguments), function(*map(on_gpu, arguments))
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (wanted, got)), strict=True):
            assert torch.equal(a.nan_to_num(7.5), b.cpu().nan_to_num(7.5))
