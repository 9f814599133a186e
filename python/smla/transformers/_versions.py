"""The releases of transformers that this package supports."""

import importlib
import re
import warnings

OLDEST = (5, 16)
NEWEST = (5, 24)  # newest tested release
_WANTED = f"transformers {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def release_of(version):
    """Returns (major, minor) of a version string."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def check_version(version):
    """Raises ImportError for unsupported releases, and warns of releases that have not been tested."""
    release = release_of(version)
    if release < OLDEST or release[0] > NEWEST[0]:
        raise ImportError(f"smla.transformers: got transformers {version}, wanted {_WANTED}")
    if release > NEWEST:
        warnings.warn(
            f"smla.transformers: transformers {version} is newer than the tested releases, {_WANTED}",
            stacklevel=2,
        )


def require():
    """Imports torch and transformers, or raises an ImportError that names the missing package."""
    for name in ("torch", "transformers"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ImportError(
                f"smla.transformers: {name} cannot be imported ({error}), wanted {_WANTED}"
            ) from None
    check_version(importlib.import_module("transformers").__version__)
