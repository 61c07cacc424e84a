"""Memory that processes share and that outlives a worker: the start log, and the page of each worker.

The start log holds the run that each worker started last, for manager and node. A page holds stop requests of the
manager, and progress, loop positions and the last log lines of the worker.
"""

from __future__ import annotations

import json
import mmap
import struct
import threading
import zlib
from typing import NamedTuple

from taskqueue.daemon.protocol.messages import Key
from taskqueue.model.log_lines import LARGEST_LINE, MOST_BYTES

ENTRIES = 1024
"""Run slots whose entries the node can read; more of them get private entries."""

_ENTRY = struct.Struct("dQ24s")  # start time, claim number, job id; the id is written last

REASONS = ("shutdown", "cancel", "timeout", "lost")
"""Why a run has to end; the index of a reason is its number on the page."""

_LINES_AT = 4 * mmap.PAGESIZE
_LINES_SIZE = MOST_BYTES + LARGEST_LINE  # a ring; a line that is being written overwrites none of the last bytes
_SIZE = -(-(_LINES_AT + _LINES_SIZE) // mmap.PAGESIZE) * mmap.PAGESIZE
_WORDS = 32  # bytes: four words, each written and read atomically
_STOP, _STOPPING, _LOGGED, _SIGNALLED = range(4)
_NOTE = struct.Struct("II")  # length and checksum: a half-written text does not match its checksum
_NOTE_AT = _WORDS
_TEXT_AT = _NOTE_AT + _NOTE.size
_POSITION = struct.Struct("QQII")  # sequence number, run, length and checksum
_POSITIONS_AT = 2 * mmap.PAGESIZE, 3 * mmap.PAGESIZE  # in turn: if a worker is killed in one, the other is intact
_POSITION_LIMIT = mmap.PAGESIZE - _POSITION.size


class Entry:
    """The run that one worker started last."""

    def __init__(self, page: mmap.mmap, offset: int) -> None:
        self._page = page
        self._offset = offset

    def write(self, key: Key, at: float) -> None:
        """Record the start of a run, in seconds since the boot of the host."""
        id, claims = key
        _ENTRY.pack_into(self._page, self._offset, at, claims, id.encode())

    def read(self) -> tuple[Key, float]:
        """Return the run and its start time; before the first write the key matches no claim."""
        while (seen := self._bytes()) != self._bytes():  # it is being written
            pass
        at, claims, id = _ENTRY.unpack(seen)
        return (id.decode(errors="replace"), claims), at

    def _bytes(self) -> bytes:
        return self._page[self._offset : self._offset + _ENTRY.size]


class StartLog:
    """The entries of all workers. Create it before the manager is forked; the manager assigns the entries."""

    def __init__(self, entries: int = ENTRIES) -> None:
        self._page = mmap.mmap(-1, entries * _ENTRY.size)
        self._entries = [Entry(self._page, number * _ENTRY.size) for number in range(entries)]
        self._free = list(self._entries)
        self._shared = set(self._entries)

    def acquire(self, count: int) -> list[Entry]:
        """Return entries for the run slots of one worker; if too few are free, ones that the node cannot read."""
        if count <= (len(self._free) + 1) // 2:
            return [self._free.pop() for _ in range(count)]
        page = mmap.mmap(-1, count * _ENTRY.size)
        return [Entry(page, number * _ENTRY.size) for number in range(count)]

    def release(self, entry: Entry) -> None:
        """Free an entry; its content stays until another worker writes to it."""
        if entry in self._shared:
            self._free.append(entry)

    def start_times(self) -> dict[Key, float]:
        """Return the start time of each recorded run; the run may have ended since."""
        return dict(entry.read() for entry in self._entries)


class ProgressEntry(NamedTuple):
    """Progress of run ``number`` of this worker in percent, reported at ``at`` (seconds since the boot of the host)."""

    number: int
    progress: float
    message: str
    at: float


class WorkerPage:
    """The page of one run slot, created before the fork; its runs are numbered from 1 in the order it gets them."""

    def __init__(self, memory: memoryview | None = None) -> None:
        self._page = memoryview(mmap.mmap(-1, _SIZE)) if memory is None else memory
        self._words = self._page[:_WORDS].cast("Q")
        self._positions_written = 0
        self._lock = threading.RLock()  # a job may have threads, and signal handlers

    @classmethod
    def many(cls, count: int) -> list[WorkerPage]:
        """Return pages for one worker, in one piece of memory, of which only pages that are written to exist."""
        memory = memoryview(mmap.mmap(-1, count * _SIZE))
        return [cls(memory[number * _SIZE : (number + 1) * _SIZE]) for number in range(count)]

    def note_signal(self, at: float) -> None:
        """Note that the manager sends a signal at this time of the monotonic clock."""
        self._words[_SIGNALLED] = int(at * 1000)

    @property
    def signalled_at(self) -> float:
        """Return when the manager last sent a signal to a worker with many runs, on the monotonic clock."""
        return self._words[_SIGNALLED] / 1000

    def request_stop(self, number: int, reason: str) -> None:
        """Request that run ``number`` ends."""
        self._words[_STOP] = number << 2 | REASONS.index(reason)

    def stop_reason_of(self, number: int) -> str:
        """Return why run ``number`` has to end; empty if it was not requested."""
        word = self._words[_STOP]
        return REASONS[word & 3] if word and word >> 2 == number else ""

    @property
    def has_stop_request(self) -> bool:
        """Return whether the manager has ever requested that this worker ends a run."""
        return self._words[_STOP] != 0

    @property
    def is_node_stopping(self) -> bool:
        """Return whether the node is shutting down."""
        return self._words[_STOPPING] != 0

    def announce_shutdown(self) -> None:
        """Announce that the node is shutting down, so that runs can end by themselves."""
        self._words[_STOPPING] = 1

    def write_progress(self, progress: ProgressEntry) -> None:
        """Write the progress of a run."""
        text = json.dumps(progress).encode()
        self._page[_TEXT_AT : _TEXT_AT + len(text)] = text
        _NOTE.pack_into(self._page, _NOTE_AT, len(text), zlib.crc32(text))

    def read_progress(self) -> ProgressEntry | None:
        """Return the latest progress; None if there is none, or it is being written right now."""
        length, checksum = _NOTE.unpack_from(self._page, _NOTE_AT)
        text = bytes(self._page[_TEXT_AT : _TEXT_AT + length])
        if not length or zlib.crc32(text) != checksum:
            return None
        return ProgressEntry(*json.loads(text))

    def write_position(self, number: int, text: str) -> bool:
        """Write the positions of the loops of run ``number``; return False if they do not fit.

        Empty text clears the position: a later one did not fit and was sent as a message.
        """
        encoded = text.encode()
        if len(encoded) > _POSITION_LIMIT:
            return False
        self._positions_written += 1
        at = _POSITIONS_AT[self._positions_written % 2]
        begins_at = at + _POSITION.size
        self._page[begins_at : begins_at + len(encoded)] = encoded
        _POSITION.pack_into(
            self._page,
            at,
            self._positions_written,
            number,
            len(encoded),
            _sum(self._positions_written, number, encoded),
        )
        return True

    def read_position(self, number: int) -> str | None:
        """Return the positions of the loops of run ``number``; None if the page has none."""
        positions = [position for at in _POSITIONS_AT if (position := self._position_at(at)) is not None]
        _, run, text = max(positions, default=(0, 0, ""))
        return text if text and run == number else None

    def _position_at(self, at: int) -> tuple[int, int, str] | None:
        order, number, length, checksum = _POSITION.unpack_from(self._page, at)
        begins_at = at + _POSITION.size
        encoded = bytes(self._page[begins_at : begins_at + min(length, _POSITION_LIMIT)])
        if not order or _sum(order, number, encoded) != checksum:
            return None
        return order, number, encoded.decode()

    @property
    def logged(self) -> int:
        """Return how many bytes of log lines the worker has written in its life."""
        return self._words[_LOGGED]

    def write_line(self, line: bytes) -> None:
        """Write a log line over the oldest ones; it is there once the number of bytes says so."""
        with self._lock:
            before = self._words[_LOGGED]
            at = before % _LINES_SIZE
            fits = min(len(line), _LINES_SIZE - at)
            self._page[_LINES_AT + at : _LINES_AT + at + fits] = line[:fits]
            self._page[_LINES_AT : _LINES_AT + len(line) - fits] = line[fits:]
            self._words[_LOGGED] = before + len(line)

    def read_lines(self, number: int, since: int = 0) -> list[bytes]:
        """Return the last log lines of run ``number``, as ``log_lines.written`` has made them.

        ``since`` is what ``logged`` was before the first of them.
        """
        end = self.logged
        size = min(end - since, MOST_BYTES)
        at = (end - size) % _LINES_SIZE
        text = bytes(self._page[_LINES_AT + at : _LINES_AT + min(at + size, _LINES_SIZE)])
        text += self._page[_LINES_AT : _LINES_AT + size - len(text)]
        overwritten = self.logged - end  # by a worker that kept writing
        lines = text[overwritten:].splitlines(keepends=True)
        if size < end - since or overwritten:
            lines = lines[1:]  # its beginning is missing
        mark = b"[%d," % number
        return [line for line in lines if line.startswith(mark)]

    def close(self) -> None:
        """Unmap the page."""
        self._words.release()
        self._page.release()


def _sum(order: int, number: int, encoded: bytes) -> int:
    return zlib.crc32(encoded, (order * 31 + number) & 0xFFFFFFFF)
