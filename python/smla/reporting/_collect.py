"""Collects the contents of a report from the command line and from files of earlier runs."""

import os
from collections.abc import Mapping
from pathlib import Path

from .. import tools
from ..errors import DataError, InvalidArgument, invalid
from . import _cases as cases
from . import _documents as documents

CONTEXTS = tuple(1 << power for power in range(12, 21))


def _sources(field, value):
    """Returns a list of one or several files or documents."""
    listed = [value] if isinstance(value, (str, os.PathLike, Mapping)) else value or ()
    if not isinstance(listed, (list, tuple)):
        raise invalid(field, type(value).__name__, "a file, a document (a dict) or a list of them")
    return list(listed)


def _capacity(model, memory, tell):
    """Returns {cache formats: [{context, bytes, fit, flops}]} of a model, its type and number of layers."""
    lines, kind, layers = {}, "", 0
    choices = ({}, {"kv_format": "bf16", "index_format": "bf16"})
    for number, formats in enumerate(choices):
        rows = []
        for step, context in enumerate(CONTEXTS):
            tell("capacity", number * len(CONTEXTS) + step, len(choices) * len(CONTEXTS))
            try:
                answer = tools.capacity(model, context=context, memory=memory, **formats)
            except InvalidArgument:
                if not formats:
                    raise
                break  # the model has no caches of bf16 rows
            totals = answer["totals"]
            rows.append(
                {
                    "context": context,
                    "bytes": totals["paged_bytes_per_request"],
                    "fit": totals["requests_that_fit"],
                    "flops": totals["flops_per_token"],
                }
            )
            kind = answer["model_type"]
            layers = totals["layers"]
            used = dict.fromkeys(cache["format"] for cache in answer["caches"])
        if rows:
            lines[" + ".join(used)] = rows
    gib = answer["memory_bytes"] / (1 << 30)
    return {"lines": lines, "layers": layers, "model_type": kind, "memory_gib": gib}


def _peers(path, benches):
    """Returns a peer's times, which must include a case of the bench results."""
    found = documents.peers(path)
    if not any(cases.pairs(bench["results"], found["results"]) for bench in benches):
        row = next(row for row in benches[0]["results"] if not row.get("part"))
        wanted = f"at least one, such as stage {row['stage']!r}, case {row['case']!r}"
        raise DataError.of(f"{documents.name_of(path)}: results", "no case of the bench results", wanted)
    return found


def collect(
    *,
    bench=None,
    peers=None,
    verify=None,
    model=None,
    memory=None,
    seconds=0.1,
    quick=False,
    tell=lambda name, done, of: None,
):
    """Returns the documents of a report as a dict. Reads files first, so that invalid files fail before any
    run.
    """
    benches = [documents.bench(path) for path in _sources("bench", bench)]
    verified = [documents.verify(path) for path in _sources("verify", verify)]
    for path in _sources("peers", peers):
        documents.peers(path)
    found = {"version": None, "verify": verified, "model": None}
    if model is not None:
        tell("explain", 0, 1)
        found["explain"] = tools.explain(model)
    tell("doctor", 0, 1)
    found["doctor"] = tools.doctor()
    found["version"] = found["doctor"]["version"]
    found["list"] = tools.answer("list")
    if model is not None:
        gpu, *_ = found["doctor"]["gpu"].get("devices") or [{}]
        memory = memory or (gpu.get("memory_bytes") or found["doctor"]["memory_bytes"]) / (1 << 30)
        found["capacity"] = _capacity(model, memory, tell)
        is_path = isinstance(model, (str, os.PathLike))
        found["model"] = Path(model).resolve().name if is_path else found["capacity"]["model_type"]
    if not benches:
        tell("bench", 0, 1)
        benches = [dict(tools.bench(seconds=seconds, quick=quick))]
    found["bench"] = benches
    found["peers"] = [_peers(path, benches) for path in _sources("peers", peers)]
    if not verified:
        tell("verify", 0, 1)
        verified.append(tools.answer("verify", seconds=max(1.0, 10 * seconds)))
    return found
