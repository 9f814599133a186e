"""Which releases of transformers this package knows."""

import importlib
import re
import warnings

OLDEST = (5, 16)
NEWEST = (5, 24)  # that the tests were run with
_WANTED = f"transformers {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def release_of(version):
    """(major, minor) of a version's text."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def check_version(version):
    """Refuses releases whose attention modules are others; warns of ones that the tests have not seen."""
    release = release_of(version)
    if release < OLDEST or release[0] > NEWEST[0]:
        raise ImportError(f"smla.transformers: got transformers {version}, wants {_WANTED}")
    if release > NEWEST:
        warnings.warn(
            f"smla.transformers: transformers {version} is newer than what was tested, {_WANTED}",
            stacklevel=2,
        )


def require():
    """Imports what the package stands on, or says what is missing in one line."""
    for name in ("torch", "transformers"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ImportError(
                f"smla.transformers: {name} cannot be imported ({error}), wants {_WANTED}"
            ) from None
    check_version(importlib.import_module("transformers").__version__)
