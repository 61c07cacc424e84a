"""Text that is no UTF-8, for which the driver refuses a whole answer: a connection that met some reads it as it is."""

from __future__ import annotations

import sqlite3

_REFUSAL = "Could not decode to UTF-8"


def reads_leniently(raw: sqlite3.Connection | None, error: sqlite3.Error) -> bool:
    """Let the connection take damaged text, if that is what the error is about; tell whether it did not do so before.

    It takes longer, so only a connection that has met such text does it.
    """
    if raw is None or _REFUSAL not in str(error) or raw.text_factory is _lenient:
        return False
    raw.text_factory = _lenient
    return True


def _lenient(text: bytes) -> str:
    return text.decode(errors="backslashreplace")
