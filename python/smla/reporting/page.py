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


def _facts(rows):
    return element("dl", *(element("dt", name) + element("dd", value) for name, value in rows))


def _gpu(doctor):
    devices = doctor["gpu"].get("devices")
    if not devices:
        return "none: " + doctor["gpu"].get("why_none", "not asked")
    return "; ".join(
        f"{each['name']}, sm_{each['capability']}, {bytes_text(each['memory_bytes'])}" for each in devices
    )


def _machine(found):
    doctor = found["doctor"]
    checks = [check for check in doctor["self_test"] if not check["skipped"]]
    rows = [
        (
            check["stage"],
            check["problem"],
            check["kernel"],
            f"{check['error']:.1e}",
            f"{check['limit']:.1e}",
            badge(check["passed"]),
        )
        for check in checks
    ]
    yield _facts(
        [
            ("Processor", f"{doctor['cpu']}, {doctor['cores']} cores that this process may use"),
            ("Instruction set", f"{doctor['best_isa']} is the best here"),
            (
                "Memory",
                f"{bytes_text(doctor['memory_bytes'])}, {bytes_text(doctor['memory_available_bytes'])} "
                f"free; huge pages: {doctor['huge_pages']}",
            ),
            ("GPU", _gpu(doctor)),
            ("Runs by default on", doctor["context"]),
            ("CBLAS", doctor["cblas"] or "none found: projections use smla's own loops"),
            ("Build", f"{doctor['version']}, {doctor['build']}"),
        ]
    )
    head = ["stage", "problem", "kernel", "error", "limit", ""]
    title = f"Self-test: {sum(check['passed'] for check in checks)} of {len(checks)} passed"
    yield folded(title, table(head, rows, numbers=(3, 4)))


def _choices(found):
    listing = found["list"]
    engines = [
        (row["name"], "available" if row["available"] else "not here", row["note"])
        for row in listing["engines"]
    ]
    yield element("h3", "Engines") + table(["engine", "", "what it is, or wants"], engines)
    for layer in found.get("explain", {}).get("layers", ()):
        rows = []
        for stage in layer["stages"]:
            others = [
                f"{each['kernel']}: {each['reason']}" for each in stage["candidates"] if not each["chosen"]
            ]
            shown = folded(
                f"{len(others)} not chosen", element("ul", *(element("li", why) for why in others))
            )
            rows.append(
                (stage["stage"], element("code", stage["kernel"]), shown if others else "the only one")
            )
        yield element("h3", f"Layer {layer['layer']} ({layer['layer_kind']})") + element("p", layer["title"])
        yield table(["stage", "kernel that runs", "why not the others"], rows)
    kernels = [
        (row["stage"], " > ".join(row["cpu"]), " > ".join(row["cuda"]) or "not in this build")
        for row in listing["kernels"]
    ]
    yield folded("Kernels of this build, best first", table(["stage", "cpu", "cuda"], kernels))


def _peaks(bench):
    named = (("bf16 dot", "peak_bf16_dot_gflops"), ("f32 FMA", "peak_f32_fma_gflops"))
    return {name: bench[key] for name, key in named if bench.get(key)}


def _bench_table(rows):
    def cell(value, show):
        return "" if value is None else show(value)

    lines = [
        (
            ("· " if row.get("part") else "") + row["stage"],
            row["case"],
            row.get("kernel") or "",
            time_text(row["ms"]),
            cell(row.get("gflops"), rate_text),
            cell(row.get("percent_of_peak"), lambda v: f"{v:.0f} %"),
            cell(row.get("gbytes_per_second"), lambda v: f"{v:.3g} GB/s"),
            cell(row.get("error"), lambda v: f"{v:.1e}"),
        )
        for row in rows
    ]
    head = ["stage", "case", "kernel", "time", "rate", "of peak", "cache read", "error"]
    return table(head, lines, numbers=(3, 4, 5, 6, 7))


def bench_body(bench):
    """The part of one bench document: title, plots, the whole table."""
    rows = bench["results"]
    cpu = bench.get("cpu") or "unknown machine"
    peaks = _peaks(bench)
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
    """Per cache format: worst error as a share of its tolerance, over every golden file that ran."""
    worst = {}
    for each in combinations:
        formats = " / ".join(filter(None, (each.get("kv_format"), each.get("index_format"))))
        shares = [
            check["error"] / check["tolerance"] for check in each.get("checked") or () if check["tolerance"]
        ]
        if shares:
            worst.setdefault(formats, []).append(max(shares))
    return [(formats, len(shares), _share_bar(max(shares))) for formats, shares in worst.items()]


def _accuracy(found):
    checks = [
        (f"{check['stage']}: {check['problem']}", check["error"], check["limit"])
        for check in found["doctor"]["self_test"]
        if not check["skipped"]
    ]
    yield figures([plots.accuracy(checks)], columns=1)
    exact = [label for label, error, _ in checks if error == 0]
    if exact:
        yield element("p", "Without any error: " + "; ".join(exact) + ".", class_="note")
    for document in found["verify"]:
        if combinations := document.get("combinations"):
            yield element("h3", "Golden files by cache format")
            head = ["KV format / index format", "runs", "worst error, as a share of the tolerance"]
            yield table(head, _golden_rows(combinations), numbers=(1,))
        if kernels := [row for row in document.get("kernels") or () if row["problems"]]:
            shares = [row.get("worst_share_of_limit") for row in kernels]
            rows = [
                (
                    row["stage"],
                    row["engine"],
                    row["kernel"],
                    row["problems"],
                    "" if share is None else _share_bar(share),
                    badge(row.get("pass", True)),
                )
                for row, share in zip(kernels, shares)
            ]
            passed = sum(bool(row.get("pass", True)) for row in kernels)
            problems = sum(row["problems"] for row in kernels)
            title = (
                f"Random problems: {passed} of {len(kernels)} kernels within their limits, {problems} runs"
            )
            head = ["stage", "engine", "kernel", "problems", "worst error, as a share of its limit", ""]
            yield folded(title, table(head, rows, numbers=(3,)))


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
    checks = [check for check in doctor["self_test"] if not check["skipped"]]
    devices = doctor["gpu"].get("devices")
    yield "Runs on", devices[0]["name"] if devices else doctor["cpu"], doctor["context"]
    yield (
        "Self-test",
        f"{sum(check['passed'] for check in checks)} / {len(checks)}",
        "checks against double precision",
    )
    if best:
        yield (
            "Best rate",
            f"{best['percent_of_peak']:.0f} %",
            f"of the measured peak: {best['stage']} {best['case']}",
        )
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
