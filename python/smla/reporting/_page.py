"""The report page: one HTML file without external resources."""

import datetime
import json
from pathlib import Path

from .._units import bytes_text, flops_text, rate_text, time_text, tokens_text
from . import _cases as cases
from ._charts import Bar, chart, share, stacked
from ._html import Markup, badge, element, folded, table

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
    doctor = found["doctor"]
    free = f"{bytes_text(doctor['memory_available_bytes'])} free"
    facts = {
        "Processor": f"{doctor['cpu']}, {doctor['cores']} cores that this process may use",
        "Best instruction set": doctor["best_isa"],
        "Memory": f"{bytes_text(doctor['memory_bytes'])}, {free}; huge pages: {doctor['huge_pages']}",
        "GPU": _gpu(doctor),
        "Default context": doctor["context"],
        "CBLAS": doctor["cblas"] or "none found; projections use smla's loops",
        "Build": f"{doctor['version']}, {doctor['build']}",
    }
    yield element("dl", *(element("dt", name) + element("dd", value) for name, value in facts.items()))


def _others(stage):
    others = [f"{each['kernel']}: {each['reason']}" for each in stage["candidates"] if not each["chosen"]]
    listed = element("ul", *(element("li", why) for why in others))
    return folded(f"{len(others)} not selected", listed) if others else "the only kernel"


def _choices(found):
    listing = found["list"]
    engines = {
        "engine": "name",
        "": lambda row: "available" if row["available"] else "not available",
        "description or requirement": "note",
    }
    yield element("h3", "Engines") + table(listing["engines"], engines)
    stages = {
        "stage": "stage",
        "selected kernel": lambda stage: element("code", stage["kernel"]),
        "other kernels": _others,
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


def _shown(key, show):
    return lambda row: "" if row.get(key) is None else show(row[key])


def _bench_table(rows):
    columns = {
        "stage": lambda row: ("· " if row.get("part") else "") + row["stage"],
        "case": "case",
        "kernel": lambda row: row.get("kernel") or "",
        "#median": lambda row: time_text(row["ms"]),
        "#minimum": _shown("min_ms", time_text),
        "#maximum": _shown("max_ms", time_text),
        "#rate": _shown("gflops", rate_text),
        "#of peak": _shown("percent_of_peak", lambda value: f"{value:.0f} %"),
        "#cache read": _shown("gbytes_per_second", lambda value: f"{value:.3g} GB/s"),
        "#error": _shown("error", lambda value: f"{value:.1e}"),
    }
    return table(rows, columns)


def _timed(label, row, series=0):
    """Returns a bar for the time of a case."""
    spread = {"low": row.get("min_ms"), "high": row.get("max_ms")}
    tip = f"{row['stage']} {row['case']}: {time_text(row['ms'])}"
    return Bar(label, row["ms"], time_text(row["ms"]), series=series, tip=tip, **spread)


def _load(bench):
    """Yields paragraphs about the load of the machine during the measurement."""
    if bench.get("busy"):
        text = f"The machine was busy; times may be too long: {bench['busy']}."
        yield element("p", text, class_="bad")
    load = bench.get("load_average")
    cores = (bench.get("machine") or {}).get("cores")
    of = f" on {cores} cores" if cores else ""
    known = "unknown" if load is None or load < 0 else f"{load:.2g}{of}"
    yield element("p", f"Load of the machine before the run: {known}.", class_="note")


def _rates(stage, rows, bench):
    """Returns a chart of the rates of a stage and the peaks that were measured in the same run."""
    named = (("bf16 dot products", "peak_bf16_dot_gflops"), ("f32 FMA", "peak_f32_fma_gflops"))
    bars = [
        Bar(
            row["case"], row["gflops"], rate_text(row["gflops"]), tip=f"{row['case']}: {time_text(row['ms'])}"
        )
        for row in rows
    ]
    bars += [
        Bar(f"measured peak, {name}", bench[key], rate_text(bench[key]), series=4)
        for name, key in named
        if bench.get(key)
    ]
    return chart(f"{stage}: arithmetic", "FLOP per second", bars)


def _bandwidths(stage, rows, bench):
    bars = [
        Bar(row["case"], row["gbytes_per_second"], f"{row['gbytes_per_second']:.3g} GB/s") for row in rows
    ]
    if peak := bench.get("peak_memory_gbytes_per_second"):
        bars.append(Bar("measured peak, memory", peak, f"{peak:.3g} GB/s", series=4))
    return chart(
        f"{stage}: bytes of {'weights' if 'project' in stage else 'caches'} read", "GB per second", bars
    )


def bench_body(bench):
    """Yields the parts of the page for one bench document: title, charts and the complete table."""
    rows = bench["results"]
    cpu = bench.get("cpu") or "unknown machine"
    yield element("h3", bench.get("context") or "Stages") + element(
        "p", f"{cpu}; {bench.get('method') or 'unknown method'}."
    )
    yield from _load(bench)
    if steps := cases.steps(rows):
        lines = [(case, time_text(row["ms"]), stages) for case, (row, stages) in steps.items()]
        yield element("h4", "A decode step of one layer")
        yield chart("Time of a step", "milliseconds", [_timed(case, row) for case, (row, _) in steps.items()])
        yield stacked("Stages of a step", "share of the step's time; other: small stages and gaps", lines)
    drawings = []
    for letter, axis in cases.AXES.items():
        for stage, lines in cases.curves(rows, letter).items():
            bars = [
                _timed(f"{rest}, {letter} {tokens_text(size)}", row, series)
                for series, (rest, points) in enumerate(lines.items())
                for size, row in points
            ]
            drawings.append(chart(f"{stage}: time against {axis}", "milliseconds", bars))
    if drawings:
        yield element("h4", "Time against context and batch") + _figures(drawings)
    staged = {}
    for row in rows:
        if not row.get("part") and row.get("gflops") and row.get("gbytes_per_second"):
            staged.setdefault(row["stage"], []).append(row)
    if staged:
        note = (
            "Peaks are measured in the same run. A call may exceed the arithmetic peak if it uses a faster "
            "unit of the processor, and the memory peak if its data is in caches of the processor."
        )
        pairs = ((_rates(*each, bench), _bandwidths(*each, bench)) for each in staged.items())
        yield element("h4", "Rates") + element("p", note, class_="note")
        yield _figures([drawing for pair in pairs for drawing in pair])
    yield folded(f"All {len(rows)} times", _bench_table(rows))


def _figures(drawings):
    return element("div", *drawings, class_="figures")


def _speed(found):
    for bench in found["bench"]:
        yield from bench_body(bench)


def _beside(found):
    for peer in found["peers"]:
        for bench in found["bench"]:
            pairs = cases.pairs(bench["results"], peer["results"])
            bars = []
            for stage, case, ours, theirs in pairs:
                for series, name, ms in ((0, "smla", ours), (1, peer["name"], theirs)):
                    note = f"{time_text(ms)}, {ms / ours:.3g}x" if series else time_text(ms)
                    bars.append(Bar(f"{stage} {case}, {name}", ms / ours, note, series=series))
            if bars:
                about = f"Common cases: {len(pairs)}; smla on {bench.get('context') or 'this machine'}."
                legend = ((0, "smla"), (1, peer["name"]))
                yield element("p", about)
                yield chart(f"smla and {peer['name']}", "time relative to smla", bars, legend=legend)


def _golden_rows(combinations):
    """Returns (cache formats, runs, largest error / tolerance) over all golden files that ran."""
    worst = {}
    for each in combinations:
        formats = " / ".join(filter(None, (each.get("kv_format"), each.get("index_format"))))
        shares = [
            check["error"] / check["tolerance"] for check in each.get("checked") or () if check["tolerance"]
        ]
        if shares:
            worst.setdefault(formats, []).append(max(shares))
    return [(formats, len(shares), max(shares)) for formats, shares in worst.items()]


_GOLDEN = {"KV format / index format": 0, "#runs": 1, "largest error / tolerance": lambda row: share(row[2])}
_PROBLEMS = {
    "stage": "stage",
    "engine": "engine",
    "kernel": "kernel",
    "#problems": "problems",
    "largest error / limit": _shown("worst_share_of_limit", share),
    "": lambda row: badge(row.get("pass", True)),
}


_SELF_TEST = {
    "stage": "stage",
    "problem": "problem",
    "kernel": "kernel",
    "#error": lambda check: f"{check['error']:.1e}",
    "#limit": lambda check: f"{check['limit']:.1e}",
    "error / limit": lambda check: share(check["error"], check["limit"] or 1),
    "": lambda check: badge(check["passed"]),
}


def _accuracy(found):
    checks = _checks(found)
    passed = f"{sum(check['passed'] for check in checks)} of {len(checks)} passed"
    yield element("h3", f"Self-test against double precision: {passed}") + table(checks, _SELF_TEST)
    for document in found["verify"]:
        if combinations := document.get("combinations"):
            yield element("h3", "Golden files by cache format") + table(_golden_rows(combinations), _GOLDEN)
        if kernels := [row for row in document.get("kernels") or () if row["problems"]]:
            passed = f"{sum(bool(row.get('pass', True)) for row in kernels)} of {len(kernels)} kernels"
            problems = sum(row["problems"] for row in kernels)
            title = f"Random problems: {passed} within the limits in {problems} runs"
            yield folded(title, table(kernels, _PROBLEMS))


def _capacity(found):
    known = found["capacity"]
    memory = known["memory_gib"] * (1 << 30)
    about = f"{known['model_type']}, {known['layers']} layers; caches in pages"
    yield element("p", f"{about} in {known['memory_gib']:.4g} GiB. Weights are not counted.")
    columns = {
        "#context (tokens)": lambda row: tokens_text(row["context"]),
        "#cache of a request": lambda row: bytes_text(row["bytes"]),
        "fraction of the memory": lambda row: share(row["bytes"], memory),
        "#requests that fit": "fit",
        "#FLOPs per token, all layers": lambda row: flops_text(row["flops"]),
    }
    for formats, rows in known["lines"].items():
        yield element("h3", formats) + table(rows, columns)


def _tiles(found):
    doctor = found["doctor"]
    chosen = found.get("capacity") or {}
    kind, layers = chosen.get("model_type"), chosen.get("layers")
    for bench in found["bench"]:
        if row := cases.tokens_per_second(bench, kind, layers):
            what = f"attention of all {row['layers']} layers, {tokens_text(row['context'])} context"
            what += (
                f", {row['tokens']} token{'s' * (row['tokens'] > 1)} per step; other parts are not measured"
            )
            yield f"Tokens per second, {row['model']}", f"{row['tokens_per_second']:.3g}", what
            break
    else:
        held = [row["model"] for bench in found["bench"] for row in bench.get("models") or ()]
        if kind and held:
            yield "Tokens per second", "not measured", f"measured: {', '.join(held)}"
    for bench in found["bench"]:
        for case, (row, _) in list(cases.steps(bench["results"]).items())[:1]:
            yield "Decode step of one layer", time_text(row["ms"]), case
    checks = _checks(found)
    devices = doctor["gpu"].get("devices")
    yield "Runs on", devices[0]["name"] if devices else doctor["cpu"], doctor["context"]
    passed = f"{sum(check['passed'] for check in checks)} / {len(checks)}"
    yield "Self-test", passed, "checks against double precision"


_SECTIONS = (
    ("machine", "This machine", _machine),
    ("choices", "Selected kernels", _choices),
    ("speed", "Speed", _speed),
    ("peers", "Other libraries", _beside),
    ("accuracy", "Accuracy", _accuracy),
    ("capacity", "Capacity", _capacity),
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
    """Returns a page for one bench document."""
    body = element("section", *bench_body(bench)) if bench.get("results") else ""
    return _document("smla bench", element("main", body))


def page(found):
    """Returns the whole document as text."""
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
        ". This file also contains the numbers as JSON, in the element ",
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
