"""The command line of scripts/peers."""

import argparse
import datetime
import fnmatch
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from . import find, shapes
from .statistics import ratio, summary, timed

ROOT = Path(__file__).resolve().parents[2]
SHAPES = {False: ROOT / "docs/peers/shapes.json", True: ROOT / "docs/peers/shapes_cpu.json"}
SLOW = 0.9  # rows below this ratio are printed one by one


def arguments(words):
    parser = argparse.ArgumentParser(
        prog="scripts/peers",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Compares smla with the peers that are installed, in one process with interleaved\n"
        "calls, after checking the results of both sides. Prints the names of missing peers and\n"
        "skips their rows; docs/performance.md lists their locations.",
        epilog="examples:\n  scripts/peers --list\n  scripts/peers --groups 'decode*' --out peers.json\n"
        "  scripts/peers --cpu",
    )
    parser.add_argument("--cpu", action="store_true", help="measure on one thread of this CPU by CPU time")
    parser.add_argument(
        "--groups", default="*", metavar="NAMES", help="patterns of group names, separated by commas"
    )
    parser.add_argument(
        "--budget-seconds",
        type=float,
        default=600,
        metavar="S",
        help="time for all groups, divided in proportion to their rows (default: 600)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all results to a JSON file")
    parser.add_argument("--list", action="store_true", help="list groups, rows and peers without measuring")
    parser.add_argument("--shapes", type=Path, metavar="FILE", help="read the rows from another file")
    parser.add_argument("--commit", metavar="HASH", help="commit of smla, if there is no git repository")
    options = parser.parse_args(words)
    if not options.budget_seconds > 0:
        parser.error(f"argument --budget-seconds: got {options.budget_seconds:g}, wanted more than 0")
    return options


def selected(options):
    groups = shapes.load(options.shapes or SHAPES[options.cpu])
    patterns = options.groups.split(",")
    for pattern in patterns:
        if not fnmatch.filter([group["name"] for group, _ in groups], pattern):
            sys.exit(
                f"--groups: no group matches {pattern!r}; there are "
                + ", ".join(group["name"] for group, _ in groups)
            )
    return [
        (group, rows)
        for group, rows in groups
        if any(fnmatch.fnmatch(group["name"], pattern) for pattern in patterns)
    ]


def needed(group):
    return [group["peer"], *([group["also"]] if "also" in group else [])]


def commit():
    answer = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"],
        capture_output=True,
        text=True,
    )
    return answer.stdout.strip() or "unknown"


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def report(groups):
    """Prints the geometric mean and the extremes of each group, then every slow, wrong or failed row."""
    print(f"\n{'group':24} {'rows':>4} {'mean':>6} {'worst':>6} {'best':>6}")
    for group in groups:
        rows = timed(group)
        text = "  ".join(f"{value:5.2f}" for value in summary(rows)) if rows else "no row was measured"
        missed = f"  ({len(group['not_run'])} not run: no time left)" if group["not_run"] else ""
        print(f"{group['name']:24} {len(rows):4}  {text}{missed}")
    print(f"\nbelow {SLOW}:")
    slow = [
        (ratio(row), group["name"], row["name"])
        for group in groups
        for row in timed(group)
        if ratio(row) < SLOW
    ]
    for value, group, row in sorted(slow):
        print(f"{value:6.2f}  {group}: {row}")
    for group in groups:
        for row in group["rows"]:
            if "wrong" in row:
                sides = ", ".join(row["wrong"])
                print(f" WRONG  {group['name']}: {row['name']}: {sides}, errors {row['errors']}")
            elif "failed" in row:
                print(f"FAILED  {group['name']}: {row['name']}: {row['failed']}")


def builders(cpu):
    """Returns {kind: function(inputs, peer, row)} and the object that measures."""
    if cpu:
        from . import cpu_attend, cpu_layer
        from .cpu import Cpu

        return {**cpu_attend.KINDS, **cpu_layer.KINDS}, Cpu()
    from . import attend, index
    from .gpu import Gpu

    return {
        "decode": attend.decode,
        "prefill": attend.prefill,
        "listed": attend.listed,
        "score": index.score,
        "select": index.select,
        "score_select": index.score_select,
    }, Gpu()


def run(options, groups, there):
    from .inputs import Inputs
    from .run import Lost, run_group

    kinds, machine = builders(options.cpu)
    if "deep_gemm" in there and not options.cpu:
        from .compile import compile_deep_gemm

        compile_deep_gemm([row for group, rows in groups if group["peer"] == "deep_gemm" for _, row in rows])
    inputs, results = Inputs(machine.device), []
    end = time.monotonic() + options.budget_seconds
    left = sum(len(rows) for _, rows in groups)
    for group, rows in groups:
        peers = [there[name].api for name in needed(group)]
        share = (end - time.monotonic()) * len(rows) / left
        left -= len(rows)
        peer = peers if len(peers) > 1 else peers[0]
        try:
            results.append(run_group(machine, inputs, group, rows, kinds[group["kind"]], peer, share))
        except Lost as lost:
            print(f"The device stopped working after this row: {lost}", flush=True)
            results.append(lost.group)
            break
    return machine, results


def main(words):
    options = arguments(words)
    groups = selected(options)
    names = list(dict.fromkeys(name for group, _ in groups for name in needed(group)))
    there, missing = find.find(names)
    for name in names:
        print(f"{name}: {there[name].version}" if name in there else f"{name}: skipped, {missing[name]}")
    if options.list:
        for group, rows in groups:
            print(f"\n{group['name']}: {group['title']}, {len(rows)} rows with {' and '.join(needed(group))}")
            print("\n".join(f"  {title}" for title, _ in rows))
        return 0
    groups = [(group, rows) for group, rows in groups if all(name in there for name in needed(group))]
    if not groups:
        print("No group can be measured, because none of the peers was found.")
        return 1
    import smla

    machine, results = run(options, groups, there)
    report(results)
    document = {
        "schema": 1,
        "date": datetime.date.today().isoformat(),
        "commit": options.commit or commit(),
        "cpu": processor(),
        **machine.machine(),
        "python": platform.python_version(),
        "versions": {"smla": smla.__version__, **{name: there[name].version for name in there}},
        "missing": missing,
        "method": machine.method(),
        "groups": results,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text(document))
        print(f"\nwrote {os.path.relpath(options.out)}")
    return (
        1
        if any("wrong" in row and "smla" in row["wrong"] for group in results for row in group["rows"])
        else 0
    )


def text(document):
    """Returns the document as JSON with one row per line."""
    head = json.dumps({name: value for name, value in document.items() if name != "groups"}, indent=1)[:-2]
    parts = []
    for group in document["groups"]:
        rows = ",\n".join("   " + json.dumps(row) for row in group["rows"])
        group = {name: value for name, value in group.items() if name != "rows"}
        parts.append("  " + json.dumps(group)[:-1] + ', "rows": [\n' + rows + "]}")
    return head + ',\n "groups": [\n' + ",\n".join(parts) + "]\n}\n"
