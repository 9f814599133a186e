"""An include points left only: core <- formats <- ops <- ... <- api <- everything outside src.

The order and its reason are in HACKING.md. Headers of one engine (engines/cuda/...) are private to
src/engines, except for tests and benchmarks of that engine. Public headers (<smla/...>) may be included
everywhere.
"""
import re

from source import sample

ORDER = ("core", "formats", "ops", "plan", "linear", "engines", "backends", "model", "layers", "api")
FOREIGN = ("torch/", "pybind11/", "Python.h", "numpy/")
PUBLIC_MAY_USE = re.compile(r"smla/[a-z_]+\.(h|hpp)|[a-z_0-9]+(\.h)?")
INTRINSICS = re.compile(r"(imm|x86|xmm|emm|amm|avx\w*)intrin\.h")
# Files that may include headers of one engine; all others see only engines/*.h.
ENGINE_USERS = re.compile(r"src/engines/|tests/(?:cuda|gpu)/|bench/cuda_")
ISA_FILE = re.compile(r"avx2|avx512|amx")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:<([^>]+)>|"([^"]+)")', re.MULTILINE)


def _engine(parts):
    return parts[2] if parts[:2] == ["src", "engines"] and len(parts) > 3 else None


def _project_include(file, target, paths):
    """Problems of `#include "target"`."""
    if ".." in target.split("/"):
        return f'"{target}" climbs out of its folder: include from src/'
    if target.startswith("smla/"):
        return f'"{target}": public headers are included as <{target}>'
    parts = file.path.split("/")
    theirs = _engine(["src"] + target.split("/"))
    if theirs and not ENGINE_USERS.match(file.path):
        return f'"{target}": headers of engine {theirs} are private to src/engines'
    if parts[0] != "src":
        own = ["/".join(parts[:n]) + "/" + target for n in range(1, len(parts))]
        # tests check the tools' parts, which show measurements
        own += ["tools/" + target, "tools/smla/" + target, "bench/" + target]
        if parts[:2] == ["tools", "smla"]:
            own.append("tools/smla/common/" + target)
        if target.startswith("kit/"):
            own.append("tests/" + target)  # what tests, fuzzers and `smla verify` share
        if "src/" + target in paths or any(path in paths for path in own):
            return None
        return f'"{target}" is neither in src/, tools/ or bench/ nor beside the file'
    if "src/" + target not in paths:
        return f'"{target}" is not a file of src/'
    here, there = parts[1], target.split("/")[0]
    if here not in ORDER or there not in ORDER:
        return f'"{target}": folder {here if here not in ORDER else there} is not in the order of this lint'
    if ORDER.index(there) > ORDER.index(here):
        return f'"{target}": {there} lies right of {here}'
    mine = _engine(parts)
    if mine and theirs and theirs != mine:
        return f'"{target}": engine {mine} must not know engine {theirs}'
    return None


def _system_include(file, target, paths):
    if target.startswith(FOREIGN) and file.path.startswith("src/"):
        return f"<{target}>: nothing under src/ knows Python or Torch"
    if target.startswith("smla/"):
        return None if "include/" + target in paths else f"<{target}> is not a public header"
    if INTRINSICS.fullmatch(target) and not ISA_FILE.search(file.path) and not file.path.startswith("bench/"):
        return f"<{target}>: intrinsics only in files named after their instruction set"
    if "src/" + target in paths:
        return f'<{target}>: the project\'s own headers are included as "{target}"'
    if file.path.startswith("include/") and not PUBLIC_MAY_USE.fullmatch(target):
        return f"<{target}>: public headers use only the standard library and each other"
    return None


def check(files):
    paths = {file.path for file in files}
    for file in files:
        if not file.is_cpp:
            continue
        for match in INCLUDE.finditer(file.text):
            system, quoted = match.groups()
            if system:
                problem = _system_include(file, system, paths)
            elif file.path.startswith("include/"):
                problem = f'"{quoted}": public headers include <smla/...>'
            else:
                problem = _project_include(file, quoted, paths)
            if problem:
                yield f"{file.path}:{file.text.count(chr(10), 0, match.start()) + 1}: {problem}"


_TREE = [sample(path, "") for path in (
    "src/core/a.h", "src/ops/b.h", "src/ops/x/c.h", "src/api/d.h", "src/engines/run.h", "src/engines/cpu/e.h",
    "src/engines/cuda/f.h", "src/engines/cuda/common/g.h", "include/smla/types.h", "tests/util.h",
    "tests/kit/j.h", "tools/golden/h.h", "bench/i.h")]


def _case(path, text):
    return [file for file in _TREE if file.path != path] + [sample(path, text)]


BAD = [
    (_case("src/core/z.cpp", '#include "ops/b.h"'), "ops lies right of core"),
    (_case("src/ops/z.cpp", '#  include "api/d.h"'), "api lies right of ops"),
    (_case("src/ops/z.cpp", '#include "../core/a.h"'), "climbs out"),
    (_case("src/ops/z.cpp", '#include "core/missing.h"'), "not a file of src/"),
    (_case("src/ops/z.cpp", "#include <core/a.h>"), 'included as "core/a.h"'),
    (_case("src/ops/z.cpp", '#include "smla/types.h"'), "included as <smla/types.h>"),
    (_case("src/ops/z.cpp", "#include <smla/missing.h>"), "not a public header"),
    (_case("src/ops/z.cpp", "#include <immintrin.h>"), "intrinsics only"),
    (_case("src/api/z.cpp", "#include <torch/all.h>"), "knows Python or Torch"),
    (_case("src/other/z.cpp", '#include "core/a.h"'), "not in the order"),
    (_case("src/engines/cpu/z.cpp", '#include "engines/cuda/f.h"'), "must not know engine cuda"),
    (_case("src/backends/z.cpp", '#include "engines/cuda/f.h"'), "engine cuda are private to src/engines"),
    (_case("src/layers/z.cpp", '#include "engines/cpu/e.h"'), "engine cpu are private to src/engines"),
    (_case("src/core/z.cpp", '#include "engines/cuda/common/g.h"'), "engine cuda are private"),
    (_case("tools/golden/z.cpp", '#include "engines/cuda/f.h"'), "engine cuda are private"),
    (_case("bench/z.cpp", '#include "engines/cpu/e.h"'), "engine cpu are private"),
    (_case("include/smla/z.h", '#include "types.h"'), "public headers include <smla/"),
    (_case("include/smla/z.h", "#include <fmt/core.h>"), "only the standard library"),
    (_case("tests/core/z.cpp", '#include "missing.h"'), "neither in src/,"),
    (_case("tools/golden/z.cpp", '#include "util.h"'), "neither in src/,"),
]
GOOD = [
    _case("src/ops/x/z.cpp", '#include "ops/x/c.h"\n#include "core/a.h"\n#include <smla/types.h>\n'),
    _case("src/engines/cuda/z.cu", '#include "engines/cuda/common/g.h"\n#include "engines/run.h"'),
    _case("src/backends/z.cpp", '#include "engines/run.h"'),
    _case("tests/gpu/z.cpp", '#include "engines/cuda/common/g.h"'),
    _case("bench/cuda_z.cpp", '#include "engines/cuda/f.h"'),
    _case("src/engines/cpu/dot_avx2.cpp", "#include <immintrin.h>"),
    _case("include/smla/z.hpp", "#include <smla/types.h>\n#include <string>\n#include <stdint.h>"),
    _case("tests/core/z.cpp", '#include "api/d.h"\n#include "util.h"\n#include <gtest/gtest.h>'),
    _case("tests/util.h", '#include "core/a.h"\n#include "golden/h.h"\n#include "i.h"'),
    _case("tools/golden/z.cpp", '#include "kit/j.h"'),
]
