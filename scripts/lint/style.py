"""clang-format 14 with the repository's .clang-format would change nothing."""
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from source import sample

STYLE_FILE = Path(__file__).parents[2] / ".clang-format"
_WARNING = re.compile(r"^(.*?):(\d+):\d+: error: code should be clang-formatted")


def _format(root, paths):
    command = ["clang-format-14", "--dry-run", "-Werror", f"--style=file:{STYLE_FILE}", *paths]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    lines = {}
    for line in result.stderr.splitlines():
        if match := _WARNING.match(line):
            lines.setdefault(match.group(1), match.group(2))
    if result.returncode and not lines:
        return [f"clang-format: {result.stderr.strip()}"]
    return [f"{path}:{line}: not formatted: run `make format`" for path, line in lines.items()]


def check(files):
    sources = [file for file in files if file.is_cpp]
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor() as pool:
        for file in sources:
            path = Path(root, file.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
        batches = [[file.path for file in sources[i:i + 20]] for i in range(0, len(sources), 20)]
        for problems in pool.map(lambda batch: _format(root, batch), batches):
            yield from problems


BAD = [
    ([sample("src/a.cpp", "int  x;\n")], "not formatted"),
    ([sample("src/a.h", "int f() {\n  return 1;\n}\n")], "not formatted"),
]
GOOD = [
    [sample("src/a.cpp", "int x;\n")],
]
