"""The text that a mutant of tests/kit/mutants.py changes is in its file once: else it breaks nothing."""
from source import sample

TABLE = "tests/kit/mutants.py"


def check(files):
    by_path = {file.path: file for file in files}
    if TABLE not in by_path:
        return
    names = {"__name__": "mutants"}
    exec(compile(by_path[TABLE].text, TABLE, "exec"), names)
    for mutant in names["MUTANTS"]:
        if mutant.file not in by_path:
            yield f"{TABLE}: {mutant.name!r}: there is no {mutant.file}"
        elif (count := by_path[mutant.file].text.count(mutant.old)) != 1:
            yield f"{TABLE}: {mutant.name!r}: its text is {count} times in {mutant.file}, wanted once"


def _table(file, old):
    mutant = f"collections.namedtuple('Mutant', 'name file old')('m', {file!r}, {old!r})"
    return sample(TABLE, f"import collections\nMUTANTS = [{mutant}]\n")


CODE = sample("src/a.cpp", "int a = 1;\nint b = 1;\n")
BAD = [
    ([CODE, _table("src/a.cpp", "int c")], "is 0 times in src/a.cpp"),
    ([CODE, _table("src/a.cpp", "= 1")], "is 2 times in src/a.cpp"),
    ([CODE, _table("src/b.cpp", "int b")], "there is no src/b.cpp"),
]
GOOD = [[CODE, _table("src/a.cpp", "int b")], [CODE]]
