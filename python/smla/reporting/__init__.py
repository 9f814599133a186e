"""smla.report: one HTML page with kernels, speed, accuracy and capacity of this machine."""

import os
import sys
from html import escape
from pathlib import Path
from typing import Any

from .._units import Described, bytes_text
from ..errors import IoError
from ._collect import collect
from ._page import bench_page, page

__all__ = ["Report", "report"]


class Report(Described):
    """A report page, which notebooks display.

    Attributes:
        html: text of the page.
        documents: results that the page shows.

    Example:
        >>> smla.report(quick=True, seconds=0.01).html[:15]
        '<!DOCTYPE html>'
    """

    def __init__(self, documents: dict[str, Any]) -> None:
        self.documents: dict[str, Any] = documents
        self.html: str = page(documents)

    def _text(self):
        names = ", ".join(name for name, held in self.documents.items() if held)
        return f"{bytes_text(len(self.html))} of HTML: {names}"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page to a file atomically, and returns the path of the file."""
        path = Path(path)
        part = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            part.write_text(self.html, encoding="utf-8")
            os.replace(part, path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise IoError.of(str(path), f"cannot write the file: {error.strerror}", "") from None
        return path

    def _repr_html_(self) -> str:
        return _frame(self.html)


def bench_html(document):
    """Returns the HTML of one bench document for a notebook."""
    return _frame(bench_page(document))


def _frame(text):
    """Returns the page in an iframe, so that its style does not affect the notebook's."""
    return f'<iframe style="width: 100%; height: 48rem; border: 0" srcdoc="{escape(text)}"></iframe>'


def _progress(name, done, of):
    """Prints a progress line on a terminal; each step overwrites it."""
    if sys.stderr.isatty():
        share = f" {done + 1} of {of}" if of > 1 else ""
        sys.stderr.write(f"\r\033[Ksmla report: {name}{share} ...")
        sys.stderr.flush()


def report(
    path: str | os.PathLike[str] | None = None,
    *,
    bench: Any = None,
    peers: Any = None,
    verify: Any = None,
    model: Any = None,
    memory: float | str | None = None,
    seconds: float = 0.1,
    quick: bool = False,
) -> Report:
    """Creates a self-contained HTML page about this machine: which kernels run and why, their speed and
    accuracy, and the memory of a model.

    Args:
        path: optional file to which the page is also saved.
        bench, verify: files of `smla bench --json` and `smla verify --json`, or results of smla.bench(), one
            or a list. Default: run both on this machine.
        seconds, quick: time per case of these runs, and whether they have few cases.
        peers: files with times of other libraries, shown with the cases of the same stage and name: {"name":
            ..., "results": [{"stage", "case", "ms"}]}.
        model: a config.json, a checkpoint's folder, a dict or a configuration of transformers.
        memory: memory for its caches, in GiB or with a unit ("80GiB"). Default: memory of the GPU, or else of
            this machine.

    Returns:
        Report.

    Raises:
        DataError, IoError: a file is invalid or cannot be read.

    Example:
        >>> smla.report("machine.html", quick=True, seconds=0.01).documents["bench"][0]["quick"]
        True
    """
    try:
        made = Report(
            collect(
                bench=bench,
                peers=peers,
                verify=verify,
                model=model,
                memory=memory,
                seconds=seconds,
                quick=quick,
                tell=_progress,
            )
        )
    finally:
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K")
    if path is not None:
        made.save(path)
    return made
