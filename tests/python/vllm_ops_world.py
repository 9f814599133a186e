"""Random batches, tables and rows for the tests of smla.compat.vllm_ops, and plain loops over them."""

import pytest

torch = pytest.importorskip("torch")

from smla.compat import vllm_ops as ops

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


E4M3 = torch.float8_e4m3fn


@pytest.fixture(params=range(4))
def rng(request):
    return torch.Generator().manual_seed(request.param)


def ints(rng, low, high, *shape):
    return torch.randint(low, high, shape, generator=rng, dtype=torch.int32)


def normal(rng, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=rng).to(dtype)


def with_holes(rng, rows, share=0.2):
    return torch.where(torch.rand(rows.shape, generator=rng) < share, -1, rows)


def view_of(tensor, fill):
    """The same values as a strided view inside memory that holds `fill`."""
    wide = torch.full(
        (*tensor.shape[:-1], 2 * tensor.shape[-1] + 3), fill, dtype=tensor.dtype, device=tensor.device
    )
    part = wide[..., 1 : 1 + tensor.shape[-1]]
    part.copy_(tensor)
    return part


def same(got, wanted):
    assert got.dtype == torch.int32 and got.tolist() == wanted


def row(table, request, position, page, stride=0):
    """What a position means, or -1."""
    if position < 0 or position // page >= table.shape[1]:
        return -1
    block = int(table[request, position // page])
    return -1 if block < 0 else block * (stride or page) + position % page


def table_of(rng, requests, blocks, page, pages=64):
    table = torch.stack([torch.randperm(pages, generator=rng)[:blocks] for _ in range(requests)]).int()
    return table, with_holes(rng, ints(rng, 0, (blocks + 2) * page, 7, 19))


def pages_of(pages, page_tokens, record, device, dtype=torch.uint8, gap=40, fill=0xAB):
    """[pages, page_tokens, record] whose pages lie `gap` elements apart, in memory full of `fill`."""
    stride = page_tokens * record + gap
    memory = torch.full((pages * stride,), fill, dtype=dtype, device=device)
    return memory, memory.as_strided((pages, page_tokens, record), (stride, record, 1))


def keys_of(rng, tokens, dtype=torch.bfloat16, width=512):
    scale = torch.tensor([0.0, 1e-6, 0.02, 1.0, 336.0, 1e4])[ints(rng, 0, 6, tokens, 1).long()]
    return (normal(rng, tokens, width) * scale).to(dtype), normal(rng, tokens, 64, dtype=dtype)


def padded(lists, k):
    return [found + [-1] * (k - len(found)) for found in lists]


def i32(*shape):
    return torch.zeros(shape, dtype=torch.int32)


def topk(**changes):
    arguments = dict(
        logits=torch.zeros(2, 8), cu_seqlen_ks=i32(2), cu_seqlen_ke=i32(2), raw_topk_indices=i32(2, 4)
    )
    return ops.top_k_per_row_prefill(
        **{**arguments, "num_rows": 2, "stride0": 8, "stride1": 1, "topk_tokens": 4, **changes}
    )
