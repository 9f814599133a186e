"""Writing and gathering paged caches (vllm/_custom_ops.py;
vllm/models/deepseek_v4/common/ops/cache_utils.py).

Dimensions: T tokens, nb pages of bs tokens, R requests, MB blocks per request, N gathered rows. A slot is a
cache row, page * bs + offset; tokens with a negative slot are not written. Caches may have any page stride.
"""

import torch

from ... import stages
from ...cache import Cache
from ...errors import invalid, unsupported
from .._check import open_cache

__all__ = ["concat_and_cache_mla", "cp_gather_and_upconvert_fp8_kv_cache"]
__all__ += ["cp_gather_indexer_k_quant_cache", "dequantize_and_gather_k_cache", "indexer_k_quant_and_cache"]
__all__ += ["latent_cache", "quantize_and_insert_k_cache"]
PLAIN = {torch.bfloat16: "row_bf16", torch.float32: "row_f32", torch.float64: "row_f64"}
_LATENT = {656: "fp8_656", 528: "fp8_528"}
_SCALED = {576: "fp8_576", 512: "fp8_512"}
_BYTES = (torch.uint8, torch.float8_e4m3fn)


def paged(data: torch.Tensor, formats: dict, block_size: int, name: str = "kv_cache", scale=None) -> Cache:
    """Returns a cache over [nb,bs,record] or [nb,bytes of a page]. formats: by dtype, or by the last
    dimension.
    """
    key = data.dtype if data.dtype in formats else data.shape[-1]
    if key not in formats:
        raise invalid(f"{name}.shape", list(data.shape), f"records of {', '.join(map(str, formats))} bytes")
    page = data[:1]
    if not page.is_contiguous() or data.stride(0) < page.numel():
        raise invalid(f"{name}.stride", data.stride(), "dense pages that do not overlap")
    apart = data.stride(0) * data.element_size()
    return open_cache(name, data, formats[key], block_size, page_stride_bytes=apart, scale=scale)


def latent_cache(
    kv_cache: torch.Tensor, kv_cache_dtype: str, scale: torch.Tensor | float | None = None
) -> Cache:
    """Returns vLLM's cache of V3.2 and GLM-5.x, [nb,bs,record], as a smla.Cache.

    Args:
        kv_cache_dtype: "auto" or "bfloat16" for plain rows (bf16, f32); "fp8" or "fp8_e4m3" for u8 or e4m3
            with value = code * scale; "fp8_ds_mla" for u8 records of 656 bytes (528 without rope).
        scale: a number, or an f32 tensor of one element.
    """
    if kv_cache.ndim != 3:
        raise invalid("kv_cache.ndim", kv_cache.ndim, "3: [pages, tokens, record]")
    if kv_cache_dtype in ("auto", "bfloat16"):
        if kv_cache.dtype not in PLAIN:
            wanted = "torch.bfloat16 or torch.float32"
            raise unsupported("kv_cache.dtype", kv_cache.dtype, wanted)
        return paged(kv_cache, PLAIN, kv_cache.shape[1])
    if kv_cache_dtype not in ("fp8", "fp8_e4m3", "fp8_ds_mla"):
        wanted = "auto, bfloat16, fp8, fp8_e4m3 or fp8_ds_mla"
        raise unsupported("kv_cache_dtype", repr(kv_cache_dtype), wanted)
    if kv_cache.dtype not in _BYTES:
        raise invalid("kv_cache.dtype", kv_cache.dtype, "torch.uint8 or torch.float8_e4m3fn")
    if kv_cache_dtype == "fp8_ds_mla":
        return paged(kv_cache, _LATENT, kv_cache.shape[1])
    return paged(kv_cache, _SCALED, kv_cache.shape[1], scale=scale)


def concat_and_cache_mla(
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    scale: torch.Tensor,
) -> None:
    """Writes [kv_c | k_pe] of token t to row slot_mapping[t] of the cache.

    Args:
        kv_c, k_pe: [>=T,512] and [>=T,64]; tokens from T on are padding.
        kv_cache, kv_cache_dtype: as in latent_cache. fp8_ds_mla records get power-of-two scales.
        slot_mapping: [T] i64 or i32.
        scale: f32, one element; only for per-tensor fp8.
    """
    if kv_cache.numel() == 0:  # a profiling run has no cache
        return
    cache = latent_cache(kv_cache, kv_cache_dtype, scale)
    if kv_cache_dtype == "auto" and kv_c.dtype is not kv_cache.dtype:
        raise invalid("kv_c.dtype", kv_c.dtype, f"{kv_cache.dtype}, as the cache")
    stages.write_kv(kv_c, slot_mapping, cache, tail=k_pe if k_pe.shape[-1] else None)


def quantize_and_insert_k_cache(
    k: torch.Tensor,
    k_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_size: int = 64,
    is_ue8m0: bool = True,
    use_fnuz: bool = False,
) -> None:
    """Writes k[t] to row slot_mapping[t] of V4's cache of 584-byte records.

    Args:
        k: [>=T,512].
        k_cache: u8 [nb,bs,584], or [nb,bytes of a page].
        slot_mapping: [T] i64 or i32.
    """
    _check_fp8(is_ue8m0, use_fnuz)
    stages.write_kv(k, slot_mapping, _v4_cache(k_cache, block_size))


def _check_fp8(is_ue8m0, use_fnuz):
    if not is_ue8m0 or use_fnuz:
        field, got = ("use_fnuz", True) if use_fnuz else ("is_ue8m0", False)
        raise unsupported(field, got, "OCP e4m3 with scales in UE8M0")


def _v4_cache(k_cache, block_size):
    if k_cache.dtype is not torch.uint8:
        raise invalid("k_cache.dtype", k_cache.dtype, "torch.uint8")
    if k_cache.ndim == 2:
        return paged(k_cache, {k_cache.shape[1]: "fp8_584"}, block_size, "k_cache")
    if k_cache.ndim != 3 or k_cache.shape[1] != block_size:
        raise invalid("k_cache.shape", list(k_cache.shape), f"[pages, {block_size}, 584]")
    return paged(k_cache, {584: "fp8_584"}, block_size, "k_cache")


def dequantize_and_gather_k_cache(
    out: torch.Tensor,
    k_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    gather_lens: torch.Tensor | None,
    block_table: torch.Tensor,
    block_size: int,
    offset: int,
    use_fnuz: bool = False,
) -> None:
    """Copies token seq_lens[r] - gather_lens[r] + i of request r, dequantized, to out[r, offset + i].

    Other rows of out are unchanged. Requests are not adjacent in out, so each request is gathered separately.

    Args:
        out: [>=R,M,512] bf16.
        k_cache: V4's cache, [nb,bs,584] u8.
        seq_lens, gather_lens: [R] i32. Default of gather_lens: all tokens.
        block_table: [>=R,MB] i32.
    """
    _check_fp8(True, use_fnuz)
    cache, lens = _v4_cache(k_cache, block_size), seq_lens if gather_lens is None else gather_lens
    if out.ndim != 3 or not 0 <= offset <= out.shape[1]:
        raise invalid(
            "offset", f"{offset} in {list(out.shape)}", "a row of out, which is [requests, rows, 512]"
        )
    starts = seq_lens - lens
    cu = torch.stack([torch.zeros_like(lens), lens], 1)
    for r in range(seq_lens.shape[0]):
        stages.gather(cache, block_table[r : r + 1], cu[r], out[r, offset:], starts=starts[r : r + 1])


def cp_gather_and_upconvert_fp8_kv_cache(
    src_cache: torch.Tensor,
    dst: torch.Tensor,
    block_table: torch.Tensor,
    workspace_starts: torch.Tensor,
    batch_size: int,
    seq_starts: torch.Tensor | None = None,
) -> None:
    """Copies request r's tokens from seq_starts[r] on, dequantized, to rows [workspace_starts[r],
    workspace_starts[r + 1]) of dst.

    Args:
        src_cache: [nb,bs,656] u8 (528 without rope).
        dst: [N,576] bf16; the last request's rows end at N.
        block_table: [>=R,MB] i32, R = batch_size.
        workspace_starts, seq_starts: [>=R] i32. Default of seq_starts: 0.
    """
    cache = latent_cache(src_cache, "fp8_ds_mla")
    end = workspace_starts.new_full((1,), dst.shape[0])
    stages.gather(
        cache,
        block_table[:batch_size],
        torch.cat([workspace_starts[:batch_size], end]),
        dst,
        starts=None if seq_starts is None else seq_starts[:batch_size],
    )


def index_cache(kv_cache: torch.Tensor, name: str = "kv_cache") -> Cache:
    """Returns vLLM's cache of index keys, [nb,bs,132] or [nb,bs,1,132] u8, as a smla.Cache."""
    if kv_cache.ndim not in (3, 4) or kv_cache.shape[2:-1].numel() != 1 or kv_cache.dtype not in _BYTES:
        raise invalid(name, f"{kv_cache.dtype} {list(kv_cache.shape)}", "torch.uint8 [pages, tokens, 132]")
    return paged(kv_cache, {132: "index_fp8_132"}, kv_cache.shape[1], name)


def indexer_k_quant_and_cache(
    k: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    quant_block_size: int,
    kv_cache_dtype: str,
) -> None:
    """Writes index key k[t], quantized with one scale, to row slot_mapping[t].

    Args:
        k: [>=T,128].
        kv_cache: [nb,bs,132] u8.
        slot_mapping: [T] i64 or i32.
        quant_block_size: 128.
        kv_cache_dtype: format of scales, "ue8m0": powers of two, stored as f32.
    """
    if quant_block_size != 128:
        raise invalid("quant_block_size", quant_block_size, "128 (one scale per key)")
    if kv_cache_dtype != "ue8m0":
        wanted = '"ue8m0" (power-of-two scales)'
        raise unsupported("kv_cache_dtype", repr(kv_cache_dtype), wanted)
    stages.write_index(k, slot_mapping, index_cache(kv_cache))


def cp_gather_indexer_k_quant_cache(
    kv_cache: torch.Tensor,
    dst_k: torch.Tensor,
    dst_scale: torch.Tensor,
    block_table: torch.Tensor,
    cu_seq_lens: torch.Tensor,
) -> None:
    """Copies codes and scales of request r's index keys to rows [cu_seq_lens[r], cu_seq_lens[r + 1]).

    Args:
        kv_cache: [nb,bs,132] u8.
        dst_k: [N,128] u8 or e4m3.
        dst_scale: [N,4] u8, or f32 [N,1] or [N].
        block_table: [>=R,MB] i32.
        cu_seq_lens: [R+1] i32; rows from its last entry on are unchanged.
    """
    if dst_k.ndim != 2 or dst_k.dtype not in _BYTES:
        raise invalid(
            "dst_k", f"{dst_k.dtype} {list(dst_k.shape)}", "torch.uint8 or torch.float8_e4m3fn [rows, 128]"
        )
    stages.gather(
        index_cache(kv_cache),
        block_table[: cu_seq_lens.shape[0] - 1],
        cu_seq_lens,
        dst_k.view(torch.float8_e4m3fn),
        raw=True,
        scales=_scale_view("dst_scale", dst_scale),
    )


def _scale_view(name, scales):
    """Returns a view f32 [N] of [N,4] bytes, [N,1] or [N]."""
    view = scales
    if scales.dtype is torch.uint8 and scales.ndim == 2 and scales.shape[1] == 4 and scales.stride(1) == 1:
        view = scales.view(torch.float32)
    if view.ndim == 2 and view.shape[1] == 1:
        view = view[:, 0]
    if view.dtype is not torch.float32 or view.ndim != 1:
        raise invalid(
            name, f"{scales.dtype} {list(scales.shape)}", "one torch.float32 per row, or its 4 bytes"
        )
    return view
