"""The environment variables that Python reads, and those of the library as Python reports them.

tests/cli/environment_test.cpp walks all others.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import smla
from smla.tools import answer, program

ROOT = Path(__file__).resolve().parents[2]
# Enumeration values that the code spells as text.
NO_VARIABLES = ("SMLA_WRITER_",)


def run(code, **environment):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), **environment}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_a_library_that_cannot_be_loaded_is_an_import_error(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in ("/nowhere/libsmla.so", str(tmp_path), str(tmp_path / "fifo"), "/dev/zero"):
        done = run("import smla", SMLA_LIBRARY=path)
        assert done.returncode == 1
        assert "ImportError: smla: cannot load libsmla.so; set SMLA_LIBRARY to its path" in done.stderr
        assert path in done.stderr
    assert run("import smla", SMLA_LIBRARY="").returncode == 0


def test_the_library_of_the_system_is_found_by_its_soname(tmp_path):
    """A copy of the package, with no library beside it, on a library under the name that it records."""
    shutil.copytree(ROOT / "python/smla", tmp_path / "site/a/smla", ignore=shutil.ignore_patterns("lib"))
    library = Path(smla._library.path).resolve()
    soname = re.search(rb"\0(libsmla\.so\.[0-9.]+)\0", library.read_bytes())[1].decode()
    (tmp_path / soname).symlink_to(library)
    places = {"PYTHONPATH": str(tmp_path / "site/a"), "SMLA_LIBRARY": ""}
    code = "import smla.tools; print(smla._library.path, smla.tools.program())"
    places["SMLA_TOOL"], places["PATH"] = "", f"{Path(program()).parent}:{os.environ['PATH']}"
    done = run(code, LD_LIBRARY_PATH=str(tmp_path), **places)
    assert (done.stdout.split(), done.stderr) == ([soname, program()], "")
    done = run("import smla", LD_LIBRARY_PATH="", **places)
    assert f"{soname}: cannot open shared object file" in done.stderr


def test_wrong_variables_of_the_library_are_named(monkeypatch):
    for name, value in {
        "SMLA_THREADS": "x",
        "SMLA_LOG": "x",
        "SMLA_ENGINE": "gpu",
        "SMLA_KERNEL": "a=b",
    }.items():
        monkeypatch.setenv(name, value)
        with pytest.raises(smla.InvalidArgument, match=f"{name}: got {value}, wanted "):
            smla.Context()
        monkeypatch.delenv(name)


def test_variables_stand_for_arguments(monkeypatch):
    monkeypatch.setenv("SMLA_THREADS", "3")
    assert smla.Context("cpu").description.endswith(", 3 threads")
    assert smla.Context("cpu", threads=2).description.endswith(", 2 threads")
    monkeypatch.setenv("SMLA_ENGINE", "reference")
    assert smla.Context().description == "reference, 1 thread"


def test_variables_that_arguments_override_are_not_read(monkeypatch):
    for name, arguments in {
        "SMLA_THREADS": {"engine": "cpu", "threads": 1},
        "SMLA_ENGINE": {"engine": "cpu"},
        "SMLA_ISA": {"isa": "scalar"},
        "SMLA_KERNEL": {"kernel": "norm=cpu_generic_norm"},
    }.items():
        monkeypatch.setenv(name, "x")
        assert smla.Context(**arguments).description.startswith("cpu")
        with pytest.raises(smla.InvalidArgument, match=f"{name}: got x, wanted "):
            smla.Context()
        monkeypatch.delenv(name)


def test_the_default_context_follows_the_environment():
    code = "import smla; print(smla.default_context().description)"
    assert run(code, SMLA_ENGINE="reference").stdout == "reference, 1 thread\n"
    for engine in ("cpu", "cuda", ""):  # memory of the CPU is not the cuda engine's
        assert run(code, SMLA_ENGINE=engine).stdout.startswith("cpu ")
    assert "SMLA_ENGINE: got x, wanted auto" in run(code, SMLA_ENGINE="x").stderr


def test_every_variable_that_smla_reads_is_listed():
    listed = {row["name"] for row in answer("list", "environment")["environment"]}
    read = set()
    for folder, pattern in (("python/smla", "*.py"), ("src", "*.cpp"), ("src", "*.h"), ("tools", "*.cpp")):
        for path in (ROOT / folder).rglob(pattern):
            read |= set(re.findall(r'"(SMLA_[A-Z_]+)"', path.read_text()))
    assert {name for name in read if not name.startswith(NO_VARIABLES)} == listed
