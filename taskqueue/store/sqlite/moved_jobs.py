"""Numbers the moves of waiting jobs to another queue or rank, which have no event, for those who cache their places."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeAlias

Execute: TypeAlias = Callable[..., sqlite3.Cursor]

MOVED = -2
"""In ``tally`` in the place of a status, with an empty queue: how often a waiting job was moved."""

_NOTE = """
INSERT INTO tally (queue, status, records) VALUES ('', ?, 1) ON CONFLICT DO UPDATE SET records = records + 1
"""
_NUMBER = "SELECT records FROM tally WHERE queue = '' AND status = ?"


def note(execute: Execute) -> None:
    """Note that a waiting job was moved."""
    execute(_NOTE, (MOVED,))


def number(execute: Execute) -> int:
    """Return the number of moves, which differs from every earlier one if there was another."""
    found = execute(_NUMBER, (MOVED,)).fetchone()
    return 0 if found is None else found[0]
