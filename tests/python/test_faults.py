"""Allocations of the library that fail one by one: an exception each time, and the next call works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

LIBRARY = Path(os.environ.get("SMLA_LIBRARY", ""))
FAILING = LIBRARY.parent / "libsmla_failing_memory.so"

# Runs alone in a process that has the library of failing allocations loaded before all others.
PROGRAM = """
import ctypes
import numpy as np
import smla

memory = ctypes.CDLL(None)
fail, stop = memory.smla_fail_allocation, memory.smla_stop_failing
fail.argtypes = [ctypes.c_int64, ctypes.c_int64]
stop.restype = ctypes.c_int64

random = np.random.default_rng(1)
q = random.standard_normal((3, 2, 64)).astype(np.float32)
keys = random.standard_normal((1, 16, 64)).astype(np.float32)
rows = np.arange(3 * 8, dtype=np.int32).reshape(3, 8) % 16

def attend():
    context = smla.Context(threads=1)
    cache = smla.Cache(keys, "row_f32", 16)
    return smla.attend(q, cache, rows, softmax_scale=0.1, context=context).out

wanted = attend()
for more in (0, 1000000):
    failed, nth = 0, 1
    while True:
        fail(nth, more)
        try:
            found = attend()
        except (smla.Error, MemoryError) as error:
            failed += 1
            assert "memory" in str(error).lower(), error
            found = wanted
        seen = stop()
        assert np.array_equal(found, wanted), nth
        assert np.array_equal(attend(), wanted), nth
        if seen < nth:
            break
        nth += 1
    assert failed > 10, failed
    print(nth, "allocations,", failed, "failures")
"""


@pytest.mark.skipif(not FAILING.is_file(), reason="this build has no library that lets malloc fail")
def test_each_allocation_that_fails_is_an_exception():
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "python"),
        "LD_PRELOAD": str(FAILING),
        "PYTHONMALLOC": "malloc",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
