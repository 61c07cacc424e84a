"""What a node has in flight: every claim from the moment the store gave it until its outcome is settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import HandedBack, Outcome, Run
from taskqueue.model.lifecycle.pending import canceled
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Record, changed
from taskqueue.store import Note


@dataclass(kw_only=True)
class InFlightRun:
    """One claim and the latest news of its run."""

    record: Record
    id: str
    """The job's id, as messages have it."""
    note: Note | None = None
    """News that the store has not been told yet."""
    stopping: str = ""
    """Why the manager was asked to end the run, once it was."""
    after: Record | None = None
    """The record after the outcome, once there is one."""
    confirm: bool = False

    @property
    def fence(self) -> int:
        """Return the number of the claim."""
        return self.record.claims


class InFlight:
    """The claims of one node, by job id."""

    def __init__(self) -> None:
        self._held: dict[str, InFlightRun] = {}
        self._noted: set[str] = set()
        self._ended: list[InFlightRun] = []
        self._in_queue: Counter[str] = Counter()
        self.forced = 0
        self.data = 0
        """The bytes of data of the claims that take a slot of the pool."""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[InFlightRun]:
        return iter(tuple(self._held.values()))

    @property
    def pooled(self) -> int:
        """Return how many claims take a slot of the pool."""
        return len(self._held) - self.forced

    @property
    def unsettled(self) -> list[InFlightRun]:
        """Return what has ended and is not settled yet, in order."""
        return self._ended

    def begin(self, records: Iterable[Record]) -> None:
        """Take in fresh claims."""
        for record in records:
            id = str(record.id)
            before = self._held.get(id)
            if before is not None:  # removed by a flush, and the same id added and claimed again
                self._forget(before)
            self._held[id] = InFlightRun(record=record, id=id)
            self._in_queue[record.queue] += 1
            if record.options.force_spawn:
                self.forced += 1
            else:
                self.data += len(record.data)

    def room(self, queues: Mapping[str, int | None]) -> dict[str, int | None]:
        """Return how many more jobs of each chosen queue may be held."""
        return {name: None if bound is None else max(0, bound - self._in_queue[name]) for name, bound in queues.items()}

    def find(self, id: str, claims: int) -> InFlightRun | None:
        """Return the claim if this node still holds it and it has not ended."""
        held = self._held.get(id)
        return held if held is not None and held.record.claims == claims else None

    def started(self, held: InFlightRun, at: datetime) -> None:
        """Note that the run began."""
        held.record = changed(held.record, started_at=at)
        self._note(held, replace(held.note or Note(), started_at=at))

    def progressed(self, held: InFlightRun, percent: float, message: str, at: datetime) -> None:
        """Note how far the run is."""
        held.record = changed(held.record, progress=percent, progress_message=message, progress_at=at)
        news = replace(held.note or Note(), progress=percent, progress_message=message, progress_at=at)
        self._note(held, news)

    def checkpointed(self, held: InFlightRun, state: str) -> None:
        """Note the state that a later attempt should find."""
        held.record = changed(held.record, state=state)
        self._note(held, replace(held.note or Note(), state=state))

    def moved_on(self, held: InFlightRun, cursor: str) -> None:
        """Note where the loops of the run are."""
        held.record = changed(held.record, cursor=cursor)
        self._note(held, replace(held.note or Note(), cursor=cursor))

    def asked_to_cancel(self, held: InFlightRun, reason: str, now: datetime) -> None:
        """Note that somebody asked to cancel the job."""
        held.record = canceled(held.record, reason, now)

    def end(self, held: InFlightRun, outcome: Outcome, run: Run, now: datetime) -> None:
        """Note the outcome; the claim waits to be settled."""
        self._forget(held)
        held.after = ended(held.record, outcome, run, now)
        self._ended.append(held)

    def hand_back(self, held: InFlightRun, node: str, now: datetime) -> None:
        """Note that the claim goes back, uncounted."""
        self.end(held, HandedBack(), Run(node=node), now)

    def take_unsettled(self) -> list[InFlightRun]:
        """Return what has ended since the last time, to be settled or put back."""
        taken, self._ended = self._ended, []
        return taken

    def put_back(self, unsettled: list[InFlightRun]) -> None:
        """Keep what could not be settled for the next time."""
        self._ended = unsettled + self._ended

    @property
    def has_news(self) -> bool:
        """Tell whether the store has not been told everything."""
        return bool(self._noted)

    def take_news(self) -> dict[JobId, Note]:
        """Return what the store has not been told, and count it as told."""
        news = {}
        for id in self._noted:
            held = self._held[id]
            if held.note is not None:
                news[held.record.id] = held.note
                held.note = None
        self._noted.clear()
        return news

    def put_news_back(self, news: Mapping[JobId, Note]) -> None:
        """Keep what could not be told; what came meanwhile is newer and wins."""
        for id, note in news.items():
            held = self._held.get(str(id))
            if held is not None:
                self._note(held, _merged(note, held.note))

    def _forget(self, held: InFlightRun) -> None:
        del self._held[held.id]
        self._noted.discard(held.id)
        self._in_queue[held.record.queue] -= 1
        if held.record.options.force_spawn:
            self.forced -= 1
        else:
            self.data -= len(held.record.data)

    def _note(self, held: InFlightRun, note: Note) -> None:
        held.note = note
        self._noted.add(held.id)


def _merged(older: Note, newer: Note | None) -> Note:
    if newer is None:
        return older
    told = {name: value for name, value in vars(newer).items() if value is not None and value != ""}
    return replace(older, **told)
