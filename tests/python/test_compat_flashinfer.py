"""The attention calls of smla.compat.flashinfer against attention in double precision, with hostile inputs:
NaN in every row that must not be read, in slot 0 and between pages; holes anywhere; whatever behind a length.
"""

import inspect
import math
import os
import subprocess
import sys
import zlib

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from smla.compat import flashinfer  # noqa: E402
from smla.compat.flashinfer import mla  # noqa: E402

BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
NAN = float("nan")
INT_MAX, INT_MIN = 2**31 - 1, -(2**31)
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
WIDTHS = {"656": 576, "584": 512, "528": 512}


# ------------------------------------------------------------------------------------------- pools and lists


class Pool:
    """A pool in one of the field's formats, written byte by byte here, and its rows in double precision.

    Rows that are not alive (by default half of them, row 0 too) hold NaN, and every gap between pages.
    shape: "3", "HND", "NHD", "2" (rows), "pages" ([pages,bytes of a page]). gap: further bytes between pages.
    """

    def __init__(self, rng, kind, pages, page, shape="3", gap=0, width=None, alive=None):
        self.kind, self.page, self.count = kind, page, pages * page
        self.width = width or WIDTHS.get(kind, 512)
        half = rng.permutation(np.arange(1, self.count))[: max(1, self.count // 2)]
        self.alive = half if alive is None else alive
        self.values = np.full((self.count, self.width), NAN)
        write = getattr(self, f"_write_{kind}", None)
        records = write(rng, pages, page) if write else self._write_rows(pages, rng)  # [pages,bytes]
        stride = records.shape[1] + gap
        memory = torch.full((pages * stride,), 0xFF, dtype=torch.uint8)
        memory.as_strided(records.shape, (stride, 1)).copy_(torch.from_numpy(records))
        self.data = self._shaped(memory, pages, page, stride, shape)

    def _shaped(self, memory, pages, page, stride, shape):
        dtype = {"bf16": BF16, "f32": F32, "e4m3": E4M3}.get(self.kind, torch.uint8)
        if shape == "pages":
            return memory.as_strided((pages, stride), (stride, 1))
        item = dtype.itemsize
        last = int(self.kind) if self.kind in WIDTHS else self.width
        three = memory.view(dtype).as_strided((pages, page, last), (stride // item, last, 1))
        head = {"HND": 1, "NHD": 2}.get(shape)
        return three.flatten(0, 1) if shape == "2" else three if head is None else three.unsqueeze(head)

    def _write_rows(self, pages, rng):
        """Plain rows: values of one type."""
        dtype = {"bf16": BF16, "f32": F32, "e4m3": E4M3}[self.kind]
        rows = torch.full((self.count, self.width), NAN)
        rows[self.alive] = torch.from_numpy(rng.standard_normal((len(self.alive), self.width))).float()
        rows = rows.to(dtype)
        self.values[:] = rows.double().numpy()
        return rows.contiguous().view(torch.uint8).reshape(pages, -1).numpy().copy()

    def _codes(self, rng, count):
        """Random e4m3 bytes without NaN, and their values."""
        codes = rng.integers(0, 256, (len(self.alive), count), dtype=np.uint8)
        codes[(codes & 0x7F) == 0x7F] = 0
        return codes, torch.from_numpy(codes).view(E4M3).double().numpy()

    def _rope(self, rng):
        rope = torch.from_numpy(rng.standard_normal((len(self.alive), 64))).to(BF16)
        return rope.view(torch.uint8).numpy(), rope.double().numpy()

    def _write_656(self, rng, pages, page):
        """512 codes, 4 f32 scales that are no powers of two, 64 bf16."""
        record = np.full((self.count, int(self.kind)), 0xFF, np.uint8)
        codes, values = self._codes(rng, 512)
        scales = rng.uniform(0.001, 0.01, (len(self.alive), 4)).astype(np.float32)
        record[self.alive, :512] = codes
        record[self.alive, 512:528] = scales.view(np.uint8)
        self.values[self.alive, :512] = values * np.repeat(scales.astype(np.float64), 128, axis=1)
        if self.kind == "656":
            record[self.alive, 528:], self.values[self.alive, 512:] = self._rope(rng)
        return record.reshape(pages, -1)

    _write_528 = _write_656

    def _write_584(self, rng, pages, page):
        """Per page: rows of 448 codes and 64 bf16, then 7 exponents and a zero of each; padded to 576."""
        size = -(-page * 584 // 576) * 576
        pages_ = np.full((pages, size), 0xFF, np.uint8)
        codes, values = self._codes(rng, 448)
        exponents = rng.integers(118, 123, (len(self.alive), 7), dtype=np.uint8)
        rope, rope_values = self._rope(rng)
        scales = 2.0 ** (exponents.astype(int) - 127)
        self.values[self.alive, :448] = values * np.repeat(scales, 64, axis=1)
        self.values[self.alive, 448:] = rope_values
        for i, row in enumerate(self.alive):
            at, offset = divmod(row, page)
            pages_[at, offset * 576 : offset * 576 + 448] = codes[i]
            pages_[at, offset * 576 + 448 : (offset + 1) * 576] = rope[i]
            pages_[at, page * 576 + offset * 8 : page * 576 + offset * 8 + 8] = [*exponents[i], 0]
        return pages_

    def lists(self, rng, tokens, columns, holes=0.2, lengths=True):
        """[T,K] alive rows with holes of every kind, and lengths [T] or None, behind which all are dead."""
        rows = rng.choice(self.alive, (tokens, columns)).astype(np.int64)
        rows[rng.random(rows.shape) < holes] = -1
        wrong = [-1, INT_MIN, self.count, INT_MAX]
        odd = rng.random(rows.shape) < holes / 3
        rows[odd] = rng.choice(wrong, odd.sum())
        if not lengths:
            return torch.from_numpy(rows.astype(np.int32)), None
        lengths = rng.integers(0, columns + 1, tokens)
        lengths[rng.random(tokens) < 0.2] = 0
        behind = np.arange(columns) >= lengths[:, None]
        rows[behind] = rng.choice([0, 0, *wrong], behind.sum())  # slot 0 holds NaN
        return torch.from_numpy(rows.astype(np.int32)), torch.from_numpy(lengths.astype(np.int32))

    def listed(self, rows, length=None):
        """The valid rows of one token's list, in double precision."""
        rows = rows.numpy() if length is None else rows.numpy()[: max(0, int(length))]
        return self.values[rows[(rows >= 0) & (rows < self.count)]]


def query(rng, *shape, dtype=BF16):
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def attention(q, keys, scale, sinks=None, values=512):
    """out [T,H,Dv], its bound (sum of p |v|), and lse in base 2 with the sink, in double precision."""
    q = q.flatten(0, 1) if q.ndim == 4 else q
    tokens, heads, _ = q.shape
    out, size = np.zeros((2, tokens, heads, values))
    lse = np.full((tokens, heads), -1e30)
    sink = np.full(heads, -np.inf) if sinks is None else sinks.double().numpy()
    for t in range(tokens):
        logits = scale * q[t].double().numpy() @ keys[t].T
        total = np.logaddexp(np.logaddexp.reduce(logits, axis=1, initial=-np.inf), sink)
        weights = np.exp(logits - np.where(np.isinf(total), 0, total)[:, None]) * (total < np.inf)[:, None]
        out[t] = weights @ keys[t][:, :values]
        size[t] = weights @ np.abs(keys[t][:, :values])
        lse[t] = np.maximum(total / np.log(2), -1e30)
    return out, size, lse


def check(got, wanted, dtype=BF16, slack=1):
    """got within what four roundings to bf16 (weights, result, scale) or sums in f32 may do, and no NaN."""
    out, size, _ = wanted
    bound = slack * (2.0**-7 if dtype in (BF16, E4M3) else 2.0**-17) * size + 1e-30
    error = np.abs(got.double().numpy().reshape(out.shape) - out)
    assert (error <= bound).all(), f"{error.max()}, {np.nanmax(error / bound)} of the bound"


def check_lse(got, wanted, atol=2e-5):
    np.testing.assert_allclose(got.double().numpy().reshape(wanted[2].shape), wanted[2], rtol=1e-6, atol=atol)


def poisoned(*shape, dtype=BF16):
    return torch.full(shape, NAN, dtype=dtype)


@pytest.fixture
def rng(request):
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


# ------------------------------------------------------------------------------------------------ signatures

DSV4 = (
    "query swa_kv_cache workspace_buffer sparse_indices=None compressed_kv_cache=None sparse_topk_lens=None "
    "seq_lens=None out=None bmm1_scale=1.0 bmm2_scale=1.0 sinks=None kv_layout='HND' "
    "cum_seq_lens_q=None max_q_len=None enable_pdl=None swa_topk_lens=None "
    "extra_sparse_indices=None extra_sparse_topk_lens=None backend='auto' hca_swa_indices=None "
    "hca_compressed_block_tables=None hca_seq_lens=None hca_is_causal=True hca_use_persistent=False "
    "hca_sparse_indices_format=None"
)
V32 = (
    "query kv_cache workspace_buffer qk_nope_head_dim kv_lora_rank qk_rope_head_dim block_tables seq_lens "
    "max_seq_len sparse_mla_top_k=0 out=None bmm1_scale=1.0 bmm2_scale=1.0 sinks=None "
    "skip_softmax_threshold_scale_factor=None enable_pdl=None backend='auto' is_var_seq=True "
    "uses_shared_paged_kv_idx=True lse=None return_lse=False cute_dsl_impl='auto' kv_scale_format='auto' "
    "cum_seq_lens_q=None max_q_len=None multi_ctas_kv_counter_buffer=None sparse_mla_top_k_lens=None "
    "enable_dcp=False cp_world=1 cp_rank=0 causal_seqlens_kv_global=None use_fp16_softmax=None"
)
WRAPPER = flashinfer.BatchSparseMLAPagedAttentionWrapper
RUN = (
    "self q kv_cache indices output sm_scale * topk_length=None attn_sink=None extra_kv_cache=None "
    "extra_indices=None extra_topk_length=None return_lse=False"
)
TABLE = (
    "input src_page_table lengths k row_to_batch=None deterministic=False tie_break=0 dsa_graph_safe=False "
    "row_starts=None page_table_row_starts=None * page_size=1 out=None out_raw_indices=None"
)


@pytest.mark.parametrize(
    "call, wanted",
    [
        (mla.trtllm_batch_decode_sparse_mla_dsv4, DSV4),
        (mla.trtllm_batch_decode_with_kv_cache_mla, V32),
        (WRAPPER.__init__, "self max_num_tokens max_num_heads * d_v=512 device=None"),
        (WRAPPER.run, RUN),
        (flashinfer.top_k, "input k sorted=False deterministic=False tie_break=0 dsa_graph_safe=False"),
        (flashinfer.top_k_page_table_transform, TABLE),
        (
            flashinfer.top_k_ragged_transform,
            "input offsets lengths k deterministic=False tie_break=0 dsa_graph_safe=False row_starts=None",
        ),
    ],
)
def test_signatures_are_those_of_the_original(call, wanted):
    got, keyword_only = [], False
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            got.append("*")
        default = parameter.default
        default = int(default) if isinstance(default, flashinfer.TopKTieBreak) else default
        got.append(parameter.name if default is parameter.empty else f"{parameter.name}={default!r}")
    assert " ".join(got) == wanted


def test_names_are_where_engines_import_them_from():
    from smla.compat.flashinfer import decode, sparse_mla_sm120, topk

    assert mla.batch_decode_sparse_mla_dsv4 is mla.trtllm_batch_decode_sparse_mla_dsv4
    assert decode.trtllm_batch_decode_sparse_mla_dsv4 is mla.trtllm_batch_decode_sparse_mla_dsv4
    assert decode.trtllm_batch_decode_with_kv_cache_mla is mla.trtllm_batch_decode_with_kv_cache_mla
    assert flashinfer.BatchSparseMLAPagedAttentionWrapper is mla.BatchSparseMLAPagedAttentionWrapper
    assert sparse_mla_sm120.BatchSparseMLAPagedAttentionWrapper is mla.BatchSparseMLAPagedAttentionWrapper
    assert flashinfer.top_k is topk.top_k is topk.topk
    assert flashinfer.mla is mla and flashinfer.topk is topk


def test_the_package_stands_in_for_the_original():
    """In place of flashinfer for code that is not edited: modules load again, under the original's names."""
    code = (
        "import sys, smla.compat.flashinfer; sys.modules['flashinfer'] = smla.compat.flashinfer\n"
        "from flashinfer.mla import trtllm_batch_decode_sparse_mla_dsv4 as call\n"
        "from flashinfer.decode import trtllm_batch_decode_with_kv_cache_mla\n"
        "from flashinfer import BatchSparseMLAPagedAttentionWrapper, top_k_page_table_transform\n"
        "import flashinfer.sparse_mla_sm120, flashinfer.topk, torch\n"
        "assert call is smla.compat.flashinfer.mla.trtllm_batch_decode_sparse_mla_dsv4\n"
        "print(flashinfer.topk.top_k(torch.tensor([[1., 3., 2.]]), 2)[1].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (0, "[[1, 2]]\n"), done.stderr


# --------------------------------------------------------------------------------------------------- wrapper


@pytest.mark.parametrize("tokens, heads, columns, page", [(3, 8, 128, 64), (70, 5, 33, 64), (1, 128, 200, 7)])
def test_wrapper_v32_as_its_backend_calls_it(rng, tokens, heads, columns, page):
    pool = Pool(rng, "656", 5, page)
    q = query(rng, tokens, heads, 576)
    indices, _ = pool.lists(rng, tokens, columns, lengths=False)
    wrapper = flashinfer.BatchSparseMLAPagedAttentionWrapper(max_num_tokens=100, max_num_heads=heads, d_v=512)
    output = poisoned(tokens, heads, 512)
    returned = wrapper.run(
        q=q, kv_cache=pool.data.unsqueeze(-2), indices=indices, output=output, sm_scale=192**-0.5
    )
    assert returned is None
    check(output, attention(q, [pool.listed(row) for row in indices], 192**-0.5))


@pytest.mark.parametrize("window, entries, swa_only", [(128, 512, False), (9, 13, False), (128, 0, True)])
def test_wrapper_v4_as_its_backend_calls_it(rng, window, entries, swa_only):
    tokens, heads, scale = 9, 16, 512**-0.5
    swa, compressed = Pool(rng, "584", 4, 64, gap=576), Pool(rng, "584", 40, 2)
    q = query(rng, tokens, 1, heads, 512)
    indices, lengths = swa.lists(rng, tokens, window)
    extra, extra_lengths = compressed.lists(rng, tokens, entries)
    sink = query(rng, heads, dtype=F32)
    sink[:3] = torch.tensor([math.inf, -math.inf, 30.0])
    second = {} if swa_only else {
        "extra_kv_cache": compressed.data.unsqueeze(-2),
        "extra_indices": extra[:, None],
        "extra_topk_length": extra_lengths,
    }  # fmt: skip
    wrapper = flashinfer.BatchSparseMLAPagedAttentionWrapper(tokens, 20)
    output = poisoned(tokens, heads, 512)
    lse = wrapper.run(
        q=q,
        kv_cache=swa.data.unsqueeze(-2),
        indices=indices[:, None],
        output=output,
        sm_scale=scale,
        topk_length=lengths,
        attn_sink=sink,
        return_lse=True,
        **second,
    )
    keys = [swa.listed(indices[t], lengths[t]) for t in range(tokens)]
    if not swa_only:
        listed = [compressed.listed(extra[t], extra_lengths[t]) for t in range(tokens)]
        keys = list(map(np.concatenate, zip(keys, listed, strict=True)))
    wanted = attention(q, keys, scale, sink)
    check(output, wanted)
    assert lse.shape == (tokens, heads) and lse.dtype == F32
    finite = wanted[2] < np.inf
    check_lse(torch.where(torch.from_numpy(finite), lse, 0), (None, None, np.where(finite, wanted[2], 0)))
    assert (lse[:, 0] == math.inf).all() and (output[:, 0] == 0).all()  # a sink of +inf takes all


def test_wrapper_lse_of_tokens_without_rows(rng):
    pool = Pool(rng, "f32", 2, 8)
    rows = torch.tensor([[-1, 0, 3], [-5, -1, 99], [int(pool.alive[0]), -1, -1]], dtype=torch.int32)
    lengths = torch.tensor([0, 3, 3], dtype=torch.int32)
    q, output = query(rng, 3, 4, 512, dtype=F32), poisoned(3, 4, 512, dtype=F32)
    wrapper = flashinfer.BatchSparseMLAPagedAttentionWrapper(8, 4)
    run = {"topk_length": lengths, "return_lse": True}
    lse = wrapper.run(q, pool.data, rows, output, 0.1, **run)
    assert (lse[:2] == -1e30).all() and (output[:2] == 0).all()
    check_lse(lse, attention(q, [pool.listed(rows[t], lengths[t]) for t in range(3)], 0.1))
    sink = torch.tensor([0.5, -2.0, 7.0, -math.inf])
    lse = wrapper.run(q, pool.data, rows, output, 0.1, attn_sink=sink, **run)
    wanted = torch.where(sink.isinf(), -1e30, sink / math.log(2))
    torch.testing.assert_close(lse[:2], wanted.expand(2, 4))
    assert (output[:2] == 0).all()


@pytest.mark.parametrize("kind, shape, width", [
    ("656", "3", 576), ("656", "HND", 576), ("656", "pages", 576), ("584", "pages", 512), ("584", "NHD", 512),
    ("528", "3", 512), ("bf16", "3", 576), ("bf16", "2", 512), ("f32", "HND", 576), ("f32", "2", 40),
    ("e4m3", "3", 576), ("e4m3", "2", 512), ("e4m3", "NHD", 512),
])  # fmt: skip
def test_wrapper_takes_pools_of_every_format_and_shape(rng, kind, shape, width):
    pool = Pool(rng, kind, 6, 5, shape, gap=0 if shape == "2" or kind == "584" else 48, width=width)
    if kind == "656" and shape == "pages":  # pages are whole numbers of records
        pool.data = pool.data[:, : 5 * 656]
    tokens, heads, values = 4, 3, min(512, width)
    q = query(rng, tokens, heads, width, dtype=F32 if kind == "f32" else BF16)
    rows, lengths = pool.lists(rng, tokens, 21)
    output = poisoned(tokens, heads, values, dtype=q.dtype)
    wrapper = flashinfer.BatchSparseMLAPagedAttentionWrapper(8, 8, d_v=values)
    wrapper.run(q, pool.data, rows, output, torch.tensor([0.05]), topk_length=lengths)
    wanted = attention(q, [pool.listed(rows[t], lengths[t]) for t in range(tokens)], 0.05, values=values)
    check(output, wanted, q.dtype)


def test_wrapper_takes_strided_views_and_other_types(rng):
    pool = Pool(rng, "f32", 3, 11)
    tokens, heads = 6, 7
    q = query(rng, tokens, 2 * heads, 600, dtype=F32)[:, ::2, 50:562]
    rows, lengths = pool.lists(rng, tokens, 30)
    wide = torch.full((tokens, 90), 0, dtype=torch.int32)
    wide[:, ::3] = rows
    output = poisoned(tokens, heads, 2, 512, dtype=torch.float16)[:, :, 1]
    wrapper = flashinfer.BatchSparseMLAPagedAttentionWrapper(tokens, heads, device="cpu")
    wrapper.run(q, pool.data, wide[:, ::3], output, 0.1, topk_length=lengths.repeat_interleave(2)[::2])
    wanted = attention(q, [pool.listed(rows[t], lengths[t]) for t in range(tokens)], 0.1)
    error = np.abs(output.double().numpy() - wanted[0])
    assert (error <= 2.0**-10 * wanted[1] + 1e-6).all()


def test_wrapper_takes_queries_and_outputs_of_four_dimensions(rng):
    pool = Pool(rng, "bf16", 3, 11)
    q = query(rng, 3, 2, 4, 512)
    rows, lengths = pool.lists(rng, 6, 30)
    wanted = attention(q, [pool.listed(rows[t], lengths[t]) for t in range(6)], 0.1)
    wrapper = flashinfer.BatchSparseMLAPagedAttentionWrapper(6, 4)
    for output in (poisoned(6, 4, 512), poisoned(3, 2, 4, 512)):
        lists = {"indices": rows.view(3, 2, 30), "topk_length": lengths.view(3, 2)}
        wrapper.run(q, pool.data, output=output, sm_scale=0.1, **lists)
        check(output, wanted)


def test_nothing_to_do_is_done(rng):
    pool, empty = Pool(rng, "584", 2, 64), torch.empty(0, 64, 584, dtype=torch.uint8)
    wrapper = flashinfer.BatchSparseMLAPagedAttentionWrapper(8, 8)
    rows = torch.zeros(0, 12, dtype=torch.int32)
    lse = wrapper.run(poisoned(0, 4, 512), pool.data, rows, poisoned(0, 4, 512), 0.1, return_lse=True)
    assert lse.shape == (0, 4)
    for data, listed in ((pool.data, rows.new_zeros(3, 0)), (empty, rows.new_zeros(3, 5))):
        output = poisoned(3, 4, 512)
        wrapper.run(query(rng, 3, 4, 512), data, listed, output, 0.1)
        assert (output == 0).all()


# ------------------------------------------------------------------------------------------------------ DSv4


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


# ---------------------------------------------------------------------------------------------------- scales


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


# ------------------------------------------------------------------------------------------------------- V32


def v32(q, pool, tables, **more):
    rope = pool.width - min(512, pool.width)
    return mla.trtllm_batch_decode_with_kv_cache_mla(
        q, pool.data, torch.empty(8, dtype=torch.int8), 128, pool.width - rope, rope, tables,
        more.pop("seq_lens", None), tables.shape[-1], tables.shape[-1], **more,
    )  # fmt: skip


@pytest.mark.parametrize("kind, width, shape, scales", [
    ("656", 576, "3", "auto"), ("656", 576, "HND", "arbitrary_fp32"), ("528", 512, "HND", "pow2_fp32"),
    ("bf16", 576, "HND", "auto"), ("e4m3", 576, "3", "auto"), ("e4m3", 512, "2", "auto"),
    ("f32", 320, "3", "auto"),
])  # fmt: skip
def test_v32_formats(rng, kind, width, shape, scales):
    pool = Pool(rng, kind, 4, 32, shape, gap=0 if shape == "2" else 64, width=width)
    requests, q_len, heads, k = 3, 2, 9, 21
    dtype = {"e4m3": E4M3, "f32": F32}.get(kind, BF16)
    q = query(rng, requests, q_len, heads, width, dtype=dtype)
    tables, lengths = pool.lists(rng, requests * q_len, k)
    sinks = query(rng, heads, dtype=F32)
    out, lse = v32(
        q, pool, tables.view(requests, q_len, k), seq_lens=lengths, bmm1_scale=0.05, sinks=[sinks],
        kv_scale_format=scales, return_lse=True,
    )  # fmt: skip
    values = min(512, width)
    keys = [pool.listed(tables[t], lengths[t]) for t in range(len(tables))]
    wanted = attention(q, keys, 0.05, sinks, values)
    assert out.shape == (requests, q_len, heads, values) and lse.shape == (requests * q_len, heads)
    assert out.dtype == (F32 if kind == "f32" else BF16)
    check(out, wanted, dtype)
    check_lse(lse, wanted)


@pytest.mark.parametrize("form", ["none", "per_token", "flat", "per_request", "cum", "top_k_lens"])
def test_v32_bounds_of_the_lists(rng, form):
    pool = Pool(rng, "f32", 4, 16)
    requests, q_len, heads, k = 3, 2, 2, 15
    tokens = requests * q_len
    q = query(rng, requests, q_len, heads, 512, dtype=F32)
    of_request = torch.tensor([7, 0, 40], dtype=torch.int32)
    cum = torch.tensor([0, 1, 5, 5], dtype=torch.int32)
    tables, lengths = pool.lists(rng, tokens, k)
    if form in ("none", "per_request", "cum"):
        tables, lengths = pool.lists(rng, tokens, k, lengths=False)[0], torch.full((tokens,), k)
    if form == "per_request":
        lengths = of_request.repeat_interleave(q_len)
    if form == "cum":
        lengths = torch.tensor([7, 0, 0, 0, 0, 0])
    more = {
        "none": {},
        "per_token": {"seq_lens": lengths.view(requests, q_len)},
        "flat": {"seq_lens": lengths},
        "per_request": {"seq_lens": of_request},
        "cum": {"seq_lens": of_request, "cum_seq_lens_q": cum, "max_q_len": 4},
        "top_k_lens": {"seq_lens": of_request, "sparse_mla_top_k_lens": lengths},
    }[form]
    if form == "cum":
        q = q.flatten(0, 1)
    out = v32(q, pool, tables.view(*q.shape[:-2], k), bmm1_scale=0.1, **more)
    check(out, attention(q, [pool.listed(tables[t], lengths[t]) for t in range(tokens)], 0.1), F32)


@pytest.mark.parametrize("nested", [False, True])
def test_v32_fills_the_buffers_it_is_given(rng, nested):
    pool = Pool(rng, "f32", 4, 16)
    q = query(rng, 3, 2, 4, 512, dtype=F32)
    tables, _ = pool.lists(rng, 6, 9, lengths=False)
    out = poisoned(3, 2, 4, 512, dtype=torch.float16)
    lse = poisoned(*((3, 2) if nested else (6,)), 4, dtype=F32)
    returned = v32(q, pool, tables.view(3, 2, 9), bmm1_scale=0.1, out=out, lse=lse, return_lse=True)
    assert returned[0] is out and returned[1] is lse
    wanted = attention(q, [pool.listed(row) for row in tables], 0.1)
    check_lse(lse, wanted)
    check(out, wanted)
    lse.fill_(NAN)
    assert v32(q, pool, tables.view(3, 2, 9), bmm1_scale=0.1, bmm2_scale=-2.0, out=out, lse=lse) is out
    assert lse.isnan().all()
    check(out, (-2 * wanted[0], 2 * wanted[1], None))


# ------------------------------------------------------------------------------------------------------- GPU


def on_gpu(value):
    return value.cuda() if isinstance(value, torch.Tensor) else value


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", ["656", "e4m3"])
def test_gpu_wrapper_and_v32(rng, kind):
    pool = Pool(rng, kind, 8, 64, width=576)
    q, sinks = query(rng, 7, 16, 576), query(rng, 16, dtype=F32)
    rows, lengths = pool.lists(rng, 7, 100)
    wanted = attention(q, [pool.listed(rows[t], lengths[t]) for t in range(7)], 0.05, sinks)
    output = on_gpu(poisoned(7, 16, 512))
    wrapper = flashinfer.BatchSparseMLAPagedAttentionWrapper(100, 16)
    more = {"topk_length": on_gpu(lengths), "attn_sink": on_gpu(sinks), "return_lse": True}
    lse = wrapper.run(on_gpu(q), on_gpu(pool.data), on_gpu(rows), output, 0.05, **more)
    check(output.cpu(), wanted, slack=2)  # keys are rounded to bf16 there
    check_lse(lse.cpu(), wanted, atol=2e-2)
    pool.data = on_gpu(pool.data)
    out = v32(on_gpu(q), pool, on_gpu(rows), seq_lens=on_gpu(lengths), bmm1_scale=0.05, sinks=on_gpu(sinks))
    check(out.cpu(), wanted, slack=2)
