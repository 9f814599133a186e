"""Formats numbers and arrays as text."""

from typing import Any


def _scaled(value, base, names):
    step = 0
    while value >= base * 0.9995 and step < len(names) - 1:
        value, step = value / base, step + 1
    return f"{value:.3g} {names[step]}" if value < 1000 else f"{value:.0f} {names[step]}"


def bytes_text(value):
    return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def flops_text(value):
    return _scaled(value, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def rate_text(gflops):
    return _scaled(gflops * 1e9, 1000, ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"))


def time_text(milliseconds):
    if milliseconds < 1:
        return f"{milliseconds * 1000:.3g} µs"
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


def tokens_text(count):
    """Returns the count as text, with K or M if it is a multiple of 1024: 131072 gives 128K."""
    for step, name in ((1 << 20, "M"), (1 << 10, "K")):
        if count >= step and count % step == 0:
            return f"{count // step}{name}"
    return f"{count:g}"


def array_text(value):
    """Returns dtype, shape and device of an array as text. Reads only attributes, not the memory."""
    shape = getattr(value, "shape", None)
    if shape is None or isinstance(value, type):
        return (
            "None"
            if value is None
            else repr(value)
            if isinstance(value, (int, float, str))
            else type(value).__name__
        )
    dtype = getattr(value, "dtype", "")
    name = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    return f"{name.lower()} [{', '.join(map(str, shape))}]{device_text(getattr(value, 'device', 'cpu'))}"


def device_text(device):
    """Returns " on cuda:0" for a device of smla (type, index) or of an array library; "" for the CPU."""
    if isinstance(device, tuple):
        device = f"cuda:{device[1]}" if device[0] else "cpu"
    elif isinstance(device, int):  # GpuView
        device = f"cuda:{device}"
    return "" if str(device).startswith("cpu") else f" on {str(device).strip('<>')}"


class Described:
    """An object whose repr is smla.Name(TEXT) in one line, with TEXT from _text(). repr never raises."""

    __slots__ = ()

    def _text(self) -> str:
        """Returns a description with shapes and sizes, without the contents."""
        return ""

    def __repr__(self) -> str:
        try:
            text = self._text()
        except Exception:  # the constructor has not finished, or another thread changes the object
            text = "not ready or in use"
        return f"smla.{type(self).__name__}({text})"


def fields_repr(self: Any) -> str:
    """Returns the repr of a named tuple of arrays."""
    try:
        text = ", ".join(f"{name}={array_text(value)}" for name, value in zip(self._fields, self))
    except Exception:
        text = "..."
    return f"smla.{type(self).__name__}({text})"
