"""Which runs have begun: an entry for each worker, in memory that it shares with manager and node; it outlives them."""

from __future__ import annotations

import mmap
import struct

from taskqueue.daemon.protocol.messages import Key

ENTRIES = 256
"""So many workers at once have their entries where the node can read them."""

_ENTRY = struct.Struct("dQ24s")  # when the run began, its claims, its id: written in this order, so that the id is last


class Entry:
    """The run that one worker began last."""

    def __init__(self, page: mmap.mmap, offset: int) -> None:
        self._page = page
        self._offset = offset

    def write(self, key: Key, at: float) -> None:
        """Write down that a run begins, at this time of the host's clock."""
        id, claims = key
        _ENTRY.pack_into(self._page, self._offset, at, claims, id.encode())

    def read(self) -> tuple[Key, float]:
        """Return the run and when it began; the key is of no claim as long as nothing was written."""
        while (seen := self._bytes()) != self._bytes():  # it is being written
            pass
        at, claims, id = _ENTRY.unpack(seen)
        return (id.decode(errors="replace"), claims), at

    def _bytes(self) -> bytes:
        return self._page[self._offset : self._offset + _ENTRY.size]


class StartLog:
    """Made before the manager is forked; it is the manager that hands out entries and takes them back."""

    def __init__(self, entries: int = ENTRIES) -> None:
        self._page = mmap.mmap(-1, entries * _ENTRY.size)
        self._entries = [Entry(self._page, number * _ENTRY.size) for number in range(entries)]
        self._free = list(self._entries)

    def acquire(self) -> Entry:
        """Return an entry for another worker; where all are taken it is one that the node cannot read."""
        return self._free.pop() if self._free else Entry(mmap.mmap(-1, _ENTRY.size), 0)

    def release(self, entry: Entry) -> None:
        """Take an entry back; what it says stays until another worker writes."""
        if entry in self._entries:
            self._free.append(entry)

    def start_times(self) -> dict[Key, float]:
        """Return when each run began of which an entry tells; it may have ended since."""
        return dict(entry.read() for entry in self._entries)
