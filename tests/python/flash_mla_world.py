"""Caches, queries and attention in float64 for the tests of smla.compat.flash_mla."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


RECORD_BYTES = {576: 656, 512: 584}


PACKED_DTYPES = {"uint8": torch.uint8, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


NEVER_A_ROW = [-1, -2, -123456, -(2**31), 2**31 - 1, 2147480000]


def e4m3_values(codes):
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, mantissa = (codes >> 3) & 15, (codes & 7) / 8.0
    values = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7.0))
    return np.where((codes & 0x7F) == 0x7F, np.nan, sign * values)


def bf16_bits(values):
    """Bits of values that bf16 holds exactly."""
    bits = np.asarray(values, "float32").view("uint32")
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype("uint16")


def some_bf16(rng, shape):
    """Standard normal values with 7 bits after the first."""
    mantissa, exponent = np.frexp(rng.standard_normal(shape))
    return np.ldexp(np.round(mantissa * 128) / 128, exponent)


class PackedCache:
    """Random pages [pages,page,1,656 or 584] in memory whose padding is NaN. values: [rows,d] in float64."""

    def __init__(self, rng, width, pages, page_tokens, dtype="uint8", *, even=True, poison=(), gap=0):
        rows = pages * page_tokens
        codes = rng.integers(0, 256, (rows, 512 if width == 576 else 448), dtype=np.uint8)
        codes[(codes & 0x7F) == 0x7F] = 0x3A
        tiles, tile = (4, 128) if width == 576 else (7, 64)
        exponents = rng.integers(-11, -7, (rows, tiles))
        scales = 2.0**exponents
        if not even:  # scales that are no powers of two
            scales = np.float32(scales * rng.uniform(1, 2, scales.shape)).astype(float)
        rope = some_bf16(rng, (rows, 64))
        self.values = np.concatenate([e4m3_values(codes) * np.repeat(scales, tile, 1), rope], 1)
        poison = np.asarray(list(poison), int)
        codes[poison], rope[poison] = 0x7F, np.nan
        scales[poison], exponents[poison] = np.nan, 128  # e8m0 255: NaN
        rope = np.where(np.isnan(rope), 1.0, rope)
        rope_bytes = bf16_bits(rope)
        rope_bytes[poison] = 0x7FC0
        rope_bytes = rope_bytes[:, :, None].view("uint8").reshape(rows, 128)
        if width == 576:
            scale_bytes = scales.astype("float32").view("uint8").reshape(rows, 16)
            records = np.concatenate([codes, scale_bytes, rope_bytes], 1)
            held = records.reshape(pages, page_tokens * 656)
        else:
            first = np.concatenate([codes, rope_bytes], 1).reshape(pages, page_tokens * 576)
            last = np.zeros((rows, 8), np.uint8)
            last[:, :7] = exponents + 127
            held = np.concatenate([first, last.reshape(pages, page_tokens * 8)], 1)
        bytes_held = held.shape[1]
        stride = bytes_held if width == 576 else -(-bytes_held // 576) * 576
        memory = np.full((pages, stride + gap), 0x7F, np.uint8)
        memory[:, :bytes_held] = held
        self.memory = torch.from_numpy(memory).view(PACKED_DTYPES[dtype])
        self.shape = (pages, page_tokens, 1, RECORD_BYTES[width])
        self.strides = (stride + gap, RECORD_BYTES[width], RECORD_BYTES[width], 1)

    def on(self, device):
        return self.memory.to(device).as_strided(self.shape, self.strides)


def attention(q, scale, sources, sink=None, value_width=512):
    """q: [T,H,D] float64. sources: (values [rows,D], per token a list of rows). Natural units; no row: -inf.

    Returns out, lse, max_logits, and what each output's terms add up to in size, which bounds its rounding.
    """
    tokens, heads, _ = q.shape
    out, size = np.zeros((2, tokens, heads, value_width))
    lse, largest = np.full((2, tokens, heads), -np.inf)
    for t in range(tokens):
        keys = np.concatenate([values[np.asarray(lists[t], int)] for values, lists in sources])
        if not len(keys):
            continue
        logits = scale * q[t] @ keys.T
        largest[t] = logits.max(1)
        weights = np.exp(logits - largest[t][:, None])
        lse[t] = largest[t] + np.log(weights.sum(1))
        weights = np.exp(logits - lse[t][:, None])
        if sink is not None:
            weights /= 1 + np.exp(np.asarray(sink, float) - lse[t])[:, None]
        out[t], size[t] = weights @ keys[:, :value_width], weights @ np.abs(keys[:, :value_width])
    return out, lse, largest, size


def valid_rows(listed, capacity, lengths=None):
    """The rows of each token that count: before its length, and in the cache."""
    listed = np.asarray(listed).reshape(-1, np.shape(listed)[-1])
    lengths = np.full(len(listed), listed.shape[1]) if lengths is None else np.ravel(lengths).clip(0)
    return [[r for r in row[:n] if 0 <= r < capacity] for row, n in zip(listed, lengths, strict=True)]


def check(got, want, size):
    """Kernels round weights and result to bf16, by 2^-8 at most. Sums are in f32."""
    got = np.asarray(got.double().cpu())
    assert np.isfinite(got).all()
    bound = 2**-8 * (np.abs(want) + size) + 1e-6
    error = np.abs(got - want) / bound
    assert (error <= 1).all(), f"{error.max():.3g} times the bound"


def some_rows(rng, shape, capacity, holes=0.3):
    """Rows in random order, some twice, with holes of every kind anywhere."""
    rows = rng.integers(0, capacity, shape) if capacity else np.full(shape, -1)
    bad = np.concatenate([NEVER_A_ROW, [capacity, capacity + 1]])
    return np.where(rng.random(shape) < holes, rng.choice(bad, shape), rows).astype("int32")


def some_queries(rng, *shape):
    return torch.from_numpy(some_bf16(rng, shape)).to(torch.bfloat16)


def unlisted(capacity, *lists):
    """Rows that no token reads."""
    read = set(int(r) for rows in lists for row in rows for r in row)
    return [r for r in range(capacity) if r not in read]


def i32(array, device):
    return torch.from_numpy(np.ascontiguousarray(array, "int32")).to(device)
