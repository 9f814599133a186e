"""Sparse decode of DeepSeek-V4 over a window of raw tokens and compressed entries, in the conventions of
three FlashInfer backends, which differ in the arguments that list a token's rows of the two pools.
"""

import torch

from ... import stages
from ...errors import invalid, unsupported
from .._check import require
from .._pools import is_packed
from ._attend import Segment, attend
from ._batch import Batch
from ._check import lengths_of, output_of, require_int, rows_of, sinks_of, tokens_of

_WIDTH = 512
_WINDOW = 128  # columns of window rows in a combined table
_ALIGNED = "compressed-page-aligned"
_TWO_LISTS = ("swa_topk_lens", "extra_sparse_indices", "extra_sparse_topk_lens")
_PAGES = ("hca_swa_indices", "hca_compressed_block_tables", "hca_seq_lens")
_LISTS = ("sparse_indices", "sparse_topk_lens", "seq_lens", *_TWO_LISTS, *_PAGES)
_REFUSED = {  # arguments that a convention does not use; the original also rejects them
    "auto": (),
    "trtllm-gen": _TWO_LISTS + _PAGES,
    "sparse": _PAGES,
    "cute-dsl": ("sparse_indices", "seq_lens", "extra_sparse_indices", "extra_sparse_topk_lens"),
}


def trtllm_batch_decode_sparse_mla_dsv4(
    query: torch.Tensor,
    swa_kv_cache: torch.Tensor,
    workspace_buffer: torch.Tensor | None,
    sparse_indices: torch.Tensor | None = None,
    compressed_kv_cache: torch.Tensor | None = None,
    sparse_topk_lens: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    bmm1_scale: float | torch.Tensor = 1.0,
    bmm2_scale: float | torch.Tensor = 1.0,
    sinks: torch.Tensor | None = None,
    kv_layout: str = "HND",
    cum_seq_lens_q: torch.Tensor | None = None,
    max_q_len: int | None = None,
    enable_pdl: bool | None = None,
    swa_topk_lens: torch.Tensor | None = None,
    extra_sparse_indices: torch.Tensor | None = None,
    extra_sparse_topk_lens: torch.Tensor | None = None,
    backend: str = "auto",
    hca_swa_indices: torch.Tensor | None = None,
    hca_compressed_block_tables: torch.Tensor | None = None,
    hca_seq_lens: torch.Tensor | None = None,
    hca_is_causal: bool = True,
    hca_use_persistent: bool = False,
    hca_sparse_indices_format: str | None = None,
) -> torch.Tensor:
    """Computes out = bmm2_scale * softmax(bmm1_scale * query.K) V over a token's rows of both pools, with V =
    K.

    Row lists depend on `backend`. All are i32:

    * "trtllm-gen": sparse_indices [T,K] lists window rows in columns [0, 128), then compressed rows.
    sparse_topk_lens [T] counts both. With seq_lens [B], a token at position p has min(p + 1, 128) window
    rows.
    * "sparse": sparse_indices with swa_topk_lens [T]; extra_sparse_indices with extra_sparse_topk_lens [T].
    * "cute-dsl": hca_swa_indices [T,128] with swa_topk_lens; hca_compressed_block_tables [T,pages] with
    sparse_topk_lens, which includes 128 for the window and is at most hca_seq_lens [B].
    * "auto": the convention whose arguments are present.

    Args:
        query: [B,Q,H,512], or [T,H,512] with cum_seq_lens_q [B+1] i32 (Default: each token is a request);
            bf16, e4m3, f16 or f32; 1 <= H <= 256.
        swa_kv_cache, compressed_kv_cache: pools of 584-byte records, or of rows of 512 values (bf16, f32 or
            e4m3): 4-D in kv_layout, 3-D [pages,page,X], 2-D [rows,512] or [pages,bytes of a page]. A row is
            page * page size + offset; rows below 0 or past the pool are skipped.
        sinks: optional [H] f32, natural-log logits.
        bmm1_scale, bmm2_scale: numbers, or f32 tensors of one element.

    Other arguments are not needed.

    Returns:
        out in the query's shape: bf16 for bf16 and e4m3 queries, else in their dtype. Tokens without rows,
        and tokens outside cum_seq_lens_q, get 0.
    """
    given = locals()
    given = {name: given[name] for name in _LISTS if given[name] is not None}
    flat = tokens_of(query, "query", _WIDTH)
    batch = Batch.of(query, cum_seq_lens_q)
    _require_choices(backend, kv_layout, max_q_len, query, hca_is_causal, hca_sparse_indices_format)
    if hca_sparse_indices_format:
        backend = "trtllm-gen"  # reads the table directly; the original converts it to pages
    segments_of = _SEGMENTS[_convention(backend, given, swa_kv_cache)]
    segments = segments_of(flat, batch, swa_kv_cache, compressed_kv_cache, given, kv_layout)
    out, flat_out = output_of(out, "out", flat, (*query.shape[:-1], _WIDTH))
    sinks = sinks_of(sinks, "sinks", flat)
    attend(flat, segments, flat_out, scales=(bmm1_scale, bmm2_scale), sinks=sinks, layout=kv_layout)
    return out


batch_decode_sparse_mla_dsv4 = trtllm_batch_decode_sparse_mla_dsv4


def _require_choices(backend, kv_layout, max_q_len, query, is_causal, indices_format):
    if backend not in _REFUSED:
        raise invalid("backend", repr(backend), "one of " + ", ".join(_REFUSED))
    if kv_layout not in ("HND", "NHD"):
        raise invalid("kv_layout", repr(kv_layout), "HND or NHD")
    if max_q_len is not None:
        require_int(max_q_len, "max_q_len", 1)
        if query.ndim == 4 and max_q_len != query.shape[1]:
            raise invalid("max_q_len", max_q_len, f"{query.shape[1]}, Q of the query")
    if not is_causal:
        wanted = "True, because lengths alone limit the rows of a token"
        raise unsupported("hca_is_causal", False, wanted)
    if indices_format is not None and (indices_format != _ALIGNED or backend not in ("auto", "cute-dsl")):
        raise invalid("hca_sparse_indices_format", repr(indices_format), f"None, or {_ALIGNED} with cute-dsl")


def _convention(backend, given, swa_kv_cache):
    """Returns the convention that `backend` names; "auto" selects the one whose arguments are present."""
    if backend == "auto":
        backend = _guess(given, is_packed(swa_kv_cache))
    for name in _REFUSED[backend]:
        if name in given:
            raise invalid(name, "a tensor", f"None for backend {backend}")
    return backend


def _guess(given, packed):
    if not given.keys().isdisjoint(_PAGES):
        return "cute-dsl"
    two_lists = not given.keys().isdisjoint(_TWO_LISTS)
    if "sparse_topk_lens" in given and not (two_lists and packed):
        return "trtllm-gen"  # rejects two lists; SM120 ignores sparse_topk_lens for packed records
    if two_lists or packed:
        return "sparse"
    wanted = "sparse_topk_lens for a combined table, swa_topk_lens for two lists, or a backend name"
    raise invalid("sparse_topk_lens", None, wanted)


def _combined(query, batch, swa, compressed, given, layout):
    """Returns segments of a combined table: window rows in the first 128 columns, then compressed rows."""
    rows = rows_of(given.get("sparse_indices"), "sparse_indices", query)
    listed = _lengths(given, "sparse_topk_lens", query, batch, rows)
    window = listed
    if (seq_lens := given.get("seq_lens")) is not None:
        require(seq_lens, "seq_lens", (torch.int32,), (batch.requests,), like=query)
        visible = batch.visible(seq_lens)
        window = visible if listed is None else torch.minimum(visible, listed)
    segments = [Segment(swa, "swa_kv_cache", rows[:, :_WINDOW], window)]
    if rows.shape[1] > _WINDOW:
        if compressed is None:
            raise invalid("compressed_kv_cache", None, "the pool for columns from 128 on")
        lengths = None if listed is None else listed - _WINDOW
        segments.append(Segment(compressed, "compressed_kv_cache", rows[:, _WINDOW:], lengths))
    return segments


def _two_lists(query, batch, swa, compressed, given, layout):
    """Returns segments of a list of window rows and a list of compressed rows."""
    rows = rows_of(given.get("sparse_indices"), "sparse_indices", query)
    segments = [Segment(swa, "swa_kv_cache", rows, _lengths(given, "swa_topk_lens", query, batch, rows))]
    if "extra_sparse_indices" in given:
        if compressed is None:
            raise invalid("compressed_kv_cache", None, "the pool for extra_sparse_indices")
        rows = rows_of(given["extra_sparse_indices"], "extra_sparse_indices", query)
        lengths = _lengths(given, "extra_sparse_topk_lens", query, batch, rows)
        segments.append(Segment(compressed, "compressed_kv_cache", rows, lengths))
    elif "extra_sparse_topk_lens" in given:
        raise invalid("extra_sparse_indices", None, "row lists for extra_sparse_topk_lens")
    return segments


def _pages(query, batch, swa, compressed, given, layout):
    """Returns segments of a list of window rows and a table of the pages of a token's compressed entries."""
    tokens = query.shape[0]
    for name in ("swa_topk_lens", "sparse_topk_lens"):
        if name not in given:
            raise invalid(name, None, f"lengths [{tokens}] i32")
    rows = rows_of(given.get("hca_swa_indices"), "hca_swa_indices", query)
    segments = [Segment(swa, "swa_kv_cache", rows, _lengths(given, "swa_topk_lens", query, batch, rows))]
    tables = given.get("hca_compressed_block_tables")
    require(tables, "hca_compressed_block_tables", (torch.int32,), (tokens, None), like=query)
    if not isinstance(compressed, torch.Tensor) or compressed.ndim not in (3, 4):
        raise invalid("compressed_kv_cache", type(compressed).__name__, "a pool in pages, 3-D or 4-D")
    page = compressed.shape[2 if compressed.ndim == 4 and layout == "HND" else 1]
    if page < 1:
        raise invalid("compressed_kv_cache.shape", list(compressed.shape), "at least one token per page")
    entries = torch.arange(tables.shape[1] * page, dtype=torch.int32, device=query.device)
    own_table = torch.arange(tokens, dtype=torch.int32, device=query.device)
    rows = stages.map(entries.expand(tokens, -1), own_table, tables, page_tokens=page)
    listed = _lengths(given, "sparse_topk_lens", query, batch, rows)
    if "hca_seq_lens" in given:
        require(given["hca_seq_lens"], "hca_seq_lens", (torch.int32,), (batch.requests,), like=query)
        listed = torch.minimum(listed, batch.spread(given["hca_seq_lens"]))
    segments.append(Segment(compressed, "compressed_kv_cache", rows, listed - _WINDOW))
    return segments


def _lengths(given, name, query, batch, rows):
    """Returns given[name] as [T]. None means all of `rows`. Tokens of no request get 0."""
    lengths = lengths_of(given.get(name), name, query)
    if batch.cum is None:
        return lengths
    if lengths is None:
        lengths = torch.full(rows.shape[:1], rows.shape[1], dtype=torch.int32, device=rows.device)
    return batch.own(lengths)


_SEGMENTS = {"trtllm-gen": _combined, "sparse": _two_lists, "cute-dsl": _pages}
