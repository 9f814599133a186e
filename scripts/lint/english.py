"""Habits of prose that a pattern finds: in comments, docstrings and Markdown pages.

Each comment names its subject: a member's is a noun phrase ("Base of the logarithm in `lse`."), a
function's says "Returns ...". Backticks, code blocks and generated blocks are not prose.
"""
import io
import re
import tokenize

from source import comments, sample

CODE = ("src/", "include/", "tools/", "tests/", "bench/", "python/", "scripts/", "examples/", "fuzz/")
PAGES = ("docs/", "README.md", "HACKING.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
RECORDS = ("docs/kernels/log/", "docs/peers/")  # measurements, as they were written down
# Folders (without their subfolders) and files that do not pass yet, by rule.
UNCHECKED = {
    "of": (
        "fuzz/change.h", "scripts/site",
        "src/engines/cuda/score/sm90/pages/consumer.cuh", "src/engines/cuda/score/sm90/pages/kernel.cu",
        "src/engines/cuda/score/sm90/pages/units.cuh", "src/engines/cuda/score/windows.cuh",
        "tests/gpu/attend_sm90_test.cpp", "tests/gpu/score_pages_test.cpp", "tests/gpu/soak_score_test.cpp",
        "tests/python/test_transformers_generate.py", "tools/golden/verify.cpp",
    ),
    "words": (
        "bench/", "bench/python/", "fuzz/", "scripts/", "scripts/ci/", "scripts/lint/",
        "src/engines/cuda/common/", "src/engines/cuda/common/ptx/",
        "src/engines/cuda/generic/", "src/engines/cuda/project/", "src/engines/cuda/project/mma/",
        "src/engines/cuda/score/", "src/engines/cuda/score/sm90/", "src/engines/cuda/score/sm90/pages/",
        "src/engines/cuda/score_select/", "tests/attend/", "tests/backends/", "tests/cache_stages/",
        "tests/cli/", "tests/compress/", "tests/contract/", "tests/cuda/", "tests/engines/", "tests/formats/",
        "tests/goldens/", "tests/gpu/", "tests/hpp/", "tests/index/", "tests/kit/", "tests/kit/problems/",
        "tests/layers/", "tests/model/", "tests/plan/", "tests/python/", "tools/golden/", "tools/smla/bench/",
        "tools/smla/common/", "tools/smla/demo/", "tools/smla/doctor/", "tools/smla/run/",
        "tools/smla/serve/",
    ),
    "sentences": (),
}

WORDS = {  # what replaces them
    r"mend(?:s|ed|ing)?": "fixed",
    r"rivals?": "baseline",
    r"holes?": "masked entry (-1)",
    r"stand-ins?": "mock",
    r"spelt": "written",
    r"riddles?": "open question",
    r"beside": "next to, concurrent",
    r"whatever": "any, regardless of",
    r"those of|that of": "a noun",
    r"(?:(?:de)?quant|initial|special|vector|synchron|normal|serial|recogn)is(?:e|ing|ation)\w*"
    r"|(?:neighbo|behavio|colo)ur\w*": "American spelling",
}
MOST_WORDS = 40
MOST_NUMBERS = 2  # parts of a sentence with a number, between semicolons

_WORDS = {re.compile(r"\b(?:" + word.replace(" ", r"\s+") + r")\b", re.IGNORECASE): better
          for word, better in WORDS.items()}
_OF = re.compile(r"(?:^|\. ) *\|? *(Of)\b", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<=[.!?])[\")]*\s+(?=[A-Z0-9`\"(*_\[])")
_NO_PROSE = re.compile(r"^ *```.*?^ *```|<!-- begin.*?<!-- end -->|<!--.*?-->|\]\([^)]*\)|<[^<>\n]*>",
                       re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^ *[|#].*", re.MULTILINE)
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.)\s)")
_BETWEEN_STATEMENTS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
_IGNORED = (tokenize.NL, tokenize.COMMENT)


def _blank(text):
    return re.sub(r"[^\n]", " ", text)


def _only(parts, text):
    """`text`, line for line, with everything blank except the (offset, prose) of `parts`."""
    kept, end = [], 0
    for start, prose in parts:
        kept += [_blank(text[end:start]), prose]
        end = start + len(prose)
    return re.sub(r"`[^`\n]*`", lambda code: "X" * len(code.group()), "".join(kept))


def _cpp(text):
    def bare(comment):
        return re.sub(r"^ *(?://+|/\*+|\*+(?!/))|\*+/$", lambda mark: _blank(mark.group()), comment,
                      flags=re.MULTILINE)

    return _only(((start, bare(comment)) for start, comment in comments(text)), text)


def _python_parts(text):
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    before = tokenize.ENCODING
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        start = lines[token.start[0] - 1] + token.start[1]
        if token.type == tokenize.COMMENT:
            yield start, re.sub("^#+", lambda mark: _blank(mark.group()), token.string)
        elif token.type == tokenize.STRING and before in _BETWEEN_STATEMENTS:
            yield start, re.sub(r"^\w*(\"\"\"|'''|\"|')", lambda mark: _blank(mark.group()), token.string)
        if token.type not in _IGNORED:
            before = token.type


def _page(text):
    text = _NO_PROSE.sub(lambda code: _blank(code.group()), text)
    return _only([(0, text)], text)


def _prose(file):
    """The text of a file, line for line, with everything blank that is not prose."""
    if file.path.startswith(RECORDS):
        return ""
    if file.path.endswith(".md"):
        return _page(file.text) if file.path.startswith(PAGES) else ""
    if not file.path.startswith(CODE):
        return ""
    if file.is_cpp:
        return _cpp(file.text)
    is_python = file.path.endswith(".py") or re.match(rb"#![^\n]*\bpython", file.data)
    return _only(_python_parts(file.text), file.text) if is_python else ""


def _sentences(page):
    """Yields (offset, sentence); rows of tables and headings are none."""
    page = _ROW.sub(lambda row: _blank(row.group()), page)
    start = 0
    for block in [*_BLOCK.finditer(page), None]:
        end = block.start() if block else len(page)
        text, offset = page[start:end], start
        start = block.end() if block else end
        at = 0
        for stop in [*_SENTENCE_END.finditer(text), None]:
            sentence = text[at:stop.start() if stop else len(text)]
            yield offset + at + len(sentence) - len(sentence.lstrip()), sentence
            at = stop.end() if stop else len(text)


def _sentence_problems(page):
    for start, sentence in _sentences(page):
        words = len(re.findall(r"\S*\w\S*", sentence))
        if words > MOST_WORDS:
            yield start, f"a sentence of {words} words, at most {MOST_WORDS}: split it"
        numbers = sum(bool(re.search(r"(?<!\w)\d", part)) for part in sentence.split(";"))
        if numbers > MOST_NUMBERS:
            yield start, f"{numbers} numbers between semicolons in one sentence: make it a table"


def _checks(rule, file):
    return not {file.path, file.path.rpartition("/")[0] + "/"} & set(UNCHECKED[rule])


def _problems(file, prose):
    if _checks("of", file):
        for found in _OF.finditer(prose):
            yield found.start(1), 'starts with "Of": name the thing, or say "Returns ..."'
    if _checks("words", file):
        for word, better in _WORDS.items():
            for found in word.finditer(prose):
                yield found.start(), f"{' '.join(found.group().split())!r}: use {better}"
    if file.path.endswith(".md") and _checks("sentences", file):
        yield from _sentence_problems(prose)


def check(files):
    for file in files:
        prose = _prose(file)
        for offset, problem in sorted(_problems(file, prose)):
            yield f"{file.path}:{prose.count(chr(10), 0, offset) + 1}: {problem}"


_OF_WANTED = 'starts with "Of"'
_LONG = "This sentence has " + "many " * 37 + "words."
_CHAIN = "It takes 5 us with one head; with two heads 7 us; with four heads `x` and 9 us.\n"
BAD = [
    ([sample("src/a.cpp", "// Of the block.\nint x;\n")], "src/a.cpp:1: " + _OF_WANTED),
    ([sample("src/a.cuh", "int x;  // Of the block.\n")], _OF_WANTED),
    ([sample("src/a.h", "// The tile.\n//\n//   Of 64 heads, each has 32.\nint x;\n")], "src/a.h:3: "),
    ([sample("include/smla/a.h", "/* Of lse. */\nint x;\n")], _OF_WANTED),
    ([sample("include/smla/a.h", "/*\n * Of lse. */\nint x;\n")], "a.h:2: " + _OF_WANTED),
    ([sample("include/smla/a.h", "/* Writes lse. Of the block. */\nint x;\n")], _OF_WANTED),
    ([sample("tests/core/a.cpp", '"a//b"; // Of: the consumer.\n')], _OF_WANTED),
    ([sample("python/a.py", "x = 1  # Of the caches.\n")], _OF_WANTED),
    ([sample("python/a.py", 'def f():\n    """Of the caches."""\n')], "a.py:2: " + _OF_WANTED),
    ([sample("scripts/a", '#!/usr/bin/env python3\n"""Of the caches."""\n')], _OF_WANTED),
    ([sample("docs/z.md", "| a | b |\n|---|---|\n| Of a | b |\n")], "docs/z.md:3: " + _OF_WANTED),
    ([sample("src/z.h", "// -1 is a\n// hole.\nint x;\n")], "src/z.h:2: 'hole': use masked entry (-1)"),
    ([sample("src/z.h", "// sizes like those\n// of the caches\nint x;\n")], "src/z.h:1: 'those of'"),
    *(([sample("docs/z.md", f"First line.\nA {word} b.\n")], f"docs/z.md:2: '{word}': use")
      for word in ("mended", "rival", "Holes", "stand-in", "spelt", "riddle", "beside", "whatever",
                   "those of", "that of", "dequantised", "neighbouring", "behaviour")),
    ([sample("python/z.py", '"""Rows.\n\nRows beside it.\n"""\n')], "python/z.py:3: 'beside'"),
    ([sample("docs/z.md", f"Short.\n\n* Item. {_LONG}\n")], "docs/z.md:3: a sentence of 41 words"),
    ([sample("docs/z.md", f"# Head\n{_LONG.replace('many ', '`a b` ')}\n")], "docs/z.md:2: a sentence"),
    ([sample("docs/z.md", f"Short. {_CHAIN}")], "docs/z.md:1: 3 numbers between semicolons"),
]
GOOD = [
    [sample("src/a.cpp", '// Offset of a row.\nint x;  // of a row\nauto y = "// Of a row.";\n')],
    [sample("python/a.py", 'x = "Of all rows"\nprint(\n    "# Of all rows")\n')],
    [sample("other/a.cpp", "// Of the block.\nint x;\n")],
    [sample("scripts/a", "#!/bin/sh\n# Of the block.\n")],
    [sample("src/z.h", "// `hole`, whole, loopholes, besides\nint hole = rival(spelt);\n")],
    [sample("docs/z.md", f"# {_LONG}\n\n| {_LONG} |\n\n```\n{_LONG} hole\n```\n")],
    [sample("docs/z.md", f"<!-- begin: a -->\n{_LONG}\n<!-- end -->\n{_LONG[5:]} [A](hole.md).\n")],
    [sample("docs/z.md", f"* 5 us;\n* 6 us;\n* {_CHAIN.replace(' 5 us', '')}")],
    [sample("docs/kernels/log/z.md", f"{_LONG} {_CHAIN} Of holes.\n")],
]
