"""Stand-ins of vLLM's base classes for sparse MLA (0.30 and later), in plain loops.

tests/python/vllm/VERSION.json says what a version's classes take and call. test_vllm_own_parents.py runs the
same steps on vLLM's own classes where vLLM is installed.
"""

import inspect
from types import SimpleNamespace

import torch

PLACE = "vllm.model_executor.layers.attention.sparse_mla_attention"
POISON = 2**30  # behind the counted rows: no row of any cache


def signature(parameters):
    """A signature of "name", "name=default" and "name=" (by keyword)."""
    return eval(f"inspect.signature(lambda {', '.join(['self', *parameters])}: None)", {"inspect": inspect})


class HotCache(SimpleNamespace):
    """HiSparse's part: `cache` on the device, [pages,tokens,record], and `row_of`, position -> row of it."""


def rows_of(impl, topk, metadata, row_of):
    """[T,K] rows, valid ones in front and POISON behind them, and how many are valid."""
    rows, counts = torch.full_like(topk, POISON), torch.zeros(len(topk), dtype=torch.int32)
    for t, positions in enumerate(topk.tolist()):
        request = int(metadata.req_id_per_token[t])
        found = [row_of(request, p) for p in positions if p >= 0 and mine(impl, metadata, p)]
        rows[t, : len(found)] = torch.tensor(found, dtype=torch.int32)
        counts[t] = len(found)
    return rows, counts.to(topk.device)


def mine(impl, metadata, position):
    return position // metadata.cp_kv_cache_interleave_size % impl.dcp_world_size == impl.dcp_rank


def local(impl, metadata, position):
    group = metadata.cp_kv_cache_interleave_size
    return position // (group * impl.dcp_world_size) * group + position % group


def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer):
    """Rows numbered through the cache's memory, in one call; with HiSparse one of decodes, one of prefill."""
    cache, metadata = kv_c_and_k_pe_cache, attn_metadata
    tokens = (q[0] if isinstance(q, tuple) else q).shape[0]
    apart, page = cache.stride(0) // cache.shape[2], metadata.block_size

    def row_of(request, position):
        at = local(self, metadata, position)
        return int(metadata.block_table[request, at // page]) * apart + at % page

    def call(part, cache, row_of, is_decode):
        step = SimpleNamespace(**vars(metadata))
        step.req_id_per_token = metadata.req_id_per_token[part]
        rows, counts = rows_of(self, self.topk_indices_buffer[part], step, row_of)
        some = tuple(x[part] for x in q) if isinstance(q, tuple) else q[part]
        named = {"layer": layer, "block_size": page, "is_decode": is_decode}
        return self._forward_mqa_kernel(some, cache, rows.to(cache.device), counts, **named)

    decodes = metadata.num_decode_tokens
    if getattr(self, "hot", None) is None:
        return call(slice(0, tokens), cache, row_of, decodes >= tokens)
    parts = [(slice(0, decodes), self.hot.cache, self.hot.row_of, True)]
    parts += [(slice(decodes, tokens), cache, row_of, False)]
    outs = [call(*part)[0] for part in parts]
    return torch.cat(outs), None


def constructor(names):
    """__init__ of the parameters, kept as attributes."""
    every = [name.partition("=")[0] for name in names]

    def init(self, *given, **named):
        values = dict(zip(every, given, strict=False)) | named
        unknown = set(values) - set(every)
        assert not unknown, unknown
        assert not set(n for n in names if "=" not in n) - set(values)
        buffer = values.pop("topk_indices_buffer", None)
        self._indexer, self._buffer = values.pop("indexer", None), buffer
        for name, value in values.items():
            setattr(self, name, value)

    init.__signature__ = signature(names)
    return init


def buffer_of(self):
    return self._buffer if self._indexer is None else self._indexer.topk_indices_buffer


def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
    """Decodes are the requests of at most reorder_batch_threshold tokens in front."""
    common = common_attn_metadata
    starts = common.query_start_loc.tolist()
    queries = [b - a for a, b in zip(starts, starts[1:], strict=False)]
    small = [n <= self.reorder_batch_threshold for n in queries] + [False]
    decodes, tokens = small.index(False), common.num_actual_tokens
    requests = [r for r, n in enumerate(queries) for _ in range(n)]
    device = common.query_start_loc.device
    return type(self).metadata_cls(
        num_actual_tokens=tokens,
        slot_mapping=common.slot_mapping[:tokens],
        block_table=common.block_table_tensor,
        req_id_per_token=torch.tensor(requests + [0] * (tokens - len(requests)), device=device).int(),
        block_size=self.kv_cache_spec.block_size,
        num_decodes=decodes,
        num_prefills=common.num_reqs - decodes,
        num_decode_tokens=starts[decodes],
        cp_kv_cache_interleave_size=self.vllm_config.parallel_config.cp_kv_cache_interleave_size,
    )


def members(facts, impl_base, builder_base):
    """The module of the classes by its name; {}: this version has none that smla builds on."""
    parents = facts["parents"]
    if parents is None:
        return {}
    item = {"__class_getitem__": classmethod(lambda cls, item: cls)}
    provided = dict.fromkeys(parents["provides"])
    impl = {**provided, **item, "__init__": constructor(parents["constructor"]), "is_sparse": True}
    impl["topk_indices_buffer"] = property(buffer_of)
    if parents["kernel_calls"]:
        impl["forward_mqa"] = forward_mqa
    classes = {
        "SparseMLACommonImpl": type("SparseMLACommonImpl", (impl_base,), impl),
        "SparseMLACommonMetadata": type("SparseMLACommonMetadata", (SimpleNamespace,), {}),
        "SparseMLACommonMetadataBuilder": type(
            "SparseMLACommonMetadataBuilder", (builder_base,), {**item, "build": build}
        ),
    }
    return {PLACE: classes}
