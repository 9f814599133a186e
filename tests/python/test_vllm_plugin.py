"""Registration of the plug-in for vLLM and the interface that it keeps (vllm_interface.json)."""

import importlib
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
from vllm_world import legacy as legacy
from vllm_world import vllm as vllm
from vllm_world import with_parents as with_parents


def test_importing_needs_neither_vllm_nor_torch():
    code = "import sys, smla.vllm; assert not {'vllm', 'torch'} & set(sys.modules), 'imported'"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_the_package_names_the_entry_point():
    text = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points."{INTERFACE["plugins"]["group"]}"]\nsmla = "smla.vllm:register"' in text
    assert inspect.signature(plugin.register).bind() is not None  # called without arguments


def test_register_takes_a_name_of_its_own_where_it_can(vllm):
    own = "SMLA" if vllm.facts["registry"]["takes_names"] else "CUSTOM"
    for _ in range(2):  # once per process, or more often
        assert plugin.register()
        member = vllm.registry.enum[own]
        assert vllm.registry.paths == {member: plugin.BACKEND}
    assert member.get_class() is vllm.backend.SmlaSparseBackend
    assert vllm.backend.SmlaSparseBackend.get_name() == own == plugin.registered_name()


def test_register_leaves_another_plugins_backend(vllm, caplog):
    if vllm.facts["registry"]["takes_names"]:
        vllm.registry.register_backend("SMLA", "other.Backend")
    else:
        vllm.registry.paths[vllm.registry.enum.CUSTOM] = "other.Backend"
    before = dict(vllm.registry.paths)
    with caplog.at_level(logging.WARNING):
        assert not plugin.register()
    assert vllm.registry.paths == before and "other.Backend" in caplog.text


def test_register_without_a_registry(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.delitem(sys.modules, "vllm.v1", raising=False)
    with caplog.at_level(logging.WARNING):
        assert not plugin.register()
    assert "cannot be registered in this vLLM" in caplog.text


def parts(vllm):
    return {
        "backend": vllm.backend.SmlaSparseBackend,
        "builder": vllm.impl.SmlaSparseMetadataBuilder,
        "impl": vllm.impl.SmlaSparseImpl,
    }


def own_members(cls):
    return {name for each in cls.__mro__ if each.__module__.startswith("smla") for name in vars(each)}


@pytest.mark.parametrize("part", ["backend", "builder", "impl"])
def test_nothing_abstract_is_left(vllm, part):
    assert not parts(vllm)[part].__abstractmethods__


def test_what_layers_read_of_the_impl_is_there(vllm):
    facts = vllm.facts["impl"]
    there = own_members(vllm.impl.SmlaSparseImpl) | set(vars(impl(vllm))) | set(facts["provides"])
    there |= set((vllm.facts["parents"] or {"provides": []})["provides"])
    asked = set(facts["reads"]) | {name for name, *_ in facts["calls"]}
    assert asked - there <= set(INTERFACE["never reached"])


@pytest.mark.parametrize("part", ["backend", "impl"])
def test_methods_take_the_calls_that_vllm_makes(vllm, part):
    cls, bound_to_us = parts(vllm)[part], 0
    parents = vllm.facts["parents"] if part == "impl" else None
    for name, *arguments in vllm.facts[part]["calls"] + (parents or {"kernel_calls": []})["kernel_calls"]:
        if name not in own_members(cls):
            continue  # the base's own, or never reached
        method = inspect.getattr_static(cls, name)
        bound = [] if isinstance(method, (staticmethod, classmethod)) else ["self"]
        positional = [argument for argument in arguments if not argument.endswith("=")]
        keywords = {argument[:-1]: 0 for argument in arguments if argument.endswith("=")}
        inspect.signature(getattr(cls, name)).bind(*bound, *positional, **keywords)
        bound_to_us += 1
    assert bound_to_us >= 2


@pytest.mark.parametrize("part", ["backend", "builder", "impl"])
def test_parameters_have_the_names_of_the_interface(vllm, part):
    for name, wanted in vllm.facts[part]["abstract"].items():
        cls = parts(vllm)[part]
        got = list(inspect.signature(getattr(cls, name)).parameters.values())
        got = got if isinstance(inspect.getattr_static(cls, name), staticmethod) else got[1:]
        want = list(signature(wanted).parameters.values())[1:]
        if name == "__init__" and part == "impl":  # by keyword, and more of them
            parents = vllm.facts["parents"]
            more = [*getattr(vllm.impl, "_UNUSED", ()), *(parents["constructor"] if parents else ())]
            takes = {p.name for p in got} | {"kv_lora_rank"} | {name.partition("=")[0] for name in more}
            assert {p.name for p in want} <= takes
        else:
            assert [(p.name, p.default) for p in got] == [(p.name, p.default) for p in want]


def test_metadata_have_the_fields_that_layers_read(legacy):
    ours = sys.modules["smla.vllm.legacy.metadata"].SmlaSparseMetadata
    names = {*ours.__dataclass_fields__, *vars(ours)}
    assert set(legacy.facts["metadata"]["reads"]) - names <= set(INTERFACE["never reached"])
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


def test_metadata_of_vllms_own_have_the_fields_that_smla_reads(with_parents):
    names = set(with_parents.facts["parents"]["metadata"])
    assert names >= {"req_id_per_token", "block_table", "block_size", "cp_kv_cache_interleave_size"}
    assert with_parents.impl.SmlaSparseMetadataBuilder.metadata_cls.__name__ == "SparseMLACommonMetadata"


def test_fp8_means_the_record_of_656_bytes(vllm):
    layer = sys.modules["vllm.model_executor.layers.attention.mla_attention"]
    translate, ours = layer._canonicalize_sparse_mla_kv_cache_dtype, vllm.backend.SmlaSparseBackend
    assert translate(ours, "fp8") == "fp8_ds_mla" and translate(ours, "fp8_e4m3") == "fp8_e4m3"
    assert translate(ours, "auto") == "auto" and translate(object, "fp8") == "fp8"


def test_fp8_is_refused_where_vllm_cannot_be_told_what_it_means(vllm, monkeypatch):
    layer = sys.modules["vllm.model_executor.layers.attention.mla_attention"]
    monkeypatch.delattr(layer, "_canonicalize_sparse_mla_kv_cache_dtype")
    monkeypatch.delitem(sys.modules, "smla.vllm.backend")
    kinds = importlib.import_module("smla.vllm.backend").SmlaSparseBackend.supported_kv_cache_dtypes
    assert "fp8" not in kinds and "fp8_e4m3" in kinds and "fp8_ds_mla" in kinds


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
    assert [size.base for size in backend.get_supported_kernel_block_sizes(SimpleNamespace())] == [1]
    parents = vllm.facts["parents"]
    vllm.config.attention_config = SimpleNamespace(hisparse_config="on")
    said = backend.supports_combination(576, torch.bfloat16)
    assert said is None if parents and parents["kernel_calls"] else "HiSparse" in said
    del vllm.config.attention_config
    model = vllm.config.model_config.hf_text_config
    model.index_kpool = 16  # of GLM-5.3-Flash, whose head size is 512
    assert backend.supports_combination(512, torch.bfloat16) is None
    assert backend.get_supported_head_sizes() == ([576, 512] if parents else [576])
    assert backend.customize_spec("spec") == "spec"
    utils = sys.modules["vllm.v1.attention.backends.mla.sparse_utils"]
    utils.align_blocks_to_rows = lambda spec: f"aligned {spec}"
    assert backend.customize_spec("spec") == "aligned spec"
    del model.index_topk
    assert "index_topk" in backend.supports_combination(576, torch.bfloat16)


def test_prompts_and_parallelism_are_vllms_where_its_classes_have_them(vllm):
    ours, parents = vllm.impl.SmlaSparseImpl, vllm.facts["parents"]
    refused = {
        name for name in ("supports_pcp", "supports_dense_mha_prefill") if vars(ours).get(name) is False
    }
    assert refused == (set() if parents else {"supports_pcp", "supports_dense_mha_prefill"})
    assert ("forward_mha" in own_members(ours)) == (parents is None)
    assert ours.supports_dcp and ours.can_return_lse_for_decode


def test_the_hook_covers_the_classes_of_each_version(vllm):
    """Classes of DeepSeek-V4 with a forward_mqa for NVIDIA GPUs, by module, and its parameters."""
    place = "vllm.models.deepseek_v4."
    theirs = {
        place + file.removesuffix(".py").replace("/", "."): set(classes)
        for file, classes in vllm.facts["v4"].items()
        if file.startswith("nvidia/")
    }
    assert theirs == {module: set(names) for module, names in vllm.hybrid._CLASSES.items()}
    ours = list(inspect.signature(vllm.hybrid.forward_mqa).parameters)[1:]  # behind the layer itself
    for classes in vllm.facts["v4"].values():
        assert all(parameters[1:] == ours for parameters in classes.values())
