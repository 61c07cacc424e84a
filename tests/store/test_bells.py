"""Bells ring after changes of their topic, in other connections and other processes."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Callable

import pytest

from taskqueue.model.lifecycle.outcomes import Failed, HandedBack
from taskqueue.model.query import parse
from taskqueue.model.record import Options
from taskqueue.model.retry import FixedRetry
from taskqueue.store import Note, Store
from taskqueue.store.bell import ENDS, NEWS, STOPS, WORK
from tests.store.conftest import Opener
from tests.store.records import (
    BROKEN,
    HOUR,
    LEASE,
    NOON,
    WEB_1,
    a_record,
    claim,
    postponed,
    rings,
    running,
    settle,
    told,
)

ADDING = """
import sys
from contextlib import closing
from taskqueue.store.open import open_store
from tests.store.records import a_record

with closing(open_store(sys.argv[1])) as store:
    store.add([a_record()])
"""
RETRY = Options(retry=FixedRetry(times=5, interval=60))


def test_an_unknown_topic_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match=r"^topic='jobs': use work, stops, plans, controls, news, ends$"):
        store.bell("jobs")


@pytest.mark.parametrize("topic", [WORK, NEWS])
def test_an_added_job_rings(opener: Opener, topic: str) -> None:
    bell = opener().bell(topic)

    opener().add([a_record()])

    assert rings(bell)
    bell.close()


@pytest.mark.parametrize("topic", [ENDS, NEWS])
def test_a_flush_rings_when_the_jobs_are_gone(opener: Opener, topic: str) -> None:
    mine, other = opener(), opener()
    run = running(other, a_record())
    _, cursor = other.events(None)  # behind all that it has recorded
    bell = mine.bell(topic)

    other.flush()

    assert rings(bell)
    assert mine.find(parse({"id": run.id})) == []
    assert told(mine, cursor) == ["store_flushed"]
    bell.close()


def test_a_postponed_job_rings_because_it_may_be_the_next(opener: Opener) -> None:
    bell = opener().bell(WORK)

    opener().add([postponed(NOON + HOUR)])

    assert rings(bell)
    bell.close()


@pytest.mark.parametrize(
    ("topic", "change"),
    [
        (WORK, lambda store, run: settle(store, run, HandedBack())),
        (WORK, lambda store, run: settle(store, run, Failed(failure=BROKEN))),
        (NEWS, settle),
        (ENDS, settle),
        (NEWS, lambda store, run: store.note(WEB_1, {run.id: Note(progress=50.0, progress_at=NOON)})),
        (NEWS, lambda store, run: store.renew(WEB_1, NOON + LEASE, {run.id: Note(progress=50.0, progress_at=NOON)})),
        (STOPS, lambda store, run: store.cancel(run.id, "", NOON)),
    ],
    ids=["handed back", "retried", "done", "ended", "progress noted", "progress renewed", "cancel wanted"],
)
def test_what_happens_to_a_running_job_rings(
    opener: Opener, topic: str, change: Callable[[Store, object], object]
) -> None:
    store, other = opener(), opener()
    run = running(store, a_record(options=RETRY))
    bell = other.bell(topic)

    change(store, run)

    assert rings(bell)
    bell.close()


def test_nothing_but_an_end_rings_for_those_who_wait_for_ends(opener: Opener) -> None:
    store, other = opener(), opener()
    bell, work = other.bell(ENDS), other.bell(WORK)

    run = running(store, a_record(options=RETRY))
    settle(store, run, Failed(failure=BROKEN))
    assert rings(work)
    assert not select.select([bell], [], [], 0)[0]

    store.cancel(run.id, "", NOON)
    assert rings(bell)
    for one in (bell, work):
        one.close()


def test_a_bell_that_was_taken_rings_for_the_next_change(opener: Opener) -> None:
    store, other = opener(), opener()
    bell = store.bell(NEWS)
    for _ in range(3):
        other.add([a_record()])
        assert rings(bell)
    bell.close()


def test_every_listener_hears_the_ring(opener: Opener) -> None:
    bells = [opener().bell(NEWS) for _ in range(3)]

    opener().add([a_record()])

    assert [rings(bell) for bell in bells] == [True] * 3
    for bell in bells:
        bell.close()


def test_rings_that_nobody_takes_stop_nobody(opener: Opener) -> None:
    bell, store = opener().bell(NEWS), opener()

    for _ in range(200):
        store.add([a_record()])

    assert rings(bell)
    bell.close()


def test_a_bell_that_was_closed_stops_nobody(opener: Opener) -> None:
    store = opener()
    gone, bell = opener().bell(WORK), opener().bell(WORK)
    gone.close()
    gone.close()

    store.add([a_record()])

    assert rings(bell)
    bell.close()


def test_a_listener_knows_when_to_look_without_a_ring(store: Store, store_url: str) -> None:
    bell = store.bell(WORK)

    assert bell.pause == (1.0 if store_url.startswith("sqlite") else 30.0)  # as the manual says
    assert bell.fileno() >= 0
    bell.clear()
    assert not bell.renew()
    bell.close()


def test_a_change_in_another_process_rings(store: Store, store_url: str) -> None:
    bell = store.bell(WORK)

    subprocess.run([sys.executable, "-c", ADDING, store_url], check=True)

    assert rings(bell)
    bell.close()
    assert len(claim(store, 9).records) == 1
