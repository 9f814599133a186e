"""Pools, queries and attention in float64 for the tests of smla.compat.flashinfer."""

import zlib

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


NAN = float("nan")


INT_MAX, INT_MIN = 2**31 - 1, -(2**31)


WIDTHS = {"656": 576, "584": 512, "528": 512}


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


def poisoned(*shape, dtype=BF16):
    return torch.full(shape, NAN, dtype=dtype)


@pytest.fixture
def rng(request):
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


def on_gpu(value):
    return value.cuda() if isinstance(value, torch.Tensor) else value
