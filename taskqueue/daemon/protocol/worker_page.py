"""Memory that manager and worker share and that outlives the worker: stop requests, progress and loop positions."""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from dataclasses import dataclass

REASONS = ("shutdown", "cancel", "timeout", "lost")
"""Why a run has to end; the index of a reason is its number on the page."""

_SIZE = 4 * mmap.PAGESIZE
_WORDS = 16  # bytes: two words, each written and read atomically
_STOP, _STOPPING = range(2)
_NOTE = struct.Struct("II")  # length and checksum: a half-written text does not match its checksum
_NOTE_AT = _WORDS
_TEXT_AT = _NOTE_AT + _NOTE.size
_POSITION = struct.Struct("QQII")  # sequence number, run, length and checksum
_POSITIONS_AT = (
    2 * mmap.PAGESIZE,
    3 * mmap.PAGESIZE,
)  # written in turn: if the worker is killed while it writes one, the other is intact
_POSITION_LIMIT = mmap.PAGESIZE - _POSITION.size


@dataclass(frozen=True, kw_only=True)
class ProgressEntry:
    """Progress of run ``number`` of this worker in percent, reported at ``at`` (seconds of the host's clock)."""

    number: int
    progress: float
    message: str
    at: float


class WorkerPage:
    """The page of one worker, created before the fork; its runs are numbered from 1 in the order it receives them."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _SIZE)
        self._words = memoryview(self._page)[:_WORDS].cast("Q")
        self._positions_written = 0

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
        text = json.dumps([progress.number, progress.progress, progress.message, progress.at]).encode()
        self._page[_TEXT_AT : _TEXT_AT + len(text)] = text
        _NOTE.pack_into(self._page, _NOTE_AT, len(text), zlib.crc32(text))

    def read_progress(self) -> ProgressEntry | None:
        """Return the latest progress; None if there is none, or it is being written right now."""
        length, checksum = _NOTE.unpack_from(self._page, _NOTE_AT)
        text = self._page[_TEXT_AT : _TEXT_AT + length]
        if not length or zlib.crc32(text) != checksum:
            return None
        number, progress, message, at = json.loads(text)
        return ProgressEntry(number=number, progress=progress, message=message, at=at)

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
        """Unmap the page."""
        self._words.release()
        self._page.close()


def _sum(order: int, number: int, encoded: bytes) -> int:
    return zlib.crc32(encoded, (order * 31 + number) & 0xFFFFFFFF)
