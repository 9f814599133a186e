"""Stand-ins for vLLM, made from vllm_interface.json, and batches for them."""

import abc
import enum
import importlib
import inspect
import json
import sys
import types
from types import SimpleNamespace

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")


INTERFACE = json.loads((ROOT / "tests/python/vllm_interface.json").read_text())


def signature(parameters):
    """A signature of "name", "name=default" and "name=" (by keyword)."""
    return eval(f"inspect.signature(lambda {', '.join(['self', *parameters])}: None)", {"inspect": inspect})


def base(name, abstract, **members):
    """A class with these abstract methods, that takes a type parameter as vLLM's do."""

    def method(parameters):
        function = abc.abstractmethod(lambda self, *given, **named: None)
        function.__signature__ = signature(parameters)
        return function

    members["__class_getitem__"] = classmethod(lambda cls, item: cls)
    return abc.ABCMeta(name, (), {**{key: method(value) for key, value in abstract.items()}, **members})


def builder_base(spec):
    def init(self, *arguments):
        for name, value in zip(spec["init_sets"], arguments, strict=True):
            setattr(self, name, value)

    def threshold(self, reorder_batch_threshold=1, supports_spec_as_decode=False):
        self.reorder_batch_threshold = reorder_batch_threshold

    return base(spec["class"], spec["abstract"], __init__=init, _init_reorder_batch_threshold=threshold)


def impl_base(era):
    def new(cls, *_arguments, **_named):
        self = object.__new__(cls)
        self.dcp_world_size, self.dcp_rank = 1, 0
        return self

    return base(era["impl_base"], era["impl_abstract"], __new__=new)


class Registry:
    """vllm.v1.attention.backends.registry."""

    def __init__(self, spec):
        paths = self.paths = {}

        class Backends(enum.Enum):
            def is_overridden(self):
                return self in paths

            def get_path(self):
                return paths[self]

            def get_class(self):
                module, name = paths[self].rsplit(".", 1)
                return getattr(importlib.import_module(module), name)

        self.enum = Backends(spec["enum"], spec["members"])

    def register_backend(self, backend, class_path=None, is_mamba=False):
        self.paths[backend] = class_path
        return lambda cls: cls


def modules_of(era, registry, config):
    backend = {
        "AttentionBackend": base("AttentionBackend", INTERFACE["backend"]["abstract"]),
        "AttentionMetadata": type("AttentionMetadata", (), {}),
        "AttentionMetadataBuilder": builder_base(INTERFACE["builder"]),
        "AttentionCGSupport": enum.Enum("AttentionCGSupport", ["NEVER", "UNIFORM_BATCH", "ALWAYS"]),
        "MultipleOf": type("MultipleOf", (), {"__init__": lambda self, base: setattr(self, "base", base)}),
        era["impl_base"]: impl_base(era),
    }
    members = {"AttentionBackendEnum": registry.enum, "register_backend": registry.register_backend}
    return {
        "vllm": {},
        "vllm.config": {"get_current_vllm_config": lambda: config},
        "vllm.forward_context": {"get_forward_context": lambda: config.context},
        "vllm.v1": {},
        "vllm.v1.attention": {},
        "vllm.v1.attention.backend": backend,
        "vllm.v1.attention.backends": {},
        "vllm.v1.attention.backends.registry": members,
    }


@pytest.fixture(params=INTERFACE["eras"])
def vllm(request, monkeypatch):
    """Stand-ins of one version of vLLM. Gives its registry, config, and smla's modules over them."""
    registry = Registry(INTERFACE["registry"])
    text_config = SimpleNamespace(
        index_topk=11, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )
    model = SimpleNamespace(hf_text_config=text_config, max_model_len=512)
    model.get_num_attention_heads = lambda parallel: parallel.heads
    config = SimpleNamespace(
        model_config=model,
        parallel_config=SimpleNamespace(heads=5),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64, max_num_seqs=8),
        context=SimpleNamespace(attn_metadata=None),
    )
    ours = [f"smla.vllm.{name}" for name in ("backend", "impl", "metadata", "hybrid")]
    for name, members in modules_of(INTERFACE["eras"][request.param], registry, config).items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    for name in ours:
        monkeypatch.delitem(sys.modules, name, raising=False)
    loaded = {name.rpartition(".")[2]: importlib.import_module(name) for name in ours}
    yield SimpleNamespace(registry=registry, config=config, **loaded)
    for name in ours:
        sys.modules.pop(name, None)


def impl(vllm, *, heads=5, topk=None, drop=(), **changes):
    """An implementation, constructed as the layer does."""
    arguments = dict.fromkeys(INTERFACE["impl"]["constructed_with"])
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
    return vllm.metadata.SmlaSparseMetadataBuilder(spec, ["layer"], vllm.config, torch.device(device))
