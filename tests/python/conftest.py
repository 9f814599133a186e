"""The package of this tree, on the library that was built in it (or SMLA_LIBRARY)."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]
