"""Bells between processes of one host on MongoDB: the end of a job rings with its record, before its event is kept."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo.database import Database

from taskqueue.model.lifecycle.outcomes import Done, Failed
from taskqueue.model.record import Options, Record
from taskqueue.model.retry import FixedRetry
from taskqueue.model.serializer import encode
from taskqueue.store.bell import ENDS, NEWS
from taskqueue.store.mongodb.bells import MOST_NOTICED, EndsBell, record_of
from taskqueue.store.mongodb.documents import document
from taskqueue.store.mongodb.settlements import MOST_RUNG
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.open import open_store
from tests.nodes import eventually
from tests.servers import with_database
from tests.store.records import BROKEN, NOON, PATIENCE, a_record, claim, kept, rings, running, settle, settlement

Document = dict[str, Any]


@pytest.fixture
def url(mongo_set: str, mongo_database: Database[Document]) -> str:
    for name in mongo_database.list_collection_names():
        mongo_database[name].delete_many({})
    return f"{with_database(mongo_set, mongo_database.name)}&timeoutMS={PATIENCE * 1000:.0f}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the runtime folder."""
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


def opened(url: str) -> MongoStore:
    store = open_store(url)
    assert isinstance(store, MongoStore)
    return store


@pytest.fixture
def store(url: str) -> Iterator[MongoStore]:
    with closing(opened(url)) as store:
        yield store


@pytest.fixture
def other(url: str) -> Iterator[MongoStore]:
    with closing(opened(url)) as store:
        yield store


def finds_listeners(store: MongoStore) -> bool:
    """Ring, which has the store look who listens."""
    store._host_bells.ring()
    return store._host_bells.has_listeners


@pytest.fixture
def bell(other: MongoStore, store: MongoStore) -> Iterator[EndsBell]:
    """Return a bell of another store that this one has found."""
    with closing(other.bell(ENDS)) as bell:
        assert isinstance(bell, EndsBell)
        eventually(lambda: finds_listeners(store))
        bell.clear()
        yield bell


def heard(bell: EndsBell) -> list[Record | None]:
    """Wait for a ring and return what it tells of."""
    readable, _, _ = select.select([bell], [], [], PATIENCE)
    assert readable
    return list(bell.clear())


@pytest.mark.parametrize("outcome", [Done(result=encode({"sum": 3})), Failed(failure=BROKEN)])
def test_the_end_of_a_job_rings_with_its_record_and_its_event_says_nothing_new(
    store: MongoStore, other: MongoStore, bell: EndsBell, outcome: Done | Failed
) -> None:
    run = running(store, a_record(data=encode({"n": 1}), tags=("a",)))
    store.cancel(run.id, "too late", NOON)

    settle(store, run, outcome)

    assert heard(bell) == [kept(other, run.id)]
    eventually(lambda: not bell._noticed)  # the change stream has rung
    assert bell.clear() == []


def test_several_ends_at_once_ring_without_a_record(store: MongoStore, bell: EndsBell) -> None:
    store.add([a_record() for _ in range(MOST_RUNG)])
    store.settle([settlement(run) for run in claim(store, MOST_RUNG).records], NOON)

    assert set(heard(bell)) == {None}  # the change stream may have rung, too


def test_many_ends_ring_by_the_change_stream_alone(store: MongoStore, bell: EndsBell) -> None:
    store.add([a_record() for _ in range(MOST_RUNG + 1)])
    store.settle([settlement(run) for run in claim(store, MOST_RUNG + 1).records], NOON)

    assert heard(bell) == [None]
    assert bell._doorbell.clear() == []


def test_a_long_record_is_left_to_the_reader(store: MongoStore, bell: EndsBell) -> None:
    settle(store, running(store, a_record()), Done(result=encode("x" * 5000)))

    assert heard(bell) == [None]


def test_what_does_not_end_a_job_rings_nobody_who_waits_for_ends(store: MongoStore, bell: EndsBell) -> None:
    run = running(store, a_record(options=Options(retry=FixedRetry(times=3, interval=60))))
    with closing(store.bell(NEWS)) as news:
        settle(store, run, Failed(failure=BROKEN))
        assert rings(news)

    assert not select.select([bell], [], [], 0)[0]


def test_an_end_that_the_doorbell_has_not_told_of_is_unknown(bell: EndsBell) -> None:
    bell.ring(0, ended=(a_record().id,))
    assert heard(bell) == [None]

    bell.ring(0)
    assert heard(bell) == [None]


def test_a_bell_remembers_no_more_than_it_may(store: MongoStore, bell: EndsBell) -> None:
    bell._noticed = {a_record().id for _ in range(MOST_NOTICED + 1)}
    run = running(store, a_record())
    settle(store, run)

    assert heard(bell)
    assert len(bell._noticed) <= 1


@pytest.mark.parametrize(
    "sent", [b"", b"?", b"x" * 4096, bson.encode({"_id": 1}), bson.encode(document(a_record())), bson.encode({})]
)
def test_what_another_program_sends_is_not_believed(bell: EndsBell, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        folder = os.open(bell._doorbell._path.parent, os.O_PATH)
        sender.sendto(sent, f"/proc/self/fd/{folder}/{bell._doorbell._path.name}")
        os.close(folder)

    assert heard(bell) == [None]
    assert record_of(sent) is None


def test_a_doorbell_that_was_removed_is_hung_again(store: MongoStore, bell: EndsBell) -> None:
    bell._doorbell._path.unlink()

    assert not bell.renew()  # the descriptor is the same

    run = running(store, a_record())
    settle(store, run)
    assert [None if one is None else one.id for one in heard(bell)] == [run.id]


def test_a_folder_that_others_can_write_is_not_used(url: str, folder: Path) -> None:
    (folder / "bells").mkdir(parents=True)
    (folder / "bells").chmod(0o777)
    with closing(opened(url)) as store, closing(store.bell(ENDS)) as bell:
        assert not isinstance(bell, EndsBell)

        settle(store, running(store, a_record()))

        assert rings(bell)


def test_a_place_where_no_folder_can_be_made_leaves_the_change_stream(url: str, folder: Path) -> None:
    folder.write_text("a file")
    with closing(opened(url)) as store, closing(store.bell(ENDS)) as bell:
        settle(store, running(store, a_record()))

        assert rings(bell)


def test_a_closed_bell_leaves_no_socket(store: MongoStore, folder: Path) -> None:
    bell = store.bell(ENDS)
    [sockets] = (folder / "bells").iterdir()
    assert len(list(sockets.iterdir())) == 1

    bell.close()
    bell.close()

    assert list(sockets.iterdir()) == []
    assert bell.fileno() == -1
