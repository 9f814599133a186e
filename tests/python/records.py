"""Reads cache memory in NumPy, from the words of docs/formats.md: what the package's caches are held to."""

import numpy as np


def _e4m3_values():
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = np.where(exponent, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    value[(code & 127) == 127] = np.nan
    return np.where(code & 128, -value, value)


E4M3 = _e4m3_values()


def bf16(memory):
    """Values of bytes [..., 2 n] or of 16-bit codes."""
    codes = memory if memory.dtype == np.uint16 else np.ascontiguousarray(memory).view("<u2")
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def rounded_to_bf16(values):
    """f32 to the nearest bf16, ties to even, as its code."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _row_packed(rows, tile, tail):
    """[codes | f32 scale of each `tile` codes | bf16]: fp8_656 and fp8_528."""
    codes = E4M3[rows[..., :512]]
    scales = np.ascontiguousarray(rows[..., 512:528]).view("<f4").astype(np.float64)
    return np.concatenate([codes * np.repeat(scales, tile, -1), bf16(rows[..., 528 : 528 + 2 * tail])], -1)


def _fp8_584(pages, page_tokens):
    """[pages, bytes]: rows of 448 codes and 64 bf16, then 8 bytes of exponents per token, 7 of them used."""
    rows = pages[:, : 576 * page_tokens].reshape(len(pages), page_tokens, 576)
    exponents = pages[:, 576 * page_tokens : 584 * page_tokens].reshape(len(pages), page_tokens, 8)[..., :7]
    scales = np.where(exponents == 255, np.nan, 2.0 ** (exponents.astype(np.float64) - 127))
    return np.concatenate([E4M3[rows[..., :448]] * np.repeat(scales, 64, -1), bf16(rows[..., 448:])], -1)


def decode(pages, format, page_tokens, width, scale=1.0):
    """Values [rows,width] of pages [pages, bytes of a page] u8, row = page * page_tokens + offset."""
    if format == "fp8_584":
        return _fp8_584(pages, page_tokens).reshape(-1, width)
    rows = np.ascontiguousarray(pages.reshape(len(pages) * page_tokens, -1))
    if format in ("fp8_656", "fp8_528"):
        return _row_packed(rows, 128, 64 if format == "fp8_656" else 0)
    if format in ("fp8_576", "fp8_512"):
        return E4M3[rows] * scale
    if format == "row_bf16":
        return bf16(rows)
    return rows.view({"row_f32": "<f4", "row_f64": "<f8"}[format]).astype(np.float64)


def page_bytes(format, page_tokens, width):
    per_token = {"row_f64": 8 * width, "row_f32": 4 * width, "state_f32": 4 * width, "row_bf16": 2 * width}
    dense = page_tokens * (per_token.get(format) or int(format.rsplit("_", 1)[1]))
    return -(-dense // 576) * 576 if format == "fp8_584" else dense
