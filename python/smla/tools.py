"""Results of the command line as Python data: smla.doctor, smla.bench, smla.capacity, smla.explain.

The functions run the `smla` program in the package (or in this clone) and read its JSON.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from ._abi import Status
from ._library import path as library_path
from .errors import Error, IoError, config_json, from_status, invalid, path_bytes
from .model import Config

__all__ = ["bench", "capacity", "doctor", "explain", "program"]
_PACKAGE = Path(__file__).resolve().parent


def program() -> str:
    """Returns the path of the `smla` program: SMLA_TOOL, or the program in the package, in this clone or on
    PATH.

    Example:
        >>> smla.program().endswith("smla")
        True
    """
    named = os.environ.get("SMLA_TOOL")
    # A library from the system loader's search path has no folder.
    for folder in (_PACKAGE, *Path(library_path).parents[1:2]):
        if not named and (folder / "bin/smla").exists():
            return str(folder / "bin/smla")
    if (found := shutil.which(named or "smla")) and os.path.isfile(found):
        return found
    field, got, wanted = "SMLA_TOOL", named, "the path of the program smla"
    if not named:
        field, got, wanted = "smla", "no program", "a program in the package, on PATH or in SMLA_TOOL"
    raise IoError.of(field, got, wanted)


def answer(*words, **options):
    """Returns the JSON document of a subcommand. Shows its progress if stderr is a terminal."""
    words = [*words, *_options(options)]
    command = [program(), *map(str, words), "--json"]
    errors = None if sys.stderr.isatty() else subprocess.PIPE
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        document = json.loads(result.stdout)
    except ValueError:
        text = (result.stderr or "").strip() or f"{command[0]}: exit status {result.returncode}"
        raise Error(text, "smla " + " ".join(map(str, words)), text, "a JSON document") from None
    if refused := document.get("error"):
        status = Status[refused["status"].replace(" ", "_").upper()]
        raise from_status(status, *(refused[name] for name in ("message", "field", "got", "wanted")))
    return document


# Options of the program without a value.
_FLAGS = frozenset(("all", "batch_invariant", "check_indices", "list", "mtp", "quick", "sink"))


def _options(options):
    """Converts options to words: heads=16 to --heads 16, and True to a flag; omits None and False."""
    for name, value in options.items():
        if name in _FLAGS:
            if value is not None and not isinstance(value, (bool, np.bool_)):
                raise invalid(name, repr(value), "True or False")
            value = bool(value)
        elif value is not None and (
            isinstance(value, bool) or not isinstance(value, (str, os.PathLike, Real))
        ):
            raise invalid(name, repr(value), "a number or a str")
        if value is None or value is False:
            continue
        yield f"--{name.replace('_', '-')}"
        if value is not True:
            yield value


def doctor() -> dict[str, Any]:
    """Describes the processor, memory, GPU and engine of this machine, and compares its kernels with the
    reference.

    Returns:
        A dict; "passed" is the result of this self-test.

    Example:
        >>> smla.doctor()["passed"]
        True
    """
    return answer("doctor")


class BenchResults(dict[str, Any]):
    """Results of `smla bench`. A notebook displays them as charts and a table.

    Example:
        >>> smla.bench(case="select", quick=True, seconds=0.01)["results"][0]["stage"]
        'select'
    """

    def _repr_html_(self) -> str:
        from .reporting import bench_html

        return bench_html(self)


def bench(**options: Any) -> BenchResults:
    """Measures the stages, a decode step, and the peak of the machine. Uses a GPU if there is one.

    Args:
        options: as in `smla bench --help` (case="attend"; stage="attend", heads=16, tokens=4, rows=2048,
            format="fp8_656"; quick=True, seconds=, threads=, save=, ...).

    Returns:
        A dict, which a notebook displays as charts. "results" has one row per case, with median, minimum,
        maximum, 10th and 90th percentile. "models" has times of the attention of all layers of a model.
        "busy" is the reason why times may be too long, or None. "runs_on" names the device.

    Example:
        >>> smla.bench(case="select", quick=True, seconds=0.01)["results"][0]["ms"] > 0
        True
    """
    return BenchResults(answer("bench", **options))


@contextlib.contextmanager
def _model(config):
    """Yields the path of a configuration; writes a configuration in memory to a temporary file."""
    if isinstance(config, Mapping):
        text = config_json(config)
    elif hasattr(config, "to_json_string"):
        text = config.to_json_string(use_diff=False)
    elif isinstance(config, (str, os.PathLike)):
        yield os.fsdecode(path_bytes("config", config))
        return
    else:
        raise invalid("config", type(config).__name__, "a path, a dict or a configuration of transformers")
    with tempfile.TemporaryDirectory(prefix="smla-") as folder:
        path = Path(folder, "config.json")
        path.write_text(text, encoding="utf-8")
        yield str(path)


def capacity(config: Config, **options: Any) -> dict[str, Any]:
    """Computes how many requests of a model fit in memory, the bytes of every cache, and FLOPs.

    Args:
        config: a config.json, a checkpoint's folder, the name of a model ("deepseek-v3.2", see `smla list
            models`), a dict or a configuration of transformers.
        options: as in `smla capacity --help` (context="128K", memory="80GiB", device="H200", weights_gib=,
            tp=, dp=, dcp=, kv_format=, ...).

    Returns:
        A dict.

    Raises:
        InvalidArgument, DataError, IoError: as the command reports.

    Example:
        >>> smla.capacity(config, context=4096, memory=80)["totals"]["layers"]
        61
    """
    with _model(config) as path:
        return answer("capacity", "--model", path, **options)


def explain(config: Config, **options: Any) -> dict[str, Any]:
    """Returns a dict with the kernel that runs each stage of a model's layers, and why others were not
    selected.

    With `device`, returns the backend and the engine that serve the model on that device.

    Args:
        config: as in `capacity`.
        options: as in `smla explain --help` (layer=, kv_format=, context=; device="H200", kv_dtype=,
            backend=; ...).

    Example:
        >>> smla.explain(config)["layers"][0]["layer_kind"]
        'dsa'
    """
    with _model(config) as path:
        return answer("explain", "--model", path, **options)
