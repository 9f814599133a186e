"""The command line: `smla` and `python -m smla` run the program in the package, or `report` in Python."""

import os
import sys

from .errors import Error
from .tools import program

__all__ = ["main"]


def main() -> int:
    if sys.argv[1:2] == ["report"]:
        from .reporting._command import main as report

        return report(sys.argv[2:])
    try:
        path = program()
    except Error as error:
        sys.exit(str(error))
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
