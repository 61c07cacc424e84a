"""What a batch costs MongoDB, counted in commands: as many for a hundred jobs as for eight."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from taskqueue.model.limit import Limit, lane
from taskqueue.model.record import Record
from taskqueue.store import WORK, Store
from taskqueue.store.mongodb import open_mongodb
from tests.nodes import eventually
from tests.store.records import NOON, a_record, claim, rings, settlement

NAME = f"commands-{os.getpid()}"
"""The database of this process: another worker must not drop it."""


class Commands(CommandListener):
    """Notes the name of every command that a client sends."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.sent.append(event.command_name)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass

    def of(self, call: Callable[[], object]) -> list[str]:
        """Return the commands of a call."""
        self.sent.clear()
        call()
        return list(self.sent)


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture
def store(mongo_set: str, commands: Commands) -> Iterator[Store]:
    """Open a store whose first job has gone through it."""
    with MongoClient[dict[str, Any]](mongo_set, event_listeners=[commands]) as client:
        with closing(open_mongodb(client[NAME])) as opened:
            opened.flush()
            opened.add([a_record()])
            opened.settle([settlement(run) for run in claim(opened).records], NOON)
            yield opened
        client.drop_database(NAME)


@pytest.mark.parametrize("count", [8, 100])
def test_a_batch_of_any_size_is_a_few_commands(store: Store, commands: Commands, count: int) -> None:
    records = [a_record() for _ in range(count)]

    assert len(commands.of(lambda: store.add(records))) <= 4
    taken: list[Record] = []
    assert len(commands.of(lambda: taken.extend(claim(store, count).records))) <= 8
    settlements = [settlement(run) for run in taken]
    assert len(settlements) == count
    assert len(commands.of(lambda: store.settle(settlements, NOON))) <= 5


def test_a_job_alone_is_added_by_one_insert_and_told_by_another(store: Store, commands: Commands) -> None:
    assert commands.of(lambda: store.add([a_record()])).count("insert") == 2
    assert len(commands.of(lambda: store.add([a_record()]))) <= 3


def test_a_claim_that_finds_nothing_only_reads(store: Store, commands: Commands) -> None:
    claim(store, 8)

    assert set(commands.of(lambda: claim(store, 8))) == {"find", "distinct"}


def test_a_claim_that_finds_a_limit_full_reads_its_places_alone(store: Store, commands: Commands) -> None:
    with closing(store.bell(WORK)):
        store.add([a_record(lane=lane([Limit(1)], "app:Mail", None)) for _ in range(5)])
        assert len(claim(store, 8).records) == 1

        def only_places() -> bool:  # once the ring of the last addition is in
            return [name for name in commands.of(lambda: claim(store, 8)) if name != "getMore"] == ["find"]

        eventually(only_places)


@pytest.mark.parametrize("declared", [[], [Limit(9)]])
def test_what_comes_behind_a_look_is_found_once_it_has_rung(store: Store, declared: list[Limit]) -> None:
    with closing(store.bell(WORK)) as bell:
        for _ in range(3):
            assert claim(store, 8, forced=8).records == []
            store.add([a_record(lane=lane(declared, "app:Mail", None))])
            assert rings(bell)
            [run] = eventually(lambda: claim(store, 8).records)
            store.settle([settlement(run)], NOON)
