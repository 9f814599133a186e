"""The wrapper of FlashInfer's SM120 kernels: `from smla.compat.flashinfer.sparse_mla_sm120 import ...`."""

import torch
from smla.compat.flashinfer._attend import Segment, attend
from smla.compat.flashinfer._check import lengths_of, output_of, require_int, rows_of, sinks_of, tokens_of
from smla.errors import invalid

__all__ = ["BatchSparseMLAPagedAttentionWrapper"]


class BatchSparseMLAPagedAttentionWrapper:
    """Sparse MLA over paged caches for decode and prefill, on every device that smla supports.

    Args:
        max_num_tokens, max_num_heads: maxima of `run`, which determine the size of the lse buffer.
        d_v: output values per head, at most D.
        device: device of the tensors. Default: device of the first query.
    """

    def __init__(
        self,
        max_num_tokens: int,
        max_num_heads: int,
        *,
        d_v: int = 512,
        device: torch.device | str | None = None,
    ) -> None:
        require_int(max_num_tokens, "max_num_tokens", 1)
        require_int(max_num_heads, "max_num_heads", 1)
        require_int(d_v, "d_v", 1)
        self._most = (max_num_tokens, max_num_heads)
        self._d_v = d_v
        self._out_lse = None if device is None else self._new_lse(device)

    def run(
        self,
        q: torch.Tensor,
        kv_cache: torch.Tensor,
        indices: torch.Tensor,
        output: torch.Tensor,
        sm_scale: float | torch.Tensor,
        *,
        topk_length: torch.Tensor | None = None,
        attn_sink: torch.Tensor | None = None,
        extra_kv_cache: torch.Tensor | None = None,
        extra_indices: torch.Tensor | None = None,
        extra_topk_length: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> torch.Tensor | None:
        """Computes output[t,h] = softmax(sm_scale * q[t,h].K) V over the listed rows of one or two caches.

        Args:
            q: [T,H,D], [T,1,H,D] or [B,Q,H,D], bf16, f16 or f32.
            kv_cache: records of 656 bytes (D 576) or 584 bytes (D 512) as [pages,page,bytes], with or without
                a dimension of 1 for the KV head, or as [pages,bytes of a page]; or rows of D values of bf16,
                f32 or e4m3.
            indices: [T,K] or [B,Q,K] i32, page * page size + offset; rows below 0 or past the cache are
                skipped.
            output: [T,H,d_v], or with the leading dimensions of q.
            topk_length: optional [T] i32; entries past it are not read.
            attn_sink: optional [H] f32, a natural-log logit.
            extra_kv_cache, extra_indices, extra_topk_length: optional second cache.

        Returns:
            None, or with return_lse [T,H] f32: base 2, with the sink, -1e30 for a token without rows and
            sink; the next call overwrites this memory. A token without rows gets output 0.
        """
        query = tokens_of(q, "q")
        tokens, heads, width = query.shape
        for name, got, most in zip(("tokens", "heads"), (tokens, heads), self._most, strict=True):
            if got > most:
                raise invalid(f"q.shape: {name}", got, f"at most {most} (max_num_{name})")
        if self._d_v > width:
            raise invalid("d_v", self._d_v, f"at most {width}, the width of q")
        if output is None:
            raise invalid("output", None, f"a tensor [{tokens}, {heads}, {self._d_v}]")
        flat = isinstance(output, torch.Tensor) and output.ndim == 3
        _, out = output_of(output, "output", query, (*(query if flat else q).shape[:-1], self._d_v))
        segments = [
            Segment(
                kv_cache,
                "kv_cache",
                rows_of(indices, "indices", query),
                lengths_of(topk_length, "topk_length", query),
            )
        ]
        if extra_kv_cache is not None:
            rows = rows_of(extra_indices, "extra_indices", query)
            lengths = lengths_of(extra_topk_length, "extra_topk_length", query)
            segments.append(Segment(extra_kv_cache, "extra_kv_cache", rows, lengths))
        elif extra_indices is not None or extra_topk_length is not None:
            raise invalid("extra_kv_cache", None, "the cache of extra_indices and extra_topk_length")
        sinks = sinks_of(attn_sink, "attn_sink", query)
        lse = self._lse_of(query) if return_lse else None
        attend(query, segments, out, scales=(sm_scale, 1.0), sinks=sinks, lse=lse, scale_name="sm_scale")
        return lse

    def _lse_of(self, query):
        if self._out_lse is None:
            self._out_lse = self._new_lse(query.device)
        if self._out_lse.device != query.device:
            raise invalid("q.device", query.device, f"{self._out_lse.device}, as the wrapper")
        return self._out_lse[: query.shape[0], : query.shape[1]]

    def _new_lse(self, device):
        return torch.empty(self._most, dtype=torch.float32, device=device)
