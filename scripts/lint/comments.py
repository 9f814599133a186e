"""No line of a comment, and no docstring, starts with "Of": such a fragment does not name its subject.

A member's comment is a noun phrase ("Base of the logarithm in `lse`."), a function's says "Returns ...".
"""
import io
import re
import tokenize

from source import comments, sample

FOLDERS = ("src/", "include/", "tools/", "tests/", "bench/", "python/", "scripts/")
OF = re.compile(r"\s*(?://+|/\*+|\*+|#+)\s*Of\b")
DOCSTRING_OF = re.compile(r"[rRbBuU]{0,2}(?:\"\"\"|'''|\"|')\s*Of\b")
BETWEEN_STATEMENTS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
IGNORED = (tokenize.NL, tokenize.COMMENT)


def _cpp(text):
    for offset, comment in comments(text):
        for number, line in enumerate(comment.split("\n"), text.count("\n", 0, offset) + 1):
            if OF.match(line):
                yield number


def _python(text):
    before = tokenize.ENCODING
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and OF.match(token.string):
            yield token.start[0]
        begins_statement = token.type == tokenize.STRING and before in BETWEEN_STATEMENTS
        if begins_statement and DOCSTRING_OF.match(token.string):
            yield token.start[0]
        if token.type not in IGNORED:
            before = token.type


def _is_python(file):
    return file.path.endswith(".py") or re.match(rb"#![^\n]*\bpython", file.data)


def check(files):
    for file in files:
        if not file.path.startswith(FOLDERS):
            continue
        found = _cpp(file.text) if file.is_cpp else _python(file.text) if _is_python(file) else ()
        for line in found:
            yield f'{file.path}:{line}: this comment starts with "Of": name the thing, or say "Returns ..."'


WANTED = 'starts with "Of"'
BAD = [
    ([sample("src/a.cpp", "// Of the block.\nint x;\n")], "src/a.cpp:1: this comment " + WANTED),
    ([sample("src/a.cuh", "int x;  // Of the block.\n")], WANTED),
    ([sample("src/a.h", "// The tile.\n//\n//   Of 64 heads, each has 32.\nint x;\n")], "src/a.h:3: "),
    ([sample("include/smla/a.h", "/* Of lse. */\nint x;\n")], WANTED),
    ([sample("include/smla/a.h", "/*\n * Of lse. */\nint x;\n")], "a.h:2: this comment " + WANTED),
    ([sample("tests/core/a.cpp", '"a//b"; // Of: the consumer.\n')], WANTED),
    ([sample("python/a.py", "x = 1  # Of the caches.\n")], WANTED),
    ([sample("python/a.py", 'def f():\n    """Of the caches."""\n')], "a.py:2: this comment " + WANTED),
    ([sample("scripts/a", '#!/usr/bin/env python3\n"""Of the caches."""\n')], WANTED),
]
GOOD = [
    [sample("src/a.cpp", '// Offset of a row.\nint x;  // of a row\nauto y = "// Of a row.";\n')],
    [sample("python/a.py", 'x = "Of all rows"\nprint(\n    "# Of all rows")\n')],
    [sample("docs/a.cpp", "// Of the block.\nint x;\n")],
    [sample("scripts/a", "#!/bin/sh\n# Of the block.\n")],
]
