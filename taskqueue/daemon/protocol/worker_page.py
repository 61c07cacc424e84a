"""A piece of memory that a manager shares with a worker, and that outlives it: which run has to end, where it is."""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from dataclasses import dataclass

REASONS = ("shutdown", "cancel", "timeout", "lost")
"""Why a run has to end; a reason's place here is its number on the page."""

_SIZE = 4 * mmap.PAGESIZE
_WORDS = 16  # bytes: two words, each written and read whole
_STOP, _STOPPING = range(2)
_NOTE = struct.Struct("II")  # length and checksum: a note that was written halfway is none
_NOTE_AT = _WORDS
_TEXT_AT = _NOTE_AT + _NOTE.size
_POSITION = struct.Struct("QQII")  # number in order, run, length and checksum
_POSITIONS_AT = (
    2 * mmap.PAGESIZE,
    3 * mmap.PAGESIZE,
)  # written by turns: whatever ends the worker, one of them is whole
_POSITION_LIMIT = mmap.PAGESIZE - _POSITION.size


@dataclass(frozen=True, kw_only=True)
class ProgressEntry:
    """How far run ``number`` of this worker is, in percent, since ``at`` on the host's clock."""

    number: int
    progress: float
    message: str
    at: float


class WorkerPage:
    """Made before the fork, used on both sides; runs are numbered from 1 in the order in which this worker got them."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _SIZE)
        self._words = memoryview(self._page)[:_WORDS].cast("Q")
        self._positions_written = 0

    def request_stop(self, number: int, reason: str) -> None:
        """Say that run ``number`` has to end."""
        self._words[_STOP] = number << 2 | REASONS.index(reason)

    def stop_reason_of(self, number: int) -> str:
        """Return why run ``number`` has to end; empty if it need not."""
        word = self._words[_STOP]
        return REASONS[word & 3] if word and word >> 2 == number else ""

    @property
    def has_stop_request(self) -> bool:
        """Tell whether the manager has ever asked this worker to end a run."""
        return self._words[_STOP] != 0

    @property
    def is_node_stopping(self) -> bool:
        """Tell whether the node is about to stop."""
        return self._words[_STOPPING] != 0

    def announce_shutdown(self) -> None:
        """Say that the node is about to stop, so that runs may end by themselves."""
        self._words[_STOPPING] = 1

    def write_progress(self, progress: ProgressEntry) -> None:
        """Write down how far the run is."""
        text = json.dumps([progress.number, progress.progress, progress.message, progress.at]).encode()
        self._page[_TEXT_AT : _TEXT_AT + len(text)] = text
        _NOTE.pack_into(self._page, _NOTE_AT, len(text), zlib.crc32(text))

    def read_progress(self) -> ProgressEntry | None:
        """Return how far the last marked run is; None if that was never said, or is being written right now."""
        length, checksum = _NOTE.unpack_from(self._page, _NOTE_AT)
        text = self._page[_TEXT_AT : _TEXT_AT + length]
        if not length or zlib.crc32(text) != checksum:
            return None
        number, progress, message, at = json.loads(text)
        return ProgressEntry(number=number, progress=progress, message=message, at=at)

    def write_position(self, number: int, text: str) -> bool:
        """Write down where the loops of run ``number`` are, and tell whether there was room for it.

        Empty text forgets the place that is here, where a later one had no room and was sent.
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
        """Return where the loops of run ``number`` are; None if that is not written down here."""
        found = [place for at in _POSITIONS_AT if (place := self._position_at(at)) is not None]
        _, run, text = max(found, default=(0, 0, ""))
        return text if text and run == number else None

    def _position_at(self, at: int) -> tuple[int, int, str] | None:
        order, number, length, checksum = _POSITION.unpack_from(self._page, at)
        begins_at = at + _POSITION.size
        encoded = self._page[begins_at : begins_at + min(length, _POSITION_LIMIT)]
        if not order or _sum(order, number, encoded) != checksum:
            return None
        return order, number, encoded.decode()

    def close(self) -> None:
        """Let go of the page."""
        self._words.release()
        self._page.close()


def _sum(order: int, number: int, encoded: bytes) -> int:
    return zlib.crc32(encoded, (order * 31 + number) & 0xFFFFFFFF)
