"""Many processes change one job at once: each call ends, and every derived field agrees with its source."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest

from taskqueue import Scheduler
from taskqueue.errors import InvalidOption, KeyTaken, WrongStatus
from taskqueue.model.query import parse
from taskqueue.model.record import Holder
from taskqueue.store import ClaimRequest, Disagreements, Store
from taskqueue.store.open import open_store
from tests.scheduler.jobs import Echo
from tests.store.children import Child
from tests.store.records import LEASE, settle

PROCESSES = 4
RACES = [
    *((store, 60, range(PROCESSES)) for store in ("sqlite", "mongodb", "postgresql")),
    *(
        pytest.param(store, 250, range(10 * round, 10 * round + PROCESSES), marks=pytest.mark.long)
        for store in ("sqlite", "mongodb")
        for round in range(1, 11)
    ),
]
"""The store, the changes that each process makes, and the seed of each: ten long races make 10,000 changes."""

KEY = "k"
TIMES = (None, "+50 ms", "+1 hour", "+2 hours", "+3 hours")
EXPECTED = (InvalidOption, KeyTaken, WrongStatus)
"""What a call raises if the job has begun or ended meanwhile."""


class Player:
    """One process: makes the changes that a seed chooses, all of the job with the key."""

    def __init__(self, url: str, seed: int) -> None:
        self._chance = random.Random(seed)
        self._scheduler = Scheduler(url)
        self._store = open_store(url)
        self._holder = Holder(seat=f"seat-{seed}", incarnation=f"{os.getpid()}")
        self._acts: list[Callable[[], object]] = [
            self._add,
            self._add,
            self._add_once,
            self._update,
            self._update,
            self._cancel,
            self._recover,
            self._run,
        ]

    def play(self, changes: int) -> None:
        """Make the changes, and look after each of them at every job of the store."""
        for _ in range(changes):
            with suppress(*EXPECTED):
                self._chance.choice(self._acts)()
            assert self._store.disagreeing(10) == Disagreements([], True)

    def close(self) -> None:
        self._store.close()
        self._scheduler.close()

    def _at(self) -> dict[str, Any]:
        at = self._chance.choice(TIMES)
        return {} if at is None else {"at": at}

    def _add(self) -> None:
        options = self._at() | {"on_duplicate": self._chance.choice(["extend", "replace", "return"])}
        if self._chance.random() < 0.3:
            options["unique_for"] = self._chance.choice(["100 ms", "2 hours"])
        if self._chance.random() < 0.3:
            options["expires"] = "5 hours"
        self._scheduler.add_job(Echo, self._chance.randint(1, 9), unique=KEY, **options)

    def _add_once(self) -> None:
        self._scheduler.add_job_once(Echo, self._chance.randint(1, 9), unique=KEY, **self._at())

    def _update(self) -> None:
        changes: dict[str, Any] = self._chance.choice(
            [{"at": self._chance.choice(TIMES)}, {"priority": self._chance.randint(-5, 5)}, {"queue": "other"}]
        )
        for process in self._of_key({"$lte": 1}):
            self._scheduler.update_job(process, **changes)

    def _cancel(self) -> None:
        for process in self._of_key({"$lte": 2}):
            self._scheduler.cancel_job(process, "a race")

    def _recover(self) -> None:
        for process in self._of_key({"$gte": 3}):
            self._scheduler.recover_job(process, **self._at())

    def _run(self) -> None:
        now = self._store.now()
        for taken in self._store.claim(self._holder, ClaimRequest(pooled=2), now, now + LEASE).records:
            settle(self._store, taken, now=self._store.now())

    def _of_key(self, status: dict[str, int]) -> list[Any]:
        return [
            one.id for one in self._store.find(parse({"unique": KEY, "status": status}), order="-created_at", limit=1)
        ]


def play(url: str, seed: int, changes: int) -> None:
    with closing(Player(url, seed)) as player:
        player.play(changes)


@pytest.mark.parametrize(("url", "changes", "seeds"), RACES, indirect=["url"], ids=lambda value: f"{value}")
def test_each_call_ends_and_derived_fields_agree(url: str, changes: int, seeds: range) -> None:
    with closing(open_store(url)):  # makes the store
        pass
    children = [Child(lambda seed=seed: play(url, seed, changes)) for seed in seeds]  # type: ignore[misc]

    assert [child.wait() for child in children] == [0] * len(seeds)
    with closing(open_store(url)) as store:
        check_numbers(store)


def check_numbers(store: Store) -> None:
    """Check that the numbers of jobs are those of the jobs themselves, and that at most one pending job has the key."""
    for (queue, status), number in store.tally().items():
        assert store.count(parse({"queue": queue, "status": int(status)})) == number
    assert store.count(parse({"unique": KEY, "status": {"$lte": 2}})) <= 1
