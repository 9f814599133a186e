"""The text that a mutant of tests/kit replaces must be in its file exactly once."""
from source import sample

TABLE, CUDA_TABLE = "tests/kit/mutants.py", "tests/kit/cuda_mutants.py"


def check(files):
    by_path = {file.path: file for file in files}
    for table in (TABLE, CUDA_TABLE):
        if table not in by_path:
            continue
        names = {"__name__": "mutants"}
        exec(compile(by_path[table].text, table, "exec"), names)
        for mutant in names["MUTANTS"]:
            if (unit := getattr(mutant, "unit", "")) and unit not in by_path:
                yield f"{table}: {mutant.name!r}: there is no {unit}"
            if mutant.file not in by_path:
                yield f"{table}: {mutant.name!r}: there is no {mutant.file}"
            elif (count := by_path[mutant.file].text.count(mutant.old)) != 1:
                yield f"{table}: {mutant.name!r}: its text is {count} times in {mutant.file}, wanted once"


def _table(file, old, table=TABLE, unit=""):
    mutant = f"collections.namedtuple('M', 'name file old unit')('m', {file!r}, {old!r}, {unit!r})"
    return sample(table, f"import collections\nMUTANTS = [{mutant}]\n")


CODE = sample("src/a.cpp", "int a = 1;\nint b = 1;\n")
BAD = [
    ([CODE, _table("src/a.cpp", "int c")], "is 0 times in src/a.cpp"),
    ([CODE, _table("src/a.cpp", "= 1")], "is 2 times in src/a.cpp"),
    ([CODE, _table("src/b.cpp", "int b")], "there is no src/b.cpp"),
    ([CODE, _table("src/a.cpp", "int c", CUDA_TABLE)], "is 0 times in src/a.cpp"),
    ([CODE, _table("src/a.cpp", "int b", CUDA_TABLE, "src/b.cu")], "there is no src/b.cu"),
]
GOOD = [[CODE, _table("src/a.cpp", "int b")], [CODE]]
