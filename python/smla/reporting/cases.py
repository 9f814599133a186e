"""What the names of bench cases say ("V3.2 T1 H128 K2048 fp8_656"), and the curves that follow from it."""

import re

# Letters of a case: tokens of the batch, listed rows (K128+512: both lists), scored columns or context.
_SIZE = {
    "T": re.compile(r"\bT(\d+)\b"),
    "K": re.compile(r"\bK(\d+(?:\+\d+)?)\b"),
    "N": re.compile(r"\bN(\d+)\b"),
    "context": re.compile(r"\bcontext (\d+)\b"),
}
AXES = {
    "T": "tokens of the batch",
    "K": "listed rows per token",
    "N": "context (keys per token)",
    "context": "context (tokens)",
}


def size(case, letter):
    """The value of a letter, and the case without it; None where the case does not have it."""
    match = _SIZE[letter].search(case)
    if match is None:
        return None
    rest = case[: match.start()] + case[match.end() :]
    return sum(map(int, match.group(1).split("+"))), " ".join(rest.replace(" ,", ",").split()).strip(" ,")


def curves(rows, letter):
    """{stage: {rest of the case: [(size, ms)]}} of rows that differ in one size alone."""
    found = {}
    for row in rows:
        if not row.get("part") and (place := size(row["case"], letter)):
            points = found.setdefault(row["stage"], {}).setdefault(place[1] or row["stage"], {})
            points[place[0]] = row["ms"]
    kept = {
        stage: {rest: sorted(points.items()) for rest, points in lines.items() if len(points) > 1}
        for stage, lines in found.items()
    }
    return {stage: lines for stage, lines in kept.items() if lines}


def panels(lines):
    """Curves of a stage by the last word of their case, the record format: {format: {rest: points}}."""
    split = {}
    for rest, points in lines.items():
        words = rest.split()
        model = words[0] if len(words) > 2 and not re.fullmatch(r"[THKN]\d+", words[0]) else ""
        title = " ".join(filter(None, [model, words[-1] if len(words) > 1 else ""]))
        label = " ".join(words[bool(model) : -1]) or rest
        split.setdefault(title, {})[label] = points
    return split


def steps(rows):
    """Returns {case of a decode step: (ms of the step, {stage: ms})}. Ignores the row "sum", their total."""
    found = {}
    for row in rows:
        if row.get("part") and row["stage"] != "sum":
            stages = found.setdefault(row["case"], {})
            stages[row["stage"]] = stages.get(row["stage"], 0) + row["ms"]
    whole = {row["case"]: row["ms"] for row in rows if row["stage"] == "decode" and not row.get("part")}
    return {case: (whole.get(case) or sum(stages.values()), stages) for case, stages in found.items()}


def pairs(rows, peer_rows):
    """(stage, case, ms here, ms of the peer) of cases that both have."""
    theirs = {(row["stage"], row["case"]): row["ms"] for row in peer_rows if not row.get("part")}
    return [
        (row["stage"], row["case"], row["ms"], theirs[row["stage"], row["case"]])
        for row in rows
        if not row.get("part") and (row["stage"], row["case"]) in theirs
    ]
