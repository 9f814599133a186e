"""smla._abi against the C headers: scripts/bindings check, and what a C compiler says of each declaration."""

import ctypes as c
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from enum import IntEnum
from pathlib import Path

import pytest
import smla
from smla import _abi

ROOT = Path(__file__).resolve().parents[2]
HEADERS = ROOT / "include/smla"
CC = os.environ.get("CC", "cc")
needs_cc = pytest.mark.skipif(shutil.which(CC) is None, reason="no C compiler")
needs_parser = pytest.mark.skipif(importlib.util.find_spec("pycparser") is None, reason="no pycparser")
# What _Generic calls a scalar, by ctypes' own type. Pointers are addresses.
KINDS = {"int32_t": c.c_int32, "uint32_t": c.c_uint32, "int64_t": c.c_int64, "size_t": c.c_size_t}
KINDS |= {"float": c.c_float, "double": c.c_double, "uint8_t": c.c_uint8}


def structs(abi):
    return {
        name: kind
        for name, kind in vars(abi).items()
        if isinstance(kind, type) and c.Structure in kind.__bases__
    }


def enumerations(abi):
    return {
        name: kind for name, kind in vars(abi).items() if isinstance(kind, type) and IntEnum in kind.__bases__
    }


def c_name(name):
    return "smla_" + re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def declared(pattern):
    """What the headers say, by another reading than that of scripts/bindings."""
    text = "".join(path.read_text() for path in sorted(HEADERS.glob("*.h")))
    return re.findall(pattern, re.sub(r"/\*.*?\*/", "", text, flags=re.S), flags=re.S)


def constants():
    """The constants of each enumeration of the headers."""
    return [tuple(re.findall(r"SMLA_\w+", body)) for body in declared(r"\benum\s*{(.*?)}")]


def run_c(folder, body):
    """Output lines of a C program that includes every header."""
    source, program = folder / "abi.c", folder / "abi"
    includes = "".join(f"#include <smla/{path.name}>\n" for path in sorted(HEADERS.glob("*.h")))
    source.write_text(f"#include <stdio.h>\n{includes}int main(void) {{\n{body}return 0;\n}}\n")
    command = [
        CC,
        "-std=c11",
        "-Wall",
        "-Wno-unused-value",
        "-I",
        str(ROOT / "include"),
        str(source),
        "-o",
        str(program),
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0 and not built.stderr, built.stderr
    return subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.split("\n")[:-1]


def layout_program():
    """Prints "struct field offset size kind" of every field, "struct - size", and "constant value"."""
    kinds = "".join(f'{kind}: "{kind}", ' for kind in KINDS)
    lines = [f'#define KIND(x) _Generic((x), {kinds} default: "other")\n']
    for name, kind in structs(_abi).items():
        lines.append(f'printf("{name} - %zu\\n", sizeof({c_name(name)}));\n')
        for field, *_ in kind._fields_:
            at = f"(({c_name(name)}*)0)->{field}"
            place = f"offsetof({c_name(name)}, {field}), sizeof({at}), KIND({at})"
            lines.append(f'printf("{name} {field} %zu %zu %s\\n", {place});\n')
    for constant in (constant for block in constants() for constant in block):
        lines.append(f'printf("{constant} %lld\\n", (long long){constant});\n')
    return "".join(lines)


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    lines = [line.split() for line in run_c(tmp_path_factory.mktemp("abi"), layout_program())]
    return {tuple(words[:2]): words[2:] for words in lines if len(words) > 2}, {
        words[0]: int(words[1]) for words in lines if len(words) == 2
    }


def scalar(kind):
    """What _Generic calls a field of this ctypes type."""
    return next((name for name, own in KINDS.items() if own is kind and name != "size_t"), "other")


def differences(abi, layout):
    """Where abi and the compiler disagree."""
    fields, values = layout
    found = []
    for name, kind in structs(abi).items():
        if fields.get((name, "-")) != [str(c.sizeof(kind))]:
            found.append(f"sizeof {name}")
        for field, own in kind._fields_:
            place = getattr(kind, field)
            offset, size, what = fields.get((name, field), ("none", "none", "none"))
            if (offset, size) != (str(place.offset), str(place.size)):
                found.append(f"{name}.{field} at {place.offset}, in C at {offset}")
            wanted = "uint64_t" if own is c.c_size_t else scalar(own)
            if wanted != ("uint64_t" if what == "size_t" else what):
                found.append(f"{name}.{field} is {own.__name__}, in C {what}")
        found += [f"{name}.{field} is missing" for owner, field in fields if owner == name and field != "-"
                  and field not in dict(kind._fields_)]  # fmt: skip
    blocks = constants()
    for name, kind in enumerations(abi).items():
        same = [block for block in blocks if names_agree(block, list(kind.__members__))]
        if len(same) != 1:
            found.append(f"{name} is none of the headers' enumerations")
            continue
        blocks.remove(same[0])
        for constant, member in zip(same[0], kind):
            if values[constant] != member:
                found.append(f"{name}.{member.name} is {int(member)}, in C {values[constant]}")
    return found + [f"{block[0]} ... is missing" for block in blocks]


def names_agree(block, members):
    return len(block) == len(members) and all(map(str.endswith, block, (f"_{member}" for member in members)))


@needs_cc
def test_structs_and_enumerations_are_what_a_compiler_says(layout):
    assert differences(_abi, layout) == []
    names = set(declared(r"typedef struct smla_\w+ {.*?} (smla_\w+);"))
    assert names == {c_name(name) for name in structs(_abi)} and len(names) > 30
    for name, kind in structs(_abi).items():  # and none lacks a field
        (body,) = declared(rf"typedef struct {c_name(name)} {{(.*?)}} {c_name(name)};")
        in_c = re.findall(r"(\w+)(?:\[\w+\])?(?=\s*[;,])|\(\*(\w+)\)", re.sub(r"\)\([^;]*;", ") ;", body))
        assert [a or b for a, b in in_c] == [field for field, *_ in kind._fields_], name


def load(text, folder):
    path = folder / "mutant.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("mutant", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MUTATIONS = {  # what to replace once in _abi.py, and with what
    "two fields swapped": (
        '("page_tokens", I32), ("page_rows", I32)',
        '("page_rows", I32), ("page_tokens", I32)',
    ),
    "a float for an integer": ('("reserved", I32)', '("reserved", F32)'),
    "a narrow size": ('("bytes", SIZE)', '("bytes", U32)'),
    "a field less": (', ("scale_device", PTR)', ""),
    "a field more": ('("scale_device", PTR)', '("scale_device", PTR), ("more", I64)'),
    "a value": ("E2M1, E8M0, U8, I32, I64 = 1, 2, 3,", "E2M1, E8M0, U8, I32, I64 = 1, 2, 4,"),
    "a name": ("E2M1, E8M0, U8", "E2M1, UE8M0, U8"),
    "an enumeration less": ("class BadKind(IntEnum)", "class BadKind"),
    "fewer dimensions": ("I64 * 4", "I64 * 3"),
}


def mutated(name):
    text = (ROOT / "python/smla/_abi.py").read_text()
    old, new = MUTATIONS[name]
    assert old in text
    return text.replace(old, new, 1)


@needs_cc
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_comparison_sees(name, layout, tmp_path):
    assert differences(load(mutated(name), tmp_path), layout)


def functions_program(functions):
    """Calls each function in an expression that is not evaluated: the compiler counts and types arguments."""
    types = {c.c_void_p: "(void*)0", c.c_char_p: "(const char*)0", _abi.Workspace: "(smla_workspace){0}"}
    types |= {kind: f"({name})0" for name, kind in KINDS.items()}
    results = {c.c_int32: "int32_t", c.c_char_p: "const char*", None: "void"}
    same = '_Static_assert(__builtin_types_compatible_p(__typeof__({}), {}), "{}");\n'
    lines = []
    for name, (result, arguments) in functions.items():
        call = f"{name}({', '.join(types[kind] for kind in arguments.values())})"
        lines.append(same.format(call, results[result], name))
    return "".join(lines)


@needs_cc
def test_functions_are_what_a_compiler_says(tmp_path):
    run_c(tmp_path, functions_program(_abi.FUNCTIONS))
    called = set(declared(r"SMLA_API [^;{]*?\b(smla_\w+)\(")) - {"smla_"}
    called |= {f"smla_{name}" for name in declared(r"SMLA_STAGE_CALL\((\w+), smla_")}
    # Callbacks of C programs, which Python has no use for yet.
    assert called == set(_abi.FUNCTIONS) and len(called) > 60
    norm = _abi.FUNCTIONS["smla_norm"][1]
    for name, wrong in (
        ("smla_norm", (c.c_int32, {name: norm[name] for name in [*norm][:3]})),
        ("smla_norm", (c.c_int32, {**norm, "workspace": c.c_void_p})),
        ("smla_norm", (None, norm)),
    ):
        with pytest.raises(AssertionError):
            run_c(tmp_path, functions_program({name: wrong}))


def test_sizes_that_a_call_writes():
    """fill() writes the sizes of a struct and of the structs within it."""
    from smla.stages.index import _score_select

    args = _score_select.struct.fill({}, [])
    assert args.struct_size == c.sizeof(_abi.ScoreSelectArgs)
    assert (args.score.struct_size, args.select.struct_size) == (
        c.sizeof(_abi.ScoreArgs),
        c.sizeof(_abi.SelectArgs),
    )


def test_the_library_is_of_these_headers():
    (major, minor, patch) = (
        int(declared(rf"define SMLA_VERSION_{part} (\d+)")[0]) for part in ("MAJOR", "MINOR", "PATCH")
    )
    assert _abi.VERSION == major * 10000 + minor * 100 + patch
    assert smla.__version__ == f"{major}.{minor}.{patch}"


def bindings(root, word):
    command = [sys.executable, str(root / "scripts/bindings"), word]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CC": CC})


@needs_cc
@needs_parser
def test_bindings_are_up_to_date():
    got = bindings(ROOT, "check")
    assert got.returncode == 0, got.stdout + got.stderr


@needs_cc
@needs_parser
def test_stale_bindings_are_found_and_renewed(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/bindings", tmp_path / "scripts/bindings")
    (tmp_path / "include").symlink_to(ROOT / "include")
    target = tmp_path / "python/smla/_abi.py"
    target.parent.mkdir(parents=True)
    target.write_text(mutated("two fields swapped"))
    stale = bindings(tmp_path, "check")
    assert stale.returncode == 1 and "page_rows" in stale.stdout and "scripts/bindings write" in stale.stderr
    assert bindings(tmp_path, "write").returncode == 0
    assert target.read_text() == (ROOT / "python/smla/_abi.py").read_text()
    assert bindings(tmp_path, "nonsense").returncode == 1
