"""Reads JSON documents from files, and checks the members that a report uses."""

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ..errors import DataError, IoError, invalid

_MOST_BYTES = 64 << 20
_wrong = DataError.of


def _shown(value):
    """Returns a value of a file as text that fits in one line."""
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf


_KINDS = {
    "a text": lambda value: isinstance(value, str),
    "true or false": lambda value: isinstance(value, bool),
    "a number": _is_number,
    "a positive number": lambda value: _is_number(value) and value > 0,
    "a list": lambda value: isinstance(value, list),
    "an object": lambda value: isinstance(value, dict),
}


def _check(place, document, members):
    """Requires an object with these members, {name: kind}; members of "kind?" may be missing or null."""
    if not isinstance(document, dict):
        raise _wrong(place.removesuffix(": "), _shown(document), "an object")
    at = place if place.endswith(": ") else place + "."
    for name, kind in members.items():
        wanted = kind.replace("?", " or null")
        if document.get(name) is None and kind.endswith("?"):
            continue
        if name not in document:
            raise _wrong(at + name, "nothing", wanted)
        if not _KINDS[kind.rstrip("?")](document[name]):
            raise _wrong(at + name, _shown(document[name]), wanted)


def name_of(source):
    """Returns the name of a file or document for errors."""
    return "document" if isinstance(source, Mapping) else os.fspath(source)


def read(source):
    """Returns the JSON document of a regular file of at most 64 MiB, or a copy of a document in memory."""
    if isinstance(source, Mapping):
        return dict(source)
    if not isinstance(source, (str, os.PathLike)):
        raise invalid("document", type(source).__name__, "a file or a dict")
    path = os.fspath(source)
    try:
        found = os.stat(path)  # opening a FIFO would block, and a device may have no end
        if not stat.S_ISREG(found.st_mode):
            raise IoError.of(path, "not a regular file", "a file")
        if found.st_size > _MOST_BYTES:
            raise _wrong(path, f"{found.st_size} bytes", f"at most {_MOST_BYTES}")
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise IoError.of(path, f"cannot open the file: {error.strerror}", "") from None
    except UnicodeDecodeError:
        raise _wrong(path, "bytes that are not UTF-8", "a JSON document") from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        got = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise _wrong(path, got, "a JSON document") from None
    except (RecursionError, ValueError):
        raise _wrong(path, "an unreadable document", "a JSON document") from None


_TIME = {"stage": "a text", "case": "a text", "ms": "a positive number"}
_FIGURES = {
    **dict.fromkeys(("gflops", "gbytes_per_second", "percent_of_peak"), "a positive number?"),
    **dict.fromkeys(("min_ms", "max_ms"), "a positive number?"),
    **{"kernel": "a text?", "error": "a number?", "part": "true or false?"},
}
_BENCH = {
    "results": "a list",
    "machine": "an object?",
    **dict.fromkeys(("cpu", "context", "method", "busy"), "a text?"),
    **{"models": "a list?", "load_average": "a number?"},
    **dict.fromkeys(("peak_bf16_dot_gflops", "peak_f32_fma_gflops"), "a positive number?"),
    "peak_memory_gbytes_per_second": "a positive number?",
}
_KERNEL = {
    **dict.fromkeys(("stage", "engine", "kernel"), "a text"),
    **{"problems": "a number", "worst_share_of_limit": "a number?", "pass": "true or false?"},
}
_COMBINATION = {"golden": "a text", "engine": "a text", "kv_format": "a text?", "checked": "a list?"}


def _timed(source, members, figures):
    """Returns a document with rows of times."""
    document, place = read(source), f"{name_of(source)}: "
    _check(place, document, members)
    if not document["results"]:
        raise _wrong(place + "results", "none", "at least one")
    for number, row in enumerate(document["results"]):
        _check(f"{place}results[{number}]", row, {**_TIME, **figures})
    return document


def bench(source):
    """Returns a document of `smla bench --json`."""
    document = _timed(source, _BENCH, _FIGURES)
    for number, row in enumerate(document.get("models") or ()):
        numbers = dict.fromkeys(("layers", "tokens", "context", "ms"), "a positive number")
        _check(f"{name_of(source)}: models[{number}]", row, {"model": "a text", **numbers})
    return document


def peers(source):
    """Returns times of another library: {"name": ..., "results": [{"stage", "case", "ms"}]}, with stages and
    cases as in `smla bench`. A document of `smla bench` is also accepted, to compare two builds.
    """
    document = _timed(source, {"results": "a list", "name": "a text?"}, {})
    return {"name": document.get("name") or Path(name_of(source)).stem, "results": document["results"]}


def verify(source):
    """Returns a document of `smla verify --json`, of random problems (kernels) or golden files
    (combinations).
    """
    document, place = read(source), f"{name_of(source)}: "
    lists = {"kernels": "a list?", "combinations": "a list?"}
    _check(place, document, lists)
    if not any(document.get(name) for name in lists):
        raise _wrong(place + "kernels", "none, and no combinations", "what `smla verify --json` prints")
    for number, row in enumerate(document.get("kernels") or ()):
        _check(f"{place}kernels[{number}]", row, _KERNEL)
    for number, row in enumerate(document.get("combinations") or ()):
        at = f"{place}combinations[{number}]"
        _check(at, row, _COMBINATION)
        for which, check in enumerate(row.get("checked") or ()):
            _check(f"{at}.checked[{which}]", check, {"error": "a number?", "tolerance": "a number?"})
    return document
