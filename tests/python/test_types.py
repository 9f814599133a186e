"""The package has types (py.typed). Annotations agree with the code and find mistakes in users' programs."""

import ast
import builtins
import json
import os
import re
import subprocess
import sys
import typing

import pytest
import smla
from conftest import ROOT
from smla import _abi, _types

USER = ROOT / "tests/python/typed_user.py"
# Modules whose names are used only by vLLM and Python.
NOT_PUBLIC = re.compile(r"(.*/)?_.*|vllm/.+|compat")


def run(*words, cwd=ROOT, env=None):
    words = [sys.executable, "-m", *map(str, words)]
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter that finds smla and its dependencies as installed packages."""
    for name in ("torch", "transformers"):  # without them, type checkers would treat their types as Any
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("user")
    assert run("venv", "--without-pip", folder).returncode == 0
    (site,) = folder.glob("lib/python*/site-packages")
    installed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "all.pth").write_text("\n".join([str(ROOT / "python"), *installed]))
    return folder / "bin/python"


def check_lines(found):
    """found: {line: message}. Its lines must be exactly the lines that are marked as wrong."""
    lines = USER.read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(wrong) >= 25
    more = {f"{number}: {found[number]}" for number in set(found) - wrong}
    missed = {f"{number}: {lines[number - 1]}" for number in wrong - set(found)}
    assert (more, missed) == (set(), set())


MYPY = """[mypy]
strict = True
ignore_missing_imports = True
[mypy-smla.*]
check_untyped_defs = False
disallow_any_generics = False
disallow_subclassing_any = False
disallow_untyped_calls = False
disallow_untyped_decorators = False
disallow_untyped_defs = False
disallow_incomplete_defs = False
warn_return_any = False
warn_unused_ignores = False
"""


def test_mypy(tmp_path):
    """Checks the package, and with --strict a program that uses it, in one run."""
    pytest.importorskip("mypy")
    pytest.importorskip("torch")  # without it the operators and compat modules would be checked against Any
    (tmp_path / "mypy.ini").write_text(MYPY)
    words = ("--config-file", tmp_path / "mypy.ini", "--cache-dir", ROOT / "build/mypy")
    result = run("mypy", *words, "smla", USER, cwd=ROOT / "python")
    found = re.findall(r"(\S+):(\d+): error: (.*)", result.stdout)
    assert found, result.stdout + result.stderr
    assert [each for each in found if not each[0].endswith(USER.name)] == []
    check_lines({int(number): text for _, number, text in found})


def pyright(python, *words):
    pytest.importorskip("pyright", reason="no pyright: scripts/python_env installs it")
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # --verifytypes ignores --pythonpath
    result = run("pyright", "--outputjson", *words, env={**os.environ, "PATH": path})
    assert result.stdout.startswith("{"), result.stdout + result.stderr
    return json.loads(result.stdout)


def test_pyright_on_a_program(python):
    found = pyright(python, USER)["generalDiagnostics"]
    check_lines({each["range"]["start"]["line"] + 1: each["message"] for each in found})


def test_pyright_knows_every_type(python):
    """Checks all names in `__all__` of the public modules, and the members of those classes."""
    symbols = pyright(python, "--verifytypes", "smla", "--ignoreexternal")["typeCompleteness"]
    public = {f"smla.{name}.{each}" if name else f"smla.{each}" for name, each in public_names()}
    named = {each["name"]: each for each in symbols["symbols"]}
    classes = {name for name in public if named.get(name, {}).get("category") == "class"}
    seen = {name for name in named if name in public or name.rpartition(".")[0] in classes}
    assert len(seen) > 200
    unknown = {name for name in seen if not named[name]["isTypeKnown"]}
    # The functions of smla.torch are results of a typed function; Cache of transformers has no types.
    inferred = {name for name in unknown if named[name]["isTypeAmbiguous"] and name.startswith("smla.torch.")}
    assert unknown - inferred <= {"smla.transformers.Cache", "smla.transformers._cache.Cache"}


def public_names():
    """Yields (module, name) for each name in __all__ of the public modules."""
    for path in sorted((ROOT / "python/smla").rglob("*.py")):
        relative = path.relative_to(ROOT / "python/smla").with_suffix("").as_posix()
        if relative != "__init__" and NOT_PUBLIC.fullmatch(relative.removesuffix("/__init__")):
            continue
        module = relative.removesuffix("__init__").strip("/").replace("/", ".")
        names = []
        for node in ast.parse(path.read_text()).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and target.id == "__all__":
                held = node.value
                names += (
                    getattr(smla, held.value.id).__all__ if hasattr(held, "attr") else ast.literal_eval(held)
                )
        assert names, f"{relative} has no __all__"
        yield from ((module, name) for name in names)


def test_everything_public_is_there():
    for module, name in public_names():
        if module.partition(".")[0] in ("compat", "torch", "transformers", "vllm"):
            pytest.importorskip("torch")
        held = __import__(f"smla.{module}".rstrip("."), fromlist=["_"])
        assert hasattr(held, name), f"{module}.{name}"


def test_a_star_import_hides_nothing_of_python():
    space = {}
    exec("from smla import *; from smla.stages import *", space)
    assert set(space) & set(dir(builtins)) == set()
    assert smla.map is smla.stages.map


def test_words_are_the_librarys():
    enumerations = {
        "EngineName": _abi.Engine,
        "IsaName": _abi.Isa,
        "FamilyName": _abi.Family,
        "NormName": _abi.NormKind,
        "RopeName": _abi.RopeStyle,
        "PrecisionName": _abi.Precision,
        "LseName": _abi.LseBase,
        "WeightsName": _abi.WeightStorage,
    }
    for name, kind in enumerations.items():
        assert list(typing.get_args(getattr(_types, name))) == [each.name.lower() for each in kind], name
        assert [each.value for each in kind] == list(range(len(kind)))
    fields = {name for name, _ in _abi.SessionArgs._fields_}
    assert set(smla.layer.SessionOptions.__annotations__) == fields - {"struct_size"}
    groups = [each.name.lower() for each in _abi.Group]
    assert list(smla.plan.Groups.__annotations__) == groups
