"""Makes text from jobs and users safe for terminals, logs and JSON: no control characters; imports next to nothing."""

from __future__ import annotations

import re

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""Characters that control a terminal, end a line or reverse its direction; tab and newline are not among them."""

LONGEST_CODE = 1000
"""Maximum number of characters of a value that an error shows."""


def shown(text: str) -> str:
    """Return the text for a terminal, in its lines: a character that would control the terminal is written out."""
    return _UNSEEN.sub(_written, text.replace("\r\n", "\n"))


def as_code(value: object) -> str:
    """Return the value as code writes it, cut if that is long, and in words if its ``repr()`` raises.

    That happens for whole numbers of over 4,300 digits, and for lists that are nested too deeply.
    """
    try:
        text = repr(value)
    except Exception as error:  # it may be the user's own
        return _in_words(value, error)
    return text if len(text) <= LONGEST_CODE else f"{text[: LONGEST_CODE - 3]}..."


def logged(text: str) -> str:
    """Return the text as one line, for logs and cells of tables: a newline is written out, too."""
    return _UNSEEN.sub(_written, text).replace("\n", "\\n")


def in_json(text: str) -> str:
    """Return JSON that says the same, with such characters as escapes; control characters are escapes already."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _written(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code == ord("\r"):
        return "\\r"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _in_words(value: object, error: Exception) -> str:
    """Return a description of a value whose ``repr()`` has raised the error."""
    if type(value) is int:
        return f"a whole number of {value.bit_length():,} bits"
    name = type(value).__name__
    an = "an" if name[:1] in "AEIOUaeiou" else "a"
    if type(error) is ValueError and "integer string conversion" in str(error):
        return f"{an} {name} with a whole number of over 4,300 digits"
    return f"{an} {name} whose repr() raises {type(error).__name__}"
