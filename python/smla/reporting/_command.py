"""python -m smla report: the command line of smla.report."""

import argparse
import sys

from ..errors import Error, InvalidArgument
from . import report


def _positive(name):
    def convert(text):
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < 1e6:
            raise argparse.ArgumentTypeError(f"got {text}, wanted a positive number ({name})")
        return value

    return convert


def _parser():
    parser = argparse.ArgumentParser(
        prog="smla report",
        description="Create a self-contained HTML page about this machine: which kernels run and why, their "
        "speed and accuracy, and the memory of a model.",
        epilog="smla report --model DeepSeek-V3.2/config.json --memory 80 -o v32.html",
    )
    parser.add_argument(
        "-o", "--out", metavar="FILE", default="smla_report.html", help="default: %(default)s"
    )
    parser.add_argument(
        "--model", metavar="CONFIG", help="config.json or its folder, for explain and capacity"
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="memory for caches, in GiB or with a unit (80GiB); default: this machine's",
    )
    for name, of in (("bench", "smla bench --json"), ("verify", "smla verify --json")):
        parser.add_argument(f"--{name}", metavar="JSON", nargs="+", help=f"files of `{of}`; default: run it")
    parser.add_argument(
        "--peers", metavar="JSON", nargs="+", help="times of other libraries (docs/python/report.md)"
    )
    parser.add_argument(
        "--seconds", type=_positive("seconds"), default=0.1, help="time per case; default: %(default)s"
    )
    parser.add_argument("--quick", action="store_true", help="few cases")
    return parser


def main(words):
    options = vars(_parser().parse_args(words))
    out = options.pop("out")
    try:
        report(out, **options)
    except Error as error:
        print(f"smla report: {str(error).removeprefix('smla report: ')}", file=sys.stderr)
        return 2 if isinstance(error, (InvalidArgument, ValueError)) else 3
    print(out)
    return 0
