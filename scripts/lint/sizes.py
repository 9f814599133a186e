"""Limits: functions under 80 lines, sources under 500, public headers under 250, lines of 110 columns.

A function that must be longer is listed in long_functions.txt, with the reason.
"""
import re

from source import sample, without_comments_and_strings

MAX_FUNCTION = 80
MAX_LINE = 110
MAX_FILE = {"include/": 250, "": 500}  # by prefix, first match
ALLOW_LIST = "scripts/lint/long_functions.txt"

_NOT_A_FUNCTION = re.compile(r"^\s*(?:template\s*<.*?>\s*)?(?:inline\s+)?(?:typedef\s+)?"
                             r"(namespace|struct|class|union|enum|extern\s*\"\s*\")", re.DOTALL)
_NAME = re.compile(r"([A-Za-z_]\w*(?:::~?[A-Za-z_]\w*)*|operator\s*\S+?)\s*\(")


def _header_name(header):
    """The function that a text before `{` begins, or None if it is something else."""
    header = re.sub(r"^[ \t]*#.*(?:\\\n.*)*", "", header, flags=re.MULTILINE).strip()
    if not header or _NOT_A_FUNCTION.match(header) or header.endswith(("=", ",", "return")):
        return None
    match = _NAME.search(header)
    if match:
        return match.group(1)
    return "lambda" if re.search(r"\]\s*(\(.*\).*)?$", header, re.DOTALL) else None


def functions(text):
    """Yields (name, first line, line count) of every function body that is not inside another."""
    code = without_comments_and_strings(text)
    start, depth, inside = 0, 0, None  # inside: (name, depth of its brace, offset)
    for match in re.finditer(r"[{};]", code):
        at, char = match.start(), match.group()
        if char == "{":
            depth += 1
            if inside is None:
                name = _header_name(code[start:at])
                if name:
                    inside = (name, depth, at)
        elif char == "}":
            if inside and inside[1] == depth:
                first = code.count("\n", 0, inside[2]) + 1
                yield inside[0], first, code.count("\n", inside[2], at) + 1
                inside = None
            depth -= 1
        start = at + 1


def _allowed(files):
    """(entries, problems) of the allow list: `path function reason`."""
    entries, problems = {}, []
    for file in files:
        if file.path != ALLOW_LIST:
            continue
        for number, line in enumerate(file.text.splitlines(), 1):
            fields = line.split(None, 2)
            if not fields or fields[0].startswith("#"):
                continue
            if len(fields) < 3 or len(fields[2]) < 20:
                problems.append(f"{file.path}:{number}: an exception needs a path, a function and a reason")
            else:
                entries[fields[0], fields[1]] = number
    return entries, problems


def check(files):
    allowed, problems = _allowed(files)
    yield from problems
    used = set()
    for file in files:
        if not file.is_text or not (file.is_cpp or file.is_script):
            continue
        lines = file.text.splitlines()
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_LINE:
                yield f"{file.path}:{number}: {len(line)} columns, at most {MAX_LINE}"
        if not file.is_cpp:
            continue
        limit = next(limit for prefix, limit in MAX_FILE.items() if file.path.startswith(prefix))
        if len(lines) >= limit:
            yield f"{file.path}: {len(lines)} lines, fewer than {limit} wanted: split it by subject"
        for name, first, count in functions(file.text):
            if count < MAX_FUNCTION:
                continue
            if (file.path, name) in allowed:
                used.add((file.path, name))
            else:
                yield f"{file.path}:{first}: {name} has {count} lines, fewer than {MAX_FUNCTION} wanted"
    for entry in sorted(set(allowed) - used):
        yield f"{ALLOW_LIST}:{allowed[entry]}: {' '.join(entry)} is not too long (or gone): remove the line"


_LONG = "\n".join("    x += 1;" for _ in range(MAX_FUNCTION))
_REASON = "a table that reads best in one piece"
_SHORT = "    if (x) { y(); }\n" * 20
BAD = [
    ([sample("src/a.cpp", f"void f() {{\n{_LONG}\n}}\n")], "f has 82 lines"),
    ([sample("src/a.h", f"namespace n {{\nstruct S {{\nint g() const {{\n{_LONG}\n}}\n}};\n}}")], "g has"),
    ([sample("src/a.cpp", f"S::S(int a) : a_(a) {{\n{_LONG}\n}}\n")], "S::S has"),
    ([sample("src/a.cpp", f"void f() {{ char c = '}}'; // }}\n auto s = \"}}\";\n{_LONG}\n}}\n")], "f has"),
    ([sample("src/a.cpp", f"auto f = [](int x) {{\n{_LONG}\n}};\n")], "lambda has 82 lines"),
    ([sample("src/a.cpp", "// " + "x" * MAX_LINE)], "113 columns"),
    ([sample("scripts/a.py", "#" * (MAX_LINE + 1))], "111 columns"),
    ([sample("src/a.cpp", "\n" * 500)], "500 lines, fewer than 500"),
    ([sample("include/smla/a.h", "\n" * 250)], "250 lines, fewer than 250"),
    ([sample(ALLOW_LIST, "src/a.cpp f\n")], "needs a path, a function and a reason"),
    ([sample("src/a.cpp", "void f() {}\n"), sample(ALLOW_LIST, f"src/a.cpp f {_REASON}\n")], "remove"),
]
GOOD = [
    [sample("src/a.cpp", f"void f() {{\n{_SHORT}}}\nvoid g() {{\n{_SHORT}}}\nvoid h() {{\n{_SHORT}}}\n" * 2)],
    [sample("src/a.cpp", f"namespace n {{\n{'int x;' + chr(10)}{'int y;' * 3}\n" + "\n" * 90 + "}\n")],
    [sample("src/a.cpp", "const int table[] = {\n" + "    1,\n" * 100 + "};\n")],
    [sample("src/a.cpp", f"void f() {{\n{_LONG}\n}}\n"),
     sample(ALLOW_LIST, f"# why\nsrc/a.cpp f {_REASON}\n")],
]
