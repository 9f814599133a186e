"""The package of this tree, on the library that was built in it (or SMLA_LIBRARY)."""

import functools
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]


@functools.cache
def no_gpu():
    """Why tests marked `gpu` cannot run here; None where they can. PyTorch's word, else the library's."""
    try:
        import torch
    except ImportError:
        import smla

        try:
            smla.Context("cuda")
        except smla.Error as error:
            return f"no GPU: {error}"
        return None
    return None if torch.cuda.is_available() else "no GPU"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """checkpoint(name) -> its Golden and a folder of its weights in Hugging Face layout, written once."""

    from golden_files import Golden

    @functools.cache
    def make(name):
        golden = Golden(name)
        return golden, golden.write_checkpoint(tmp_path_factory.mktemp(name))

    return make


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu") and no_gpu():
            item.add_marker(pytest.mark.skip(reason=no_gpu()), append=False)  # before any other reason


def pytest_terminal_summary(terminalreporter):
    """What was skipped and why, a line per reason."""
    reasons = Counter(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"skipped {count}: {reason.removeprefix('Skipped: ')}")
