"""Measures times on a GPU: one captured call per side, replayed in turn with a flushed L2 cache."""

import subprocess

import torch

from .statistics import spread

FLUSH_BYTES = 512 << 20
PAIRS, LONG_PAIRS, LONG_US = 24, 12, 800
METHOD = (
    "Both sides run in one process; each call is captured in a CUDA graph. The graphs are replayed in turn "
    "(peer, smla, peer, smla). Before each replay, 512 MB are written, which evicts the L2 cache. Each "
    "time is the median of {pairs} replays ({long} if a replay takes longer than 0.8 ms), measured with two "
    "CUDA events. All times include the overhead of the measurement: {empty:.1f} us for an almost empty "
    "graph. Before the timing, the outputs are filled with NaN, both graphs run, and both results are "
    "compared with f64."
)


class Captured:
    """A call as a CUDA graph."""

    def __init__(self, call):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = call()

    def poisoned(self):
        """Returns the result of a replay after filling the outputs with NaN, or with -7 for integers."""
        for tensor in self.result if isinstance(self.result, (tuple, list)) else (self.result,):
            if isinstance(tensor, torch.Tensor):
                tensor.fill_(float("nan") if tensor.is_floating_point() else -7)
        self.graph.replay()
        torch.cuda.synchronize()
        return self.result

    def replay(self):
        self.graph.replay()


class Gpu:
    """Measures pairs on the current GPU."""

    unit, device = "us", "cuda"

    def __init__(self):
        if not torch.cuda.is_available():
            raise SystemExit("PyTorch sees no GPU here. --cpu measures on the CPU.")
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        tiny = torch.zeros(1, device="cuda")
        self.empty_us = self._times([Captured(lambda: tiny.add_(1))], PAIRS)[0][1]

    def method(self):
        return METHOD.format(pairs=PAIRS, long=LONG_PAIRS, empty=self.empty_us)

    def machine(self):
        driver = "unknown"
        try:
            command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            driver = subprocess.run(command, capture_output=True, text=True).stdout.split()[0]
        except (OSError, IndexError):
            pass
        return {"gpu": torch.cuda.get_device_name(), "driver": driver, "cuda": torch.version.cuda}

    def prepared(self, pair):
        """Returns both sides, ready to run, and the result of each."""
        sides = [Captured(pair.peer), Captured(pair.smla)]
        return sides, [side.poisoned() for side in sides]

    def times(self, sides):
        """Returns [(p10, median, p90)] in us for each side, measured in turn."""
        first = self._times(sides, 2)
        return self._times(sides, LONG_PAIRS if max(each[1] for each in first) > LONG_US else PAIRS)

    def _times(self, sides, count):
        events = [
            [
                (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
                for _ in range(count)
            ]
            for _ in sides
        ]
        for turn in range(count):
            for side, pairs in zip(sides, events):
                self.flush.fill_(turn & 255)
                pairs[turn][0].record()
                side.replay()
                pairs[turn][1].record()
        torch.cuda.synchronize()
        return [spread([begin.elapsed_time(end) * 1e3 for begin, end in pairs]) for pairs in events]

    def after_row(self):
        torch.cuda.synchronize()  # raises the error of a kernel, which ends the run
        if torch.cuda.memory_reserved() > 60 << 30:
            torch.cuda.empty_cache()
