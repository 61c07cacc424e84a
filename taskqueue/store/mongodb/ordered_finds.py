"""Finds the first records by id or time of addition: walks all in order, or sorts the wanted ones, if these are fewer.

How many others stand before the first wanted one is not known. So a walk goes on while it is shorter than half of what
there is to sort: the cost is bounded by the smaller of both, whatever else is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from bson import MaxKey, MinKey
from pymongo import ASCENDING, DESCENDING
from pymongo.collection import Collection
from pymongo.cursor import Cursor

from taskqueue.model.query import Query
from taskqueue.model.record import Status
from taskqueue.model.schedules import LATEST
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store.mongodb.documents import Document
from taskqueue.store.mongodb.indexes import BEHIND, CREATED, DUE, OUTCOMES, WAITING_IN_QUEUE
from taskqueue.store.query_bounds import bounds_of, has_field, queue_of

WALKED = 1_000
"""So many records are walked in order at first."""

_INDEXES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "id": ("_id_", ("_id",)),
    "created_at": (CREATED, ("created_at", "_id")),
}
"""The index of all records in each order, and its fields."""

Place: TypeAlias = tuple[Any, ...]


class OrderedFind:
    """One find of records that have one of these statuses."""

    def __init__(
        self,
        jobs: Collection[Document],
        query: Query,
        statuses: Sequence[int],
        where: Document,
        order: tuple[str, bool],
    ) -> None:
        name, self._falls = order
        self._jobs = jobs
        self._where = where
        self._ranges = _ranges(query, statuses)
        self._index, self._fields = _INDEXES[name]
        self._order = [(field, DESCENDING if self._falls else ASCENDING) for field in self._fields]
        self._low, self._high = _added(query) if name == "created_at" else (None, None)

    def first(self, limit: int, after: Place | None) -> list[Document]:
        """Return the first; ``after`` is the place, in the order, behind which ``where`` has them."""
        if after is not None:
            self._go_on(after)
        if self._low is not None and self._high is not None and self._low >= self._high:
            return []
        found: list[Document] = []
        walked, step = 0, WALKED
        while not self._are_at_most(2 * step):
            edge = self._edge(step)
            found += self._walked(edge).limit(limit - len(found))
            if edge is None or len(found) == limit:
                return found
            self._go_on(edge)
            walked += step
            step = 3 * walked
        return self._sorted(limit)

    def _are_at_most(self, most: int) -> bool:
        """Return whether there are no more to sort, by their indexes alone."""
        counted = 0
        for index, where in self._ranges:
            counted += self._jobs.count_documents(where, hint=index, limit=most + 1 - counted)
            if counted > most:
                return False
        return True

    def _edge(self, step: int) -> Place | None:
        """Return the place behind so many records, None if there are fewer."""
        fields = dict.fromkeys(("_id", *self._fields), True)
        found = self._within(self._jobs.find({}, fields), self._low, self._high).skip(step).limit(1)
        return next((tuple(one.get(field) for field in self._fields) for one in found), None)

    def _walked(self, edge: Place | None) -> Cursor[Document]:
        """Return the matching records up to this place."""
        low, high = (edge or self._low, self._high) if self._falls else (self._low, edge or self._high)
        return self._within(self._jobs.find(self._where), low, high)

    def _within(self, found: Cursor[Document], low: Place | None, high: Place | None) -> Cursor[Document]:
        found = found.hint(self._index).sort(self._order)
        if low is not None:
            found = found.min(list(zip(self._fields, low, strict=True)))
        return found if high is None else found.max(list(zip(self._fields, high, strict=True)))

    def _go_on(self, place: Place) -> None:
        """Begin at this place: of a falling order it is the end of what is left, and not among it."""
        if self._falls:
            self._high = place
        else:
            self._low = place

    def _sorted(self, limit: int) -> list[Document]:
        """Return the first of all that have these statuses."""
        found: list[Document] = []
        for index, where in self._ranges:
            found += self._jobs.find({"$and": [where, self._where]}).hint(index).sort(self._order).limit(limit)
        if len(self._ranges) == 1:
            return found
        ids = [one["_id"] for one in found]
        return list(self._jobs.find({"_id": {"$in": ids}}).sort(self._order).limit(limit))


def _ranges(query: Query, statuses: Sequence[int]) -> list[tuple[str, Document]]:
    """Return index ranges that have all records of these statuses that may match, no two the same."""
    found: list[tuple[str, Document]] = []
    left = set(statuses)
    if Status.WAITING in left and (queue := queue_of(query)) is not None:
        left.remove(Status.WAITING)
        found.append((WAITING_IN_QUEUE, {"status": int(Status.WAITING), "queue": queue}))
    _, latest = bounds_of("ready_at", query)
    is_behind = has_field("waiting_for", query)
    if Status.POSTPONED in left and (latest is not None or is_behind):
        left.remove(Status.POSTPONED)
        postponed = {"status": int(Status.POSTPONED)}
        found.append((BEHIND, {**postponed, "waiting_for": {"$exists": True}}))
        if not is_behind and latest is not None:
            alone = {"waiting_for": {"$exists": False}}
            found.append((DUE, {**postponed, **alone, "due": {"$exists": True, "$lte": _at(latest)}}))
    pending = [status for status in sorted(left) if status <= Status.PROCESSING]
    ended = [status for status in sorted(left) if status > Status.PROCESSING]
    earliest, _ = bounds_of("ended_at", query)
    if earliest is None:
        pending, ended = sorted(left), []
    if pending:
        found.append((OUTCOMES, {"status": {"$in": pending}}))
    if ended and earliest is not None:
        found.append((OUTCOMES, {"status": {"$in": ended}, "ended_at": {"$gte": _at(earliest)}}))
    return found


def _added(query: Query) -> tuple[Place | None, Place | None]:
    """Return the places before the first addition that may match, and behind the last one."""
    earliest, latest = bounds_of("created_at", query)
    low = None if earliest is None else (_at(earliest), MinKey())
    return low, None if latest is None else (_at(latest), MaxKey())


def _at(bound: int) -> datetime:
    """Return the time of a bound, or the nearest that a record can have."""
    return moment(min(max(bound, 0), milliseconds(LATEST)))
