"""The rows of docs/peers/shapes.json. A list as a value means one row for each of its elements."""

import itertools
import json


def expanded(row):
    """Returns one row per combination of list elements; the first name changes slowest."""
    names = list(row)
    values = [value if isinstance(value, list) else [value] for value in row.values()]
    return [dict(zip(names, each)) for each in itertools.product(*values)]


def title(row):
    """Returns a short name: letters with numbers, then unusual properties in words."""
    row = dict(row)
    words = []
    for name, letter in (
        ("batch", "B"),
        ("tokens", "T"),
        ("s_q", "s"),
        ("next_n", "n"),
        ("heads", "H"),
        ("width", "D"),
        ("k", "K"),
        ("keys", "N"),
        ("columns", "N"),
        ("cached", "rows "),
        ("kv", "kv "),
        ("context", "context "),
        ("page", "page "),
    ):
        if name in row:
            words.append(f"{letter}{row.pop(name)}")
        if name == "k" and "extra" in row:
            words[-1] += f"+{row.pop('extra')}"
    for name in ("extra_context", "extra_page"):
        row.pop(name, None)
    if row.pop("strided", None):
        words.append("strided")
    if row.pop("clean", None):
        words.append("cleaned")
    lengths = row.pop("lengths", None)
    if lengths and lengths != "near":
        words.append(f"lengths {lengths}")
    return " ".join([*words, *(str(value) for value in row.values())])


def _unusual(row, common):
    """Returns a row without the values that it shares with its group."""
    return {name: value for name, value in row.items() if name not in common or common[name] != value}


def load(path):
    """Returns [(group without rows, [(title, row)])]."""
    groups = []
    for group in json.loads(path.read_text()):
        common = group.pop("all", {})
        rows = [{**common, **each} for row in group.pop("rows") for each in expanded(row)]
        groups.append((group, [(title(_unusual(row, common)), row) for row in rows]))
    names = [group["name"] for group, _ in groups]
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: two groups have the same name")
    return groups
