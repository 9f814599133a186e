"""The figures of a report, each from rows of the tool's JSON documents."""

import math

from .svg import INK, MUTED, RULE, Drawing, color, styled
from .units import bytes_text, flops_text, rate_text, time_text, tokens_text


def _label(text):
    """A label of a legend; matplotlib hides those that begin with an underscore."""
    return f" {text}" if text.startswith("_") else text


def _ticks(axis, places, text):
    from matplotlib.ticker import NullLocator

    axis.set_ticks(places, [text(place) for place in places])
    axis.set_minor_locator(NullLocator())


def _decades(axis, text):
    """Powers of ten where there are two or more, else as matplotlib finds them; labels with units."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    spans = math.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1.0,) if spans > 2 else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_locator(NullLocator())


@styled
def roofline(stage, rows, peaks, memory=None):
    """FLOP/s against FLOP per byte of cache that is read, under the peaks measured in the same run: of
    arithmetic, {name: GFLOP/s}, and of memory, in GB/s."""
    drawing = Drawing(stage, x=10, y=10)
    axes = drawing.axes
    formats = list(dict.fromkeys(row["case"].split()[-1] for row in rows))
    spots = [(row["gflops"] / row["gbytes_per_second"], row["gflops"]) for row in rows]
    ceiling = max([y for _, y in spots] + list(peaks.values()))
    left, right = min(x for x, _ in spots) / 2, max(x for x, _ in spots) * 2
    bottom, top = min(y for _, y in spots) / 2, ceiling * 2
    if memory and peaks:  # the ridges, where roofs meet, are in sight, and there is room for the name below
        bottom = min(bottom, min(peaks.values()) / 6)
        left = min(left, min(peaks.values()) / memory / 6)
        right = max(right, max(peaks.values()) / memory * 2)
    for row, (x, y) in zip(rows, spots):
        kind = row["case"].split()[-1]
        (dot,) = axes.plot([x], [y], "o", color=color(formats.index(kind)), alpha=0.85, zorder=3)
        share = f", {row['percent_of_peak']:.0f} % of peak" if row.get("percent_of_peak") else ""
        drawing.tip(dot, f"{row['case']}: {time_text(row['ms'])}, {rate_text(y)}{share}")
    for number, kind in enumerate(formats):
        axes.plot([], [], "o", color=color(number), label=_label(kind))
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    for name, peak in peaks.items():  # from where memory suffices for it
        begin = min(max(left, peak / memory), right) if memory else left
        axes.plot([begin, right], [peak, peak], color=INK, linewidth=1.2, zorder=2)
        place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        drawing.note(f"{name}, {rate_text(peak)}", (1, peak), (0, 2), **place)
    if memory:
        _memory_roof(drawing, memory, max(left, bottom / memory), min(right, ceiling / memory))
    _decades(axes.xaxis, lambda value: f"{value:g}")
    _decades(axes.yaxis, rate_text)
    axes.set_xlabel("FLOP per byte of cache read")
    drawing.legend()
    return drawing.svg()


def _memory_roof(drawing, memory, low, high):
    if low >= high:
        return
    text = f"memory, {memory:.3g} GB/s"
    ends = [low, high], [low * memory, high * memory]
    (line,) = drawing.axes.plot(*ends, color=INK, linewidth=1.2, zorder=2)
    drawing.tip(line, text)
    middle = low * (high / low) ** 0.3  # below the peaks of arithmetic and their names
    drawing.note(text, (middle, middle * memory), (6, -2), va="top")


@styled
def times(title, lines, xlabel):
    """Time of a call against one size. lines: {label: [(size, ms)]}."""
    drawing = Drawing(title, x=2, y=10)
    axes = drawing.axes
    for number, (label, points) in enumerate(lines.items()):
        sizes, values = zip(*points)
        (line,) = axes.plot(sizes, values, "o-", color=color(number), label=_label(label))
        drawing.tip(line, label + ": " + ", ".join(f"{tokens_text(x)} {time_text(y)}" for x, y in points))
    every = sorted({size for points in lines.values() for size, _ in points})
    _ticks(axes.xaxis, every, tokens_text)
    axes.margins(x=0.08, y=0.12)
    _decades(axes.yaxis, time_text)
    axes.set_xlabel(xlabel)
    if list(lines) != [title]:
        drawing.legend()
    return drawing.svg()


@styled
def steps(cases):
    """Draws the time of decode steps: a bar per case with a segment per stage, as a share of all stages, and
    the time of the step after the bar. cases: {case: (ms of the step, {stage: ms})}."""
    weight = {}
    for _, stages in cases.values():
        for stage, ms in stages.items():
            weight[stage] = max(weight.get(stage, 0), ms / sum(stages.values()))
    shown = sorted((stage for stage in weight if weight[stage] >= 0.04), key=lambda stage: -weight[stage])[:5]
    drawing = Drawing("Time of a decode step by stage", 9.4, 0.9 + 0.5 * len(cases))
    for row, (case, (whole, stages)) in enumerate(cases.items()):
        every = sum(stages.values())
        segments = {stage: stages[stage] for stage in shown if stage in stages}
        segments["other stages"] = sum(ms for stage, ms in stages.items() if stage not in shown)
        left = 0.0
        for stage, ms in segments.items():
            if not ms:
                continue
            share = 100 * ms / every
            tint = MUTED if stage == "other stages" else color(shown.index(stage))
            (bar,) = drawing.axes.barh([row], [share], left=left, height=0.62, color=tint)
            drawing.tip(bar, f"{case}, {stage}: {time_text(ms)}, {share:.0f} %")
            left += share
        drawing.note(time_text(whole), (100, row), (5, 0), va="center")
    for stage in [*shown, "other stages"]:
        tint = MUTED if stage == "other stages" else color(shown.index(stage))
        drawing.axes.barh([0], [0], color=tint, label=stage)
    drawing.rows(list(cases))
    drawing.axes.set_xlim(0, 110)
    _ticks(drawing.axes.xaxis, range(0, 101, 25), lambda value: f"{value} %")
    drawing.legend(len(shown) + 1)
    return drawing.svg()


@styled
def paired(name, pairs):
    """This library beside another: bars are times relative to ours. pairs: (stage, case, ms, theirs)."""
    drawing = Drawing(f"smla and {name}: time of a call, smla = 1", 9.4, 0.9 + 0.55 * len(pairs))
    axes = drawing.axes
    longest = max(max(theirs / ours, 1) for _, _, ours, theirs in pairs)
    for row, (stage, case, ours, theirs) in enumerate(pairs):
        for offset, value, ms, tint in ((-0.19, 1, ours, color(0)), (0.19, theirs / ours, theirs, color(1))):
            (bar,) = axes.barh([row + offset], [value], height=0.36, color=tint)
            drawing.tip(bar, f"{stage} {case}: {time_text(ms)}")
            text = time_text(ms) if offset < 0 else f"{time_text(ms)}, {value:.3g}x"
            drawing.note(text, (max(value, 1), row + offset), (4, 0), va="center")
    for label, tint in (("smla", color(0)), (_label(name), color(1))):
        axes.barh([0], [0], color=tint, label=label)
    axes.axvline(1, color=INK, linewidth=0.8)
    drawing.rows([f"{stage} {case}" for stage, case, _, _ in pairs])
    axes.set_xlim(0, longest * 1.2)
    axes.set_xlabel("time relative to smla")
    drawing.legend()
    return drawing.svg()


@styled
def accuracy(checks):
    """Relative errors against double precision, each with its limit. checks: (label, error, limit)."""
    shown = [check for check in checks if check[1] > 0]
    title = "Relative error against double precision, and its limit"
    drawing = Drawing(title, 9.4, 0.9 + 0.24 * len(shown), x=10)
    axes = drawing.axes
    for row, (label, error, limit) in enumerate(shown):
        axes.plot([error, limit], [row, row], "-", color=RULE, linewidth=2, zorder=1)
        (dot,) = axes.plot([error], [row], "o", color=color(0) if error <= limit else color(1))
        drawing.tip(dot, f"{label}: error {error:.1e}, limit {limit:.1e}")
        axes.plot([limit], [row], "|", color=INK, markersize=9, markeredgewidth=1.6)
    axes.plot([], [], "o", color=color(0), label="error")
    axes.plot([], [], "|", color=INK, markersize=9, markeredgewidth=1.6, label="limit")
    _decades(axes.xaxis, lambda value: f"{value:.0e}")
    drawing.rows([label for label, _, _ in shown])
    drawing.legend()
    return drawing.svg()


@styled
def capacity(title, lines, text):
    """A quantity against the context, logarithmic both ways. lines: {label: [(context, value)]}."""
    drawing = Drawing(title, x=2, y=2 if text is bytes_text else 10)
    axes = drawing.axes
    for number, (label, points) in enumerate(lines.items()):
        axes.plot(*zip(*points), "o-", color=color(number), label=_label(label), markersize=3.5)
    contexts = sorted({context for points in lines.values() for context, _ in points})
    _ticks(axes.xaxis, contexts[::2], tokens_text)
    if text is bytes_text:
        low, high = (round(math.log2(end)) for end in axes.get_ylim())
        stride = max(1, math.ceil((high - low) / 6))
        _ticks(axes.yaxis, [2.0**power for power in range(low, high + 1, stride)], text)
    else:
        _decades(axes.yaxis, text)
    axes.set_xlabel("context (tokens)")
    drawing.legend()
    return drawing.svg()


# What `capacity` draws: key of its rows, title, and how a value is written.
CAPACITY = (
    ("bytes", "Cache of one request", bytes_text),
    ("fit", "Requests that fit", lambda value: f"{value:g}"),
    ("flops", "Arithmetic of one token, all layers", flops_text),
)
