"""Runs the rows of groups within a time budget and collects their results."""

import time
import traceback

from .pair import Skip
from .statistics import ratio


class Lost(Exception):
    """Raised if the device fails after a row. group: the results up to this row."""

    def __init__(self, group, error):
        super().__init__(str(error))
        self.group = group


def measure(machine, pair):
    """Returns {peer, smla, their p10 and p90, errors, wrong} of a pair."""
    sides, results = machine.prepared(pair)
    found = pair.check(*results)
    times = machine.times(sides)
    row = {}
    for name, (low, median, high) in zip(("peer", "smla"), times):
        row[name], row[name + "_spread"] = round(median, 3), [round(low, 3), round(high, 3)]
    row["errors"] = [float(f"{error:.2g}") if error < float("inf") else "inf" for error in found["errors"]]
    wrong = [name for name, error in zip(("peer", "smla"), found["errors"]) if not error <= found["limit"]]
    if not wrong and not found.get("difference", 0) <= found["limit"]:
        wrong = ["one of them"]
    if wrong:
        row["wrong"] = wrong
    return row


def run_group(machine, inputs, group, rows, build, peer, seconds):
    """Returns the group with its results. Lists the titles of rows for which no time was left."""
    result = {**group, "unit": machine.unit, "rows": [], "not_run": []}
    end = time.monotonic() + seconds
    for title, row in rows:
        if time.monotonic() > end:
            result["not_run"].append(title)
            continue
        try:
            found = {"name": title, **measure(machine, build(inputs, peer, row))}
        except Skip as reason:
            found = {"name": title, "skipped": str(reason)}
        except Exception as error:
            first = (str(error).strip() or "no message").splitlines()[0]
            found = {"name": title, "failed": f"{type(error).__name__}: {first[:160]}"}
            traceback.print_exc(limit=-2)
        result["rows"].append(found)
        print(line(group, found), flush=True)
        try:
            machine.after_row()
        except Exception as error:
            raise Lost(result, error) from error
    return result


def line(group, row):
    """Returns one row as text."""
    head = f"{group['name']:18} {row['name']:44}"
    if "peer" not in row:
        return f"{head} {row.get('skipped') or row.get('failed')}"
    wrong = "  WRONG: " + ", ".join(row["wrong"]) if "wrong" in row else ""
    return f"{head} peer {row['peer']:9.2f}  smla {row['smla']:9.2f}  ratio {ratio(row):5.2f}{wrong}"
