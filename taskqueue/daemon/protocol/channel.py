"""Carry whole messages between two processes, over a private socket pair, without ever blocking the sender.

Each direction has one reader and one writer. An exception that a signal handler raises at any instruction of this file
leaves the framing intact: a system call and the record of its result are one step of C code (see ``_call_and_record``).
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

_MARK = b"\xf4tq\x00"  # no text starts like this: bytes that a job writes here by mistake are detected at once
_HEADER = struct.Struct(f">{len(_MARK)}sI")  # the mark, and the length of the payload in bytes
_CHUNK = 64 * 1024  # bytes read at once: above 128 KiB malloc would map and unmap memory for every message
_SHOWN = 40  # bytes of an invalid message quoted in the error
_MOST_CHUNKS = 2  # read per call: a fast writer must not starve the rest of the reader's loop

LARGEST = 256 * 1024 * 1024
"""Bytes of the largest message: more than a job with its data, state and result can need."""

Given = TypeVar("Given")
Taken = TypeVar("Taken")


class ChannelClosed(ConnectionError):
    """One end of the channel is closed."""


class ChannelBroken(ChannelClosed):
    """The channel received bytes that are not a message; nothing after them can be read."""


class Channel:
    """One end of a pair. Everything but ``wait`` and ``flush_blocking`` returns at once."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self.unsent: deque[tuple[bytes, list[int]]] = deque()
        """Frames to send, each with the sizes of its parts already sent: ``flush`` when the descriptor is writable."""
        self._inbox: tuple[deque[bytes], list[bytes]] = (deque(), [])  # whole messages, and what came after them

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_broken(self) -> bool:
        """Whether the bytes after the received messages are not a message."""
        rest = self._inbox[1]
        return bool(rest) and bool(_flaw(rest[0]))

    def send(self, *payloads: bytes) -> None:
        """Send ``payloads`` together; buffer the bytes that the socket does not take, drop them if the peer is dead."""
        if self._socket.fileno() < 0:
            raise ChannelClosed("cannot send: this end of the channel is closed")
        parts: list[bytes] = []
        for payload in payloads:
            parts += (_HEADER.pack(_MARK, len(payload)), payload)
        self.unsent.append((b"".join(parts), []))
        self.flush()

    def flush(self) -> None:
        """Send as much of the buffered data as the socket takes."""
        try:
            while self.unsent:
                frame, sent = self.unsent[0]
                rest = memoryview(frame)[sum(sent) :]
                if rest:
                    _call_and_record(sent, self._socket.send, rest)
                else:
                    self.unsent.popleft()
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):  # the reading side reports it
            self.unsent.clear()

    def receive(self) -> list[bytes]:
        """Return every complete message, oldest first; raise ``ChannelClosed`` when no more can come.

        Raise ``ChannelBroken`` if the bytes received are not a message; earlier messages are returned first.
        """
        self._read()
        messages, rest = self._inbox
        self._inbox = (deque(), rest)
        return list(messages)

    def take(self) -> bytes | None:
        """Return the oldest message that has been read and not returned; None if there is none."""
        return self._inbox[0].popleft() if self._inbox[0] else None

    def wait(self, timeout: float | None = None, *, wake_on: int | None = None) -> bytes | None:
        """Wait up to ``timeout`` seconds for one message, and send buffered data while waiting.

        Return None after the timeout, or when descriptor ``wake_on`` is readable. Raise ``ChannelClosed`` when no more
        can come. Signal handlers run during the wait; one that raises in the last instructions may lose the message
        that was about to be returned, so a process that waits for messages should have handlers that do not raise.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._inbox[0]:
            if self.is_broken:
                self._unpack()
            ready = self._poll(deadline, wake_on)
            if not ready or wake_on in ready:
                return None
            self.flush()
            self._read()
        return self._inbox[0].popleft()

    def remaining(self) -> Iterator[bytes]:
        """Yield the messages that the peer has sent before it died."""
        if self._socket.fileno() < 0:
            return
        try:
            while (payload := self.wait(0)) is not None:
                yield payload
        except ChannelClosed:
            return

    def flush_blocking(self, timeout: float | None = None) -> None:
        """Wait up to ``timeout`` seconds until all buffered data has left this process."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.unsent:
            poll = select.poll()
            poll.register(self._socket, select.POLLOUT)
            if not poll.poll(_milliseconds_until(deadline)):
                return
            self.flush()

    def close(self) -> None:
        """Close this end and drop buffered data: a forked child must not send the data of its parent."""
        self.unsent.clear()
        self._socket.close()

    def _read(self) -> None:
        _, chunks = self._inbox
        try:
            for _ in range(_MOST_CHUNKS):
                _call_and_record(chunks, self._socket.recv, _CHUNK)
                if len(chunks[-1]) < _CHUNK:
                    break
        except BlockingIOError:
            pass
        except ConnectionResetError:
            chunks.append(b"")
        except OSError as error:
            raise ChannelClosed("cannot receive: this end of the channel is closed") from error
        self._unpack()

    def _unpack(self) -> None:
        """Turn chunks into messages; the one assignment at the end makes all of it take effect at once."""
        messages, chunks = self._inbox
        ended = bool(chunks) and not chunks[-1]
        if not ended and (not chunks or (len(chunks) > 1 and not _may_be_whole(chunks))):
            return
        whole, rest = _split(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        flaw = _flaw(rest) if rest else ""
        if flaw and not whole and not messages:
            raise ChannelBroken(flaw)
        if ended and not whole and not messages:
            cut = f", {len(rest)} bytes into a message" if rest else ""
            raise ChannelClosed(f"the other end of the channel is closed{cut}")
        self._inbox = (deque([*messages, *whole]), [rest] if rest else [])

    def _poll(self, deadline: float | None, wake_on: int | None) -> list[int]:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self.unsent else 0))
        if wake_on is not None:
            poll.register(wake_on, select.POLLIN)
        return [number for number, _ in poll.poll(_milliseconds_until(deadline))]


def pair() -> tuple[Channel, Channel]:
    """Return two channels that are connected to each other: keep one, give the other to a child."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours), Channel(theirs)


def _call_and_record(results: list[Taken], call: Callable[[Given], Taken], argument: Given) -> None:
    """Append the result of ``call`` to ``results`` in one step.

    Python runs signal handlers between instructions of the interpreter. Here there is none between the system call
    and the record of its result, so the result is never lost, whatever a handler raises.
    """
    results.extend(map(call, (argument,)))


def _may_be_whole(chunks: list[bytes]) -> bool:
    """Return whether joining ``chunks`` may give a message; a large one is joined once, not at every chunk."""
    if len(chunks[0]) < _HEADER.size or _flaw(chunks[0]):
        return True
    _, size = _HEADER.unpack_from(chunks[0])
    return sum(map(len, chunks)) >= _HEADER.size + int(size)


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the complete messages in ``data``, and the bytes after them."""
    messages = []
    start = 0
    while len(data) - start >= _HEADER.size:
        mark, size = _HEADER.unpack_from(data, start)
        end = start + _HEADER.size + size
        if end > len(data) or mark != _MARK or size > LARGEST:
            break
        messages.append(data[start + _HEADER.size : end])
        start = end
    return messages, data[start:]


def _flaw(data: bytes) -> str:
    """Return why ``data``, the bytes after the last message, cannot start one; empty if they can."""
    mark = data[: len(_MARK)]
    if not _MARK.startswith(mark):
        return f"the channel received bytes that are not a message: {data[:_SHOWN]!r}"
    if len(data) >= _HEADER.size and (size := _HEADER.unpack_from(data)[1]) > LARGEST:
        return f"the channel announced a message of {size:,} bytes, at most {LARGEST:,} are read"
    return ""


def _milliseconds_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
