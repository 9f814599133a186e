"""The wrapper and the V3.2 call of smla.compat.flashinfer, and where names are imported from."""

import inspect
import math
import os
import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from flashinfer_world import BF16, E4M3, F32, NAN, Pool, attention, check, on_gpu, poisoned, query
from flashinfer_world import rng as rng
from smla.compat import flashinfer
from smla.compat.flashinfer import mla

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def check_lse(got, wanted, atol=2e-5):
    np.testing.assert_allclose(got.double().numpy().reshape(wanted[2].shape), wanted[2], rtol=1e-6, atol=atol)


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


@pytest.mark.gpu
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
