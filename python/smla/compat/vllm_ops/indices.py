"""Conversion of positions that an indexer selected to rows that attention reads
(vllm/v1/attention/backends/mla/sparse_utils.py, flashmla_sparse.py;
vllm/models/deepseek_v4/common/ops/cache_utils.py).

Dimensions: T query tokens, K columns, R requests, MB blocks per request. All index tensors are i32; masked
entries are -1.
"""

import torch

from ... import rows as host_rows
from ...errors import invalid
from . import device_rows

__all__ = ["build_flashinfer_mixed_sparse_indices", "combine_topk_swa_indices"]
__all__ += ["compute_global_topk_indices_and_lens", "filter_prefill_indices", "lse2_to_lse"]
__all__ += ["triton_convert_req_index_to_global_index", "triton_filter_and_convert_dcp_index"]


def rows_on(tensor: torch.Tensor):
    """Returns the module for the tensor's device: device_rows for a GPU, else smla.rows."""
    return device_rows if tensor.is_cuda else host_rows


def check_ints(ndim: int, **tensors: torch.Tensor) -> None:
    """Requires i32 tensors of this number of dimensions, as the original asserts."""
    for name, tensor in tensors.items():
        if tensor.dtype is not torch.int32:
            raise invalid(f"{name}.dtype", tensor.dtype, "torch.int32")
        if tensor.ndim != ndim:
            raise invalid(f"{name}.ndim", tensor.ndim, str(ndim))


def _check_conversion(req_id, block_table, token_indices, width):
    check_ints(1, req_id=req_id)
    check_ints(2, block_table=block_table, token_indices=token_indices)
    if token_indices.shape[1] != width:
        raise invalid("NUM_TOPK_TOKENS", width, f"{token_indices.shape[1]}, the width of token_indices")
    if req_id.shape[0] != token_indices.shape[0]:
        raise invalid("req_id.shape[0]", req_id.shape[0], f"{token_indices.shape[0]}, as token_indices")


def triton_convert_req_index_to_global_index(
    req_id: torch.Tensor,
    block_table: torch.Tensor,
    token_indices: torch.Tensor,
    BLOCK_SIZE: int = 64,
    NUM_TOPK_TOKENS: int = 2048,
    BLOCK_N: int = 128,
    HAS_PREFILL_WORKSPACE: bool = False,
    prefill_workspace_request_ids: torch.Tensor | None = None,
    prefill_workspace_starts: torch.Tensor | None = None,
    return_valid_counts: bool = False,
    out: torch.Tensor | None = None,
    valid_counts_out: torch.Tensor | None = None,
    *,
    BLOCK_STRIDE_ROWS: int | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Returns rows [T,K]: block_table[req_id[t], p // BLOCK_SIZE] * BLOCK_STRIDE_ROWS + p % BLOCK_SIZE.

    Negative positions, positions past the table and negative block ids give -1.

    Args:
        req_id: [T].
        block_table: [R,MB].
        token_indices: [T,K], positions of the request.
        NUM_TOPK_TOKENS: K.
        BLOCK_N: ignored tile size of the original; K is unrestricted.
        HAS_PREFILL_WORKSPACE: tokens with w = prefill_workspace_request_ids[t] >= 0 get
            prefill_workspace_starts[w] + p instead.
        return_valid_counts: also return the number of valid rows, [T].
        BLOCK_STRIDE_ROWS: rows between pages. Default: BLOCK_SIZE.
    """
    _check_conversion(req_id, block_table, token_indices, NUM_TOPK_TOKENS)
    workspaces = {}
    if HAS_PREFILL_WORKSPACE:
        if prefill_workspace_request_ids is None or prefill_workspace_starts is None:
            raise invalid(
                "prefill_workspace_request_ids", None, "ids and starts, because HAS_PREFILL_WORKSPACE is set"
            )
        workspaces = {
            "workspace_of_token": prefill_workspace_request_ids,
            "workspace_starts": prefill_workspace_starts,
        }
        check_ints(1, **workspaces)
    found = rows_on(token_indices).request_rows(
        token_indices,
        req_id,
        block_table,
        page_tokens=BLOCK_SIZE,
        page_rows=BLOCK_STRIDE_ROWS or 0,
        rows=out,
        counts=valid_counts_out,
        **workspaces,
    )
    return (found.rows, found.lens) if return_valid_counts else found.rows


def triton_filter_and_convert_dcp_index(
    req_id: torch.Tensor,
    block_table: torch.Tensor,
    token_indices: torch.Tensor,
    dcp_size: int,
    dcp_rank: int,
    cp_kv_cache_interleave_size: int = 1,
    BLOCK_SIZE: int = 64,
    NUM_TOPK_TOKENS: int = 2048,
    BLOCK_N: int = 128,
    return_valid_counts: bool = False,
    compact_valid_to_front: bool = True,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Returns rows of the positions of a context-parallel rank, in its local numbering, and -1 for positions
    of other ranks.

    Other arguments and results are the same as in triton_convert_req_index_to_global_index.

    Args:
        compact_valid_to_front: move valid rows to the front in the same order; with one rank, nothing moves.
    """
    _check_conversion(req_id, block_table, token_indices, NUM_TOPK_TOKENS)
    if dcp_size < 1 or not 0 <= dcp_rank < dcp_size:
        raise invalid("dcp_rank", f"{dcp_rank} of {dcp_size}", "0 <= dcp_rank < dcp_size")
    if cp_kv_cache_interleave_size < 1 or BLOCK_SIZE % cp_kv_cache_interleave_size:
        raise invalid(
            "cp_kv_cache_interleave_size", cp_kv_cache_interleave_size, f"a divisor of {BLOCK_SIZE}"
        )
    found = rows_on(token_indices).request_rows(
        token_indices,
        req_id,
        block_table,
        page_tokens=BLOCK_SIZE,
        compact=compact_valid_to_front and dcp_size > 1,
        ranks=dcp_size,
        rank=dcp_rank,
        interleave=cp_kv_cache_interleave_size,
    )
    return (found.rows, found.lens) if return_valid_counts else found.rows


def compute_global_topk_indices_and_lens(
    topk_indices: torch.Tensor,
    token_to_req_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    is_valid_token: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns rows of compressed entries, [T,K], and their number per token, [T], which is 0 for invalid
    tokens.

    Rows of invalid tokens are also converted.

    Args:
        topk_indices: [T,K], entries of the request.
        token_to_req_indices, is_valid_token: [>=T], i32 and bool: requests of the whole batch.
        block_size: entries per page.
    """
    check_ints(2, topk_indices=topk_indices, block_table=block_table)
    check_ints(1, token_to_req_indices=token_to_req_indices)
    tokens = topk_indices.shape[0]
    found = rows_on(topk_indices).request_rows(
        topk_indices,
        token_to_req_indices[:tokens],
        block_table,
        page_tokens=block_size,
        is_valid=as_bytes("is_valid_token", is_valid_token)[:tokens],
    )
    return found.rows, found.lens


def as_bytes(name: str, flags: torch.Tensor) -> torch.Tensor:
    """Returns one-dimensional bools as u8."""
    if flags.dtype not in (torch.bool, torch.uint8) or flags.ndim != 1:
        raise invalid(name, f"{flags.dtype} {list(flags.shape)}", "torch.bool, one per token")
    return flags.view(torch.uint8)


def combine_topk_swa_indices(
    topk_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    gather_lens: torch.Tensor,
    window_size: int,
    compress_ratio: int,
    topk: int,
    M: int,
    N: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns rows of prefill tokens in a gathered workspace, and their lengths.

    Request b has workspace rows [M b, M (b + 1)): N rows of entries, then its last gather_lens[b] tokens.

    Args:
        topk_indices: [T,>=topk], entries of the request.
        query_start_loc: [B+1] of the chunk, beginning with any number.
        seq_lens, gather_lens: [B].

    Returns:
        rows [T, topk + window_size rounded up to 128]: selected entries, then the window, then -1; and
        lengths [T].
    """
    check_ints(2, topk_indices=topk_indices)
    check_ints(1, query_start_loc=query_start_loc, seq_lens=seq_lens, gather_lens=gather_lens)
    if M * seq_lens.shape[0] > 2**31 - 1:
        raise invalid("M", M, f"M * {seq_lens.shape[0]} (requests) that fits in i32")
    if topk > topk_indices.shape[1]:
        raise invalid("topk", topk, f"at most {topk_indices.shape[1]}, the width of topk_indices")
    found = rows_on(topk_indices).combined_rows(
        topk_indices,
        query_start_loc,
        seq_lens,
        gather_lens,
        window=window_size,
        ratio=compress_ratio,
        topk=topk,
        stride=M,
        entries=N,
    )
    return tuple(found)


def build_flashinfer_mixed_sparse_indices(
    decode_swa_indices: torch.Tensor,
    decode_compressed_indices: torch.Tensor | None,
    decode_compressed_topk_lens: torch.Tensor | None,
    prefill_topk_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    token_to_req_indices: torch.Tensor,
    swa_block_table: torch.Tensor,
    swa_block_size: int,
    compressed_block_table: torch.Tensor | None,
    compressed_block_size: int,
    window_size: int,
    compress_ratio: int,
    topk: int,
    decode_compressed_indices_are_local: bool = False,
    decode_is_valid_token: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns rows of a batch with decode tokens first, and lengths, which always include the whole window.

    Args:
        decode_swa_indices: [Td,window_size] rows.
        decode_compressed_indices: [Td,Kd], entries of the request (local), or rows.
        decode_compressed_topk_lens: [>=Td], lengths of rows. Default: Kd.
        decode_is_valid_token: [>=Td] bool, for local entries. Local entries are compacted, so that a length
            covers a prefix.
        prefill_topk_indices: [Tp,>=topk] entries.
        query_start_loc, seq_lens, token_to_req_indices: [R+1], [R] and [>=Td+Tp].

    Returns:
        rows [Td+Tp, window_size + P], P = max(topk, Kd) rounded up to 4: window_size columns of the window
        cache, then compressed entries; and lengths [Td+Tp].
    """
    check_ints(2, decode_swa_indices=decode_swa_indices, prefill_topk_indices=prefill_topk_indices)
    check_ints(
        1, query_start_loc=query_start_loc, seq_lens=seq_lens, token_to_req_indices=token_to_req_indices
    )
    decodes, prefills = decode_swa_indices.shape[0], prefill_topk_indices.shape[0]
    _check_mixed(decode_swa_indices, window_size, prefill_topk_indices, topk, token_to_req_indices)
    entries, lens, valid = decode_compressed_indices, decode_compressed_topk_lens, None
    if entries is not None:
        check_ints(2, decode_compressed_indices=entries)
        if entries.shape[0] != decodes:
            raise invalid("decode_compressed_indices.shape[0]", entries.shape[0], f"{decodes} decode tokens")
    local = decode_compressed_indices_are_local and entries is not None and entries.shape[1] > 0
    if local:
        if decode_is_valid_token is None:
            raise invalid("decode_is_valid_token", None, "one flag per decode token for local entries")
        valid, lens = as_bytes("decode_is_valid_token", decode_is_valid_token), None
    elif lens is not None:
        check_ints(1, decode_compressed_topk_lens=lens)
        lens = None if entries is None else lens[:decodes]
    found = rows_on(decode_swa_indices).mixed_rows(
        decode_window_rows=decode_swa_indices,
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        request_of_token=token_to_req_indices,
        window_table=swa_block_table,
        window=window_size,
        ratio=compress_ratio,
        topk=topk,
        window_page_tokens=swa_block_size,
        decode_entries=entries,
        decode_lens=lens,
        is_valid=valid,
        prefill_entries=prefill_topk_indices,
        entry_table=swa_block_table if compressed_block_table is None else compressed_block_table,
        entry_page_tokens=compressed_block_size,
        local=local,
        tokens=decodes + prefills,
    )
    return tuple(found)


def _check_mixed(decode_swa_indices, window, prefill_topk_indices, topk, token_to_req_indices):
    tokens = decode_swa_indices.shape[0] + prefill_topk_indices.shape[0]
    if decode_swa_indices.shape[1] != window:
        raise invalid("decode_swa_indices.shape[1]", decode_swa_indices.shape[1], f"{window}, window_size")
    if prefill_topk_indices.shape[0] and topk > prefill_topk_indices.shape[1]:
        raise invalid(
            "topk", topk, f"at most {prefill_topk_indices.shape[1]}, the width of prefill_topk_indices"
        )
    if token_to_req_indices.shape[0] < tokens:
        raise invalid(
            "token_to_req_indices.shape[0]", token_to_req_indices.shape[0], f"at least {tokens} tokens"
        )


def filter_prefill_indices(
    indices: torch.Tensor, prefill_context_lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Splits positions into positions of the cached context and of the new tokens, which are counted from 0.

    An entry of one result is -1 in the other. In the original, this is a method of
    FlashMLASparseDecodeAndContextMetadata, and prefill_context_lengths is its field.

    Args:
        indices: [T,K].
        prefill_context_lengths: [T].
    """
    check_ints(2, indices=indices)
    check_ints(1, prefill_context_lengths=prefill_context_lengths)
    if prefill_context_lengths.shape[0] != indices.shape[0]:
        raise invalid("prefill_context_lengths.shape[0]", prefill_context_lengths.shape[0], indices.shape[0])
    return rows_on(indices).split_context(indices, prefill_context_lengths)


def lse2_to_lse(lse_base2: torch.Tensor) -> torch.Tensor:
    """Returns ln 2 * lse_base2, f32, in the same shape."""
    lse = lse_base2.float()
    return rows_on(lse).lse_from_log2(lse.reshape(-1, 1)).view(lse.shape)


_lse2_to_lse = lse2_to_lse
