"""Medians, spreads and ratios of rows in the format of the result file."""

import math


def spread(values):
    """Returns (p10, median, p90)."""
    ordered = sorted(values)

    def at(part):
        place = part * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return at(0.1), at(0.5), at(0.9)


def ratio(row):
    """Returns the time of the peer divided by the time of smla."""
    return row["peer"] / row["smla"]


def timed(group):
    """Returns the rows of a group that have both times."""
    return [row for row in group["rows"] if row.get("peer") and row.get("smla")]


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(rows):
    """Returns (geometric mean, lowest, highest) of the ratios."""
    ratios = [ratio(row) for row in rows]
    return geometric_mean(ratios), min(ratios), max(ratios)
