"""What smla.compat.flash_mla promises and refuses, and the metadata of 2025."""

import inspect
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import smla
from flash_mla_world import (
    DEVICES,
    PackedCache,
    attention,
    check,
    i32,
    some_queries,
    some_rows,
    unlisted,
    valid_rows,
)
from smla.compat import flash_mla


def greedy_schedule(lens, parts):
    """FlashMLA's rule, blocks of 64 rows and an overhead of 5: (request, first, end, split) for each part."""
    blocks = [-(-n // 64) for n in lens]
    payload = -(-sum(n + 5 for n in blocks) // parts) + 5
    work, request, block, split = [], 0, 0, 0
    for _ in range(parts):
        left, mine = payload, []
        while request < len(lens):
            rest = blocks[request] - block
            if left >= rest + 5:
                mine.append((request, block, blocks[request], split))
                left -= rest + 5
                request, block, split = request + 1, 0, 0
                continue
            if left > 5:
                mine.append((request, block, block + left - 5, split))
                block, split = block + left - 5, split + 1
            break
        work.append(mine)
    return work


@pytest.mark.parametrize("device", DEVICES)
def test_metadata_now(device):
    for arguments, keywords in (((), {}), ((), {"cache_seqlens": None}), ((), {"topk": 4})):
        meta, splits = flash_mla.get_mla_metadata(*arguments, **keywords)
        assert type(meta) is flash_mla.FlashMLASchedMeta and splits is None
        assert not meta.have_initialized and meta.tile_scheduler_metadata is None and meta.num_splits is None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "b,s_q,heads,topk", [(1, 1, 128, 2048), (1, 5, 16, 2048), (9, 2, 64, 640), (200, 1, 8, 64)]
)
def test_metadata_of_2025_splits_topk_rows(b, s_q, heads, topk, device):
    lens = torch.arange(b, dtype=torch.int32, device=device)  # of no account beside topk
    schedule, splits = flash_mla.get_mla_metadata(lens, s_q * heads, 1, heads, True, topk)
    by_name = flash_mla.get_mla_metadata(
        cache_seqlens=lens,
        num_q_tokens_per_head_k=s_q * heads,
        topk=topk,
        num_heads_q=heads,
        num_heads_k=1,
        is_fp8_kvcache=True,
    )
    assert torch.equal(schedule, by_name[0]) and torch.equal(splits, by_name[1])
    assert schedule.device == splits.device == lens.device
    assert schedule.dtype == splits.dtype == torch.int32
    if device == "cpu":
        assert len(schedule) == max(66 // s_q, 1)  # 132 multiprocessors, two to a query token of 128 heads
    work = greedy_schedule([topk] * b, len(schedule))
    want = [
        [mine[0][0], mine[0][1], mine[-1][0], mine[-1][2], mine[0][3], 0, 0, 0] if mine else [-1] + [0] * 7
        for mine in work
    ]
    assert schedule.tolist() == want
    shares = np.bincount([request for mine in work for request, *_ in mine], minlength=b)
    assert splits.tolist() == [0, *np.cumsum(shares)]


@pytest.mark.parametrize("device", DEVICES)
def test_metadata_of_2025_without_topk_splits_the_lengths(device):
    lens = [4096, 0, 77, 64]
    tensor = i32(lens, device)
    schedule, splits = flash_mla.get_mla_metadata(tensor, 128, 1)
    older, _ = flash_mla.get_mla_metadata(tensor, num_heads_per_head_k=128, num_heads_k=1)
    assert torch.equal(older, schedule)
    if device == "cpu":
        assert schedule.shape == (66, 8)
    shares = np.bincount([r for mine in greedy_schedule(lens, len(schedule)) for r, *_ in mine], minlength=4)
    assert splits.tolist() == [0, *np.cumsum(shares)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_caller_of_2025(device):
    """The decode call of vLLM's first sparse backend: all tokens are one request, by keyword."""
    rng = np.random.default_rng(11)
    tokens, heads, pages, topk = 5, 16, 4, 96
    rows = some_rows(rng, (tokens, topk), pages * 64)
    lists = valid_rows(rows, pages * 64)
    cache = PackedCache(rng, 576, pages, 64, poison=unlisted(pages * 64, lists))
    q = some_queries(rng, tokens, heads, 576)
    schedule, splits = flash_mla.get_mla_metadata(
        cache_seqlens=i32([topk], device),
        num_q_tokens_per_head_k=tokens * heads,
        topk=topk,
        num_heads_q=heads,
        num_heads_k=1,
        is_fp8_kvcache=True,
    )
    out, _ = flash_mla.flash_mla_with_kvcache(
        q=q.to(device).unsqueeze(0),
        k_cache=cache.on(device).squeeze(2).view(torch.uint8).unsqueeze(-2),
        block_table=torch.empty((1, 1), dtype=torch.int32, device=device),
        head_dim_v=512,
        cache_seqlens=i32([3], device),  # shorter than the rows that are listed
        tile_scheduler_metadata=schedule,
        num_splits=splits,
        is_fp8_kvcache=True,
        indices=i32(rows, device).unsqueeze(0),
        softmax_scale=192**-0.5,
    )
    want, _, _, size = attention(np.asarray(q.double()), 192**-0.5, [(cache.values, lists)])
    check(out[0], want, size)


def test_signatures():
    def spelt(function):
        parameters = inspect.signature(function).parameters.values()
        assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        return [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]

    decode_arguments = (
        "q k_cache block_table cache_seqlens head_dim_v tile_scheduler_metadata num_splits=None "
        "softmax_scale=None causal=False is_fp8_kvcache=False indices=None attn_sink=None extra_k_cache=None "
        "extra_indices_in_kvcache=None topk_length=None extra_topk_length=None"
    )
    assert spelt(flash_mla.flash_mla_with_kvcache) == decode_arguments.split()
    prefill_arguments = "q kv indices sm_scale d_v=512 attn_sink=None topk_length=None".split()
    assert spelt(flash_mla.flash_mla_sparse_fwd) == prefill_arguments
    assert spelt(flash_mla.flash_mla_sparse_prefill) == prefill_arguments[:5]


def test_smla_does_not_import_torch_and_the_module_does_not_import_flash_mla():
    program = (
        "import sys, smla; assert 'torch' not in sys.modules\n"
        "import smla.compat; assert 'torch' not in sys.modules\n"
        "from smla.compat import flash_mla; assert 'torch' in sys.modules and 'flash_mla' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}"], check=True)


def test_inputs_stay_as_they_are():
    rng = np.random.default_rng(12)
    cache = PackedCache(rng, 512, 2, 64).on("cpu")
    q, kv = some_queries(rng, 2, 2, 4, 512), some_queries(rng, 9, 1, 512)
    rows, lengths = i32(some_rows(rng, (2, 2, 8), 100), "cpu"), i32([3, 9], "cpu")
    sink, table = torch.randn(4), i32([[1, 0], [0, 1]], "cpu")
    held = [q, kv, rows, lengths, sink, table, cache.as_strided((2, 37440), (37440, 1)).view(torch.uint8)]
    before = [tensor.clone() for tensor in held]
    flash_mla.flash_mla_with_kvcache(
        q, cache, None, None, 512, None, None, 0.1, False, True, rows, sink, cache, rows, lengths, lengths
    )
    flash_mla.flash_mla_with_kvcache(q, cache, table, lengths, 512, None, causal=True, is_fp8_kvcache=True)
    for call in (flash_mla.flash_mla_sparse_fwd, flash_mla.flash_mla_sparse_prefill):
        call(q[0], kv, rows[0][:, None], 0.1)
    assert all(torch.equal(was, now) for was, now in zip(before, held, strict=True))


@pytest.mark.gpu
def test_calls_are_captured_in_a_cuda_graph():
    rng = np.random.default_rng(13)
    rows, lengths = some_rows(rng, (2, 3, 64), 128), i32([64, 9], "cuda")
    cache = PackedCache(rng, 512, 2, 64).on("cuda")
    q = some_queries(rng, 2, 3, 16, 512).cuda()
    indices, table = i32(rows, "cuda"), i32([[0, 1], [1, 0]], "cuda")

    def run():
        sparse = flash_mla.flash_mla_with_kvcache(
            q, cache, None, None, 512, None, is_fp8_kvcache=True, indices=indices, topk_length=lengths
        )
        dense = flash_mla.flash_mla_with_kvcache(
            q, cache, table, lengths, 512, None, causal=True, is_fp8_kvcache=True
        )
        return [*sparse, *dense]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = run()
        q.copy_(some_queries(rng, 2, 3, 16, 512))
        indices.copy_(i32(some_rows(rng, (2, 3, 64), 128), "cuda"))
        graph.replay()
        want = run()
        stream.synchronize()
    assert all(torch.equal(now, then) for now, then in zip(want, captured, strict=True))


def sparse_arguments():
    return {
        "q": torch.ones(2, 3, 4, 576, dtype=torch.bfloat16),
        "k_cache": torch.zeros(2, 8, 1, 656, dtype=torch.uint8),
        "block_table": None,
        "cache_seqlens": None,
        "head_dim_v": 512,
        "tile_scheduler_metadata": flash_mla.FlashMLASchedMeta(),
        "is_fp8_kvcache": True,
        "indices": torch.zeros(2, 3, 5, dtype=torch.int32),
    }


ONES = torch.ones(2, 3, 5, dtype=torch.int32)


REFUSALS = [
    ({"q": torch.ones(2, 3, 4, 576, dtype=torch.float64)}, "q.dtype"),
    ({"q": torch.ones(6, 4, 576, dtype=torch.bfloat16)}, "q.shape"),
    ({"q": np.ones((2, 3, 4, 576))}, "q"),
    ({"q": torch.ones(2, 3, 4, 512, dtype=torch.bfloat16)}, "k_cache.shape[-1]"),
    ({"k_cache": None}, "k_cache"),
    ({"k_cache": torch.zeros(2, 8, 1, 656, dtype=torch.float16)}, "k_cache.dtype"),
    ({"k_cache": torch.zeros(2, 8, 2, 656, dtype=torch.uint8)}, "k_cache.shape"),
    ({"k_cache": torch.zeros(2, 8, 656, dtype=torch.uint8)}, "k_cache.shape"),
    ({"k_cache": torch.zeros(2, 8, 1, 584, dtype=torch.uint8)}, "k_cache.shape[-1]"),
    ({"k_cache": torch.zeros(2, 8, 1, 528, dtype=torch.uint8)}, "k_cache.shape[-1]"),
    (
        {"q": torch.ones(2, 3, 4, 512).bfloat16(), "k_cache": torch.zeros(2, 8, 1, 528, dtype=torch.uint8)},
        "k_cache.shape[-1]",
    ),
    ({"k_cache": torch.zeros(2, 8, 1, 700, dtype=torch.uint8)[..., :656]}, "k_cache.stride"),
    ({"k_cache": torch.zeros(2, 8, 1, 576, dtype=torch.bfloat16)}, "is_fp8_kvcache"),
    ({"is_fp8_kvcache": False}, "is_fp8_kvcache"),
    ({"is_fp8_kvcache": False, "k_cache": torch.zeros(2, 8, 1, 512).bfloat16()}, "k_cache.shape[-1]"),
    ({"head_dim_v": 577}, "head_dim_v"),
    ({"head_dim_v": 0}, "head_dim_v"),
    ({"head_dim_v": None}, "head_dim_v"),
    ({"tile_scheduler_metadata": 0.1}, "tile_scheduler_metadata"),
    ({"num_splits": 3}, "num_splits"),
    ({"causal": True}, "causal"),
    ({"indices": ONES.long()}, "indices.dtype"),
    ({"indices": ONES[0]}, "indices.shape"),
    ({"indices": ONES.transpose(0, 1)}, "indices.shape"),
    ({"topk_length": torch.ones(2)}, "topk_length.dtype"),
    ({"topk_length": ONES[0, 0, :3]}, "topk_length.shape"),
    ({"topk_length": ONES[:, :2, 0]}, "topk_length.shape"),
    ({"topk_length": 5}, "topk_length"),
    ({"attn_sink": torch.ones(5)}, "attn_sink.shape"),
    ({"attn_sink": torch.ones(4).bfloat16()}, "attn_sink.dtype"),
    ({"attn_sink": torch.ones(4, device="meta")}, "attn_sink.device"),
    ({"extra_k_cache": torch.zeros(2, 8, 1, 656, dtype=torch.uint8)}, "extra_indices_in_kvcache"),
    ({"extra_indices_in_kvcache": ONES}, "extra_indices_in_kvcache"),
    ({"extra_topk_length": ONES[:, 0, 0]}, "extra_topk_length"),
    ({"indices": None}, "block_table"),
    ({"indices": None, "block_table": ONES[0]}, "block_table.shape"),
    ({"indices": None, "block_table": ONES[0, :2]}, "cache_seqlens"),
    ({"indices": None, "block_table": ONES[0, :2], "cache_seqlens": torch.ones(2)}, "cache_seqlens.dtype"),
    ({"indices": None, "topk_length": ONES[:, 0, 0]}, "topk_length"),
    ({"indices": None, "extra_k_cache": ONES}, "extra_k_cache"),
    ({"softmax_scale": 0.0}, "softmax_scale"),
]


@pytest.mark.parametrize("change,field", REFUSALS, ids=lambda value: value if isinstance(value, str) else "")
def test_refusals_of_decode_name_the_argument(change, field):
    with pytest.raises((smla.InvalidArgument, smla.Unsupported)) as caught:
        flash_mla.flash_mla_with_kvcache(**{**sparse_arguments(), **change})
    assert caught.value.field.split("args.")[-1] == field
    assert caught.value.got and caught.value.wanted and field in str(caught.value)


@pytest.mark.parametrize(
    "change,field",
    [
        ({"q": torch.ones(3, 4, 576)[..., ::2]}, "kv.shape[-1]"),
        ({"kv": torch.zeros(9, 576).bfloat16()}, "kv.shape"),
        ({"kv": torch.zeros(9, 2, 576).bfloat16()}, "kv.shape"),
        ({"kv": torch.zeros(9, 1, 576).half()}, "kv.dtype"),
        ({"kv": torch.zeros(9, 1, 1152).bfloat16()[..., ::2]}, "kv.stride"),
        ({"indices": ONES[:, 0]}, "indices.shape"),
        ({"indices": ONES[0][:, None].long()}, "indices.dtype"),
        ({"indices": torch.ones(4, 1, 5, dtype=torch.int32)}, "indices.shape"),
        ({"d_v": 600}, "d_v"),
        ({"topk_length": ONES[0, 0]}, "topk_length.shape"),
        ({"attn_sink": torch.ones(3)}, "attn_sink.shape"),
        ({"sm_scale": -1.0}, "softmax_scale"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals_of_prefill_name_the_argument(change, field):
    arguments = {
        "q": torch.ones(3, 4, 576, dtype=torch.bfloat16),
        "kv": torch.zeros(9, 1, 576, dtype=torch.bfloat16),
        "indices": torch.zeros(3, 1, 5, dtype=torch.int32),
        "sm_scale": 0.1,
    }
    with pytest.raises((smla.InvalidArgument, smla.Unsupported)) as caught:
        flash_mla.flash_mla_sparse_fwd(**{**arguments, **change})
    assert caught.value.field.split("args.")[-1] == field


@pytest.mark.parametrize(
    "arguments,field",
    [
        (([4],), "cache_seqlens"),
        ((torch.ones(2),), "cache_seqlens.dtype"),
        ((torch.ones(2, dtype=torch.int32),), "num_q_tokens_per_head_k"),
        ((torch.ones(2, dtype=torch.int32), 0, 1), "num_q_tokens_per_head_k"),
        ((torch.ones(2, dtype=torch.int32), 8, 0), "num_heads_k"),
        ((torch.ones(2, dtype=torch.int32), 8, 1, 0, True, 64), "num_heads_q"),
        ((-torch.ones(2, dtype=torch.int32), 8, 1), "lens[0]"),
    ],
)
def test_refusals_of_metadata(arguments, field):
    with pytest.raises(smla.InvalidArgument) as caught:
        flash_mla.get_mla_metadata(*arguments)
    assert caught.value.field.split("args.")[-1] == field


def test_gradients_are_refused():
    arguments = sparse_arguments()
    arguments["q"].requires_grad_()
    with pytest.raises(smla.Unsupported, match="no_grad"):
        flash_mla.flash_mla_with_kvcache(**arguments)
    with torch.no_grad():
        flash_mla.flash_mla_with_kvcache(**arguments)
