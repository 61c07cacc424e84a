"""The fingerprint of an error: its class, its message without numbers and ids, and the line of the user's code."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from taskqueue.model.record import Failure
from taskqueue.model.serializer import clean
from taskqueue.model.stack import is_library

LONGEST_MESSAGE = 100
"""Maximum number of characters of a message that a fingerprint has."""

LONGEST_LINE = 60
"""Maximum number of characters of the line of code that a fingerprint has."""

LOOKED_AT = 4096
"""The characters at the end of a traceback in which the innermost line of the user's code is looked for."""

_FRAME = re.compile(r'^  File "(?P<file>.*)", line \d+, in .*\n    (?! )(?P<code>.+)$', re.MULTILINE)
_HEX = r"(?=[0-9a-f-]*\d)[0-9a-f]{4,}(?:-[0-9a-f]{2,})*"
_VARIABLE = re.compile(
    rf"""(?<!\w)(?P<name>'[A-Za-z_]+'|"[A-Za-z_]+")|(?<!\w)'[^'\n]*'|(?<!\w)"[^"\n]*"|\S+@\S+|\b0x[0-9a-f]+\b"""
    rf"""|\b{_HEX}\b|\d+(?:[.,:]\d+)*""",
    re.IGNORECASE,
)
"""What differs between errors of one cause: quoted text except plain names, addresses of mail, ids and numbers."""


def fingerprint(error: Failure | None) -> str:
    """Return the fingerprint, such as ``KeyError: 'vat' (rate = RATES[country])``; empty if there is no error.

    It starts with the dotted name of the class of the error, which has no colon. Errors of one fingerprint have most
    likely one cause, even after a deployment that has moved the line.
    """
    return "" if error is None else _fingerprint(error.type, error.message, error.traceback[-LOOKED_AT:])


def group_id(job: str, fingerprint: str) -> str:
    """Return the short name by which people refer to the failures of one class by errors of one fingerprint."""
    return hashlib.sha256(f"{job}\n{fingerprint}".encode()).hexdigest()[:10]


def type_of(fingerprint: str) -> str:
    """Return the dotted name of the class of the error."""
    return fingerprint.partition(": ")[0].partition(" (")[0]


def part_of_message(fingerprint: str) -> str:
    """Return the longest text that every message of such an error contains; empty if unknown."""
    rest = fingerprint[len(type_of(fingerprint)) :]
    words = rest.removeprefix(": ").partition(" (")[0] if rest.startswith(": ") else ""
    return max((part.strip() for part in words.split("…")), key=len)


@lru_cache(maxsize=256)
def _fingerprint(type: str, message: str, traceback: str) -> str:
    first_line = message.strip().partition("\n")[0][: 4 * LONGEST_MESSAGE]
    words = _cut(_VARIABLE.sub(lambda found: found["name"] or "…", first_line), LONGEST_MESSAGE)
    own = [found["code"] for found in _FRAME.finditer(traceback) if not is_library(found["file"])]
    line = f" ({_cut(own[-1].strip(), LONGEST_LINE)})" if own else ""
    return clean(f"{type}{f': {words}' if words else ''}{line}")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
