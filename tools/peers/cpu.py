"""Measures CPU times of one thread; both sides run in turn."""

import resource
import time
from pathlib import Path

import smla
import torch

from .statistics import spread

PAIRS, SECONDS = 31, 6.0
METHOD = (
    "Both sides run in turn (peer, smla, peer, smla) in one process on one thread. Calls cycle through "
    "{sets} sets of row lists, so that cached rows come from memory. Each time is the median of up to "
    "{pairs} measurements of the process's CPU time, which depends little on other load. Before the "
    "timing, both results are compared with f64; for complete layers, they are compared with each other."
)
SETS = 16


def cpu_ms():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e3


class Cpu:
    """Measures pairs on one thread of this machine."""

    unit, device = "ms", "cpu"

    def __init__(self):
        torch.set_num_threads(1)
        smla.set_default_context(smla.Context("cpu", threads=1))

    def method(self):
        return METHOD.format(pairs=PAIRS, sets=SETS)

    def machine(self):
        flags = set(Path("/proc/cpuinfo").read_text().split())
        best = next((name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in flags), "")
        return {"isa": best, "threads": 1}

    def prepared(self, pair):
        sides = [pair.peer, pair.smla]
        return sides, [side() for side in sides]

    def times(self, sides):
        """Returns [(p10, median, p90)] in ms for each side, measured in turn."""
        found, end = [[] for _ in sides], time.monotonic() + SECONDS
        while len(found[0]) < PAIRS and (len(found[0]) < 5 or time.monotonic() < end):
            for side, times in zip(sides, found):
                begin = cpu_ms()
                side()
                times.append(cpu_ms() - begin)
        return [spread(times) for times in found]

    def after_row(self):
        pass
