"""Stand-ins for versions of vLLM, and batches for them.

tests/python/vllm/VERSION.json says what that version asks of a backend (scripts/vllm_interface reads it from
vLLM's sources); vllm_interface.json has what no script can read.
"""

import abc
import enum
import importlib
import json
import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")

import vllm_parents
from vllm_parents import signature

INTERFACE = json.loads((ROOT / "tests/python/vllm_interface.json").read_text())
# scripts/vllm_check names another version's facts.
FACTS_FILES = [Path(path) for path in [os.environ.get("SMLA_VLLM_FACTS")] if path] or sorted(
    (ROOT / "tests/python/vllm").glob("*.json")
)
FACTS = [json.loads(path.read_text()) for path in FACTS_FILES]


def base(name, abstract, **members):
    """A class with these abstract methods, that takes a type parameter as vLLM's do."""

    def method(parameters):
        function = abc.abstractmethod(lambda self, *given, **named: None)
        function.__signature__ = signature(parameters)
        return function

    members["__class_getitem__"] = classmethod(lambda cls, item: cls)
    return abc.ABCMeta(name, (), {**{key: method(value) for key, value in abstract.items()}, **members})


def provided(part):
    """What the base class has: only that it is there matters."""
    return dict.fromkeys(part["provides"])


def builder_base(part):
    def init(self, *arguments):
        for name, value in zip(INTERFACE["builder"]["init_sets"], arguments, strict=True):
            setattr(self, name, value)

    def threshold(self, reorder_batch_threshold=1, supports_spec_as_decode=False):
        self.reorder_batch_threshold = reorder_batch_threshold

    abstract = {name: each for name, each in part["abstract"].items() if name != "__init__"}
    members = {**provided(part), "__init__": init, "_init_reorder_batch_threshold": threshold}
    return base("AttentionMetadataBuilder", abstract, **members)


def impl_base(part):
    def new(cls, *_arguments, **_named):
        self = object.__new__(cls)
        self.dcp_world_size, self.dcp_rank = RANKS
        return self

    members = {**provided(part), "__new__": new}
    for name in INTERFACE["impl"]["set_by_new"]:
        members.pop(name, None)
    return base(part["base"], part["abstract"], **members)


class Platform:
    """vllm.platforms.current_platform: a GPU of this capability, or (0, 0), a CPU.

    deep_gemm, cutedsl: whether there are these packages.
    """

    def __init__(self):
        self.be(0, 0)

    def be(self, major, minor, deep_gemm=True):
        self.capability, self.deep_gemm, self.dispatch_key = major * 10 + minor, deep_gemm, "CPU"
        self.cutedsl = True

    def is_cuda(self):
        return self.capability > 0

    def has_device_capability(self, capability):
        return self.capability >= capability

    def support_deep_gemm(self):
        return self.capability // 10 in (9, 10, 12)


PLATFORM = Platform()
RANKS = [1, 0]  # of decode context parallelism: how many, which


class Registry:
    """vllm.v1.attention.backends.registry."""

    def __init__(self, members, takes_names):
        paths = self.paths = {}

        class Backends(enum.Enum):
            def is_overridden(self):
                return self in paths

            def get_path(self):
                return paths.get(self, self.value)

            def get_class(self):
                module, name = self.get_path().rsplit(".", 1)
                return getattr(importlib.import_module(module), name)

        self.enum = Backends("AttentionBackendEnum", members)
        if takes_names:
            self.enum.register = self._register

    def _register(self, name, value):
        member = object.__new__(self.enum)
        member._name_, member._value_ = name, value
        self.enum._member_map_[name] = member
        return member

    def register_backend(self, backend, class_path=None, is_mamba=False):
        backend = self.enum.register(backend, class_path) if isinstance(backend, str) else backend
        self.paths[backend] = class_path
        return lambda cls: cls


def modules_of(facts, registry, config):
    theirs = facts["backend"]
    backend = {
        "AttentionBackend": base("AttentionBackend", theirs["abstract"], **provided(theirs)),
        "AttentionMetadata": type("AttentionMetadata", (), {}),
        "AttentionMetadataBuilder": builder_base(facts["builder"]),
        "AttentionCGSupport": enum.Enum("AttentionCGSupport", ["NEVER", "UNIFORM_BATCH", "ALWAYS"]),
        "MultipleOf": type("MultipleOf", (), {"__init__": lambda self, base: setattr(self, "base", base)}),
        facts["impl"]["base"]: impl_base(facts["impl"]),
    }
    parents = vllm_parents.members(facts, backend[facts["impl"]["base"]], backend["AttentionMetadataBuilder"])
    members = {"AttentionBackendEnum": registry.enum, "register_backend": registry.register_backend}
    return {
        "vllm": {},
        "vllm.config": {"get_current_vllm_config": lambda: config},
        "vllm.forward_context": {"get_forward_context": lambda: config.context},
        "vllm.platforms": {"current_platform": PLATFORM},
        "vllm.utils": {},
        "vllm.utils.import_utils": {"has_deep_gemm": lambda: PLATFORM.deep_gemm},
        "vllm.model_executor": {},
        "vllm.model_executor.layers": {},
        "vllm.model_executor.layers.attention": {},
        "vllm.model_executor.layers.attention.mla_attention": {
            "_canonicalize_sparse_mla_kv_cache_dtype": lambda attn_backend, kv_cache_dtype: kv_cache_dtype
        },
        **parents,
        "vllm.v1": {},
        "vllm.v1.attention": {},
        "vllm.v1.attention.backend": backend,
        "vllm.v1.attention.backends": {},
        "vllm.v1.attention.backends.mla": {},
        "vllm.v1.attention.backends.mla.sparse_utils": {},
        "vllm.v1.attention.backends.registry": members,
    }


def of_versions(condition):
    """A fixture with stand-ins of each version whose facts meet the condition."""
    chosen = [facts for facts in FACTS if condition(facts)]

    @pytest.fixture(params=chosen, ids=[facts["version"] for facts in chosen])
    def stand_ins(request, monkeypatch):
        yield from world(request.param, monkeypatch)

    return stand_ins


def world(facts, monkeypatch):
    """Stand-ins of one version of vLLM. Gives its facts, registry, config, and smla's modules over them."""
    registry = Registry(INTERFACE["registry"]["members"], facts["registry"]["takes_names"])
    text_config = SimpleNamespace(
        index_topk=11, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )
    model = SimpleNamespace(hf_text_config=text_config, max_model_len=512)
    model.get_num_attention_heads = lambda parallel: parallel.heads
    config = SimpleNamespace(
        model_config=model,
        parallel_config=SimpleNamespace(
            heads=5, cp_kv_cache_interleave_size=1, decode_context_parallel_size=1
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64, max_num_seqs=8),
        context=SimpleNamespace(attn_metadata=None),
    )
    PLATFORM.be(0, 0)
    folder = "legacy." if facts["parents"] is None else ""
    ours = [f"smla.vllm.{name}" for name in ("backend", f"{folder}impl", "hybrid", "indexer")]
    for name, members in modules_of(facts, registry, config).items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    for name in [*ours, "smla.vllm.legacy.metadata"]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    loaded = {name.rpartition(".")[2]: importlib.import_module(name) for name in ours}
    yield SimpleNamespace(facts=facts, registry=registry, config=config, **loaded)
    for library in loaded["indexer"]._libraries.values():
        library._destroy()  # else the next world's registrations are refused where something keeps this one's
    for name in [*ours, "smla.vllm.legacy.metadata"]:
        sys.modules.pop(name, None)


vllm = of_versions(lambda facts: True)
legacy = of_versions(lambda facts: facts["parents"] is None)
either = of_versions(lambda facts: facts in (FACTS[0], FACTS[-1]))  # one of each base class
with_parents = of_versions(lambda facts: facts["parents"] is not None)
with_kernel = of_versions(lambda facts: bool((facts["parents"] or {}).get("kernel_calls")))


def impl(vllm, *, heads=5, topk=None, drop=(), **changes):
    """An implementation, constructed as the layer does."""
    arguments = dict.fromkeys(vllm.facts["impl"]["constructed_with"])
    arguments.update(
        num_heads=heads,
        head_size=576,
        scale=192**-0.5,
        num_kv_heads=1,
        kv_cache_dtype="auto",
        attn_type="decoder",
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        qk_head_dim=192,
        v_head_dim=128,
        indexer=SimpleNamespace(
            topk_indices_buffer=torch.zeros(64, 13, dtype=torch.int32) if topk is None else topk
        ),
    )
    return vllm.impl.SmlaSparseImpl(**{**arguments, **changes})


def builder(vllm, page, device="cpu"):
    spec = SimpleNamespace(block_size=page)
    return vllm.impl.SmlaSparseMetadataBuilder(spec, ["layer"], vllm.config, torch.device(device))


def ints(rng, low, high, *shape):
    return torch.randint(low, high, shape, generator=rng, dtype=torch.int32)


def normal(rng, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=rng).to(dtype)


def batch_of(rng, page, device, queries=(1, 1, 3, 0, 6), padding=2, longest=60):
    """CommonAttentionMetadata of decodes, a request without tokens, prefill, and padding tokens."""
    queries = torch.tensor(queries, dtype=torch.int32)
    lens = torch.maximum(queries, ints(rng, 1, longest, len(queries)))
    starts = torch.cat([torch.zeros(1, dtype=torch.int32), queries.cumsum(0).int()])
    blocks = -(-longest // page)
    table = torch.randperm(len(queries) * blocks + 3, generator=rng)[: len(queries) * blocks].int()
    table = table.view(len(queries), blocks)
    tokens = [(r, int(lens[r] - queries[r]) + i) for r in range(len(queries)) for i in range(int(queries[r]))]
    slots = [int(table[r, p // page]) * page + p % page for r, p in tokens] + [-1] * padding
    slots[:1] = [-1]  # not padding: a token whose key is in the cache already
    place = lambda tensor: tensor.to(device)  # noqa: E731
    common = SimpleNamespace(
        query_start_loc=place(starts),
        seq_lens=place(torch.cat([lens, torch.full((3,), 99)]).int()),  # buffers are longer than the batch
        num_reqs=len(queries),
        num_actual_tokens=len(slots),
        max_query_len=int(queries.max()),
        max_seq_len=int(lens.max()),
        block_table_tensor=place(torch.cat([table, torch.full((2, blocks), -5, dtype=torch.int32)])),
        slot_mapping=place(torch.tensor(slots + [7, 7])),
    )
    return common, tokens, table, lens


def positions_of(rng, tokens, topk, rows):
    """Selected positions with holes, some listed twice. Behind the step's tokens stand stale ones.

    The stale positions name real rows.
    """
    out = torch.zeros(rows, topk, dtype=torch.int32)
    out[: len(tokens)] = -1
    for t, (_, position) in enumerate(tokens):
        some = ints(rng, 0, position + 1, topk)
        out[t] = torch.where(torch.rand(topk, generator=rng) < 0.3, -1, some)
    return out


def decodes_of(rng, page, live, requests=6, tokens_each=2, longest=60):
    """CommonAttentionMetadata of a captured decode step, of the same shapes in every step: `live` requests of
    tokens_each tokens, as with speculative decoding, then requests and tokens of padding. And the tokens.
    """
    lens = ints(rng, tokens_each, longest, requests)
    lens[live:] = 0
    starts = torch.arange(requests + 1, dtype=torch.int32).clamp(max=live) * tokens_each
    blocks = -(-longest // page)
    table = torch.randperm(requests * blocks, generator=rng).int().view(requests, blocks)
    tokens = [(r, int(lens[r]) - tokens_each + i) for r in range(live) for i in range(tokens_each)]
    slots = torch.full((requests * tokens_each,), -1, dtype=torch.int64)
    for t, (r, p) in enumerate(tokens):
        slots[t] = int(table[r, p // page]) * page + p % page
    common = SimpleNamespace(
        query_start_loc=starts,
        seq_lens=lens,
        num_reqs=requests,
        num_actual_tokens=len(slots),
        max_query_len=tokens_each,
        max_seq_len=longest,
        block_table_tensor=table,
        slot_mapping=slots,
    )
    return common, tokens
