"""Host time of one call from Python, beside that of the same call through the C ABI with arguments ready.

    python bench/python/overhead.py [--device cuda] [--json]

The problem is the smallest there is (one token, head, and listed row), so what is left is the call.
Medians over batches of calls, in microseconds. On a GPU a call ends when its kernels are queued: batches are
too short to fill the queue, and what they queued is waited for between them, outside the clock.
"""

import argparse
import ctypes
import json
import statistics
import time

import numpy as np
import smla
from smla._library import check, lib
from smla.stages.attend import _attend
from smla.tensor import device_of, stream_of

BATCHES, CALLS, QUEUED_CALLS = 41, 400, 100


def microseconds(call, finish):
    """finish: None on a CPU, else waits for what calls have queued."""
    calls = CALLS if finish is None else QUEUED_CALLS
    times = []
    for n in range(BATCHES + 1):  # the first one warms up
        if finish is not None:
            finish()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        if n:
            times.append((time.perf_counter() - begin) / calls * 1e6)
    return statistics.median(times)


def direct(q, cache, rows, out, lse):
    """The C call alone, after one that is checked."""
    inputs = {"softmax_scale": 1.0, "q": q, "cache": cache, "rows": rows}
    values = {**inputs, "out": out, "lse": lse}
    keep = []  # what the arguments point to
    args = _attend.struct.fill(values, keep)
    context, stream = smla.default_context(device_of(q)), stream_of(q)
    reference, size = ctypes.byref(args), ctypes.c_size_t()
    check(lib.smla_workspace_size(context.handle, _attend.stage, reference, 0, ctypes.byref(size)))
    workspace = context.own_workspace(q, stream, size.value)

    def call():
        return lib.smla_attend(context.handle, reference, workspace.abi, stream), keep

    check(call()[0])
    return call


def arrays(of):
    return {
        "q": of(np.ones((1, 1, 576), "float32")),
        "cache": smla.Cache(of(np.ones((1, 4, 576), "float32")), "row_f32", 4),
        "rows": of(np.zeros((1, 1), "int32")),
        "out": of(np.empty((1, 1, 512), "float32")),
        "lse": of(np.empty((1, 1), "float32")),
    }


def libraries(device):
    """(name, what makes an array of it, what waits for its work) of each that is there."""
    on_gpu = device == "cuda"
    if not on_gpu:
        yield "NumPy", lambda array: array, None
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None and (torch.cuda.is_available() or not on_gpu):
        finish = torch.cuda.synchronize if on_gpu else None
        yield "PyTorch", lambda array: torch.from_numpy(array).to(device), finish
    if not on_gpu:
        return
    try:
        import cupy
    except ImportError:
        return
    yield "CuPy", cupy.asarray, lambda: cupy.cuda.Device().synchronize()


def attend_times(device):
    times = {}
    for name, of, finish in libraries(device):
        mine = arrays(of)
        given = {argument: mine[argument] for argument in ("q", "cache", "rows")}
        calls = {
            f"{name}, outputs given": lambda mine=mine: smla.attend(softmax_scale=1.0, **mine),
            f"{name}, outputs allocated": lambda given=given: smla.attend(
                softmax_scale=1.0, lse=True, **given
            ),
        }
        if not times:
            calls["C ABI, arguments ready"] = direct(**mine)
        for what, call in calls.items():
            call()  # makes contexts and workspaces, loads kernels
            times[what] = microseconds(call, finish)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    times = attend_times(options.device)
    if not times:
        parser.exit(77, "skipped: no PyTorch with CUDA and no CuPy here\n")
    if options.json:
        print(json.dumps({"device": options.device, "attend_us": times}))
        return
    for name, time_us in times.items():
        print(f"{name:28} {time_us:6.2f} us")


if __name__ == "__main__":
    main()
