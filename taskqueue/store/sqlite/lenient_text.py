"""Reads text that is not UTF-8, for which the driver would refuse a whole result."""

from __future__ import annotations

import sqlite3

_REFUSAL = "Could not decode to UTF-8"


def reads_leniently(raw: sqlite3.Connection | None, error: sqlite3.Error) -> bool:
    """Let the connection accept damaged text, at some cost, if the error is about that; return whether this is new."""
    if raw is None or _REFUSAL not in str(error) or raw.text_factory is _lenient:
        return False
    raw.text_factory = _lenient
    return True


def _lenient(text: bytes) -> str:
    return text.decode(errors="backslashreplace")
