"""bench/python/transformers_bench.py: both sides of its table, and the floors, with a tiny layer."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

pytest.importorskip("torch", reason="no PyTorch")
pytest.importorskip("transformers", minversion="5.16", reason="no transformers 5.16")

PROGRAM = ROOT / "bench/python/transformers_bench.py"


def run(*words):
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(PROGRAM), *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def test_both_sides():
    """Caches have the size that their contents ask for; outputs agree, so inputs and weights are the same. A
    tiny layer is below the floors, which is an error where --floors asks."""
    words = ["--heads", "2", "--hidden", "64", "--chunk", "32", "--steps", "2", "--dtype", "f32"]
    done = run(*words, "--context", "300", "64", "--floors", "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert any(line.startswith("decode at 300: got ") for line in found["missed"])
    short, long = found["rows"]
    assert (short["context"], short["smla"]["chunk"]) == (64, 64)
    assert (long["context"], long["sdpa"]["chunk"]) == (300, 32)
    assert found["error"] < 1e-5
    for row in found["rows"]:
        for side in ("smla", "sdpa"):
            assert row[side]["decode_ms"] > 0 and row[side]["prefill_ms"] > 0 and row[side]["peak_mib"] >= 0
        for name, key in (("decode", "decode_ms"), ("prefill", "prefill_ms"), ("cache", "cache_mib")):
            assert row["ratios"][name] == pytest.approx(row["sdpa"][key] / row["smla"][key])
    tokens = long["context"] + 1 + 2  # a step that warms up, and two that are timed
    if found["versions"]["transformers"] < "5.23":  # heads are expanded
        assert long["sdpa"]["cache_mib"] * (1 << 20) == 4 * tokens * (2 * (192 + 128) + 128)
    assert long["smla"]["cache_mib"] * (1 << 20) >= 4 * tokens * (576 + 128)


def test_the_table_and_the_floors():
    spec = importlib.util.spec_from_file_location("transformers_bench", PROGRAM)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    ratios = {"prefill": 6.0, "decode": 30.0, "peak": 20.0, "cache": 24.0}
    side = {"prefill_ms": 1.0, "decode_ms": 2.0, "peak_mib": 3.0, "cache_mib": 4.0, "parts": 1}
    rows = [
        {"context": context, "smla": side, "sdpa": {**side, "parts": 4}, "ratios": dict(ratios)}
        for context in (1024, 16384)
    ]
    document = {"against": "sdpa", "rows": rows}
    assert list(bench.missed(document, "cpu")) == []
    lines = bench.table(document).splitlines()
    assert len(lines) == 1 + 2 * 4 and lines[1].split() == "1024 prefill 1 ms 1 ms in 4 parts 6".split()
    rows[0]["ratios"]["prefill"] = 0.99  # slower at the shortest context
    rows[1]["ratios"].update(decode=4.9, peak=19.9)
    assert list(bench.missed(document, "cpu")) == [
        "decode at 16384: got 4.90, wanted 30",
        "peak at 16384: got 19.90, wanted 20",
        "prefill at 1024: got 0.99, wanted 1",
    ]
    assert list(bench.missed(document, "cuda")) == ["decode at 16384: got 4.90, wanted 5"]
