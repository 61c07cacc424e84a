"""The output of workers and of their jobs' processes: two pipes that the manager always reads and forwards.

So a job never waits for the reader of its node's output, and does not fail when that reader is gone.
"""

from __future__ import annotations

import contextlib
import os
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
        self._end_timer: Timer | None = None
        self._stall_timer: Timer | None = None
        loop.watch(self._reader, self._on_readable)

    def drain(self) -> None:
        """Forward what it holds."""
        for _ in range(DRAINS_AT_MOST):
            if not self._pass_on():
                break
        self._end_line()

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
        lines, end, begun = (self._begun + data).rpartition(b"\n")
        self._output.write(lines + end)
        self._begun = begun
        if len(begun) > LONGEST_LINE:
            self._end_line()
        elif begun and (self._end_timer is None or not self._end_timer.is_pending):
            self._end_timer = self._loop.at(time.monotonic() + UNENDED_FOR, self._end_line)
        return True

    def _end_line(self) -> None:
        begun, self._begun = self._begun, b""
        self._output.write(begun)


def _own_description(writer: int) -> int:
    """Return a description of the pipe that only this process has: a job may change its flags."""
    with contextlib.suppress(OSError):  # /proc cannot be read
        return os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_CLOEXEC)
    return os.dup(writer)
