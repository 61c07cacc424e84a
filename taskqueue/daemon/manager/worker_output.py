"""The output of workers and of their jobs' processes: two pipes that the manager always reads and forwards.

So a job never waits for the reader of its node's output, and does not fail when that reader is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time

from taskqueue.daemon.runtime import standard_streams
from taskqueue.daemon.runtime.loop import Loop, Timer
from taskqueue.daemon.runtime.standard_streams import NonblockingOutput

READ_AT_ONCE = 65536
"""Bytes that one turn of the loop passes on."""

LONGEST_LINE = 65536
"""Bytes of a line that are passed on together, unless its end comes later."""

UNENDED_FOR = 0.2
"""Seconds for which the rest of a line is awaited."""

LOG_LINE = "\x16\x02tq\x16"
"""Written before each line of the log, which begins a new line even if a job has printed the beginning of another.

No other output contains it. ``logging.Handler.format`` writes it in a worker, as jobs add handlers of their own.
"""

_MARK = LOG_LINE.encode()
_MARK_IN_LINE = re.compile(rb"(?<=[^\n])" + _MARK)

STALLED_AFTER = 1.0
"""Seconds in which the reader of the node's output must take ``READ_AT_ONCE``, or jobs no longer wait for it."""

DRAINS_AT_MOST = 64
"""Maximum number of reads of remaining output: a process that survived its job may write forever."""


class WorkerOutput:
    """Standard output and error of all workers of one manager; one pipe if both go to the same file."""

    def __init__(self, loop: Loop) -> None:
        stdout, stderr = standard_streams.outputs()
        self._stdout = _Pipe(loop, stdout)
        self._stderr = self._stdout if stdout is stderr else _Pipe(loop, stderr)
        for output in (stdout, stderr):
            output.attend(loop)

    @property
    def writers(self) -> tuple[int, int]:
        """Return the descriptors that a worker needs."""
        return self._stdout.writer, self._stderr.writer

    def redirect(self) -> None:
        """Make this process, a new worker, write there."""
        standard_streams.redirect(*map(_own_description, self.writers))
        _mark_log_lines()

    def drain(self) -> None:
        """Forward what the workers have left, when the last of them has gone."""
        self._stdout.drain()
        self._stderr.drain()


class _Pipe:
    """One of the pipes."""

    def __init__(self, loop: Loop, output: NonblockingOutput) -> None:
        self._loop = loop
        self._output = output
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._begun = b""
        self._is_in_line = False
        """Whether the beginning of a line was passed on without its end."""
        self._end_timer: Timer | None = None
        self._stall_timer: Timer | None = None
        loop.watch(self._reader, self._on_readable)

    def drain(self) -> None:
        """Forward what it holds."""
        for _ in range(DRAINS_AT_MOST):
            if not self._pass_on():
                break
        self._break_line()

    def _on_readable(self) -> None:
        self._pass_on()
        if self._output.is_congested:  # jobs that print a lot wait while the reader makes progress
            self._loop.unwatch(self._reader)
            self._stall_timer = self._loop.at(time.monotonic() + STALLED_AFTER, self._on_stall)
            self._output.call_on_room(self._resume)

    def _on_stall(self) -> None:
        self._output.is_stalled = True
        self._resume()

    def _resume(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
            self._loop.watch(self._reader, self._on_readable)

    def _pass_on(self) -> bool:
        """Forward whole lines, and the rest of the last one later; return whether there was anything."""
        try:
            data = os.read(self._reader, READ_AT_ONCE)
        except BlockingIOError:
            return False
        text = self._begun + data
        if _MARK in text:
            if self._is_in_line and text.startswith(_MARK):
                text = b"\n" + text
            text = _MARK_IN_LINE.sub(b"\n", text).replace(_MARK, b"")
        lines, end, self._begun = text.rpartition(b"\n")
        if end:
            self._output.write(lines + end)
            self._is_in_line = False
        if len(self._begun) > LONGEST_LINE:
            self._pass_begun()
        elif self._begun and (self._end_timer is None or not self._end_timer.is_pending):
            self._end_timer = self._loop.at(time.monotonic() + UNENDED_FOR, self._break_line)
        return True

    def _break_line(self) -> None:
        """Forward a line that its writer has not ended; end it, as other processes may log now, except for people."""
        if self._begun and not self._output.isatty():
            self._output.write(self._begun + b"\n")
            self._begun, self._is_in_line = b"", False
        elif self._begun:
            self._pass_begun()

    def _pass_begun(self) -> None:
        self._output.write(self._begun)
        self._begun, self._is_in_line = b"", True


def _own_description(writer: int) -> int:
    """Return a description of the pipe that only this process has: a job may change its flags."""
    with contextlib.suppress(OSError):  # /proc cannot be read
        return os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_CLOEXEC)
    return os.dup(writer)


def _mark_log_lines() -> None:
    """Mark each line that a handler of ``logging`` writes to standard output or error."""
    unmarked = logging.Handler.format
    streams = sys.stdout, sys.stderr

    def marked(handler: logging.Handler, record: logging.LogRecord) -> str:
        is_marked = isinstance(handler, logging.StreamHandler) and handler.stream in streams
        return f"{LOG_LINE}{unmarked(handler, record)}" if is_marked else unmarked(handler, record)

    logging.Handler.format = marked  # type: ignore[method-assign,assignment]
