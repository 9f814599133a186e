"""Implementation of DeepSeek-V4's forward_mqa with vLLM's metadata. Requires vLLM.

vLLM does not select V4's attention class through its registry of backends. install() therefore replaces
forward_mqa in the classes from which vLLM selects.
"""

import importlib
from typing import Any

import torch

from .. import Cache, stages
from ..compat.vllm_ops.caches import paged
from ..errors import unsupported

__all__ = ["forward_mqa", "install"]
# Attention classes of vLLM 0.25 to 0.33, by module.
_CLASSES = {
    "vllm.models.deepseek_v4.nvidia.flashmla": ("DeepseekV4FlashMLAAttention",),
    "vllm.models.deepseek_v4.nvidia.flashinfer_sparse": (
        "DeepseekV4FlashInferMLAAttention",
        "DeepseekV4FlashInferSM120Attention",
    ),
}
_FORMATS = {torch.bfloat16: "row_bf16", torch.float32: "row_f32", 584: "fp8_584", 512: "fp8_512"}


def install() -> list[str]:
    """Replaces forward_mqa in vLLM's attention classes of DeepSeek-V4, and returns the names of the classes.

    Call install() in each process of vLLM before the model is created: in a plug-in of the group
    vllm.general_plugins. It may be called repeatedly.

    Raises:
        Unsupported: this vLLM has none of the classes.
    """
    found = []
    for module, names in _CLASSES.items():
        try:
            classes = importlib.import_module(module)
        except ImportError:
            continue  # another version of vLLM, or a module that cannot be imported here
        for name in names:
            if (cls := getattr(classes, name, None)) is not None:
                cls.forward_mqa = forward_mqa
                found.append(name)
    if not found:
        wanted = ", ".join(name for names in _CLASSES.values() for name in names)
        raise unsupported("vllm", "none of V4's attention classes", wanted)
    return found


def forward_mqa(
    layer: Any, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor, output: torch.Tensor
) -> None:
    """Computes attention of the step's tokens over their windows and compressed entries. The inverse rotation
    is not applied to the output.

    layer: DeepseekV4MLAAttention. q: [N,H,512], rotated. output: [N,>=H,512]; heads after the H heads of q
    become 0, and without metadata the whole output. kv and positions are ignored, because vLLM has already
    rotated q and written the keys.
    """
    from vllm.forward_context import get_forward_context

    if not isinstance(output, torch.Tensor):
        got, wanted = type(output).__name__, "a tensor, because smla does not quantize outputs"
        raise unsupported("output", got, wanted)
    metadata = get_forward_context().attn_metadata
    if metadata is None:  # a warm-up run
        output.zero_()
        return
    window = metadata[layer.swa_cache_layer.prefix]
    entries = metadata.get(layer.prefix)
    attend = _attention(layer, q, output)
    decodes, prefills = window.num_decode_tokens, window.num_prefill_tokens
    if decodes:
        part, rows = slice(0, decodes), window.decode_swa_indices.view(decodes, -1)
        compressed = _entries(layer, window, entries, part, prefill=False)
        attend(part, rows, window.decode_swa_lens[:decodes], *compressed)
    if prefills:
        part = slice(decodes, decodes + prefills)
        compressed = _entries(layer, window, entries, part, prefill=True)
        attend(part, *_prefill_window(layer, window, part), *compressed)


def _attention(layer, q, output):
    """Returns a function attend(part, rows, lengths, extra_rows, extra_lengths) for parts of the step."""
    heads = q.shape[1]
    output[:, heads:].zero_()
    caches = {"cache": _cache(layer, layer.swa_cache_layer.kv_cache)}
    if layer.compress_ratio > 1:  # other layers have no compressed cache, even if they have the attribute
        caches["extra"] = _cache(layer, layer.kv_cache)
    sink = None if layer.attn_sink is None else layer.attn_sink[:heads]
    q_scale = layer._flashinfer_fp8_q_scale if q.dtype is torch.float8_e4m3fn else None

    def attend(part, rows, lengths, extra_rows=None, extra_lengths=None):
        stages.attend(
            q[part],
            rows=rows,
            lengths=lengths,
            extra_rows=extra_rows,
            extra_lengths=extra_lengths,
            softmax_scale=layer.scale,
            q_scale=q_scale,
            sink=sink,
            out=output[part, :heads],
            **caches,
        )

    return attend


def _cache(layer, data) -> Cache:
    """Returns the smla.Cache of [nb,bs,record]: 584-byte records, plain rows, or e4m3 with one scale."""
    one_scale = data.dtype is torch.float8_e4m3fn
    return paged(data, _FORMATS, data.shape[1], scale=layer._flashinfer_fp8_kv_scale if one_scale else None)


def _entries(layer, window, entries, part, prefill):
    """Returns the rows of the entries that the tokens of a part attend to, and the lengths of these lists, or
    an empty tuple if the layer has no entries.

    A length is the width of the list, or 0 for padding. The number of valid entries would be too small for a
    list with masked entries, which attention skips.
    """
    tokens = part.stop - part.start
    if layer.compress_ratio <= 1:
        return ()
    if layer.compress_ratio == 4:
        selected = layer.topk_indices_buffer[part]
    elif prefill:
        selected = entries.c128a_prefill_topk_indices[:tokens]
    else:
        rows = entries.c128a_global_decode_topk_indices.view(tokens, -1)
        return rows, entries.c128a_decode_topk_lens[:tokens]
    rows = stages.map(
        selected,
        window.token_to_req_indices[part],
        entries.block_table,
        page_tokens=entries.block_size // layer.compress_ratio,  # entries per page
    )
    return rows, window.is_valid_token[part] * rows.new_full((), rows.shape[1])


def _prefill_window(layer, window, part):
    """Returns rows and lengths of the windows, which vLLM computes only on some devices."""
    if window.prefill_swa_indices is not None:
        tokens = part.stop - part.start
        return window.prefill_swa_indices[:tokens].flatten(1), window.prefill_swa_lens[:tokens]  # [T,1,W]
    request = window.token_to_req_indices[part]
    token = torch.arange(part.start, part.stop, dtype=torch.int32, device=request.device)
    known = request.long()
    seen = window.seq_lens[known] - (window.query_start_loc[known + 1] - token) + 1  # position + 1
    lengths = torch.where(window.is_valid_token[part], seen.clamp(max=layer.window_size), 0)
    step = torch.arange(layer.window_size, dtype=torch.int32, device=request.device)
    recent = torch.where(step < lengths[:, None], (seen - lengths)[:, None] + step, -1)
    rows = stages.map(recent, request, window.block_table, page_tokens=window.block_size)
    return rows, lengths
