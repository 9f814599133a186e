"""The tracked tree: small, executable exactly where a file can be run, every header guarded."""
import re

from source import File, sample

MAX_TOTAL = {True: 48 << 20, False: 8 << 20}  # of golden files; of all else
MAX_FILE = 1 << 20
MAX_GOLDEN = 12 << 20  # layers of real models do not get smaller


def check(files):
    for golden, most in MAX_TOTAL.items():
        total = sum(len(file.data) for file in files if _is_golden(file) == golden)
        if total >= most:
            what = "golden files" if golden else "files besides golden ones"
            yield f"tracked {what} hold {total >> 20} MiB, less than {most >> 20} wanted"
    for file in files:
        limit = MAX_GOLDEN if _is_golden(file) else MAX_FILE
        if len(file.data) > limit:
            yield f"{file.path}: {len(file.data) >> 10} KiB, at most {limit >> 10}: make data in the test"
        script = file.data.startswith(b"#!")
        if script and not file.executable:
            yield f"{file.path}: begins with #! but is not executable"
        if file.executable and not script:
            yield f"{file.path}: is executable but does not begin with #!"
        if file.is_cpp and file.path.endswith((".h", ".hpp", ".cuh")) and not _guarded(file):
            yield f"{file.path}: no include guard (public: #ifndef SMLA_NAME_H; others: #pragma once)"


def _is_golden(file):
    return file.path.startswith("tests/goldens/")


def _guarded(file):
    if not file.path.startswith("include/"):
        return "#pragma once" in file.text
    guard = re.sub(r"\W", "_", file.path.removeprefix("include/")).upper()
    return f"#ifndef {guard}\n#define {guard}\n" in file.text


BAD = [
    ([sample("run", "#!/bin/sh\n")], "not executable"),
    ([sample("a.md", "x\n", executable=True)], "does not begin"),
    ([File("a.bin", bytes(MAX_FILE + 1))], "KiB, at most"),
    ([File(f"{i}.bin", bytes(MAX_FILE)) for i in range(8)], "besides golden ones hold"),
    ([File(f"tests/goldens/{i}.bin", bytes(MAX_GOLDEN)) for i in range(4)], "golden files hold"),
    ([File("tests/goldens/a.bin", bytes(MAX_GOLDEN + 1))], "KiB, at most"),
    ([sample("src/a.h", "int x;\n")], "no include guard"),
    ([sample("include/smla/a.h", "#ifndef A_H\n#define A_H\n#endif\n")], "no include guard"),
]
GOOD = [
    [sample("run", "#!/bin/sh\n", executable=True), sample("a.py", "x = 1\n")],
    [sample("src/a.h", "#pragma once\n")],
    [sample("include/smla/a.h", "#ifndef SMLA_A_H\n#define SMLA_A_H\n#endif\n")],
]
