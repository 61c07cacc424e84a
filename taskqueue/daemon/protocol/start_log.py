"""The run that each worker started last, in shared memory that node and manager can read after the worker dies."""

from __future__ import annotations

import mmap
import struct

from taskqueue.daemon.protocol.messages import Key

ENTRIES = 256
"""Workers whose entries the node can read; more workers than this get private entries."""

_ENTRY = struct.Struct("dQ24s")  # start time, claim number, job id; the id is written last


class Entry:
    """The run that one worker started last."""

    def __init__(self, page: mmap.mmap, offset: int) -> None:
        self._page = page
        self._offset = offset

    def write(self, key: Key, at: float) -> None:
        """Record the start of a run, in seconds of the host's clock."""
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

    def acquire(self) -> Entry:
        """Return a free entry for a worker; if all are taken, one that the node cannot read."""
        return self._free.pop() if self._free else Entry(mmap.mmap(-1, _ENTRY.size), 0)

    def release(self, entry: Entry) -> None:
        """Free an entry; its content stays until another worker writes to it."""
        if entry in self._entries:
            self._free.append(entry)

    def start_times(self) -> dict[Key, float]:
        """Return the start time of each recorded run; the run may have ended since."""
        return dict(entry.read() for entry in self._entries)
