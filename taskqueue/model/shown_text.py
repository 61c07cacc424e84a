"""Text of others without characters that command a terminal, for terminals, logs and JSON; imports next to nothing."""

from __future__ import annotations

import re

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""Characters that command a terminal, end a line or turn its direction around; tab and newline are none of these."""


def shown(text: str) -> str:
    """Return the text for a terminal, in its lines: a character that would command the terminal is written out."""
    return _UNSEEN.sub(_written, text.replace("\r\n", "\n"))


def as_code(value: object) -> str:
    """Return the value as code writes it, in words where Python refuses: for a whole number of over 4,300 digits."""
    try:
        return repr(value)
    except ValueError:
        if isinstance(value, int):
            return f"a whole number of {value.bit_length():,} bits"
        return f"a {type(value).__name__} with a whole number of over 4,300 digits"


def logged(text: str) -> str:
    """Return the text as one line, for logs and cells of tables: a newline is written out, too."""
    return _UNSEEN.sub(_written, text).replace("\n", "\\n")


def in_json(text: str) -> str:
    """Return JSON that says the same, with such characters as escapes; those below the space are escapes already."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _written(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code == ord("\r"):
        return "\\r"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
