"""The package of this tree, on the library that was built in it (or SMLA_LIBRARY)."""

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]


def pytest_terminal_summary(terminalreporter):
    """What was skipped and why, a line per reason."""
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"skipped {count}: {reason.removeprefix('Skipped: ')}")
