"""ruff (tests/python/requirements.txt) must accept the Python package, its tests and tools/peers."""
import subprocess
import tempfile
from pathlib import Path

from source import sample

ROOT = Path(__file__).parents[2]
RUFF = ROOT / "build/venv/bin/ruff"
FOLDERS = ("python/", "tests/python/", "examples/python/", "tools/peers/")
GENERATED = "python/smla/_abi.py"


def _problems(root, *words):
    command = [str(RUFF), *words, "--config", str(ROOT / "pyproject.toml"), "--no-cache", "."]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if result.returncode > 1:
        return [f"ruff: {result.stderr.strip()}"]
    return [line for line in result.stdout.splitlines() if ":" in line] if result.returncode else []


def unavailable():
    return "" if RUFF.exists() else "no ruff: scripts/python_env installs it"


def check(files):
    with tempfile.TemporaryDirectory() as root:
        for file in files:
            if file.path.endswith(".py") and file.path.startswith(FOLDERS) and file.path != GENERATED:
                path = Path(root, file.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.data)
        found = _problems(root, "check", "--output-format=concise")
        return found + [f"{line}: run `make format`" for line in _problems(root, "format", "--check")]


BAD = [
    ([sample("python/smla/a.py", "import os\n")], "F401"),
    ([sample("tests/python/a.py", "x  =  1\n")], "make format"),
    # Python 3.10 has no such syntax (requires-python).
    ([sample("python/smla/a.py", "def f[T](x: T) -> T:\n    return x\n")], "Cannot use type parameter lists"),
]
GOOD = [[sample("python/smla/a.py", "x = 1\n"), sample("scripts/a.py", "x  =  1\n")]]
