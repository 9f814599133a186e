"""Registration of the plug-in for vLLM and the interface that it keeps (vllm_interface.json)."""

import inspect
import logging
import os
import subprocess
import sys
import types
from types import SimpleNamespace

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")

import smla
import smla.vllm as plugin
from vllm_world import INTERFACE, impl, signature
from vllm_world import vllm as vllm


def test_importing_needs_neither_vllm_nor_torch():
    code = "import sys, smla.vllm; assert not {'vllm', 'torch'} & set(sys.modules), 'imported'"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_the_package_names_the_entry_point():
    text = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points."{INTERFACE["plugins"]["group"]}"]\nsmla = "smla.vllm:register"' in text
    assert inspect.signature(plugin.register).bind() is not None  # called without arguments


def test_register_takes_the_custom_name(vllm):
    custom = vllm.registry.enum.CUSTOM
    for _ in range(2):  # once per process, or more often
        assert plugin.register()
        assert vllm.registry.paths == {custom: plugin.BACKEND}
    assert custom.get_class() is vllm.backend.SmlaSparseBackend
    assert vllm.backend.SmlaSparseBackend.get_name() == custom.name


def test_register_leaves_another_plugins_backend(vllm, caplog):
    vllm.registry.paths[vllm.registry.enum.CUSTOM] = "other.Backend"
    with caplog.at_level(logging.WARNING):
        assert not plugin.register()
    assert (
        vllm.registry.paths == {vllm.registry.enum.CUSTOM: "other.Backend"} and "other.Backend" in caplog.text
    )


def test_register_without_a_registry(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.delitem(sys.modules, "vllm.v1", raising=False)
    with caplog.at_level(logging.WARNING):
        assert not plugin.register()
    assert "no attention backend of this vLLM" in caplog.text


def parts(vllm):
    return {
        "backend": vllm.backend.SmlaSparseBackend,
        "builder": vllm.metadata.SmlaSparseMetadataBuilder,
        "impl": vllm.impl.SmlaSparseImpl,
    }


@pytest.mark.parametrize("part", ["backend", "builder", "impl"])
def test_nothing_abstract_is_left_and_attributes_are_there(vllm, part):
    cls = parts(vllm)[part]
    assert not cls.__abstractmethods__
    own = impl(vllm) if part == "impl" else cls
    for name in INTERFACE[part]["attributes"]:
        getattr(own, name)


CALLS = [(part, call) for part in ("backend", "builder", "impl") for call in INTERFACE[part]["calls"]]


@pytest.mark.parametrize("part, call", CALLS, ids=lambda x: x if isinstance(x, str) else x[0])
def test_methods_take_the_calls_that_vllm_makes(vllm, part, call):
    cls, (name, *arguments) = parts(vllm)[part], call
    method = inspect.getattr_static(cls, name)
    bound = [] if isinstance(method, (staticmethod, classmethod)) else ["self"]
    positional = [argument for argument in arguments if not argument.endswith("=")]
    keywords = {argument[:-1]: 0 for argument in arguments if argument.endswith("=")}
    inspect.signature(getattr(cls, name)).bind(*bound, *positional, **keywords)


@pytest.mark.parametrize("part", ["backend", "builder"])
def test_parameters_have_the_names_of_the_interface(vllm, part):
    for name, wanted in INTERFACE[part]["abstract"].items():
        method = inspect.getattr_static(parts(vllm)[part], name)
        got = list(inspect.signature(getattr(parts(vllm)[part], name)).parameters.values())
        got = got if isinstance(method, staticmethod) else got[1:]
        want = list(signature(wanted).parameters.values())[1:]
        assert [(p.name, p.default) for p in got] == [(p.name, p.default) for p in want]


def test_metadata_have_the_fields_that_layers_read(vllm):
    names = set(vllm.metadata.SmlaSparseMetadata.__dataclass_fields__)
    assert names >= set(INTERFACE["fields"]["metadata read by the layer"])
    # and those of the published backend for V3.2
    assert names >= {
        "num_reqs",
        "max_query_len",
        "max_seq_len",
        "query_start_loc",
        "slot_mapping",
        "block_table",
    }
    assert names >= {"req_id_per_token", "seq_lens", "block_size", "topk_tokens"}


def test_what_the_backend_says_of_itself(vllm):
    backend = vllm.backend.SmlaSparseBackend
    assert backend.is_mla() and backend.is_sparse()
    assert backend.get_kv_cache_shape(7, 64, 1, 576) == (7, 64, 576)
    assert backend.get_kv_cache_shape(7, 64, 1, 576, cache_dtype_str="fp8_ds_mla") == (7, 64, 656)
    shape = smla.Backend(
        None,
        "dsa",
        heads=5,
        topk=13,
        max_tokens=1,
        max_requests=1,
        max_seq_len=1,
        softmax_scale=1,
        kv_cache_dtype="fp8_ds_mla",
    ).cache_shape(7)
    assert backend.get_kv_cache_shape(7, 64, 1, 576, "fp8_ds_mla") == shape["shape"]
    assert backend.supports_compute_capability(SimpleNamespace(major=8, minor=0))
    assert not backend.supports_compute_capability(SimpleNamespace(major=7, minor=5))
    assert backend.supports_combination(576, torch.bfloat16) is None
    assert [size.base for size in backend.get_supported_kernel_block_sizes()] == [1]
    del vllm.config.model_config.hf_text_config.index_topk
    assert "index_topk" in backend.supports_combination(576, torch.bfloat16)
