"""A constant of src/engines/cuda has one value in a namespace and those inside it.

`cuda_attend::kKeys = 32` beside `cuda_attend::sm90::kKeys = 64`: which one a kernel uses depends on its
includes. The lint compares literal numbers declared at the start of a line, where namespaces also begin.
"""
import re
from collections import defaultdict

from source import sample, without_comments_and_strings

FOLDER = "src/engines/cuda/"
OPEN = re.compile(r"(?:inline )?namespace(?: ([\w:]+))? \{")
DECLARED = re.compile(r"(?:inline |static )*constexpr [^;{}]*;")
NUMBER = r"[-+]?(?:0[xX][\da-fA-F'.]+(?:[pP][-+]?\d+)?|\d[\d'.]*(?:[eE][-+]?\d+)?)[uUlLfF]*"
LITERAL = re.compile(rf"\b(k[A-Z]\w*) = ({NUMBER})(?=[,;])")


def _value(text):
    digits = text.lower().replace("'", "").rstrip("ul")
    if "x" not in digits:
        return float(digits.rstrip("f"))
    return float.fromhex(digits.rstrip("f") if "p" in digits else digits)


def _constants(file):
    """Yields (namespace, name, value, text, file:line)."""
    text = without_comments_and_strings(file.text)
    scopes, depth, begin = [], 0, 0  # scopes: names of open namespaces, depths outside of them
    for number, line in enumerate(text.split("\n"), 1):
        if found := OPEN.match(line):
            scopes.append((found[1], depth))
        elif found := DECLARED.match(text, begin):
            scope = "::".join(name for name, _ in scopes if name)
            for name, value in LITERAL.findall(found[0]):
                yield scope, name, _value(value), value, f"{file.path}:{number}"
        depth += line.count("{") - line.count("}")
        while scopes and depth <= scopes[-1][1]:
            scopes.pop()
        begin += len(line) + 1


def check(files):
    known = defaultdict(list)
    for file in files:
        if file.path.startswith(FOLDER) and file.is_cpp:
            for scope, name, *rest in _constants(file):
                known[name].append((scope, *rest))
    for name, places in known.items():
        for outer, value, text, where in places:
            for inner, other, other_text, other_where in places:
                if inner.startswith(outer + "::") and other != value:
                    yield (f"{where}: {outer}::{name} = {text}, but {inner}::{name} = {other_text} in "
                           f"{other_where}: rename one of them")


def _outer(text, path="src/engines/cuda/a.h"):
    return sample(path, f"namespace smla::cuda_attend {{\n\n{text}\n\n}}  // namespace smla::cuda_attend\n")


def _inner(text, path="src/engines/cuda/sm90/b.h"):
    return sample(path, "namespace smla::cuda_attend {\nnamespace sm90 {\nnamespace {\n"
                  f"{text}\n}}  // namespace\n}}  // namespace sm90\n}}  // namespace smla::cuda_attend\n")


BAD = [
    ([_outer("constexpr int kKeys = 32;"), _inner("constexpr int kKeys = 64;")],
     "a.h:3: smla::cuda_attend::kKeys = 32, but smla::cuda_attend::sm90::kKeys = 64 in "
     "src/engines/cuda/sm90/b.h:4"),
    ([_inner("constexpr int kKeys = 64;"), _outer("constexpr int kKeys = 32;")], "kKeys = 32, but"),
    ([_outer("inline constexpr int kHeads = 8, kKeys = 32;"), _inner("constexpr int kKeys = 64;")], "kKeys"),
    ([_outer("constexpr float kLeast = 0x1p-7f;"), _inner("constexpr float kLeast = 0x1p-8f;")], "kLeast"),
    ([_outer("constexpr int kKeys = 32;"),
      _inner("void f() {\n}\nconstexpr int kHeads = 1,\n              kKeys = 64;")], "kKeys"),
    ([_outer("namespace small {\nvoid f();\n}\nconstexpr int kKeys = 32;"),
      _inner("constexpr int kKeys = 64;")], "a.h:6: smla::cuda_attend::kKeys = 32"),
]
GOOD = [
    [_outer("constexpr int kKeys = 64;"), _inner("constexpr int kKeys = 64;")],
    [_outer("constexpr int kKeys = 1'024;"), _inner("constexpr uint32_t kKeys = 0x400u;")],
    [_outer("constexpr int kKeys = 32;"), _outer("constexpr int kKeys = 64;", "src/engines/cuda/c.cu")],
    [_outer("constexpr int kKeys = 32;"), _inner("struct A {\n    static constexpr int kKeys = 64;\n};")],
    [_outer("// constexpr int kKeys = 32;"), _inner("constexpr int kKeys = 64;")],
    [_outer("constexpr int kKeys = 32;", "src/engines/cpu/a.h"), _inner("constexpr int kKeys = 64;")],
    [_inner("constexpr int kRows = 1;"), _outer("constexpr int kKeys = 32;"),
     sample("src/engines/cuda/d.h", "namespace smla::cuda {\nconstexpr int kKeys = 64;\n}  // namespace\n")],
]
