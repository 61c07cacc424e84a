"""What a node knows from its last look at what waits, and for how long it may rely on that."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

FRESH_FOR = timedelta(milliseconds=100)
"""How long a node that gets all it wants relies on having looked."""

SURE_FOR = timedelta(seconds=1)
"""How long a node relies on having looked while its bell says that nothing new waits."""


LOOK_WITHIN = timedelta(milliseconds=20)
"""How long a node may run what a bell rang for before it looks what else there is: a short job has ended by then."""


class ClaimCache:
    """When a node looked for what is due, what comes due next, and where it has found nothing since."""

    def __init__(self, *, at: datetime, changes: int | None, next_at: datetime | None, lanes: Sequence[str]) -> None:
        self._at = at
        self._changes = changes
        self._due_at = next_at
        self._owed_at: datetime | None = None
        self.lanes = lanes
        """The queues and lanes that have waiting jobs with limits."""
        self.brought_all = False
        """Whether the last claim brought all that was wanted."""
        self._empty: set[tuple[bool, str, str]] = set()

    def is_owed(self, by: datetime) -> None:
        """Note that a new look must come by then: what has come since may be due, or in a lane that was not seen."""
        self._owed_at = by if self._owed_at is None else min(self._owed_at, by)

    def took_ahead(self, next_at: datetime | None) -> None:
        """Note what comes due next, after what would have been the next was taken."""
        self._due_at = next_at

    @property
    def next_at(self) -> datetime | None:
        """Return when a new look must come: when the next job is due, or it is owed."""
        return min((moment for moment in (self._due_at, self._owed_at) if moment is not None), default=None)

    def is_sure(self, changes: int | None) -> bool:
        """Tell whether the bell says that nothing new waits since."""
        return changes is not None and changes == self._changes

    def may_go_before(self, now: datetime, changes: int | None) -> bool:
        """Tell whether what the bell rang for may be taken first, and looking comes after it."""
        if changes is None or self._changes is None or (self.next_at is not None and self.next_at <= now):
            return False
        return changes != self._changes and self._at <= now

    def holds(self, now: datetime, changes: int | None) -> bool:
        """Tell whether looking again now would find nothing, or next to nothing."""
        if self.next_at is not None and self.next_at <= now:
            return False
        relied_on_for = SURE_FOR if self.is_sure(changes) else FRESH_FOR if self.brought_all else timedelta(0)
        return timedelta(0) <= now - self._at < relied_on_for

    def is_empty(self, forced: bool, queue: str = "", lane: str = "") -> bool:
        """Tell whether nothing waited there when it was last looked at, and nothing new waits since."""
        return (forced, queue, lane) in self._empty

    def note_empty(self, forced: bool, queue: str = "", lane: str = "") -> None:
        """Note that nothing waits there; without a bell nobody would know for how long."""
        if self._changes is not None:
            self._empty.add((forced, queue, lane))

    def forget_empty(self) -> None:
        """Look everywhere again: something new waits, or may do so."""
        self._empty.clear()
