"""Kernels that start while the ones before them run read what those wrote, on a GPU."""

import pytest
import smla

torch = pytest.importorskip("torch")

PAGE, PAGES, LISTED, TOKENS = 64, 200, 512, 40
CALLS = 60


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [16, 64, 128])
@pytest.mark.parametrize("record, width", [("fp8_656", 576), ("row_bf16", 576), ("fp8_584", 512)])
def test_attend_beside_the_scan_of_its_lists(record, width, heads):
    """map writes the rows that attend reads, and between them a context with check_indices scans them.

    Nothing waits in between, and each call has other positions and queries in the same memory.
    """
    generator = torch.Generator("cuda").manual_seed(5)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device="cuda").bfloat16()

    plain, checking = smla.Context("cuda"), smla.Context("cuda", check_indices=True)
    stored = {
        "fp8_656": (PAGES, PAGE, 656),
        "fp8_584": (PAGES, 37440),
    }  # pages of 584-byte records are padded
    if record in stored:
        data = torch.zeros(stored[record], dtype=torch.uint8, device="cuda")
    else:
        data = normal(PAGES, PAGE, width)
    cache = smla.Cache(data, record, PAGE)
    if record in stored:
        slots = torch.arange(PAGES * PAGE, device="cuda")
        smla.write_kv(
            normal(len(slots), width - 64), slots, cache, tail=normal(len(slots), 64), context=plain
        )
    table = torch.randperm(PAGES, generator=generator, device="cuda").int()[None].contiguous()
    request = torch.zeros(TOKENS, dtype=torch.int32, device="cuda")
    drawn = torch.randint(0, PAGES * PAGE, (CALLS, TOKENS, LISTED), generator=generator, device="cuda").int()
    queries = normal(CALLS, TOKENS, heads, width)

    def outputs(context):
        positions, rows, q = (
            torch.empty_like(drawn[0]),
            torch.empty_like(drawn[0]),
            torch.empty_like(queries[0]),
        )
        out = torch.empty(CALLS, TOKENS, heads, 512, dtype=torch.bfloat16, device="cuda")
        for i in range(CALLS):
            positions.copy_(drawn[i])
            q.copy_(queries[i])
            smla.map(positions, request, table, page_tokens=PAGE, rows=rows, context=context)
            smla.attend(q, cache, rows, softmax_scale=0.05, precision="rounded", out=out[i], context=context)
        return out

    expected, got = outputs(plain), outputs(checking)
    assert checking.read_error() is None
    assert not torch.equal(expected[0], expected[1])
    assert torch.equal(got, expected)
