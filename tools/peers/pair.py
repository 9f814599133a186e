"""What is timed in one row."""

from collections.abc import Callable
from dataclasses import dataclass


class Skip(Exception):
    """A row that the peer cannot run; the message says why."""


@dataclass
class Pair:
    """Two calls with the same meaning. check(peer's result, smla's) returns a dict: errors of [peer, smla],
    and limit, above which an error makes a result wrong."""

    peer: Callable
    smla: Callable
    check: Callable
