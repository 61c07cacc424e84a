"""Log lines that are kept with their job: how a line is bounded and written, and the text stored for a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from taskqueue.model.serializer import clean, dumps
from taskqueue.model.timestamps import moment

MOST_LINES = 200
"""How many lines of one run are kept: the last ones."""

MOST_BYTES = 64 * 1024
"""Maximum number of bytes of all kept lines of one run."""

LINE_LIMIT = 4096
"""Maximum number of characters of one line; of a longer one the beginning and the end are kept."""

LARGEST_LINE = 32 * 1024
"""Bytes of one line as it is written: a character may take six."""

RUNS_KEPT = 20
"""Runs of a job whose lines are kept, the last ones, as of attempts."""

_END = 1024
"""Characters that are kept of the end of a line that is too long."""

_NAME_LIMIT = 200
"""Maximum number of characters of a logger's name."""


class LogLine(NamedTuple):
    """One log line of a job."""

    at: datetime
    level: str
    """In small letters, as ``warning``; of captured output its stream."""
    logger: str
    message: str
    """The message, and below it the traceback if there is one."""
    attempt: int
    run: int
    """The number of the claim: runs that count as no attempt have one, too."""
    number: int
    """The number of the line in its run, from 1 on; a missing number is a dropped line."""


def cut(text: str) -> str:
    """Return the text as it can be kept, a long one without its middle."""
    excess = len(text) - LINE_LIMIT
    if excess > 0:
        text = f"{text[: LINE_LIMIT - _END]} [… {excess:,} characters …] {text[-_END:]}"
    return clean(text)


def written(run: int, number: int, at: float, level: str, logger: str, text: str) -> bytes:
    """Return the line as one line of JSON; ``run`` distinguishes the runs that write to one place."""
    return f"{dumps([run, number, int(at * 1000), clean(level), clean(logger)[:_NAME_LIMIT], cut(text)])}\n".encode()


def kept_text(attempt: int, lines: Sequence[bytes]) -> str:
    """Return the text that is stored for a run: the number of its attempt, and its last lines within the bounds."""
    size, first = 0, len(lines)
    while first > max(0, len(lines) - MOST_LINES) and size + len(lines[first - 1]) <= MOST_BYTES:
        first -= 1
        size += len(lines[first])
    return f"{attempt}\n{b''.join(lines[first:]).decode(errors='replace')}"


def lines_of(run: int, text: str) -> Iterator[LogLine]:
    """Yield the lines of a stored text, skipping unreadable ones."""
    attempt, *lines = text.split("\n")
    for line in lines:
        try:
            _, number, at, level, logger, message = json.loads(line)
            log_line = LogLine(moment(at), str(level), str(logger), str(message), int(attempt), run, int(number))
        except (ValueError, TypeError, OverflowError):  # also the empty end, or a line cut by a kill
            continue
        yield log_line
