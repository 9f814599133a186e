"""Host time of one call from Python, beside that of the same call through the C ABI with arguments ready.

    python bench/python/overhead.py [--json]

The problem is the smallest there is (one token, head, and listed row), so what is left is the call.
Medians over batches of calls, in microseconds.
"""

import ctypes
import json
import statistics
import sys
import time

import numpy as np
import smla
from smla.stages.attend import _attend

BATCHES, CALLS = 41, 400


def microseconds(call):
    for _ in range(CALLS):
        call()
    times = []
    for _ in range(BATCHES):
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - begin) / CALLS * 1e6)
    return statistics.median(times)


def direct(q, cache, rows, out, lse):
    """The C call alone."""
    inputs = {"softmax_scale": 1.0, "q": q, "primary.cache": cache, "primary.rows": rows}
    values = {**inputs, "out": out, "lse": lse}
    args = _attend.struct.fill(values, [])
    context = smla.default_context()
    workspace = context.own_workspace(q, None, 4096)
    reference = ctypes.byref(args)
    return lambda: _attend.function(context.handle, reference, workspace.abi, None)


def arrays(of):
    return {
        "q": of(np.ones((1, 1, 576), "float32")),
        "cache": smla.Cache(of(np.ones((1, 4, 576), "float32")), "row_f32", 4),
        "rows": of(np.zeros((1, 1), "int32")),
        "out": of(np.empty((1, 1, 512), "float32")),
        "lse": of(np.empty((1, 1), "float32")),
    }


def attend_calls():
    numpy = arrays(lambda array: array)
    yield "NumPy, outputs given", lambda: smla.attend(softmax_scale=1.0, **numpy)
    inputs = {name: numpy[name] for name in ("q", "cache", "rows")}
    yield "NumPy, outputs allocated", lambda: smla.attend(softmax_scale=1.0, lse=True, **inputs)
    yield "C ABI, arguments ready", direct(**numpy)
    try:
        import torch
    except ImportError:
        return
    tensors = arrays(torch.from_numpy)
    yield "PyTorch, outputs given", lambda: smla.attend(softmax_scale=1.0, **tensors)
    given = {name: tensors[name] for name in ("q", "cache", "rows")}
    yield "PyTorch, outputs allocated", lambda: smla.attend(softmax_scale=1.0, lse=True, **given)


def main():
    smla.attend(softmax_scale=1.0, **arrays(lambda array: array))
    times = {name: microseconds(call) for name, call in attend_calls()}
    if "--json" in sys.argv[1:]:
        print(json.dumps({"attend_us": times}))
        return
    for name, time_us in times.items():
        print(f"{name:28} {time_us:6.2f} us")


if __name__ == "__main__":
    main()
