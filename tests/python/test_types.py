"""The package says that it is typed (py.typed): its annotations agree with its code."""

import subprocess
import sys

import pytest
from conftest import ROOT


def test_mypy(tmp_path):
    pytest.importorskip("mypy")
    pytest.importorskip("torch")  # without it the operators and compat modules would be checked against Any
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--ignore-missing-imports",
        f"--cache-dir={tmp_path}",
        "-p",
        "smla",
    ]
    result = subprocess.run(command, cwd=ROOT / "python", capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
