"""A kernel of a file that launches early waits for the grid before: else it reads what is not written yet."""
import re

from source import sample

EARLY = re.compile(
    r"\blaunch_(?:early|ordered)\s*\(|\.early\s*=\s*true\b"
    r"|\bcudaLaunchAttributeProgrammaticStreamSerialization\b"
)
KERNEL = re.compile(r"__global__[^;{]*\{")
WAITS = re.compile(r"\b(?:follow|wait_for)_grid_before\s*\(\s*\)|\border\.start\(\)|^\s*check_lists\(")
TRIGGERS = re.compile(r"\bstart_next_grid\s*\(")


def _body(text, begin):
    """What stands between the brace before `begin` and the one that closes it."""
    depth, at = 1, begin
    while depth and at < len(text):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return text[begin:at]


def check(files):
    for file in files:
        if not file.path.endswith(".cu") or not EARLY.search(file.text):
            continue
        for found in KERNEL.finditer(file.text):
            body = _body(file.text, found.end())
            waits, triggers = WAITS.search(body), TRIGGERS.search(body)
            if waits and not (triggers and triggers.start() < waits.start()):
                continue
            head = re.sub(r"__\w+__(?:\s*\([^()]*\))?", "", found.group())
            name = re.search(r"(\w+)\s*\(", head)
            line = file.text.count("\n", 0, found.start()) + 1
            what = (
                "lets the next grid start before it has waited for the one before"
                if waits
                else "calls none of order.start(), follow_grid_before() and wait_for_grid_before(), and the "
                "file launches early"
            )
            yield f"{file.path}:{line}: {name[1] if name else 'a kernel'} {what}"


LAUNCH = "void g() { cuda::launch_early(f, 1, 32, 0, env, a); }\n"
WAITING = "__global__ void f(int* a) {\n  if (a) { wait_for_grid_before(); }\n  *a = 1;\n}\n"
HASTY = "__global__ void __launch_bounds__(32) h(int* a) {\n  if (a) { *a = 1; }\n}\n"
EAGER = "__global__ void e(int* a) {\n  start_next_grid();\n  wait_for_grid_before();\n  *a = 1;\n}\n"
ORDERED = "__global__ void f(GridOrder order, int* a) {\n  if (!order.start()) return;\n  *a = 1;\n}\n"
BAD = [
    ([sample("src/a.cu", EAGER + LAUNCH)], "e lets the next grid start before"),
    ([sample("src/a.cu", HASTY + "void g() { launch_ordered(h, 1, 32, 0, env); }\n")], "h calls none"),
    ([sample("src/a.cu", HASTY + LAUNCH)], "h calls none"),
    ([sample("src/a.cu", WAITING + HASTY + LAUNCH)], "h calls none"),
    ([sample("src/a.cu", HASTY + "void g() { launch_as({.early = true}, h, 1); }\n")], "h calls none"),
    ([sample("src/a.cu", "__global__ void h() {\n  if (a) check_lists(a);\n}\n" + LAUNCH)], "h calls"),
    ([sample("src/a.cu", HASTY + "a.id = cudaLaunchAttributeProgrammaticStreamSerialization;\n")], "h calls"),
]
GOOD = [
    [sample("src/a.cu", ORDERED + "void g() { launch_ordered(f, 1, 32, 0, env, a); }\n")],
    [sample("src/a.cu", WAITING + LAUNCH)],
    [sample("src/a.cu", "__global__ void f(C check) {\n  check_lists(check);\n}\n" + LAUNCH)],
    [sample("src/a.cu", HASTY + "void g() { launch(h, 1), launch_as({.cluster = 8}, h, 1); }\n")],
    [sample("src/launch.cuh", HASTY + "void launch_early(void (*kernel)()) {}\n")],
]
