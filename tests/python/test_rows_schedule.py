"""smla.rows: how work is cut, for the parts of a GPU and for memory. Against what a cut must keep."""

import numpy as np
import pytest
import smla
from row_arrays import both_libraries, i32
from smla import rows

# decode_schedule


@pytest.mark.parametrize("seed", range(20))
def test_decode_schedule_covers_every_block_once(seed):
    random = np.random.default_rng(seed)
    lens = i32(random.choice([0, 1, 64, 65, 640, 5000, 100000], random.integers(0, 9)))
    parts = int(random.integers(1, 40))
    for arrays in both_libraries(lens=lens):
        schedule, splits = rows.decode_schedule(arrays["lens"], parts)
        schedule, splits = np.asarray(schedule), np.asarray(splits)
        blocks, work = -(-lens.astype(int) // 64), {}
        at = (0, 0)  # request and block where the next part begins
        for part in schedule.tolist():
            first, first_block, last, end_block, split, *rest = part
            assert rest == [0, 0, 0]
            if first < 0:
                assert at[0] == len(lens) and part[1:5] == [0, 0, 0, 0]
                continue
            assert (first, first_block) == at
            assert split == len(work.get(first, []))  # how many parts worked on it before
            for request in range(first, last + 1):
                begin = first_block if request == first else 0
                end = end_block if request == last else blocks[request]
                work.setdefault(request, []).append((begin, int(end)))
            at = (last, end_block) if end_block < blocks[last] else (last + 1, 0)
        assert at[0] == len(lens)
        assert splits.tolist() == np.cumsum([0, *[len(work[r]) for r in range(len(lens))]]).tolist()
        loads = [sum(end - begin + 5 for begin, end in _of_part(part, blocks)) for part in schedule.tolist()]
        assert (
            max(loads) <= -(-(int(blocks.sum()) + 5 * len(lens)) // parts) + 5
        )  # even, as FlashMLA counts it


def _of_part(part, blocks):
    """[(first block, end block)] of each request of a part."""
    first, first_block, last, end_block = part[:4]
    for request in range(first, last + 1) if first >= 0 else ():
        yield first_block if request == first else 0, end_block if request == last else int(blocks[request])


def test_decode_schedule_refusals():
    for field, arguments in {
        r"lens\[1\]": (i32([1, -1]), 2),
        "lens.ndim": (np.zeros((1, 2), np.int32), 2),
        "lens.dtype": (np.zeros(2, np.int64), 2),
        "schedule": (i32([1]), 0),
    }.items():
        with pytest.raises(smla.InvalidArgument, match=field):
            rows.decode_schedule(*arguments)
    with pytest.raises(smla.InvalidArgument, match="splits"):
        rows.decode_schedule(i32([1]), 2, splits=np.zeros(1, np.int32))


# prefill_chunks


@pytest.mark.parametrize("seed", range(30))
def test_prefill_chunks(seed):
    random = np.random.default_rng(seed)
    requests, ratio = int(random.integers(0, 8)), int(random.choice([0, 1, 4]))
    lengths = random.integers(0, 20, requests)
    seq_lens = i32(lengths + random.choice([0, 5, 90], requests))
    starts = i32(np.cumsum([0, *lengths]))
    held = seq_lens // max(ratio, 1)  # rows of each request
    options = {"ratio": ratio, "first_request": int(random.integers(0, requests + 1))}
    if random.integers(2):
        options["max_rows"] = int(held.max(initial=1)) + int(random.choice([0, 30]))
    if random.integers(2):
        options["max_logits_bytes"] = int(random.choice([4, 400, 4000]))
    if random.integers(3) == 0:
        options["max_requests"] = int(random.integers(1, 4))
    for arrays in both_libraries(query_start_loc=starts, seq_lens=seq_lens):
        chunks = np.asarray(rows.prefill_chunks(**arrays, **options)).tolist()
        check_chunks(chunks, starts, held, options)


def check_chunks(chunks, starts, held, options):
    """Every query token once, in order; chunks within their bounds, and no smaller than they must be."""
    most_rows, most_requests = options.get("max_rows") or np.inf, options.get("max_requests") or np.inf
    most = (options.get("max_logits_bytes") or np.inf) / 4
    at, request, before = int(starts[options["first_request"]]), options["first_request"], None
    for first, end, begin, stop, count, again in chunks:
        assert begin == at and stop > begin
        assert count == held[first:end].sum() <= most_rows and end - first <= most_requests
        tokens = stop - begin
        assert tokens * count <= most or tokens == 1  # a token alone is never cut
        if again:
            assert before[:2] == [first, end] and before[3] == begin
        else:  # requests without tokens may go with a chunk, or with none
            assert first >= request and starts[first] == begin and not starts[first] - starts[request]
        if stop < starts[end]:  # cut along its tokens: only where it is too large as it is
            assert end == first + 1 and (tokens + 1) * count > most
        elif end < len(held) and not again and starts[end] > begin:  # the next request did not fit
            rows_then, tokens_then = count + held[end], starts[end + 1] - begin
            fits = rows_then <= most_rows and end - first < most_requests and tokens_then * rows_then <= most
            assert not fits
        at, request, before = stop, end, [first, end, begin, stop]
    assert at == starts[-1]


def test_prefill_chunks_refusals():
    starts, lens = i32([0, 3, 5]), i32([30, 5])
    for field, change in {
        "ratio": {"ratio": -1},
        "max_rows": {"max_rows": -1},
        r"seq_lens\[0\]": {"max_rows": 20},
        "max_logits_bytes": {"max_logits_bytes": -1},
        "first_request": {"first_request": 3},
        "max_requests": {"max_requests": -1},
        r"query_start_loc\[2\]": {"query_start_loc": i32([0, 3, 1])},
        r"query_start_loc\[1\]": {"query_start_loc": i32([0, -3, -5])},
        "query_start_loc": {"query_start_loc": i32([0, 3])},
        "query_start_loc.dtype": {"query_start_loc": np.array([0, 3, 5])},
        "query_start_loc.ndim": {"query_start_loc": np.zeros((1, 3), np.int32)},
        "query_start_loc.shape": {"seq_lens": i32([30])},
        "chunks.shape": {"chunks": np.zeros((1, 6), np.int32), "max_logits_bytes": 4},
        "chunks": {"chunks": np.zeros((9, 5), np.int32)},
    }.items():
        with pytest.raises(smla.InvalidArgument, match=field):
            rows.prefill_chunks(**{"query_start_loc": starts, "seq_lens": lens, **change})
