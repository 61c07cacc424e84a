"""Controls of an operator for all nodes: paused queues, drained nodes, changed limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from enum import Enum

from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.limits import Family, LimitKey, limit_keys_of

EVERY_QUEUE = ""
"""The name of the pause of all queues, including future ones."""


class Kind(str, Enum):
    """The kind of a control."""

    __str__ = str.__str__

    PAUSE = "pause"
    DRAIN = "drain"
    LIMIT = "limit"


@dataclass(frozen=True, kw_only=True)
class Control:
    """One ``pause``, ``drain`` or ``limit``, active until it is cleared, including for nodes that start later."""

    kind: Kind
    name: str
    """The queue, the node, or the family of the limit (``LimitKey.family``)."""
    since: datetime
    by: str
    """The operator who set it."""
    reason: str = ""
    count: int | None = None
    """The number that replaces the declared number of a limit."""

    def __str__(self) -> str:
        match self.kind:
            case Kind.PAUSE:
                return f"queue {self.name} is paused" if self.name else "every queue is paused"
            case Kind.DRAIN:
                return f"node {self.name} is drained"
        family = Family.of(self.name)
        per = "" if family.per is None else f" in {family.per:g} s"
        return f"limit {family.declaration} is {self.count:,}{per}"


class Controls:
    """All active controls, as claims need them."""

    def __init__(self, kept: Iterable[Control] = (), used_up: Iterable[str] = ()) -> None:
        """Keep the controls; ``used_up`` are keys of limits that have no room, if the caller has looked."""
        self.kept = tuple(kept)
        self._used_up = frozenset(used_up)
        self._pauses = {control.name: control for control in self.kept if control.kind is Kind.PAUSE}
        self._drains = {control.name: control for control in self.kept if control.kind is Kind.DRAIN}
        self._limits = {control.name: control for control in self.kept if control.kind is Kind.LIMIT}

    def pause_of(self, queue: str) -> Control | None:
        """Return the pause of the queue; None if it is not paused."""
        return self._pauses.get(EVERY_QUEUE) or self._pauses.get(queue)

    def hold_in_words(self, queue: str, lane: str, mask: Callable[[LimitKey], LimitKey] | None = None) -> str:
        """Return a text that says what holds back a waiting job: a pause, or a limit that is used up; empty if neither.

        ``mask`` returns the key of a limit as it may be shown.
        """
        if (pause := self.pause_of(queue)) is not None:
            return "queue is paused" if pause.name else "every queue is paused"
        full = [key for key in self.limit_keys(lane) if key.key in self._used_up] if self._used_up else []
        return f"limit is used up: {mask(full[0]) if mask else full[0]}" if full else ""

    def drain_of(self, seat: str) -> Control | None:
        """Return the drain of the node; None if it is not drained."""
        return self._drains.get(seat)

    def limit_of(self, limit_key: LimitKey) -> Control | None:
        """Return the control that changes the limit; None if it has its declared number."""
        return self._limits.get(limit_key.family)

    def shown(self) -> dict[str, list[str]]:
        """Return the paused queues and the drained nodes, by the names of their metrics; ``*`` is every queue."""
        return {"paused": [name or "*" for name in self._pauses], "drained": list(self._drains)}

    @property
    def pauses_any(self) -> bool:
        """Return whether any queue is paused."""
        return bool(self._pauses)

    def is_closed_to(self, seat: str) -> bool:
        """Return whether the node may claim nothing at all."""
        return EVERY_QUEUE in self._pauses or seat in self._drains

    def open(self, queues: Iterable[str]) -> list[str]:
        """Return the queues that are not paused."""
        return [queue for queue in queues if self.pause_of(queue) is None]

    def limit_keys(self, lane: str) -> tuple[LimitKey, ...]:
        """Return the limit keys of a lane, with their current numbers."""
        declared = limit_keys_of(lane)
        return tuple(map(self.now, declared)) if self._limits else declared

    def now(self, limit_key: LimitKey) -> LimitKey:
        """Return the limit key with its current number."""
        changed = self._limits.get(limit_key.family)
        return limit_key if changed is None or changed.count is None else replace(limit_key, count=changed.count)


NONE = Controls()
"""No controls are set."""
