"""Compiles DeepGEMM's kernels into its disk cache before the measurement, each in a separate process."""

import subprocess
import sys

PROGRAM = """
import sys
sys.path[:0] = {path!r}
from peers.find import deep_gemm
from peers.index import score
from peers.inputs import Inputs
import torch
build = score(Inputs("cuda"), deep_gemm().api, {row!r})
build.peer()
torch.cuda.synchronize()
"""


def variants(rows):
    """Returns one small row for each kernel that the rows use."""
    found = {}
    for row in rows:
        clean = bool(row.get("clean")) or row.get("kernel") == "torch.topk"
        key = "batch" in row, row.get("heads", 64), row.get("next_n", 1), clean
        size = {"batch": 4, "keys": 1024, "next_n": key[2]} if key[0] else {"tokens": 256, "keys": 1024}
        found[key] = {**size, "heads": key[1], "clean": clean, "precision": "rounded"}
    return list(found.values())


def compile_deep_gemm(rows):
    programs = [PROGRAM.format(path=sys.path, row=row) for row in variants(rows)]
    running = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL) for program in programs
    ]
    failed = sum(process.wait() != 0 for process in running)
    if failed:
        print(f"DeepGEMM: {failed} of {len(running)} kernels did not compile ahead of time", flush=True)
