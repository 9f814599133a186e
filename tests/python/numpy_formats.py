"""Number and record formats in NumPy, written from docs/formats.md: shares nothing with the library.

Values are float64 (or ints), bits are what memory holds. A NaN has any of its type's codes.
"""

import numpy as np
from numpy.lib.stride_tricks import as_strided

STORAGE = {  # dtype of smla: how NumPy holds its bits
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": np.uint16,
    "e4m3": np.uint8,
    "e8m0": np.uint8,
    "u8": np.uint8,
    "i32": np.int32,
    "i64": np.int64,
}


def _e4m3_values():
    """By code: a sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity, 0x7f and 0xff are NaN."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(
        exponent > 0, np.ldexp(1 + mantissa / 8, exponent - 7), np.ldexp(mantissa / 8, np.full(256, -6))
    )
    size[code & 127 == 127] = np.nan
    return np.where(code >= 128, -size, size)


E4M3 = _e4m3_values()
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E8M0 = np.append(2.0 ** np.arange(-127.0, 128.0), np.nan)


def _nearest(values, grid):
    """The index in an ascending grid of the nearest value; ties to the even index; saturates."""
    size = np.minimum(np.nan_to_num(np.abs(values), nan=0, posinf=grid[-1]), grid[-1])
    above = np.clip(np.searchsorted(grid, size), 1, len(grid) - 1)
    low, high = size - grid[above - 1], grid[above] - size
    return np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)


def e4m3_codes(values):
    """e4m3 of values: to nearest even, at most 448, NaN stays NaN."""
    codes = np.where(np.isnan(values), 127, _nearest(values, E4M3[:127]))
    return (codes | np.where(np.signbit(values), 128, 0)).astype(np.uint8)


def e2m1_bytes(values):
    """e2m1 of values, two to a byte, the even one in the low nibble."""
    codes = _nearest(values, E2M1[:8]) | np.where(np.signbit(values), 8, 0)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def to_bits(values, dtype):
    """The bits of values, each rounded once to nearest even from f32 (f64: not rounded)."""
    if dtype in ("f64", "i32", "i64", "u8"):
        return np.asarray(values).astype(STORAGE[dtype])
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.asarray(values).astype(np.float32)
        if dtype in ("f32", "f16"):
            return single.astype(STORAGE[dtype])
    if dtype == "bf16":
        bits = single.view(np.uint32)
        rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
        return np.where(np.isnan(single), 0x7FC0, rounded).astype(np.uint16)
    if dtype == "e2m1":
        return e2m1_bytes(single)
    if dtype == "e8m0":  # powers of two only
        return np.where(np.isnan(single), 255, np.frexp(single)[1] - 1 + 127).astype(np.uint8)
    return e4m3_codes(single)


def from_bits(bits, dtype):
    """The values of bits, as float64 or ints."""
    if dtype == "bf16":
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "e4m3":
        return E4M3[bits]
    if dtype == "e8m0":
        return E8M0[bits]
    if dtype == "e2m1":
        return E2M1[np.stack([bits & 15, bits >> 4], -1)].reshape(*bits.shape[:-1], -1)
    return bits.astype(np.float64) if np.asarray(bits).dtype.kind == "f" else bits


def rounded(values, dtype):
    """The values that dtype has for these."""
    return from_bits(to_bits(values, dtype), dtype)


def power_above(ratio):
    """2^ceil(log2(ratio)), exact at powers of two."""
    mantissa, exponent = np.frexp(ratio)
    return np.ldexp(1.0, exponent - (mantissa == 0.5))


def amax(values, size):
    """The largest magnitude of each tile of `size` values, but for NaN."""
    tiles = values.reshape(*values.shape[:-1], -1, size)
    return np.where(np.isnan(tiles), 0, np.abs(tiles)).max(-1)


def _tiles(values, scales):
    """codes = values / scales, one scale to each tile."""
    return values / np.repeat(scales, values.shape[-1] // scales.shape[-1], -1)


PLAIN = {"row_f64": "f64", "row_f32": "f32", "row_bf16": "bf16", "state_f32": "f32", "state_f64": "f64"}
WIDTH = {"fp8_656": 576, "fp8_528": 512, "fp8_576": 576, "fp8_512": 512, "fp8_584": 512}
WIDTH |= {"index_fp8_132": 128, "index_mxfp4_68": 128}
WIDTH |= {"fp8_528_g32": 512, "fp8_528_g32_split": 512, "nvfp4_288": 512, "nvfp4_288_split": 512}
WIDTH |= {"nvfp4_384": 512, "nvfp4_352": 576}
# Bytes of a token's record, and bytes of it behind all records of the page.
_PARTS = {"fp8_656": (656, 0), "fp8_528": (528, 0), "fp8_576": (576, 0), "fp8_512": (512, 0)}
_PARTS |= {"fp8_584": (576, 8), "index_fp8_132": (128, 4), "index_mxfp4_68": (64, 4)}
_PARTS |= {"fp8_528_g32": (528, 0), "fp8_528_g32_split": (512, 16), "nvfp4_288": (288, 0)}
_PARTS |= {"nvfp4_288_split": (256, 32), "nvfp4_384": (352, 32), "nvfp4_352": (352, 0)}
_PAGE_MULTIPLE = {"fp8_584": 576, "fp8_528_g32_split": 512, "nvfp4_288_split": 256}


def width_of(format, width=0):
    return WIDTH.get(format, width)


def parts(format, width=0):
    if format in PLAIN:
        return np.dtype(STORAGE[PLAIN[format]]).itemsize * width, 0
    return _PARTS[format]


def page_bytes(format, page_tokens, width=0):
    """Returns the bytes of a packed page; some formats pad their pages."""
    page, multiple = sum(parts(format, width)) * page_tokens, _PAGE_MULTIPLE.get(format, 1)
    return -(-page // multiple) * multiple


def views(memory, format, pages, page_tokens, width=0, page_stride=0, row_stride=0):
    """[pages,page_tokens,bytes] of a cache's memory, u8: records, and what stands behind them in the page."""
    record, side = parts(format, width)
    stride = page_stride or page_bytes(format, page_tokens, width)
    records = as_strided(memory, (pages, page_tokens, record), (stride, row_stride or record, 1))
    behind = memory[page_tokens * record :]
    return records, as_strided(behind, (pages, page_tokens, side), (stride, side, 1))


def tile_scales(format, values):
    """The writer's scales of rows [...,width] by the rules of docs/formats.md; None where there are none."""
    if format in ("fp8_656", "fp8_528"):
        return power_above(np.maximum(amax(values[..., :512], 128) / 448, 1e-4))
    if format == "fp8_584":
        return power_above(np.maximum(amax(values[..., :448], 64), 1e-4) / 448)
    if format == "index_fp8_132":
        return power_above(np.maximum(amax(values, 128), 1e-4) / 448)
    if format == "index_mxfp4_68":
        scales = power_above(np.maximum(amax(values, 32), 6 * 2.0**-126) / 6)
        return np.where(np.isnan(values.reshape(*values.shape[:-1], -1, 32)).any(-1), np.nan, scales)
    return None


def pack(format, values, scale=1.0, scales=None):
    """(record, behind): the bytes of rows [...,width] of values that f32 holds. scales: other tile scales."""
    scales = tile_scales(format, values) if scales is None else scales
    none = np.empty((*values.shape[:-1], 0), np.uint8)

    def raw(bits):
        return np.ascontiguousarray(bits).view(np.uint8)

    if format in PLAIN:
        return raw(to_bits(values, PLAIN[format])), none
    if format in ("fp8_576", "fp8_512"):
        return e4m3_codes((values / np.float64(np.float32(scale))).astype(np.float32)), none
    if format in ("fp8_656", "fp8_528"):
        codes, rope = e4m3_codes(_tiles(values[..., :512], scales)), to_bits(values[..., 512:], "bf16")
        return np.concatenate([codes, raw(scales.astype(np.float32)), raw(rope)], -1), none
    if format == "fp8_584":
        codes, rope = e4m3_codes(_tiles(values[..., :448], scales)), to_bits(values[..., 448:], "bf16")
        zero = np.zeros((*values.shape[:-1], 1), np.uint8)
        return np.concatenate([codes, raw(rope)], -1), np.concatenate([to_bits(scales, "e8m0"), zero], -1)
    if format == "index_fp8_132":
        return e4m3_codes(_tiles(values, scales)), raw(scales.astype(np.float32))
    return e2m1_bytes(_tiles(values, scales)), to_bits(scales, "e8m0")


def unpack(format, records, behind, scale=1.0):
    """The values of rows, [...,width], from their bytes."""

    def f32(part):
        return np.ascontiguousarray(part).view(np.float32).astype(np.float64)

    def bf16(part):
        return from_bits(np.ascontiguousarray(part).view(np.uint16), "bf16")

    def tiled(codes, scales):
        return codes * np.repeat(scales, codes.shape[-1] // scales.shape[-1], -1)

    if format in PLAIN:
        dtype = PLAIN[format]
        return from_bits(np.ascontiguousarray(records).view(STORAGE[dtype]), dtype)
    if format in ("fp8_576", "fp8_512"):
        return E4M3[records] * np.float64(np.float32(scale))
    if format in ("fp8_656", "fp8_528"):
        latent = tiled(E4M3[records[..., :512]], f32(records[..., 512:528]))
        return np.concatenate([latent, bf16(records[..., 528:])], -1)
    if format == "fp8_584":
        latent = tiled(E4M3[records[..., :448]], E8M0[behind[..., :7]])
        return np.concatenate([latent, bf16(records[..., 448:])], -1)
    if format == "index_fp8_132":
        return tiled(E4M3[records], f32(behind))
    if format.startswith(("fp8_528_g32", "nvfp4_288")):  # together, or the scales behind the page's rows
        four_bits = format.startswith("nvfp4")
        values = 256 if four_bits else 512
        scales = behind if format.endswith("_split") else records[..., values:]
        if four_bits:
            return tiled(from_bits(records[..., :values], "e2m1"), E4M3[scales])
        return tiled(E4M3[records[..., :values]], E8M0[scales])
    return tiled(from_bits(records, "e2m1"), E8M0[behind])


def decode(pages, format, page_tokens, width=0, scale=1.0):
    """The values [rows,width] of packed pages [pages,bytes], row = page * page_tokens + offset."""
    records, behind = views(pages.reshape(-1), format, len(pages), page_tokens, width)
    return unpack(format, records, behind, scale).reshape(-1, width_of(format, width))


def scale_of(format):
    """A scale for formats that have one per cache; None for others, which refuse one."""
    return 1.0 if format in ("fp8_576", "fp8_512") else None
