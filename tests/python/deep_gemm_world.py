"""Rows of keys and queries, and what their logits are, for the tests of smla.compat.deep_gemm."""

import pytest

torch = pytest.importorskip("torch")

import smla

on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


INF, NAN = float("inf"), float("nan")


E4M3 = torch.float8_e4m3fn


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


LOWEST, HIGHEST = -(2**31), 2**31 - 1


def i32(values):
    return torch.tensor(values, dtype=torch.int32)


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
        """Puts NaN where nothing may read. rows: of keys."""
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


def paged_case(kind="fp8", width=128, heads=3, block=64, lens=((130,), (7,), (64,)), padding=0, poison=True):
    """Requests of `lens` keys, in pages in random order among pages of NaN; tables end in no pages.

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


def refuses(field, call, *arguments, **keywords):
    with pytest.raises(smla.InvalidArgument) as error:
        call(*arguments, **keywords)
    assert error.value.field == field and error.value.got and error.value.wanted
    return error.value
