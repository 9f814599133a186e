"""DeepSeek-V4's sparse decode of smla.compat.flashinfer in the conventions of its backends."""

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from flashinfer_world import (
    BF16,
    E4M3,
    F32,
    INT_MAX,
    INT_MIN,
    NAN,
    Pool,
    attention,
    check,
    on_gpu,
    poisoned,
    query,
)
from flashinfer_world import rng as rng
from smla.compat.flashinfer import mla


def dsv4_case(rng, tokens, swa, compressed, columns):
    """A combined table, total lengths, and which rows it means without looking at positions."""
    window, _ = swa.lists(rng, tokens, 128, lengths=False)
    entries, lengths = compressed.lists(rng, tokens, columns)
    return torch.cat([window, entries], 1), lengths + 128


def combined_keys(swa, compressed, table, lens, window):
    return [
        np.concatenate([
            swa.listed(table[t, :128], min(int(window[t]), int(lens[t]))),
            compressed.listed(table[t, 128:], int(lens[t]) - 128),
        ])
        for t in range(len(table))
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["bf16", "e4m3", "f32"])
@pytest.mark.parametrize("layout, shape", [("HND", "HND"), ("NHD", "NHD"), ("HND", "3"), ("NHD", "2")])
def test_dsv4_combined_table_over_dense_queries(rng, kind, layout, shape):
    gap = 0 if shape == "2" else 64
    swa, compressed = Pool(rng, kind, 3, 64, shape, gap), Pool(rng, kind, 30, 2, shape, gap)
    requests, q_len, heads, scale = 3, 4, 6, 0.07
    table, lens = dsv4_case(rng, requests * q_len, swa, compressed, 37)
    seq_lens = torch.tensor([3, 130, 77], dtype=torch.int32)  # 3: less than its query tokens
    visible = (seq_lens[:, None] - torch.arange(q_len - 1, -1, -1)).flatten()
    window = visible.clamp(0, 128)
    lens[5:7] = torch.tensor([4, 90], dtype=torch.int32)  # less than the window
    stale = (torch.arange(128) >= window[:, None]) & torch.from_numpy(rng.random((len(table), 128)) < 0.5)
    table[:, :128][stale] = 0  # slots of older steps: slot 0 holds NaN
    q = query(rng, requests, q_len, heads, 512, dtype={"bf16": BF16, "e4m3": E4M3, "f32": F32}[kind])
    sinks = query(rng, heads, dtype=F32)
    out = poisoned(requests, q_len, heads, 512, dtype=F32 if kind == "f32" else BF16)
    returned = mla.trtllm_batch_decode_sparse_mla_dsv4(
        q, swa.data, torch.empty(16, dtype=torch.uint8), table, compressed.data, lens, seq_lens, out,
        scale, 1.0, sinks, layout,
    )  # fmt: skip
    assert returned is out
    check(out, attention(q, combined_keys(swa, compressed, table, lens, window), scale, sinks), q.dtype)


def test_dsv4_combined_table_as_its_backend_calls_it(rng):
    """Varlen queries with padding of a CUDA graph, an output view, and layers without compressed columns."""
    swa, compressed = Pool(rng, "bf16", 5, 64), Pool(rng, "bf16", 7, 64)
    cu = torch.tensor([0, 2, 2, 9, 10], dtype=torch.int32)
    seq_lens = torch.tensor([2, 50, 131, 400], dtype=torch.int32)
    scheduled, tokens, heads = 10, 13, 5
    positions = [seq_lens[r] - cu[r + 1] + t for r in range(4) for t in range(cu[r], cu[r + 1])]
    window = torch.tensor([min(int(p) + 1, 128) for p in positions] + [0] * (tokens - scheduled))
    q = query(rng, tokens, heads, 512)
    for columns, pool in ((20, compressed), (0, swa)):
        table, lens = dsv4_case(rng, tokens, swa, pool, columns)
        table[:, :128][torch.arange(128) >= window[:, None]] = 0
        output = poisoned(tokens + 4, heads, 512)
        mla.trtllm_batch_decode_sparse_mla_dsv4(
            query=q,
            swa_kv_cache=swa.data,
            workspace_buffer=torch.empty(1 << 10, dtype=torch.uint8),
            sparse_indices=table,
            compressed_kv_cache=pool.data,
            sparse_topk_lens=lens,
            seq_lens=seq_lens,
            out=output[:tokens],
            bmm1_scale=0.05,
            bmm2_scale=1.0,
            cum_seq_lens_q=cu,
            max_q_len=7,
        )
        real = torch.where(torch.arange(tokens) < scheduled, lens, 0)
        wanted = attention(q, combined_keys(swa, pool, table, real, window), 0.05)
        check(output[:tokens], wanted)
        assert (output[scheduled:tokens] == 0).all() and output[tokens:].isnan().all()


def test_dsv4_combined_table_of_packed_records_without_lengths(rng):
    """Formats and conventions are independent here; without seq_lens the rows alone say what counts."""
    swa, compressed = Pool(rng, "584", 3, 64), Pool(rng, "584", 9, 2)
    table, lens = dsv4_case(rng, 4, swa, compressed, 11)
    q = query(rng, 4, 9, 512)
    full = torch.full((4,), 128)
    call = {"query": q, "swa_kv_cache": swa.data, "workspace_buffer": None, "sparse_indices": table}
    out = mla.trtllm_batch_decode_sparse_mla_dsv4(
        **call, compressed_kv_cache=compressed.data, sparse_topk_lens=lens, bmm1_scale=0.1
    )
    assert out.shape == (4, 9, 512) and out.dtype == BF16
    check(out, attention(q, combined_keys(swa, compressed, table, lens, full), 0.1))
    short = torch.tensor([0, 5, 127, 130], dtype=torch.int32)  # less than the window: the first of its rows
    out = mla.trtllm_batch_decode_sparse_mla_dsv4(
        **call, compressed_kv_cache=compressed.data, sparse_topk_lens=short, bmm1_scale=0.1
    )
    check(out, attention(q, combined_keys(swa, compressed, table, short, full), 0.1))
    rows, _ = compressed.lists(rng, 4, 11, lengths=False)
    call["sparse_indices"] = torch.cat([table[:, :128], rows], 1)
    out = mla.trtllm_batch_decode_sparse_mla_dsv4(
        **call, compressed_kv_cache=compressed.data, bmm1_scale=0.1, backend="trtllm-gen"
    )
    everything = torch.full((4,), 139)
    check(out, attention(q, combined_keys(swa, compressed, call["sparse_indices"], everything, full), 0.1))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "kind, backend, cut", [("584", "auto", None), ("584", "sparse", 6), ("bf16", "auto", 6)]
)
def test_dsv4_two_lists(rng, kind, backend, cut):
    swa, compressed = Pool(rng, kind, 3, 64, "HND", 576), Pool(rng, kind, 9, 2, "HND", 576)
    tokens, heads = 8, 11
    rows, lengths = swa.lists(rng, tokens, 70)
    extra, extra_lengths = compressed.lists(rng, tokens, 19)
    q, sinks = query(rng, tokens, heads, 512), query(rng, heads, dtype=F32)
    cum = None if cut is None else torch.tensor([1, 0, 3, 0, cut], dtype=torch.int32)[::2]
    stale = torch.full((tokens,), 3, dtype=torch.int32)
    out = mla.batch_decode_sparse_mla_dsv4(
        q, swa.data, None, rows, compressed.data, stale if kind == "584" else None, bmm1_scale=0.1,
        sinks=sinks, cum_seq_lens_q=cum, swa_topk_lens=lengths, extra_sparse_indices=extra,
        extra_sparse_topk_lens=extra_lengths, backend=backend,
    )  # fmt: skip
    keys = [
        np.concatenate([swa.listed(rows[t], lengths[t]), compressed.listed(extra[t], extra_lengths[t])])
        for t in range(tokens)
    ]
    for t in [] if cut is None else [0, *range(cut, tokens)]:  # of no request
        keys[t] = keys[t][:0]
    check(out, attention(q, keys, 0.1, sinks))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, E4M3])
def test_dsv4_two_lists_of_which_one_is_missing(rng, dtype):
    swa = Pool(rng, "584", 3, 64)
    rows, _ = swa.lists(rng, 6, 50, lengths=False)
    q, data = query(rng, 3, 2, 4, 512), swa.data.view(dtype)
    out = mla.trtllm_batch_decode_sparse_mla_dsv4(q, data, None, rows.view(3, 2, 50), data, bmm1_scale=0.1)
    assert out.shape == q.shape
    check(out, attention(q, [swa.listed(row) for row in rows], 0.1))


@pytest.mark.parametrize("kind, layout, backend", [
    ("e4m3", "HND", "cute-dsl"), ("bf16", "NHD", "auto"), ("584", "HND", "cute-dsl"),
])  # fmt: skip
def test_dsv4_pages_of_compressed_entries(rng, kind, layout, backend):
    page, pages, scale = 4, 12, 0.1
    swa = Pool(rng, kind, 4, 32, layout)
    compressed = Pool(rng, kind, pages, page, layout, alive=np.arange(pages * page))
    requests, q_len, heads = 2, 3, 5
    tokens = requests * q_len
    window, window_lengths = swa.lists(rng, tokens, 128)
    tables = torch.from_numpy(rng.integers(0, pages, (tokens, 6)).astype(np.int32))
    tables[:, 4] = torch.tensor([-1, pages, INT_MAX, INT_MIN, 3, 5])  # some of which are no pages
    listed = torch.from_numpy(rng.integers(128, 128 + 6 * page + 1, tokens).astype(np.int32))
    bound = torch.tensor([128 + 9, 128 + 24], dtype=torch.int32)
    visible = torch.minimum(listed, bound.repeat_interleave(q_len)) if backend != "auto" else listed
    keys = []
    for t in range(tokens):
        slots = np.arange(int(visible[t]) - 128)
        rows = tables[t].numpy().astype(np.int64)[slots // page] * page + slots % page
        entries = compressed.values[rows[(rows >= 0) & (rows < compressed.count)]]
        keys.append(np.concatenate([swa.listed(window[t], window_lengths[t]), entries]))
    q = query(rng, requests, q_len, heads, 512, dtype=E4M3 if kind == "e4m3" else BF16)
    sinks = query(rng, heads, dtype=F32)
    out = mla.trtllm_batch_decode_sparse_mla_dsv4(
        q, swa.data, None, compressed_kv_cache=compressed.data, sparse_topk_lens=listed, bmm1_scale=scale,
        sinks=sinks, kv_layout=layout, swa_topk_lens=window_lengths, backend=backend, hca_swa_indices=window,
        hca_compressed_block_tables=tables, hca_seq_lens=None if backend == "auto" else bound,
        hca_use_persistent=True,
    )  # fmt: skip
    check(out, attention(q, keys, scale, sinks))


def test_dsv4_tables_tagged_as_page_aligned_are_combined_tables(rng):
    swa, compressed = Pool(rng, "e4m3", 4, 32), Pool(rng, "e4m3", 9, 16)
    table, lens = dsv4_case(rng, 4, swa, compressed, 32)
    q, seq_lens = query(rng, 2, 2, 7, 512, dtype=E4M3), torch.tensor([60, 900], dtype=torch.int32)
    call = {"query": q, "swa_kv_cache": swa.data, "workspace_buffer": None, "sparse_indices": table,
            "compressed_kv_cache": compressed.data, "sparse_topk_lens": lens, "seq_lens": seq_lens,
            "bmm1_scale": 0.1}  # fmt: skip
    out = mla.trtllm_batch_decode_sparse_mla_dsv4(
        **call, backend="cute-dsl", hca_sparse_indices_format="compressed-page-aligned"
    )
    window = torch.tensor([59, 60, 128, 128])
    check(out, attention(q, combined_keys(swa, compressed, table, lens, window), 0.1))
    assert torch.equal(out, mla.trtllm_batch_decode_sparse_mla_dsv4(**call))


@pytest.mark.parametrize("kind", ["e4m3", "bf16", "584"])
@pytest.mark.parametrize("bmm1", [0.03, torch.tensor([0.03]), torch.tensor(0.03)])
@pytest.mark.parametrize("bmm2", [0.37, 4.0, torch.tensor([0.37]), -1.5, 0.0])
def test_scales_are_numbers_or_tensors(rng, kind, bmm1, bmm2):
    swa, compressed = Pool(rng, kind, 3, 64), Pool(rng, kind, 9, 2)
    table, lens = dsv4_case(rng, 3, swa, compressed, 12)
    q = query(rng, 3, 5, 512, dtype=E4M3 if kind == "e4m3" else BF16)
    sinks = query(rng, 5, dtype=F32)
    out = mla.trtllm_batch_decode_sparse_mla_dsv4(
        q, swa.data, None, table, compressed.data, lens, bmm1_scale=bmm1, bmm2_scale=bmm2, sinks=sinks
    )
    keys = combined_keys(swa, compressed, table, lens, torch.full((3,), 128))
    out_wanted, size, lse = attention(q, keys, 0.03, sinks)
    check(out, (float(bmm2) * out_wanted, abs(float(bmm2)) * size, lse))


def test_a_scale_of_values_reaches_both_pools_of_different_formats(rng):
    swa, compressed = Pool(rng, "e4m3", 3, 64), Pool(rng, "bf16", 9, 2)
    table, lens = dsv4_case(rng, 3, swa, compressed, 12)
    q = query(rng, 3, 5, 512, dtype=F32)
    out = mla.trtllm_batch_decode_sparse_mla_dsv4(
        q, swa.data, None, table, compressed.data, lens, bmm1_scale=0.03, bmm2_scale=0.5
    )
    wanted = attention(q, combined_keys(swa, compressed, table, lens, torch.full((3,), 128)), 0.03)
    check(out, (0.5 * wanted[0], wanted[1], wanted[2]), F32)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["bf16", "e4m3", "584"])
def test_gpu_dsv4_in_a_graph(rng, kind):
    """Nothing synchronises with the host, and a graph follows its tables and lengths."""
    swa, compressed = Pool(rng, kind, 6, 64), Pool(rng, kind, 40, 2)
    cum, heads = torch.tensor([0, 2, 9, 10], dtype=torch.int32), 16
    q = query(rng, 12, heads, 512, dtype=E4M3 if kind == "e4m3" else BF16)
    sinks = query(rng, heads, dtype=F32)
    steps = []
    for seq_lens in ([2, 131, 400], [90, 8, 1]):
        table, lens = dsv4_case(rng, 12, swa, compressed, 40)
        seq_lens = torch.tensor(seq_lens, dtype=torch.int32)
        request = torch.tensor([0] * 2 + [1] * 7 + [2])
        window = (seq_lens[request] - cum[request + 1] + torch.arange(10) + 1).clamp(0, 128)
        window = torch.cat([window, window.new_zeros(2)])
        real = torch.where(torch.arange(12) < 10, lens, 0)
        keys = combined_keys(swa, compressed, table, real, window)
        steps.append(((table, lens, seq_lens), attention(q, keys, 0.05, sinks)))
    given = [on_gpu(value).clone() for value in steps[0][0]]
    fixed = {"sinks": sinks, "cum_seq_lens_q": cum, "bmm1_scale": torch.tensor([0.05])}
    fixed = {name: on_gpu(value) for name, value in {**fixed, "bmm2_scale": torch.tensor([1.0])}.items()}
    call = (on_gpu(q), on_gpu(swa.data), None, given[0], on_gpu(compressed.data), given[1], given[2])
    torch.cuda.set_sync_debug_mode("error")
    try:
        mla.trtllm_batch_decode_sparse_mla_dsv4(*call, **fixed)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.set_sync_debug_mode("default")
        with torch.cuda.graph(graph):
            out = mla.trtllm_batch_decode_sparse_mla_dsv4(*call, **fixed)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for arguments, wanted in reversed(steps):
        for buffer, value in zip(given, arguments, strict=True):
            buffer.copy_(value)
        out.fill_(NAN)
        graph.replay()
        check(out.cpu(), wanted)
