"""The two calls that are measured in one row."""

from collections.abc import Callable
from dataclasses import dataclass


class Skip(Exception):
    """A row that the peer cannot run; the message gives the reason."""


@dataclass
class Pair:
    """Two equivalent calls. check(result of the peer, result of smla) returns a dict: "errors" of
    [peer, smla], and "limit", above which a result is wrong."""

    peer: Callable
    smla: Callable
    check: Callable
