"""Random graphs of dependent jobs: drawn by a seed, played on a store in a random order, and predicted by a model.

``python -m tests.store.random_graphs URL COUNT`` plays many.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Set
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime

from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import Canceled, Done, GivenUp, Outcome, TimedOut
from taskqueue.model.lifecycle.settle import lost
from taskqueue.model.record import Dependency, OnFailure, Record, Status
from taskqueue.store import Store
from taskqueue.store.open import open_store
from tests.store.records import BROKEN, MINUTE, NOON, a_record, behind, claim, kept, settlement

SIZE = 12
OUTCOMES: dict[Status, Outcome] = {
    Status.DONE: Done(),
    Status.FAILED: GivenUp(failure=BROKEN),
    Status.TIMEOUT: TimedOut(failure=BROKEN),
}


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Jobs in an order in which each names only earlier ones, how each would end, and how often its node is lost."""

    records: tuple[Record, ...]
    outcomes: dict[JobId, Status]
    losses: dict[JobId, int]
    wishes: dict[JobId, int]
    """In which round somebody asks for a job to be canceled; 0 is before anything runs."""
    order: random.Random
    end: datetime = NOON + 1000 * MINUTE

    @classmethod
    def drawn(cls, seed: int) -> Graph:
        """Return the graph of a seed."""
        chance = random.Random(seed)
        records: list[Record] = []
        for _ in range(SIZE):
            earlier = chance.sample(records, min(len(records), chance.choice([0, 0, 1, 2, 3])))
            edges = tuple(Dependency(id=one.id, on_failure=chance.choice(list(OnFailure))) for one in earlier)
            records.append(behind(*(one.id for one in earlier), depends_on=edges) if edges else a_record())
        ends = {one.id: chance.choices(list(OUTCOMES), [6, 2, 1])[0] for one in records}
        return cls(
            records=tuple(records),
            outcomes=ends,
            losses={one.id: chance.choice([0, 0, 0, 1]) for one in records},
            wishes={one.id: chance.choice([0, *range(8)]) for one in records if chance.random() < 0.15},
            order=chance,
        )


def expected(graph: Graph, canceled: Set[JobId]) -> dict[JobId, Status]:
    """Return how each job ends if these are canceled; those that are never released stay POSTPONED."""
    ends: dict[JobId, Status] = {}
    for record in graph.records:  # each names only earlier ones
        ends[record.id] = Status.CANCELED if record.id in canceled else _end(record, graph, ends)
    return ends


def _end(record: Record, graph: Graph, ends: dict[JobId, Status]) -> Status:
    failed = {edge.on_failure for edge in record.depends_on if ends[edge.id] > Status.DONE}
    if OnFailure.CANCEL in failed:
        return Status.CANCELED
    if OnFailure.WAIT in failed or any(not ends[edge.id].is_final for edge in record.depends_on):
        return Status.POSTPONED
    return graph.outcomes[record.id]


def play(store: Store, graph: Graph) -> Set[JobId]:
    """Add in two parts, claim, settle, lose and cancel in a random order until nothing can run any more.

    Return the jobs that were canceled because somebody asked for it: who asks too late changes nothing.
    """
    chance = graph.order
    first = chance.randrange(len(graph.records) + 1)
    store.add(graph.records[:first])
    store.add(graph.records[first:])
    game = Game(store, graph)
    while game.round():
        pass
    return game.canceled


class Game:
    """One store, and the nodes that work on it."""

    def __init__(self, store: Store, graph: Graph) -> None:
        self._store = store
        self._graph = graph
        self._losses = dict(graph.losses)
        self._held: list[Record] = []
        self._asked: set[JobId] = set()
        self._rounds = 0
        self.canceled: set[JobId] = set()

    def round(self) -> bool:
        """Play one round, and tell whether there may be more to play."""
        now = NOON + (self._rounds + 1) * MINUTE
        for id, number in self._graph.wishes.items():
            if number == self._rounds:
                self._cancel(id, now)
        self._rounds += 1
        chance = self._graph.order
        runs = [replace(run, started_at=now) for run in claim(self._store, chance.randint(1, 4), now=now).records]
        self._held += runs
        if not self._held:
            return self._rounds <= max(self._graph.wishes.values(), default=0)
        for run in chance.sample(self._held, chance.randint(0 if runs else 1, len(self._held))):
            self._held.remove(run)
            self._end(run, now)
        return True

    def _cancel(self, id: JobId, now: datetime) -> None:
        before = kept(self._store, id)
        self._store.cancel(id, "not needed", now)
        if before.status is Status.PROCESSING:
            self._asked.add(id)
        elif not before.status.is_final:
            self.canceled.add(id)

    def _end(self, run: Record, now: datetime) -> None:
        """End the run as it would by itself, or as somebody asked, or lose it."""
        end = settlement(run, OUTCOMES[self._graph.outcomes[run.id]], now)
        if self._losses[run.id] > 0:
            self._losses[run.id] -= 1
            end = end._replace(after=lost(run, now))
            if run.id in self._asked:
                self.canceled.add(run.id)
        elif run.id in self._asked and self._graph.order.random() < 0.5:
            end = settlement(run, Canceled(), now)
            self.canceled.add(run.id)
        assert self._store.settle([end], now) == {run.id}


def settled(store: Store, graph: Graph) -> dict[JobId, Status]:
    """Return how the jobs are."""
    return {one.id: kept(store, one.id).status for one in graph.records}


def main(url: str, count: int) -> None:
    """Play many graphs on the store at a URL, which is emptied, and tell how many ended otherwise than predicted."""
    wrong = repairs = asked = lost_runs = 0
    with closing(open_store(url)) as store:
        for seed in range(count):
            store.flush()
            graph = Graph.drawn(seed)
            canceled = play(store, graph)
            asked += len(graph.wishes)
            lost_runs += sum(graph.losses.values())
            wrong += settled(store, graph) != expected(graph, canceled)
            repairs += store.repair(graph.end)
    hits = f"{asked} jobs asked to be canceled, up to {lost_runs} runs lost"
    print(f"{count} graphs of {SIZE} jobs, {hits}: {wrong} ended otherwise than predicted, {repairs} repairs")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
