"""The page: one HTML file that needs nothing else, on a screen, in the dark and on paper."""

import datetime
import json
from pathlib import Path

from ..errors import Unsupported
from . import cases, plots
from .html import Markup, badge, element, figures, folded, table, text
from .svg import needs_matplotlib
from .units import bytes_text, rate_text, time_text

_STYLE = Path(__file__).with_name("style.css")


def _gpu(doctor):
    devices = doctor["gpu"].get("devices")
    if not devices:
        return "none: " + doctor["gpu"].get("why_none", "not asked")
    return "; ".join(
        f"{each['name']}, sm_{each['capability']}, {bytes_text(each['memory_bytes'])}" for each in devices
    )


def _checks(found):
    return [check for check in found["doctor"]["self_test"] if not check["skipped"]]


def _machine(found):
    doctor, checks = found["doctor"], _checks(found)
    free = f"{bytes_text(doctor['memory_available_bytes'])} free"
    facts = {
        "Processor": f"{doctor['cpu']}, {doctor['cores']} cores that this process may use",
        "Instruction set": f"{doctor['best_isa']} is the best here",
        "Memory": f"{bytes_text(doctor['memory_bytes'])}, {free}; huge pages: {doctor['huge_pages']}",
        "GPU": _gpu(doctor),
        "Runs by default on": doctor["context"],
        "CBLAS": doctor["cblas"] or "none found: projections use smla's own loops",
        "Build": f"{doctor['version']}, {doctor['build']}",
    }
    yield element("dl", *(element("dt", name) + element("dd", value) for name, value in facts.items()))
    columns = {
        "stage": "stage",
        "problem": "problem",
        "kernel": "kernel",
        "#error": lambda check: f"{check['error']:.1e}",
        "#limit": lambda check: f"{check['limit']:.1e}",
        "": lambda check: badge(check["passed"]),
    }
    title = f"Self-test: {sum(check['passed'] for check in checks)} of {len(checks)} passed"
    yield folded(title, table(checks, columns))


def _others(stage):
    others = [f"{each['kernel']}: {each['reason']}" for each in stage["candidates"] if not each["chosen"]]
    listed = element("ul", *(element("li", why) for why in others))
    return folded(f"{len(others)} not chosen", listed) if others else "the only one"


def _choices(found):
    listing = found["list"]
    engines = {
        "engine": "name",
        "": lambda row: "available" if row["available"] else "not here",
        "what it is, or wants": "note",
    }
    yield element("h3", "Engines") + table(listing["engines"], engines)
    stages = {
        "stage": "stage",
        "kernel that runs": lambda stage: element("code", stage["kernel"]),
        "why not the others": _others,
    }
    for layer in found.get("explain", {}).get("layers", ()):
        yield element("h3", f"Layer {layer['layer']} ({layer['layer_kind']})") + element("p", layer["title"])
        yield table(layer["stages"], stages)
    kernels = {
        "stage": "stage",
        "cpu": lambda row: " > ".join(row["cpu"]),
        "cuda": lambda row: " > ".join(row["cuda"]) or "not in this build",
    }
    yield folded("Kernels of this build, best first", table(listing["kernels"], kernels))


def _bench_table(rows):
    def shown(key, show):
        return lambda row: "" if row.get(key) is None else show(row[key])

    columns = {
        "stage": lambda row: ("· " if row.get("part") else "") + row["stage"],
        "case": "case",
        "kernel": lambda row: row.get("kernel") or "",
        "#time": lambda row: time_text(row["ms"]),
        "#rate": shown("gflops", rate_text),
        "#of peak": shown("percent_of_peak", lambda value: f"{value:.0f} %"),
        "#cache read": shown("gbytes_per_second", lambda value: f"{value:.3g} GB/s"),
        "#error": shown("error", lambda value: f"{value:.1e}"),
    }
    return table(rows, columns)


def bench_body(bench):
    """The part of one bench document: title, plots, the whole table."""
    rows = bench["results"]
    cpu = bench.get("cpu") or "unknown machine"
    named = (("bf16 dot", "peak_bf16_dot_gflops"), ("f32 FMA", "peak_f32_fma_gflops"))
    peaks = {name: bench[key] for name, key in named if bench.get(key)}
    yield element("h3", bench.get("context") or "Stages") + element(
        "p", f"{cpu}; {bench.get('method') or 'times as given'}."
    )
    staged = {}
    for row in rows:
        if not row.get("part") and row.get("gflops") and row.get("gbytes_per_second"):
            staged.setdefault(row["stage"], []).append(row)
    if staged:
        yield element("h4", "Rooflines")
        yield element(
            "p",
            "Arithmetic rate against arithmetic per byte of cache. Lines: peaks of arithmetic (across) and "
            "of memory (rising), measured in the same run. Rows that a call reads again, or that a "
            "processor's caches hold, may lie above the rising line.",
            class_="note",
        )
        memory = bench.get("peak_memory_gbytes_per_second")
        yield figures(plots.roofline(stage, points, peaks, memory) for stage, points in staged.items())
    drawings = []
    for letter, axis in cases.AXES.items():
        for stage, lines in cases.curves(rows, letter).items():
            for title, own in cases.panels(lines).items():
                drawings.append(plots.times(f"{stage} {title}".strip(), own, axis))
    if drawings:
        yield element("h4", "Time against context and batch") + figures(drawings)
    if steps := cases.steps(rows):
        yield element("h4", "Inside a decode step") + figures([plots.steps(steps)], columns=1)
    yield folded(f"All {len(rows)} times", _bench_table(rows))


def _speed(found):
    for bench in found["bench"]:
        yield from bench_body(bench)


def _beside(found):
    for peer in found["peers"]:
        for bench in found["bench"]:
            if pairs := cases.pairs(bench["results"], peer["results"]):
                yield element(
                    "p", f"{len(pairs)} cases that both have; smla as {bench.get('context') or 'measured'}."
                )
                yield figures([plots.paired(peer["name"], pairs)], columns=1)


def _share_bar(share):
    width = min(max(share, 0), 1) * 100
    bar = element("span", class_="bar" if share <= 1 else "bar over", style=f"width: {width:.0f}%")
    return element("span", bar, class_="track") + text(f" {share:.2f}")


def _golden_rows(combinations):
    """(cache formats, runs, worst error as a share of its tolerance) over every golden file that ran."""
    worst = {}
    for each in combinations:
        formats = " / ".join(filter(None, (each.get("kv_format"), each.get("index_format"))))
        shares = [
            check["error"] / check["tolerance"] for check in each.get("checked") or () if check["tolerance"]
        ]
        if shares:
            worst.setdefault(formats, []).append(max(shares))
    return [(formats, len(shares), max(shares)) for formats, shares in worst.items()]


_GOLDEN = {
    "KV format / index format": 0,
    "#runs": 1,
    "worst error, as a share of the tolerance": lambda row: _share_bar(row[2]),
}
_PROBLEMS = {
    "stage": "stage",
    "engine": "engine",
    "kernel": "kernel",
    "#problems": "problems",
    "worst error, as a share of its limit": lambda row: (
        "" if row.get("worst_share_of_limit") is None else _share_bar(row["worst_share_of_limit"])
    ),
    "": lambda row: badge(row.get("pass", True)),
}


def _accuracy(found):
    checks = [
        (f"{each['stage']}: {each['problem']}", each["error"], each["limit"]) for each in _checks(found)
    ]
    yield figures([plots.accuracy(checks)], columns=1)
    if exact := [label for label, error, _ in checks if error == 0]:
        yield element("p", "Without any error: " + "; ".join(exact) + ".", class_="note")
    for document in found["verify"]:
        if combinations := document.get("combinations"):
            yield element("h3", "Golden files by cache format") + table(_golden_rows(combinations), _GOLDEN)
        if kernels := [row for row in document.get("kernels") or () if row["problems"]]:
            passed = f"{sum(bool(row.get('pass', True)) for row in kernels)} of {len(kernels)} kernels"
            problems = sum(row["problems"] for row in kernels)
            title = f"Random problems: {passed} within their limits, {problems} runs"
            yield folded(title, table(kernels, _PROBLEMS))


def _capacity(found):
    known = found["capacity"]
    yield element(
        "p", f"{known['note']}. Caches in pages; requests that fit into {known['memory_gib']:.4g} GiB."
    )
    drawings = []
    for key, title, show in plots.CAPACITY:
        lines = {
            label: [(row["context"], row[key]) for row in rows if row[key]]
            for label, rows in known["lines"].items()
        }
        lines = {label: points for label, points in lines.items() if points}
        if len(set(map(tuple, lines.values()))) == 1:  # formats differ in bytes, not in arithmetic
            lines = {"any format": next(iter(lines.values()))}
        if lines:
            drawings.append(plots.capacity(title, lines, show))
    yield figures(drawings)


def _tiles(found):
    doctor, best = found["doctor"], None
    for bench in found["bench"]:
        rows = [row for row in bench["results"] if row.get("percent_of_peak") and not row.get("part")]
        best = max([best, *rows], key=lambda row: row["percent_of_peak"] if row else 0)
    checks = _checks(found)
    devices = doctor["gpu"].get("devices")
    yield "Runs on", devices[0]["name"] if devices else doctor["cpu"], doctor["context"]
    passed = f"{sum(check['passed'] for check in checks)} / {len(checks)}"
    yield "Self-test", passed, "checks against double precision"
    if best:
        what = f"of the measured peak: {best['stage']} {best['case']}"
        yield "Best rate", f"{best['percent_of_peak']:.0f} %", what
    steps = [row for bench in found["bench"] for row in bench["results"] if row["stage"] == "decode"]
    if steps:
        yield "Decode step", time_text(steps[0]["ms"]), steps[0]["case"]


_SECTIONS = (
    ("machine", "This machine", _machine),
    ("choices", "What runs, and why", _choices),
    ("speed", "How fast", _speed),
    ("peers", "Beside others", _beside),
    ("accuracy", "How exact", _accuracy),
    ("capacity", "How much fits", _capacity),
)


def _document(title, *content):
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            element("title", title),
            element("style", Markup(_STYLE.read_text())),
            "\n</head>\n<body>\n",
            *content,
            "\n</body>\n</html>\n",
        ]
    )


def bench_page(bench):
    """A page of one bench document alone; without matplotlib its table."""
    try:
        needs_matplotlib()
        body = element("section", *bench_body(bench))
    except Unsupported:
        body = _bench_table(bench["results"]) if bench.get("results") else ""
    return _document("smla bench", element("main", body))


def page(found):
    """The whole document as text."""
    shown = [
        section for section in _SECTIONS if section[0] not in ("peers", "capacity") or found.get(section[0])
    ]
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    about = ", ".join(filter(None, (found["doctor"]["cpu"], found["model"])))
    tiles = (
        element(
            "div",
            element("span", name, class_="name"),
            element("strong", value),
            element("span", more),
            class_="tile",
        )
        for name, value, more in _tiles(found)
    )
    links = element("nav", *(element("a", title, href=f"#{name}") for name, title, _ in shown))
    sections = (
        element("section", element("h2", title), *make(found), id=name) for name, title, make in shown
    )
    data = json.dumps(found).replace("<", "\\u003c")
    made = element(
        "p",
        "Made by ",
        element("code", "smla report"),
        ". The numbers are in this file too, as JSON in the element ",
        element("code", "data"),
        ".",
    )
    return _document(
        f"smla on {about}",
        element(
            "header",
            element("h1", "smla report"),
            element("p", f"{about}. {found['version']}, {now}."),
            element("div", *tiles, class_="tiles"),
            links,
        ),
        element("main", *sections),
        element("footer", made),
        element("script", Markup(data), type="application/json", id="data"),
    )
