"""Generates the parts of docs/performance.md and README.md that show results of scripts/peers."""

import json
import textwrap

from .plot import PEERS
from .statistics import ratio, summary, timed

SLOW = 0.9
WIDTH = 110


def load(root, name):
    return json.loads((root / f"docs/peers/{name}.json").read_text())


def _named(document, name):
    return next(group for group in document["groups"] if group["name"] == name)


def _wrapped(words):
    return textwrap.fill(words, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def _peers(document, group):
    names = [group["peer"], *([group["also"]] if "also" in group else [])]
    return ", ".join(PEERS[name] for name in names)


def groups(document, table):
    lines = []
    for group in document["groups"]:
        if rows := timed(group):
            slow = sum(ratio(row) < SLOW for row in rows)
            lines.append(
                [
                    _peers(document, group),
                    group["title"],
                    len(rows),
                    *(f"{value:.2f}" for value in summary(rows)),
                    slow or "",
                ]
            )
    return table(["peer", "group", "rows", "mean", "worst", "best", f"below {SLOW}"], lines)


def losses(document, table):
    """Returns a table of the slowest rows of each group."""
    lines = []
    for group in document["groups"]:
        slow = sorted((ratio(row), row["name"]) for row in timed(group) if ratio(row) < SLOW)
        if slow:
            shown = "; ".join(f"{name}: {value:.2f}" for value, name in slow[:4])
            more = f"; {len(slow) - 4} more" if len(slow) > 4 else ""
            lines.append([group["title"], shown + more])
    return table(["group", f"rows below {SLOW}, slowest first"], lines)


def wrong(document, table):
    """Returns a table of rows in which a side returned a wrong result or that could not be measured."""
    lines, not_run = [], 0
    for group in document["groups"]:
        not_run += len(group.get("not_run", []))
        for row in group["rows"]:
            if "wrong" in row:
                lines.append([group["title"], row["name"], f"wrong: {', '.join(row['wrong'])}"])
            elif "failed" in row:
                lines.append(
                    [group["title"], row["name"], f"not measured: {row['failed']}".replace("|", "/")]
                )
    found = table(["group", "row", "result"], lines) if lines else "Every result was correct.\n"
    return found + f"\n{not_run} rows were not run (time limit reached).\n" if not_run else found


def method(document, _):
    versions = ", ".join(
        f"{PEERS.get(name, name)} {version}" for name, version in document["versions"].items()
    )
    machine = ", ".join(
        filter(
            None,
            (
                document.get("gpu"),
                document.get("driver") and f"driver {document['driver']}",
                document.get("cpu") if "gpu" not in document else "",
                document.get("isa"),
            ),
        )
    )
    return (
        _wrapped(f"{document['date']}, {machine}; commit {document['commit']}. {versions}.")
        + "\n"
        + _wrapped(document["method"])
    )


def rows(document, table):
    """Returns a table of all rows, for small documents."""
    return table(
        ["peer", "row", "ratio"],
        [
            [group["title"], row["name"], f"{ratio(row):.2f}"]
            for group in document["groups"]
            for row in timed(group)
        ],
    )


def headline(gpu, cpu):
    """Returns the paragraph with figures at the top of README.md."""
    own, every = timed(_named(gpu, "flashmla")), [row for group in gpu["groups"] for row in timed(group)]
    mean, _, _ = summary(own)
    faster = sum(ratio(row) >= 1 for row in every)
    slow = sum(ratio(row) < SLOW for row in every)
    gather, least, most = summary(timed(_named(cpu, "gather")))
    layer = timed(_named(cpu, "transformers"))[-1]
    units = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 bf16", "avx512f": "AVX-512", "avx2": "AVX2"}
    words = (
        f"On an H200, FlashMLA takes {mean:.2f} times as long as smla in the {len(own)} decode cases of "
        f"FlashMLA's tests (geometric mean). In {len(every)} shapes compared with FlashMLA, "
        "FlashAttention 3, DeepGEMM, vLLM and PyTorch, smla is at least as fast as the peer in "
        f"{100 * faster / len(every):.0f} % and slower than {SLOW} times the peer's speed in "
        f"{100 * slow / len(every):.0f} %. On one CPU thread ({units[cpu['isa']]}), a gather followed by "
        f"PyTorch matrix products takes {gather:.1f} times as long as `smla.attend` (range {least:.1f} to "
        f"{most:.1f}). A decode step of a transformers layer after {int(layer['name'].split()[-1]):,} tokens "
        f"takes {ratio(layer):.1f} times as long as with smla. [docs/performance.md](docs/performance.md) "
        "describes the method and lists all groups and losses."
    )
    return _wrapped(words)


PARTS = {"groups": groups, "losses": losses, "wrong": wrong, "method": method, "rows": rows}


def part(root, table, name, document="h200"):
    if name == "headline":
        return headline(load(root, "h200"), load(root, "cpu"))
    return PARTS[name](load(root, document), table)
