"""The command line: `smla` and `python -m smla` start the program that comes with the package."""

import os
import sys

from .errors import Error
from .tools import program


def main():
    try:
        path = program()
    except Error as error:
        sys.exit(str(error))
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
