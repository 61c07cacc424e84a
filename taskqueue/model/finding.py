"""A finding of ``taskqueue doctor``: a fact about a store, a node or a host, and how to fix a problem."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Level(str, Enum):
    """How much a finding matters: ``warning`` if it may do harm later, ``error`` if it does harm now."""

    __str__ = str.__str__

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(NamedTuple):
    """One finding."""

    about: str
    says: str
    level: Level = Level.OK
    do: str = ""
    """What to do; empty if everything is well."""
    name: str = ""
    """The class, or the id of the job, that it is about; empty for anything else."""


def below(about: str, says: str, value: float, *, warning: float, error: float, do: str) -> Finding:
    """Return a finding that is an error if the value is below ``error``, and a warning if it is below ``warning``."""
    level = Level.ERROR if value < error else Level.WARNING if value < warning else Level.OK
    return Finding(about, says, level, do if level is not Level.OK else "")
