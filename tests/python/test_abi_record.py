"""The C ABI against its record in tests/abi (scripts/abi), and that the comparison sees what breaks."""

import ctypes
import importlib.util
import os
import re
import shutil
from importlib.machinery import SourceFileLoader

import pytest
from conftest import ROOT
from smla import _library

if not (ROOT / "scripts/abi").exists():
    pytest.skip("not in a clone", allow_module_level=True)
pytest.importorskip("pycparser")
if shutil.which(os.environ.get("CC", "cc")) is None:
    pytest.skip("no C compiler", allow_module_level=True)


@pytest.fixture(scope="module")
def abi():
    loader = SourceFileLoader("abi", str(ROOT / "scripts/abi"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("abi", loader))
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def today(abi):
    return abi.describe()


@pytest.fixture
def changed(abi, tmp_path):
    """changed(header, old, new): what headers declare in which a text is another."""

    def changed(header, old, new):
        include = tmp_path / "include"
        shutil.copytree(ROOT / "include", include)
        path = include / "smla" / header
        text = path.read_text()
        assert text.count(old) == 1, old
        path.write_text(text.replace(old, new))
        return abi.describe(include)

    return changed


def test_the_headers_keep_what_is_recorded(abi, today):
    assert abi.check(today, abi.kept()) == []


def test_the_library_exports_what_is_recorded(abi):
    library = ctypes.CDLL(_library.path)
    functions = [name for record in abi.kept()[-1:] for name in record["functions"]]
    assert len(functions) > 80
    assert [name for name in functions if not hasattr(library, name)] == []


BROKEN = {
    "a field inserted": (
        "stages_attend.h",
        "    smla_lse_base lse_base;\n    /* Partial results",
        "    smla_lse_base lse_base;\n    int64_t more;\n    /* Partial results",
        "smla_merge_args.partials: smla_tensor at byte 8 before, smla_tensor at byte 16 now",
    ),
    "a field gone": (
        "stages_attend.h",
        "    smla_tensor lse_out;\n} smla_merge_args;",
        "} smla_merge_args;",
        "smla_merge_args.lse_out: gone",
    ),
    "a field of another type": (
        "stages_index.h",
        "    smla_precision precision;\n    int32_t reserved;\n} smla_score_args;",
        "    float precision;\n    int32_t reserved;\n} smla_score_args;",
        "smla_score_args.precision: smla_precision at byte 784 before, float at byte 784 now",
    ),
    "a struct that another holds has grown": (
        "stages_index.h",
        "    smla_precision precision;\n    int32_t reserved;\n} smla_score_args;",
        "    smla_precision precision;\n    int32_t reserved;\n    int64_t more;\n} smla_score_args;",
        "now, but smla_score_select_args.score holds it by value",
    ),
    "a struct without a size has grown": (
        "types.h",
        "    const char* message;\n} smla_error;",
        "    const char* message;\n    int64_t more;\n} smla_error;",
        "smla_error: 40 bytes before, 48 now, but it has no struct_size",
    ),
    "an enumeration renumbered": (
        "types.h",
        "SMLA_BF16 = 3,",
        "SMLA_BF16 = 13,",
        "SMLA_BF16: 3 before, 13 now",
    ),
    "a constant of an enumeration gone": ("types.h", "    SMLA_U8 = 8,\n", "", "SMLA_U8: gone"),
    "another constant": (
        "types.h",
        "SMLA_STRIDE_REPEAT INT32_MIN",
        "SMLA_STRIDE_REPEAT -1",
        "INT32_MIN before, -1 now",
    ),
    "a type of another width": (
        "types.h",
        "typedef int32_t smla_device_type;",
        "typedef int64_t smla_device_type;",
        "smla_device_type: int32_t before, int64_t now",
    ),
    "a function gone": ("types.h", "SMLA_API int32_t smla_version(void);", "", "smla_version: gone"),
    "a function with another prototype": (
        "types.h",
        "smla_status_name(smla_status status);",
        "smla_status_name(smla_status status, int32_t language);",
        "smla_status_name: const char * (smla_status) before, const char * (smla_status, int32_t) now",
    ),
    "an argument that is written to": (
        "formats.h",
        "smla_tensor_bytes(const smla_tensor* tensor,",
        "smla_tensor_bytes(smla_tensor* tensor,",
        "smla_tensor_bytes: smla_status (const smla_tensor *, size_t *) before",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_programs_is_seen(abi, today, changed, name):
    header, old, new, message = BROKEN[name]
    found = abi.breaks(today, changed(header, old, new))
    assert any(message in line for line in found), found


def test_padding_is_not_free(abi, today):
    """An older caller has not set what was padding."""
    old = {"size": 16, "fields": {"struct_size": [0, "uint32_t"], "a": [8, "int64_t"]}}
    new = {"size": 16, "fields": {**old["fields"], "b": [4, "int32_t"]}}
    assert abi.struct_breaks("s", old, new, {"s": old}, {}) == [
        "s.b: new at byte 4, not behind the 16 of before"
    ]
    assert today["structs"]  # the same shape of record
    assert set(today["structs"]["smla_tensor"]) == set(old)


COMPATIBLE = {
    "a longer struct": (
        "stages_attend.h",
        "    smla_tensor lse_out;\n} smla_merge_args;",
        "    smla_tensor lse_out;\n    int64_t more;\n} smla_merge_args;",
    ),
    "one more constant": ("types.h", "    SMLA_I64 = 10\n", "    SMLA_I64 = 10,\n    SMLA_I16 = 11\n"),
    "one more function": (
        "types.h",
        "SMLA_API int32_t smla_version(void);",
        "SMLA_API int32_t smla_version(void);\nSMLA_API int32_t smla_more(int32_t a);",
    ),
    "another name for a parameter": (
        "types.h",
        "smla_status_name(smla_status status)",
        "smla_status_name(smla_status s)",
    ),
    "a reserved field in use": (
        "stages_index.h",
        "    smla_precision precision;\n    int32_t reserved;\n} smla_score_args;",
        "    smla_precision precision;\n    int32_t more;\n} smla_score_args;",
    ),
    "a reserved field that is an enumeration": (
        "stages_index.h",
        "    smla_precision precision;\n    int32_t reserved;\n} smla_score_args;",
        "    smla_precision precision;\n    smla_precision more;\n} smla_score_args;",
    ),
}


@pytest.mark.parametrize("name", COMPATIBLE)
def test_what_programs_do_not_notice_is_allowed(abi, today, changed, name):
    after = changed(*COMPATIBLE[name])
    assert (after != today) == (name != "another name for a parameter")
    assert abi.breaks(today, after) == []


def test_versions_and_their_records(abi, today):
    def record(version, **parts):
        return {**today, "version": version, **parts}

    fewer = {"enums": {key: value for key, value in today["enums"].items() if key != "SMLA_U8"}}
    assert abi.check(record("0.3.0"), [record("0.2.0")]) == ["no record of 0.3.0: scripts/abi write makes it"]
    assert abi.check(record("0.3.0", **fewer), [record("0.2.0"), record("0.3.0", **fewer)]) == []
    (line,) = abi.check(record("0.2.1", **fewer), [record("0.2.0"), record("0.2.1", **fewer)])
    assert line == "SMLA_U8: gone (0.2.1 against 0.2.0)"
    (line,) = abi.check(record("1.1.0", **fewer), [record("1.0.0"), record("1.1.0", **fewer)])
    assert line == "SMLA_U8: gone (1.1.0 against 1.0.0)"
    assert abi.check(record("2.0.0", **fewer), [record("1.0.0"), record("2.0.0", **fewer)]) == []


def test_a_record_is_as_it_was_written(abi):
    for path in sorted((ROOT / "tests/abi").glob("*.json")):
        (record,) = [each for each in abi.kept() if each["version"] == path.stem]
        assert path.read_text() == abi.text_of(record)
        assert re.fullmatch(r"\d+\.\d+\.\d+", path.stem)
