"""Bar charts as HTML, with the text size and colors of the page."""

from ._html import element, text

SERIES = 6  # colors in style.css: the palette of Okabe and Ito, which color-blind readers can distinguish


class Bar:
    """One row of a chart. note: value as text. low, high: ends of the line for the spread. tip: tooltip."""

    def __init__(self, label, value, note, *, series=0, low=None, high=None, tip=""):
        self.label, self.value, self.note, self.series, self.tip = label, value, note, series, tip
        self.low, self.high = (value, value) if low is None or high is None else (low, high)


def _percent(value, whole):
    return f"{100 * value / whole:.2f}%"


def chart(title, axis, bars, *, legend=()):
    """Returns a chart of bars that begin at 0. axis: quantity and unit. legend: (series, name) pairs."""
    longest = max(max(bar.high, bar.value) for bar in bars)
    rows = []
    for bar in bars:
        width = _percent(bar.value, longest)
        parts = [element("span", class_=f"bar series-{bar.series % SERIES}", style=f"width:{width}")]
        if bar.high > bar.low:
            left, spread = _percent(bar.low, longest), _percent(bar.high - bar.low, longest)
            parts.append(element("span", class_="spread", style=f"left:{left};width:{spread}"))
        track = element("span", *parts, class_="track", title=bar.tip or f"{bar.label}: {bar.note}")
        cells = element("span", bar.label, class_="label"), track, element("span", bar.note, class_="value")
        rows.append(element("div", *cells, class_="row"))
    if any(bar.high > bar.low for bar in bars):
        axis += "; line: minimum to maximum"
    return _figure(title, rows, axis, legend)


def stacked(title, axis, lines):
    """Returns a chart with one stacked bar for each line (label, note, {name: value})."""
    names = list(dict.fromkeys(name for _, _, parts in lines for name in parts))
    rows = []
    for label, note, parts in lines:
        whole = sum(parts.values())
        segments = [
            element(
                "span",
                class_=f"segment series-{names.index(name) % SERIES}",
                style=f"width:{_percent(value, whole)}",
                title=f"{label}, {name}: {100 * value / whole:.0f} %",
            )
            for name, value in parts.items()
        ]
        track = element("span", *segments, class_="track stack")
        cells = element("span", label, class_="label"), track, element("span", note, class_="value")
        rows.append(element("div", *cells, class_="row"))
        largest = sorted(parts.items(), key=lambda part: -part[1])
        shares = ", ".join(f"{name} {100 * value / whole:.0f} %" for name, value in largest)
        rows.append(element("p", shares, class_="note"))
    return _figure(title, rows, axis, list(enumerate(names)))


def _figure(title, rows, axis, legend):
    keys = [
        element("span", element("span", class_=f"key series-{series % SERIES}"), text(f" {name}"))
        for series, name in legend
    ]
    key = [element("div", *keys, class_="legend")] if keys else []
    under = element("p", axis, class_="axis")
    return element("figure", element("figcaption", title), *key, element("div", *rows), under)


def share(value, whole=1):
    """Returns a small bar for a table cell that shows value / whole; red if the ratio exceeds 1."""
    part = value / whole
    bar = element(
        "span", class_=f"bar {'series-0' if part <= 1 else 'over'}", style=f"width:{min(part, 1):.0%}"
    )
    return element("span", bar, class_="track small") + text(f" {part:.2f}")
