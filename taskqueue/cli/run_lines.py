"""Shows each run of ``taskqueue run`` in one line, with the traceback of an error below it."""

from __future__ import annotations

import contextlib
import logging
import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from taskqueue.cli.ids import short
from taskqueue.daemon.node import run_log
from taskqueue.model.record import Cause, Record, Status
from taskqueue.model.wording import span

_FRAME = re.compile(r'  File "(?P<path>[^"]+)", line \d+')

_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)
"""Folders whose code is not the user's: of Python, of installed packages, and of this one."""


_ASKED = ("TimedOut", "Interrupted", "Canceled")
"""Outcomes whose error taskqueue raised in the job: the frames of libraries say nothing about it."""


class RunLines(logging.Handler):
    """Prints ``12:00:00 6b03a3eb..915a32 shop:MailJob DONE in 120 ms`` for each run, coloured on a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line of a run that ``run_log`` has logged, and the traceback of its error."""
        from taskqueue.cli import terminal  # imports rich, which manager and workers do not need

        if not isinstance(record, run_log.RunEnded):
            return
        after = record.after
        if after.cause is Cause.HANDED_BACK:
            return  # it did not start; with concurrency there may be many of these
        status, words = _outcome(after)
        with contextlib.suppress(OSError):  # an output that is closed does not stop the node
            terminal.run_line(self._time(record), short(after.id), after.job, status, words)
            error = after.error if after.attempts and after.attempts[-1].error is not None else None
            if error is not None and error.traceback:
                terminal.traceback(shown_frames(error.traceback, after.attempts[-1].outcome))

    def _time(self, record: logging.LogRecord) -> str:
        return logging.Formatter(datefmt="%H:%M:%S").formatTime(record, "%H:%M:%S")


def show() -> None:
    """Print a line for each run of the node in this process, in place of its log line."""
    run_log.runs.setLevel(logging.DEBUG)
    run_log.runs.propagate = False
    run_log.runs.handlers = [RunLines()]


def shown_frames(text: str, outcome: str) -> list[tuple[str, bool]]:
    """Return the lines of the traceback of a run with this outcome, and whether they are of a library."""
    return [(line, dim) for line, dim in users_first(text) if not (dim and outcome in _ASKED)]


def users_first(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a traceback, and whether they are of a library: first the user's frames and the error."""
    own: list[str] = []
    others: list[str] = []
    frames = own
    for line in text.splitlines():
        if not line.startswith("  ") and (own or others) and line:
            yield from _section(own, [line], others)
            own, others = [], []
            frames = own
            continue
        found = _FRAME.match(line)
        if found is not None:
            frames = others if found["path"].startswith((*_LIBRARIES, "<frozen ")) else own
        if found is not None or own or others:
            frames.append(line)
        else:
            yield line, False
    yield from _section(own, [], others)


def _section(own: Sequence[str], error: Sequence[str], others: Sequence[str]) -> Iterator[tuple[str, bool]]:
    yield from ((line, False) for line in (*own, *error))
    if others:
        yield "  below that, in libraries:", True
    yield from ((line, True) for line in others)


def _outcome(after: Record) -> tuple[str, str]:
    """Return the status after the run, or the cause if the job runs again later, and the words that follow it."""
    last = after.attempts[-1] if after.attempts else None
    words = ""
    if last is not None and last.started_at is not None:
        words = f"in {span((last.ended_at - last.started_at).total_seconds())}"
    if after.status is Status.DONE:
        return "DONE", words
    if after.status.is_final:
        return after.status.name, f"{words} ({after.cause.value})"
    cause = "FAILED" if after.cause in (Cause.RETRY, Cause.CRASHED) else after.status.name
    if last is None or after.ready_at is None:
        return cause, f"({after.cause.value})"
    pause = (after.ready_at - last.ended_at).total_seconds()
    again = f"again in {span(pause)}" if pause > 0 else "again at once"
    return cause, f"{words} ({after.cause.value}), {again}"
