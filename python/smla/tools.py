"""What the command line answers, as Python data: smla.doctor, smla.bench, smla.capacity, smla.explain.

They run the `smla` program that comes with the package (or was built in this clone) and read its JSON.
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
    """Returns the path of the `smla` program: SMLA_TOOL, or the one in the package, in this clone or on PATH.

    Example:
        >>> smla.program().endswith("smla")
        True
    """
    named = os.environ.get("SMLA_TOOL")
    # A library that the system's loader found has no folder.
    for folder in (_PACKAGE, *Path(library_path).parents[1:2]):
        if not named and (folder / "bin/smla").exists():
            return str(folder / "bin/smla")
    if (found := shutil.which(named or "smla")) and os.path.isfile(found):
        return found
    field, got, wanted = "SMLA_TOOL", named, "the path of the program smla"
    if not named:
        field, got, wanted = "smla", "no program", "one in the package or on PATH (SMLA_TOOL names one)"
    raise IoError.of(field, got, wanted)


def answer(*words, **options):
    """The JSON document of a subcommand. Its progress, if any, is seen where stderr is a terminal."""
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
    """heads=16 -> --heads 16, True -> the flag alone; None and False are left out."""
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
    """Describes this machine, with its processor, memory, GPU and engine, and compares its kernels with the
    reference (self-test). Returns a dict; "passed" is the result of the self-test.

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
    """Measures the stages and a decode step, and the peak of the machine in the same run.

    Returns a dict, which a notebook displays as charts. "results" has one row per case, with median, minimum,
    maximum, 10th and 90th percentile. "models" has times of the attention of all layers of a model. "busy" is
    the reason why the times may be too long, or None.

    Runs on a GPU if there is one; "runs_on" names the device. options: as in `smla bench --help`
    (case="attend"; stage="attend", heads=16, tokens=4, rows=2048, format="fp8_656"; quick=True, seconds=,
    threads=, save=, ...). Raises the same errors as `capacity`.

    Example:
        >>> smla.bench(case="select", quick=True, seconds=0.01)["results"][0]["ms"] > 0
        True
    """
    return BenchResults(answer("bench", **options))


@contextlib.contextmanager
def _model(config):
    """The path of a configuration; one in memory becomes a file for the time of the call."""
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
    """Computes how many requests of a model fit in memory, the bytes of every cache, and FLOPs, as a dict.

    config: a config.json, a checkpoint's folder, the name of a model ("deepseek-v3.2", see `smla list
    models`), a dict or a configuration of transformers. options: as in `smla capacity --help`
    (context="128K", memory="80GiB", device="H200", weights_gib=, tp=, dp=, dcp=, kv_format=, ...).
    Raises InvalidArgument, DataError or IoError, like the command.

    Example:
        >>> smla.capacity(config, context=4096, memory=80)["totals"]["layers"]
        61
    """
    with _model(config) as path:
        return answer("capacity", "--model", path, **options)


def explain(config: Config, **options: Any) -> dict[str, Any]:
    """Returns a dict with the kernel that runs each stage of a model's layers on this machine. With `device`,
    returns the backend and the engine that serve the model on that device. Both include the reasons why the
    others were not selected.

    config: as in `capacity`. options: as in `smla explain --help` (layer=, kv_format=, context=;
    device="H200", kv_dtype=, backend=; ...). Raises the same errors as `capacity`.

    Example:
        >>> smla.explain(config)["layers"][0]["layer_kind"]
        'dsa'
    """
    with _model(config) as path:
        return answer("explain", "--model", path, **options)
