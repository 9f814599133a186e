"""Parameters in the names of bench cases ("V3.2 T1 H128 K2048 fp8_656"), and curves over them."""

import re

# Letters of a case. K128+512 lists rows in two caches.
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
    """Returns the size that a case has for a letter, and the rest of the case, or None without the letter."""
    match = _SIZE[letter].search(case)
    if match is None:
        return None
    rest = case[: match.start()] + case[match.end() :]
    return sum(map(int, match.group(1).split("+"))), " ".join(rest.replace(" ,", ",").split()).strip(" ,")


def curves(rows, letter):
    """Returns {stage: {rest of the case: [(size, row)]}} for rows that differ only in one size."""
    found = {}
    for row in rows:
        if not row.get("part") and (place := size(row["case"], letter)):
            points = found.setdefault(row["stage"], {}).setdefault(place[1] or row["stage"], {})
            points[place[0]] = row
    kept = {
        stage: {
            rest: sorted(points.items(), key=lambda point: point[0])
            for rest, points in lines.items()
            if len(points) > 1
        }
        for stage, lines in found.items()
    }
    return {stage: lines for stage, lines in kept.items() if lines}


def steps(rows):
    """Returns {case of a decode step: (row of the step, {stage: ms})}. The stages add up to the step: "other"
    contains stages below 4 % and the time between stages. The row "sum", the total of all stages, is ignored.
    """
    found = {}
    for row in rows:
        if row["stage"] == "decode" and not row.get("part"):
            found[row["case"]] = row, {}
    for row in rows:
        if row.get("part") and row["stage"] != "sum" and row["case"] in found:
            whole, stages = found[row["case"]]
            name = row["stage"] if row["ms"] >= 0.04 * whole["ms"] else "other"
            stages[name] = stages.get(name, 0) + row["ms"]
    for whole, stages in found.values():
        if (between := whole["ms"] - sum(stages.values())) > 0:
            stages["other"] = stages.get("other", 0) + between
    return found


def tokens_per_second(bench, model_type, layers):
    """Returns the row of `smla bench` for all layers of a model, with "tokens_per_second", or None.

    model_type, layers: type and number of layers of the selected model. Without a type, the first model is
    used.
    """

    def plain(name):
        return re.sub(r"[^a-z0-9]", "", str(name).lower())

    for row in bench.get("models") or ():
        if not model_type or (plain(row["model"]).startswith(plain(model_type)) and row["layers"] == layers):
            return {**row, "tokens_per_second": 1000 * row["tokens"] / row["ms"]}
    return None


def pairs(rows, peer_rows):
    """Returns (stage, case, ms here, ms of the peer) for cases that both have."""
    theirs = {(row["stage"], row["case"]): row["ms"] for row in peer_rows if not row.get("part")}
    return [
        (row["stage"], row["case"], row["ms"], theirs[row["stage"], row["case"]])
        for row in rows
        if not row.get("part") and (row["stage"], row["case"]) in theirs
    ]
