"""Descriptions of attention layers from config.json, without weights: widths, softmax scale, rotation."""

import ctypes as c
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from . import _abi
from ._abi import Group, LayerKind, RopeStyle
from ._library import check, lib
from .errors import config_json, integer, path_bytes

__all__ = ["layer_info", "rope_frequencies"]
Config: TypeAlias = Any  # a dict, a configuration of transformers, or a path


def layer_info(config: Config, layer: int = 0) -> dict[str, Any]:
    """Describes one layer of a model from its config.json, without weights.

    Args:
        config: a dict, a configuration of transformers, or the path of a config.json or its folder.
        layer: number of the layer, from 0. MTP layers are numbered after the main stack.

    Returns:
        A dict with the keys of smla.Layer.info. "softmax_scale" is the scale for smla.attend, including
        YaRN's magnitude in models that have one. "rope_width" is the number of rotated channels (0: no
        rotation), "rope_theta" is the base of their frequencies, and "index_rope_style" names the channel
        pairs that the indexer rotates, "interleaved" or "half". "weight_bytes" and "borrowed_bytes" are 0.

    Raises:
        DataError: members of the config are missing or wrong; the message names all of them.
        Unsupported: the layer has linear attention (GLM-5.3-Flash).

    Example:
        >>> smla.layer_info("DeepSeek-V3.2/config.json", 3)["softmax_scale"]
        0.1352337788608801
    """
    out = _abi.LayerInfo(struct_size=c.sizeof(_abi.LayerInfo))
    check(lib.smla_config_layer_info(c.byref(_config_args(config, layer)), c.byref(out)))
    return info_dict(out)


def rope_frequencies(config: Config, layer: int = 0) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Returns the rotation frequencies of a layer in radians per position, including YaRN.

    Pass them as `frequencies` to smla.rope, smla.write_kv, smla.write_index, smla.quant_index_q and
    smla.compress. In DeepSeek-V4, layers with and without compressed entries have different frequencies.

    Args:
        config, layer: as in smla.layer_info.

    Returns:
        NumPy array [rope_width / 2], float64.

    Example:
        >>> smla.rope_frequencies(config, 3).shape
        (32,)
    """
    out = np.empty(layer_info(config, layer)["rope_width"] // 2)
    args = _config_args(config, layer)
    check(lib.smla_config_rope_frequencies(c.byref(args), len(out), out.ctypes.data))
    return out


def set_config(args, config):
    """Sets the config of a LayerArgs from a dict, a configuration of transformers, or a path."""
    if isinstance(config, Mapping):
        args.config_json = config_json(config).encode()
    elif hasattr(config, "to_json_string"):
        args.config_json = config.to_json_string(use_diff=False).encode()
    else:
        args.config = path_bytes("config", config)


def info_dict(info):
    """Returns a LayerInfo as a dict, with names of enumerators."""
    out = {name: getattr(info, name) for name, _ in info._fields_ if name != "struct_size"}
    out["kind"] = LayerKind(info.kind).name.lower()
    out["index_rope_style"] = RopeStyle(info.index_rope_style).name.lower()
    out["plan_groups"] = [group.name.lower() for group in Group if info.plan_groups & group]
    return out


def _config_args(config, layer):
    args = _abi.LayerArgs(struct_size=c.sizeof(_abi.LayerArgs), layer=integer("layer", layer))
    set_config(args, config)
    return args
