"""Standard output and error of node and manager, which never wait for their reader: lines are dropped, and counted.

The open file is shared with other programs, so its flags are not changed: writes go through a description of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import select
import socket
import stat
import sys
import termios
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from taskqueue.daemon.runtime.loop import Loop, Timer

log = logging.getLogger(__name__)

MOST_UNSENT = 1024 * 1024
"""Maximum number of bytes that wait for a reader; more output is dropped."""

CONGESTED = 256 * 1024
"""Bytes that wait while the processes that make more of them are held up, unless the reader is stalled."""

RETRY_AFTER = 1.0
"""Seconds until a write is repeated that has failed, because no process reads or the disk is full."""

FINISH_WITHIN = 1.0
"""Seconds that the last lines may take when a process exits."""

STDIN, STDOUT, STDERR = 0, 1, 2

_BUFFER = 65536
"""Bytes of a line that reach the output in one piece."""


class NonblockingOutput(io.RawIOBase):
    """Writes to a descriptor as far as it takes data at once; the rest waits, up to a limit. It never raises."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._send, self.descriptors = _sender(number)
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._error: OSError | None = None
        self._dropped = 0
        self._loop: Loop | None = None
        self._is_watched = False
        self._timer: Timer | None = None
        self._on_room: list[Callable[[], None]] = []
        self.is_stalled = False
        """Whether its reader has taken too little; until it has taken everything, writers do not wait for it."""

    @property
    def is_congested(self) -> bool:
        """Return whether it is worthwhile to wait for the reader before more is written."""
        is_full = isinstance(self._error, BlockingIOError) and len(self._unsent) > CONGESTED
        return is_full and not self.is_stalled

    def call_on_room(self, on_room: Callable[[], None]) -> None:
        """Call ``on_room`` once, when the output is no longer congested."""
        self._on_room.append(on_room)

    def write(self, data: Any) -> int:
        """Write the data, or keep them for later, or drop them; return their length."""
        piece = bytes(data)
        length = len(piece)
        with self._lock:
            if self._unsent:
                self._send_unsent()
            if self._dropped and not self._unsent and self._loop is None:  # a loop logs it
                piece = b"%d lines of output were dropped: the reader was too slow\n" % self._dropped + piece
                self._dropped = 0
            if self._unsent and len(self._unsent) + len(piece) > MOST_UNSENT:
                self._dropped += max(1, piece.count(b"\n"))
            elif self._unsent:
                self._unsent += piece
            else:
                self._unsent += piece
                self._send_unsent()
        if self._unsent and self._loop is not None:
            self._try_later(self._loop)
        return length

    def attend(self, loop: Loop | None) -> None:
        """Make this loop write pending output and report dropped lines; without a loop, the next write does."""
        self._loop, self._is_watched = loop, False

    def forget(self) -> None:
        """Forget what waits: this process is a fork, and its parent writes it."""
        self._unsent.clear()
        self._loop, self._timer, self._is_watched, self._dropped = None, None, False, 0

    def finish(self, within: float = FINISH_WITHIN) -> None:
        """Wait for the reader to take what waits, and give up after ``within`` seconds."""
        ends_at = time.monotonic() + within
        poll = select.poll()
        while self._unsent:
            with self._lock:
                self._send_unsent()
            seconds = ends_at - time.monotonic()
            if seconds <= 0 or not isinstance(self._error, BlockingIOError):
                break
            poll.register(self.descriptors[0], select.POLLOUT)
            poll.poll(seconds * 1000)

    def fileno(self) -> int:
        """Return the descriptor that was given."""
        return self._number

    def isatty(self) -> bool:
        """Return whether people see the output."""
        return os.isatty(self._number)

    def writable(self) -> bool:
        """Return True."""
        return True

    def _try_later(self, loop: Loop) -> None:
        if isinstance(self._error, BlockingIOError):
            if not self._is_watched:
                loop.watch_writable(self.descriptors[0], partial(self._try_again, loop))
                self._is_watched = True
        elif self._timer is None or not self._timer.is_pending:
            self._timer = loop.at(time.monotonic() + RETRY_AFTER, partial(self._try_again, loop))

    def _try_again(self, loop: Loop) -> None:
        with self._lock:
            self._send_unsent()
        if self._is_watched and not isinstance(self._error, BlockingIOError):
            loop.unwatch(self.descriptors[0])
            self._is_watched = False
        if not self.is_congested:
            waiting, self._on_room = self._on_room, []
            for on_room in waiting:
                on_room()
        if self._unsent:
            self._try_later(loop)
            return
        self.is_stalled = False
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            log.warning("%d lines of output were dropped: the reader was too slow", dropped)

    def _send_unsent(self) -> None:
        """Send pieces of whole lines that a pipe takes at once or not at all, so that no other process splits them."""
        sent, self._error = 0, None
        try:
            while sent < len(self._unsent):
                piece = bytes(self._unsent[sent : sent + select.PIPE_BUF])
                if sent + len(piece) < len(self._unsent):
                    piece = piece[: piece.rfind(b"\n") + 1] or piece
                sent += self._send(piece)
        except OSError as error:  # the pipe or disk is full, or there is no reader now: all of it may change
            self._error = error
        finally:
            del self._unsent[:sent]


_standard: list[NonblockingOutput] = []
_streams: dict[int, io.TextIOWrapper] = {}
_others: list[NonblockingOutput] = []
_terminals: list[int] = []


def install() -> None:
    """Make sure that printing and logging never block this process; open /dev/null for closed standard streams."""
    while (null := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(null, True)
    os.close(null)
    _terminals[:] = filter(_controls, (STDIN, STDOUT, STDERR))
    if not _standard:
        _standard.extend(outputs())
    for number, output, stream in zip((STDOUT, STDERR), _standard, (sys.stdout, sys.stderr), strict=True):
        if type(stream) is io.TextIOWrapper and _number_of(stream) == number and number not in _streams:
            stream.flush()
            _renew(stream, output)
            _streams[number] = stream
    if sys.stderr is None:
        sys.stderr = open(STDERR, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _controls(number: int) -> bool:
    """Return whether the descriptor is of the terminal that sends this process SIGHUP when it is closed."""
    try:
        os.tcgetpgrp(number)
    except OSError:
        return False
    return True


def has_lost_terminal() -> bool:
    """Return whether this process was started on a terminal that has been closed since."""
    return bool(_terminals) and not any(map(os.isatty, _terminals))


def leave_terminal() -> None:
    """Leave the terminal and the input to the parent: a process in the background that reads a terminal is stopped."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, STDIN)
    os.close(null)
    with contextlib.suppress(OSError):  # there is none
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(terminal, termios.TIOCNOTTY)
        finally:
            os.close(terminal)


def outputs() -> tuple[NonblockingOutput, NonblockingOutput]:
    """Return the outputs for ``STDOUT`` and ``STDERR``; one for both keeps the order of lines in one file."""
    if _standard:
        stdout, stderr = _standard
        return stdout, stderr
    stdout = NonblockingOutput(STDOUT)
    is_same = os.path.samestat(os.fstat(STDOUT), os.fstat(STDERR))
    return stdout, stdout if is_same else NonblockingOutput(STDERR)


def unblock(handler: logging.Handler) -> None:
    """Make sure that a handler that writes to a pipe, a terminal or a socket never blocks this process."""
    stream = handler.stream if isinstance(handler, logging.StreamHandler) else None
    if type(stream) is not io.TextIOWrapper or stream in _streams.values():
        return
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return
    _others.append(NonblockingOutput(os.dup(stream.fileno())))
    _renew(stream, _others[-1])


def descriptors() -> Collection[int]:
    """Return the descriptors that a forked process needs to write to the outputs as this one does."""
    return [number for output in _outputs() for number in output.descriptors]


def attend(loop: Loop | None) -> None:
    """Make the loop write what waits for the readers of all outputs; None before it is closed."""
    for output in _outputs():
        output.attend(loop)


def forked() -> None:
    """Forget what waits for the readers in a forked process: the parent writes it."""
    for output in _outputs():
        output.forget()


def finish() -> None:
    """Wait a moment for the readers to take the last lines; call this before the process exits."""
    for stream in _streams.values():
        with contextlib.suppress(OSError, ValueError):  # closed
            stream.flush()
    for output in _outputs():
        output.finish()


def redirect(stdout: int, stderr: int) -> None:
    """Make this process and its children write to these pipes, and wait for their reader as usual."""
    forked()
    for number, pipe in ((STDOUT, stdout), (STDERR, stderr)):
        os.dup2(pipe, number)
        os.close(pipe)
        if number in _streams:
            _renew(_streams.pop(number), io.FileIO(number, "w", closefd=False))
    _standard.clear()


def _outputs() -> Collection[NonblockingOutput]:
    return {*_standard, *_others}


def _renew(stream: io.TextIOWrapper, raw: io.RawIOBase) -> None:
    """Make the stream write to ``raw``; it stays the same object, which handlers and modules may have."""
    buffer: Any = raw if stream.write_through else io.BufferedWriter(raw, _BUFFER)
    io.TextIOWrapper.__init__(
        stream,
        buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _sender(number: int) -> tuple[Callable[[bytes], int], tuple[int, ...]]:
    """Return a function that writes to the file without waiting, and its descriptor."""
    mode = os.fstat(number).st_mode
    if stat.S_ISSOCK(mode):
        connection = socket.socket(fileno=os.dup(number))
        return lambda data: connection.send(data, socket.MSG_DONTWAIT), (connection.fileno(),)
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with contextlib.suppress(OSError):  # it belongs to another user, or has no reader
            own = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            return partial(os.write, own), (own,)
    copy = os.dup(number)
    return partial(_write_if_ready, copy), (copy,)


def _write_if_ready(number: int, data: bytes) -> int:
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    if not poll.poll(0):
        raise BlockingIOError
    return os.write(number, data)


def _number_of(stream: io.TextIOWrapper) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None
