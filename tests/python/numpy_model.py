"""The stages in float64 NumPy, written from the headers: shares nothing with the library. Plain loops.

Caches are values [pages,page_tokens,D] (numpy_formats.unpack). Results that are sums come with `magnitude`,
the same sum of absolute values, which bounds how far arithmetic in f32 may be.
"""

from typing import NamedTuple

import numpy as np
from numpy_formats import amax, e2m1_bytes, e4m3_codes, power_above

U = 2.0**-24  # half a unit in the last place of f32


class Source(NamedTuple):
    """A cache and what of it each token attends to. values: [P,S,D]. rows: [T,K]. lengths: [T] or None."""

    values: np.ndarray
    rows: np.ndarray
    lengths: np.ndarray | None = None
    page_rows: int = 0


def locate(values, row, page_rows=0):
    """A row of a cache [P,S,D]; None: a hole."""
    pages, page_tokens = values.shape[:2]
    page, offset = divmod(int(row), page_rows or page_tokens)
    return values[page, offset] if row >= 0 and page < pages and offset < page_tokens else None


def keys_of(sources, t):
    """[n,D]: the rows that token t attends to, once for each time they are listed."""
    keys = []
    for source in sources:
        listed = source.rows[t]
        if source.lengths is not None:
            listed = listed[: min(max(int(source.lengths[t]), 0), len(listed))]
        keys += [
            key for key in (locate(source.values, row, source.page_rows) for row in listed) if key is not None
        ]
    return np.array(keys).reshape(len(keys), sources[0].values.shape[-1])


class Attention(NamedTuple):
    """out, magnitude: [T,H,Dv]. lse, max_logits: [T,H]. logit_error: [T,H], what f32 loses in a logit."""

    out: np.ndarray
    magnitude: np.ndarray
    lse: np.ndarray
    max_logits: np.ndarray
    logit_error: np.ndarray


def attend(q, sources, scale, value_width, sink=None, log2=False):
    """q: [T,H,D]. A dot of D products loses (D + 2) U of the sum of their magnitudes at most."""
    tokens, heads, width = q.shape
    out, magnitude = np.zeros((2, tokens, heads, value_width))
    lse, peaks = np.full((2, tokens, heads), -np.inf)
    error = np.zeros((tokens, heads))
    for t in range(tokens):
        keys = keys_of(sources, t)
        if not len(keys):
            continue
        for h in range(heads):
            logits = scale * (keys @ q[t, h])
            peak = logits.max()
            weights = np.exp(logits - peak)
            total = weights.sum() + (0 if sink is None else np.exp(sink[h] - peak))
            out[t, h] = weights @ keys[:, :value_width] / total
            magnitude[t, h] = weights @ np.abs(keys[:, :value_width]) / total
            lse[t, h] = (peak + np.log(weights.sum())) * (np.log2(np.e) if log2 else 1)
            peaks[t, h] = peak
            error[t, h] = (width + 2) * U * scale * (np.abs(keys) @ np.abs(q[t, h])).max()
    return Attention(out, magnitude, lse, peaks, error)


def merge(partials, lse, sink=None, log2=False):
    """partials: [n,T,H,Dv]. lse: [n,T,H]. Returns out, magnitude and the joined lse."""
    unit = np.log(2) if log2 else 1
    natural = np.where(np.isneginf(lse), -np.inf, lse * unit)
    peak = natural.max(0, initial=-np.inf)
    peak = np.where(np.isneginf(peak), 0, peak)
    weights = np.exp(natural - peak)
    total = weights.sum(0)
    below = total + (0 if sink is None else np.exp(sink - peak))
    parts = np.where(weights[..., None] == 0, 0, partials)  # partials of weight 0 are not read
    shares = np.where(total == 0, 0, weights / np.where(total == 0, 1, below))
    with np.errstate(divide="ignore"):
        joined = np.where(total == 0, -np.inf, (peak + np.log(total)) / unit)
    return (shares[..., None] * parts).sum(0), (shares[..., None] * np.abs(parts)).sum(0), joined


def score(q, w, key_of, starts, ends, columns):
    """logits [T,N] and their bounds in f32. key_of(t, j): the key of column j, or None."""
    tokens, heads, width = q.shape
    logits, bound = np.full((tokens, columns), -np.inf), np.zeros((tokens, columns))
    for t in range(tokens):
        for j in range(max(int(starts[t]), 0), min(int(ends[t]), columns)):
            key = key_of(t, j)
            if key is None:
                continue
            logits[t, j] = w[t] @ np.maximum(q[t] @ key, 0)
            # D products, H weighted terms and the key's scale; bf16 products flush subnormals of f32.
            size = np.abs(w[t]) @ (np.abs(q[t]) @ np.abs(key))
            bound[t, j] = (width + heads + 3) * U * size + width * heads * 2.0**-126
    return logits, bound


def select(scores, k, starts=None, ends=None, ids=None, relative=False):
    """(indices, selected, counts): score descending, ties to the lowest index, -0 = +0, NaN below -inf."""
    tokens, columns = scores.shape
    indices, selected = np.full((tokens, k), -1), np.full((tokens, k), -np.inf)
    counts = np.zeros(tokens, int)
    for t in range(tokens):
        start = 0 if starts is None else min(max(int(starts[t]), 0), columns)
        end = columns if ends is None else min(max(int(ends[t]), 0), columns)
        listed = [(j if ids is None else int(ids[t, j]), scores[t, j]) for j in range(start, end)]
        listed = [entry for entry in listed if entry[0] >= 0]
        listed.sort(key=lambda entry: (np.isnan(entry[1]), 0 if np.isnan(entry[1]) else -entry[1], entry[0]))
        best = sorted(listed[:k], key=lambda entry: entry[0])
        counts[t] = len(best)
        for i, (name, value) in enumerate(best):
            indices[t, i], selected[t, i] = name - (start if relative else 0), value
    return indices, selected, counts


def map_rows(positions, request_of_token, block_table, page_tokens, page_rows=0):
    """(rows, counts). A row past int32 is a hole."""
    rows = np.full(positions.shape, -1, np.int64)
    for t, j in np.ndindex(*positions.shape):
        position, request = int(positions[t, j]), int(request_of_token[t])
        if position < 0 or not 0 <= request < block_table.shape[0]:
            continue
        page, offset = divmod(position, page_tokens)
        if page < block_table.shape[1] and block_table[request, page] >= 0:
            row = int(block_table[request, page]) * (page_rows or page_tokens) + offset
            rows[t, j] = row if row < 2**31 else -1
    return rows, (rows >= 0).sum(1)


def norm(x, eps, weight=None, bias=None, layer=False):
    """x: [T,G,D]. Returns out, and the magnitude of what is added up in it."""
    mean = x.mean(-1, keepdims=True) if layer else 0
    centred, size = x - mean, np.abs(x) + np.abs(mean)
    inverse = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    weight = 1 if weight is None else weight
    bias = 0 if bias is None else bias
    return centred * inverse * weight + bias, size * inverse * np.abs(weight) + np.abs(bias)


def rope(x, positions, frequencies, first=0, half=False, inverse=False):
    """x: [T,G,D], all of it. Returns out, and the magnitude of what is added up in it."""
    n = len(frequencies)
    pairs = np.arange(n)
    left, right = (first + pairs, first + n + pairs) if half else (first + 2 * pairs, first + 2 * pairs + 1)
    angles = positions.astype(np.float64)[:, None, None] * frequencies * (-1 if inverse else 1)
    cosine, sine = np.cos(angles), np.sin(angles)
    a, b = x[..., left], x[..., right]
    out, magnitude = x.copy(), np.abs(x)
    out[..., left], out[..., right] = a * cosine - b * sine, b * cosine + a * sine
    magnitude[..., left] = np.abs(a * cosine) + np.abs(b * sine)
    magnitude[..., right] = np.abs(b * cosine) + np.abs(a * sine)
    return out, magnitude


def project(x, w):
    """out[t,g,n] = sum_k x[t,g,k] w[g,n,k], and its magnitude."""
    return np.einsum("tgk,gnk->tgn", x, w), np.einsum("tgk,gnk->tgn", np.abs(x), np.abs(w))


def hadamard(width):
    """H_D / sqrt(D) in Sylvester's order."""
    matrix = np.ones((1, 1))
    while len(matrix) < width:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(width)


def quant_index_q(q, w, factor, dtype, floor=1e-4):
    """(codes, block scales or None, weights). q: [T,Hi,D]."""
    if dtype == "e4m3":
        scales = power_above(np.maximum(amax(q, q.shape[-1]), floor) / 448)
        return e4m3_codes(q / scales), None, w * factor * scales[..., 0]
    blocks = q.reshape(*q.shape[:-1], -1, 32)
    scales = power_above(np.maximum(amax(q, 32), 6 * 2.0**-126) / 6)
    scales = np.where(np.isnan(blocks).any(-1), np.nan, scales)
    return e2m1_bytes(q / np.repeat(scales, 32, -1)), scales, w * factor


def compress(state, state_table, request, position, ratio, eps, weight, frequencies):
    """The entry [D] of the window that ends at `position`, and its magnitude. state: [P,S,2 coff D]."""
    width, doubled = len(weight), 2 if ratio == 4 else 1
    kv, scores = [], []
    for i in range(doubled * ratio):
        at = position - doubled * ratio + 1 + i
        page, offset = divmod(at, state.shape[1])
        if at < 0 or page >= state_table.shape[1] or state_table[request, page] < 0:
            continue
        row = state[state_table[request, page], offset]
        first = width * (
            i // ratio
        )  # the older window pools its first half of the channels, the newer the second
        kv.append(row[first : first + width])
        scores.append(row[doubled * width + first : doubled * width + first + width])
    weights = np.exp(np.array(scores) - np.max(scores, 0))
    weights /= weights.sum(0)
    pooled, magnitude = (weights * kv).sum(0), (weights * np.abs(kv)).sum(0)
    inverse = 1 / np.sqrt((pooled**2).mean() + eps)
    first, start = width - 2 * len(frequencies), np.array([position // ratio * ratio])
    entry, _ = rope((pooled * inverse * weight)[None, None], start, frequencies, first)
    return entry[0, 0], rope_magnitude(magnitude * inverse * np.abs(weight), first)


def rope_magnitude(magnitude, first):
    """A bound of what is added up by a rotation of the channels from `first` on, pairs side by side."""
    pairs = magnitude[first:].reshape(-1, 2).sum(-1)
    return np.concatenate([magnitude[:first], np.repeat(pairs, 2)])
