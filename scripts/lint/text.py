"""Text that must not be committed: unfinished marks, paths of one machine, stray white space."""
import re

from source import sample

# Written in two parts, so that this file passes its own check.
MARKS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")) + r")\b")
MACHINE_PATHS = re.compile(r"(?<![\w.$}~/-])/(?:home|root|Users|work|tmp|var/tmp)(?:/\w|(?=[\s\"';:)]))")
CONFLICT = re.compile(r"^(<{7} |>{7} |={7}$)")


def _marks(file):
    for number, line in enumerate(file.text.split("\n"), 1):
        where = f"{file.path}:{number}"
        if mark := MARKS.search(line):
            yield f"{where}: {mark.group()}: finish it or write an issue"
        if path := MACHINE_PATHS.search(line):
            yield f"{where}: {path.group()}...: a path of one machine"


def check(files):
    for file in files:
        if not file.is_text:
            continue
        yield from _marks(file)
        if file.is_verbatim:
            continue
        if file.data and not file.data.endswith(b"\n"):
            yield f"{file.path}: no line end at the end of the file"
        if file.data.endswith(b"\n\n"):
            yield f"{file.path}: blank lines at the end of the file"
        for number, line in enumerate(file.text.split("\n"), 1):
            where = f"{file.path}:{number}"
            if line != line.rstrip():
                yield f"{where}: white space at the end of the line"
            if "\t" in line and file.path != "Makefile":
                yield f"{where}: a tab"
            if CONFLICT.match(line):
                yield f"{where}: a merge conflict"


BAD = [
    ([sample("a.md", "x \n")], "white space"),
    ([sample("a.md", "x\r\n")], "white space"),
    ([sample("a.cpp", "\tx\n")], "a tab"),
    ([sample("a.cpp", "// TO" + "DO: later\n")], "finish it"),
    ([sample("tests/goldens/a.json", '{"x": "/ho' + 'me/me/x"}')], "a path of one machine"),
    ([sample("a.cpp", 'open("/ho' + 'me/me/x");\n')], "a path of one machine"),
    ([sample("a", "#!/bin/sh\ncd /wo" + "rk/x\n")], "a path of one machine"),
    ([sample("a", "x")], "no line end"),
    ([sample("a", "x\n\n")], "blank lines"),
    ([sample("a", "<" * 7 + " HEAD\n")], "merge conflict"),
]
GOOD = [
    [sample("Makefile", "a:\n\tb\n")],
    [sample("a.md", "todos, the framework/home/page, ${root}/root/x, /usr/include, <home>/x\n")],
    [sample("a.bin", "\0 \n \n")],
    [sample("tests/goldens/a.json", '{"x": 1} \n\n')],
]
