"""Random graphs of dependent jobs: drawn by a seed, played on a store in a random order, and predicted by a model.

``python -m tests.store.random_graphs URL COUNT`` plays many.
"""

from __future__ import annotations

import random
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime

from taskqueue.model.dependency import Dependency, OnFailure
from taskqueue.model.lifecycle import Done, GivenUp, Outcome, TimedOut, lost
from taskqueue.model.record import JobId, Record, Status
from taskqueue.store import Store
from taskqueue.store.opening import open_store
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
    canceled: frozenset[JobId]
    """Those that somebody cancels before anything runs."""
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
            canceled=frozenset(one.id for one in records if chance.random() < 0.08),
            order=chance,
        )


def expected(graph: Graph) -> dict[JobId, Status]:
    """Return how each job ends; those that are never released stay POSTPONED."""
    ends: dict[JobId, Status] = {}
    for record in graph.records:  # each names only earlier ones
        ends[record.id] = Status.CANCELED if record.id in graph.canceled else _end(record, graph, ends)
    return ends


def _end(record: Record, graph: Graph, ends: dict[JobId, Status]) -> Status:
    failed = {edge.on_failure for edge in record.depends_on if ends[edge.id] > Status.DONE}
    if OnFailure.CANCEL in failed:
        return Status.CANCELED
    if OnFailure.WAIT in failed or any(not ends[edge.id].is_final for edge in record.depends_on):
        return Status.POSTPONED
    return graph.outcomes[record.id]


def play(store: Store, graph: Graph) -> None:
    """Add in two parts, cancel, claim and settle in a random order until nothing can run any more."""
    chance, losses = graph.order, dict(graph.losses)
    now = NOON
    first = chance.randrange(len(graph.records) + 1)
    store.add(graph.records[:first])
    store.add(graph.records[first:])
    for id in chance.sample(sorted(graph.canceled), len(graph.canceled)):
        store.cancel(id, "not needed", now)
    held: list[Record] = []
    while True:
        now += MINUTE
        runs = [replace(run, started_at=now) for run in claim(store, chance.randint(1, 4), now=now).records]
        held += runs
        if not held:
            return
        for run in chance.sample(held, chance.randint(0 if runs else 1, len(held))):
            held.remove(run)
            after = settlement(run, OUTCOMES[graph.outcomes[run.id]], now)
            if losses[run.id] > 0:
                losses[run.id] -= 1
                after = replace(after, after=lost(run, now))
            assert store.settle([after], now) == {run.id}


def settled(store: Store, graph: Graph) -> dict[JobId, Status]:
    """Return how the jobs are."""
    return {one.id: kept(store, one.id).status for one in graph.records}


def main(url: str, count: int) -> None:
    """Play many graphs on the store at a URL, which is emptied, and tell how many ended otherwise than predicted."""
    wrong = repairs = 0
    with closing(open_store(url)) as store:
        for seed in range(count):
            store.flush()
            graph = Graph.drawn(seed)
            play(store, graph)
            wrong += settled(store, graph) != expected(graph)
            repairs += store.mend(graph.end)
    print(f"{count} graphs of {SIZE} jobs: {wrong} ended otherwise than predicted, {repairs} repairs")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
