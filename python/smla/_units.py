"""Numbers as people read them."""


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
    """131072 -> 128K: contexts are counted in powers of two."""
    for step, name in ((1 << 20, "M"), (1 << 10, "K")):
        if count >= step and count % step == 0:
            return f"{count // step}{name}"
    return f"{count:g}"
