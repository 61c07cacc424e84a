"""Reads what structlog prints: console or JSON lines, each with its level, in colour or not."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

LEVELS = frozenset(("debug", "info", "warning", "error", "critical"))

_ALIASES = {"warn": "warning", "exception": "error", "fatal": "critical"}
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
"""The escape sequences of terminals: colours and cursor (CSI), titles and links (OSC), and others of one letter."""

_CONSOLE = re.compile(
    r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)? +)?"
    r"\[(?P<level>[a-z]{4,9}) *\] +(?P<rest>.*)",
    re.DOTALL,
)
_PADDING = re.compile(r" {3,}(?=\S)")
"""The text between an event and its values on a console."""


class ParsedLine(NamedTuple):
    """A line of structlog, without its time."""

    level: str
    logger: str
    message: str


def without_escapes(text: str) -> str:
    """Return the text without the escape sequences of terminals."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def parsed(text: str) -> ParsedLine | None:
    """Return the event in a printed text, with any traceback below its line; None if structlog did not print it."""
    text = without_escapes(text)
    if text[:1] == "{":
        return _of_json(text)
    match = _CONSOLE.fullmatch(text)
    level = None if match is None else _level(match["level"])
    if match is None or level is None:
        return None
    return ParsedLine(level, "structlog", _PADDING.sub("  ", match["rest"].rstrip(), count=1))


def _of_json(text: str) -> ParsedLine | None:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    level = _level(values.pop("level", None))
    event = values.pop("event", None)
    if level is None or not isinstance(event, str):
        return None
    values.pop("timestamp", None)
    logger, trace = values.pop("logger", None), values.pop("exception", None)
    words = [event, *(f"{name}={_shown(value)}" for name, value in values.items())]
    message = " ".join(words) + (f"\n{trace}" if isinstance(trace, str) else "")
    return ParsedLine(level, logger if isinstance(logger, str) else "structlog", message)


def _level(name: Any) -> str | None:
    """Return the level as ``logging`` names it; None if it is not a level."""
    if not isinstance(name, str):
        return None
    level = _ALIASES.get(name.lower(), name.lower())
    return level if level in LEVELS else None


def _shown(value: Any) -> str:
    """Return a value as a console of structlog shows it: a text without spaces without quotes."""
    return value if isinstance(value, str) and value and " " not in value else json.dumps(value, ensure_ascii=False)
