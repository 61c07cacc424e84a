"""Every transition is told once, in order, to whoever asks with a cursor; nothing is missed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from bson import ObjectId

from taskqueue.errors import CursorTooOld
from taskqueue.model.lifecycle.outcomes import Canceled, Crashed, Done, Failed, HandedBack, Snoozed, TimedOut
from taskqueue.model.record import Options, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.store import OLDEST, Event, Note, Store
from taskqueue.store.bell import NEWS
from tests.store.conftest import Opener
from tests.store.records import (
    BROKEN,
    HOUR,
    MINUTE,
    NOON,
    SECOND,
    WEB_1,
    a_record,
    behind,
    claim,
    finished,
    now_cursor,
    postponed,
    rings,
    running,
    settle,
    told,
)

RETRY = Options(retry=FixedRetry(times=5, interval=60))


def test_a_cursor_without_a_beginning_starts_now(store: Store) -> None:
    finished(store, a_record())

    events, cursor = store.events(None)

    assert events == []
    assert store.events(cursor) == ([], cursor)


def test_the_events_of_one_job_are_found_from_a_time_on(store: Store) -> None:
    finished(store, a_record(created_at=NOON - HOUR))
    wanted, other = a_record(), a_record()
    finished(store, other)
    finished(store, wanted)
    finished(store, a_record(created_at=NOON + HOUR, ready_at=NOON))

    assert [event.name for event in store.events_of(wanted.id, NOON, 1000)] == ["waiting", "processing", "done"]
    assert {event.job_id for event in store.events_of(other.id, NOON - HOUR, 1000)} == {other.id}
    assert store.events_of(wanted.id, NOON + 2 * HOUR, 1000) == []
    assert store.events_of(wanted.id, NOON - 2 * HOUR, 1) == []
    assert store.events_of(ObjectId(), NOON - HOUR, 1000) == []


def test_a_cursor_is_found_by_a_time(store: Store) -> None:
    assert store.events(store.cursor_at(NOON))[0] == []
    finished(store, a_record(created_at=NOON - HOUR))
    wanted = a_record()
    finished(store, wanted)

    assert [event.name for event in store.events(store.cursor_at(NOON))[0]] == [
        *("processing", "done"),  # the earlier job was added an hour before, and runs at noon
        *("waiting", "processing", "done"),
    ]
    assert len(store.events(store.cursor_at(NOON - 2 * HOUR))[0]) == 6
    assert {event.job_id for event in store.events(store.cursor_at(NOON + HOUR))[0]} <= {wanted.id}, "the last write"


def test_the_events_of_one_job_are_found_among_those_of_its_batch(store: Store) -> None:
    batch = [a_record() for _ in range(9)]
    store.add(batch)
    claim(store, 9)

    events, _ = store.events(OLDEST)
    for wanted in (batch[0], batch[4], batch[8]):
        assert store.events_of(wanted.id, NOON, 1000) == [event for event in events if event.job_id == wanted.id]


def test_the_life_of_a_job_is_told_in_order(store: Store) -> None:
    cursor = now_cursor(store)
    record = a_record()

    finished(store, record)

    events, _ = store.events(cursor)
    assert [event.name for event in events] == ["waiting", "processing", "done"]
    assert [event.id for event in events] == [
        f"{record.id}:0:waiting",
        f"{record.id}:1:processing",
        f"{record.id}:1:done",
    ]
    assert [event.at for event in events] == [NOON, NOON, NOON + SECOND]
    assert [event.status for event in events] == [Status.WAITING, Status.PROCESSING, Status.DONE]
    assert {event.job_id for event in events} == {record.id}


@pytest.mark.parametrize(
    ("outcome", "name", "status"),
    [
        (Failed(failure=BROKEN), "retried", Status.POSTPONED),
        (Crashed(failure=BROKEN), "retried", Status.WAITING),
        (TimedOut(failure=BROKEN), "retried", Status.POSTPONED),
        (Snoozed(seconds=5), "postponed", Status.POSTPONED),
        (HandedBack(), "waiting", Status.WAITING),
        (Canceled(), "canceled", Status.CANCELED),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_outcome_is_told_by_its_name(store: Store, outcome: object, name: str, status: Status) -> None:
    run = running(store, a_record(options=RETRY))
    cursor = now_cursor(store)

    settle(store, run, outcome)  # type: ignore[arg-type]

    [event], _ = store.events(cursor)
    assert (event.name, event.status, event.id) == (name, status, f"{run.id}:1:{name}")


@pytest.mark.parametrize(
    ("outcome", "name"), [(Failed(failure=BROKEN), "failed"), (TimedOut(failure=BROKEN), "timeout")]
)
def test_a_bad_end_is_told(store: Store, outcome: object, name: str) -> None:
    run = running(store, a_record())
    cursor = now_cursor(store)

    settle(store, run, outcome)  # type: ignore[arg-type]

    assert told(store, cursor) == [name]


def test_a_postponed_job_is_told_when_it_is_added_and_when_it_is_due(store: Store) -> None:
    cursor = now_cursor(store)
    store.add([postponed(NOON + HOUR)])

    claim(store, 0, now=NOON + HOUR)

    events, _ = store.events(cursor)
    assert [(event.name, event.at) for event in events] == [("postponed", NOON), ("waiting", NOON + HOUR)]


def test_a_released_job_is_told(store: Store) -> None:
    run = running(store, a_record())
    store.add([behind(run.id)])
    cursor = now_cursor(store)

    settle(store, run)

    assert sorted(told(store, cursor)) == ["done", "waiting"]


def test_progress_is_told_with_its_time(store: Store) -> None:
    run = running(store, a_record())
    cursor = now_cursor(store)

    store.note(WEB_1, {run.id: Note(progress=10.0, progress_at=NOON)})
    store.renew(WEB_1, NOON + MINUTE, {run.id: Note(progress=20.0, progress_at=NOON + SECOND)})

    events, _ = store.events(cursor)
    assert [(event.name, event.status, event.at) for event in events] == [
        ("progress", Status.PROCESSING, NOON),
        ("progress", Status.PROCESSING, NOON + SECOND),
    ]
    assert len({event.id for event in events}) == 2


def test_a_refused_outcome_is_not_told(store: Store) -> None:
    run = running(store, a_record())
    settle(store, run)
    cursor = now_cursor(store)

    settle(store, run, Done(result="2"))

    assert told(store, cursor) == []


def test_a_job_that_was_there_already_is_not_told_again(store: Store) -> None:
    record = a_record(unique="k")
    store.add([record])
    cursor = now_cursor(store)

    store.add([record, a_record(unique="k")])

    assert told(store, cursor) == []


def test_events_of_other_connections_are_read_page_by_page(opener: Opener) -> None:
    store, other = opener(), opener()
    cursor = now_cursor(store)
    records = [a_record() for _ in range(25)]
    other.add(records)
    now_cursor(other)

    seen: list[ObjectId | None] = []
    while True:
        events, cursor = store.events(cursor, limit=10)
        if not events:
            break
        assert len(events) <= 10
        seen.extend(event.job_id for event in events)

    assert seen == [record.id for record in records]


def test_events_of_a_batch_are_read_in_parts_and_from_any_of_them_on(store: Store) -> None:
    cursor = now_cursor(store)
    batch = [a_record(ready_at=NOON + index * MINUTE) for index in range(7)]
    store.add(batch)
    claim(store, 7)

    whole, end = store.events(cursor)
    parts: list[Event] = []
    behind_them = cursor
    while part := store.events(behind_them, limit=3)[0]:
        assert len(part) == 3 or len(parts) + len(part) == 14
        parts += part
        behind_them = store.events(behind_them, limit=3)[1]

    ids = [record.id for record in batch]
    assert [(event.name, event.job_id) for event in whole[:7]] == [("waiting", id) for id in ids]
    assert [(event.name, event.job_id) for event in whole[7:]] == [("processing", id) for id in ids]
    assert parts == whole
    assert behind_them == end
    for index, event in enumerate(whole):
        assert store.events(event.cursor) == (whole[index + 1 :], end)


def test_the_oldest_cursor_stands_before_a_batch_and_a_flush_makes_those_in_it_too_old(store: Store) -> None:
    store.add([a_record() for _ in range(4)])
    events, _ = store.events(OLDEST)

    assert len(events) == 4
    store.flush()

    for event in events[:-1]:
        with pytest.raises(CursorTooOld):
            store.events(event.cursor)
    assert told(store, events[-1].cursor) == ["store_flushed"]


def test_every_listener_reads_for_itself(store: Store) -> None:
    first = now_cursor(store)
    store.add([a_record()])
    second = now_cursor(store)
    store.add([a_record()])

    assert (told(store, first), told(store, second)) == (["waiting"] * 2, ["waiting"])
    assert told(store, first) == ["waiting"] * 2


def test_events_that_were_pruned_make_a_cursor_too_old(store: Store) -> None:
    cursor = now_cursor(store)
    finished(store, a_record())
    later = now_cursor(store)
    store.add([a_record(created_at=NOON + HOUR)])
    store.add([a_record(created_at=NOON + HOUR)])

    store.prune({}, NOON + MINUTE, 100)

    with pytest.raises(CursorTooOld):
        store.events(cursor)
    assert told(store, later) == ["waiting"] * 2


def test_events_are_kept_as_long_as_asked(store: Store) -> None:
    cursor = now_cursor(store)
    finished(store, a_record())

    store.prune({}, NOON - timedelta(days=1), 100)

    assert told(store, cursor) == ["waiting", "processing", "done"]


def test_a_cursor_stays_good_while_nothing_happens_and_old_events_go(store: Store) -> None:
    finished(store, a_record())
    cursor = now_cursor(store)

    store.prune({}, NOON + HOUR, 100)

    assert store.events(cursor)[0] == []
    store.add([a_record()])
    assert told(store, cursor) == ["waiting"]


def test_a_flush_is_an_event_for_who_has_read_all_before_it(store: Store) -> None:
    empty = now_cursor(store)
    finished(store, a_record())
    read_some, read_all = store.events(empty)[0][0].cursor, now_cursor(store)

    store.flush()
    store.add([a_record()])

    assert told(store, read_all) == told(store, OLDEST) == ["store_flushed", "waiting"]
    for unread in (empty, read_some):
        with pytest.raises(CursorTooOld):
            store.events(unread)


def test_every_flush_is_an_event_of_its_own(store: Store) -> None:
    cursor = now_cursor(store)

    store.flush()
    [first] = store.events(cursor)[0]
    store.flush()
    [second] = store.events(first.cursor)[0]

    assert (first.name, second.name) == ("store_flushed", "store_flushed")
    assert first.id != second.id
    assert (first.job_id, first.status, first.node, first.about) == (None, None, "", {})
    with pytest.raises(CursorTooOld):
        store.events(cursor)


@pytest.mark.parametrize(
    "cursor", ["", "another store's", "-1", "99999999999", "9" * 18, "9" * 19, f"99.{'9' * 19}", "9" * 5000]
)
def test_a_cursor_of_another_store_is_refused(store: Store, cursor: str) -> None:
    finished(store, a_record())

    with pytest.raises(CursorTooOld):
        store.events(cursor)


def a_node_event(**fields: object) -> Event:
    given = {"id": "web-1/a1:worker_spawned:7", "name": "worker_spawned", "at": NOON, "node": "web-1", **fields}
    return Event(**given)  # type: ignore[arg-type]


def test_each_event_has_the_cursor_behind_it(store: Store) -> None:
    cursor = now_cursor(store)
    finished(store, a_record())
    events, end = store.events(cursor)

    rests = [[later.name for later in store.events(event.cursor)[0]] for event in events]

    assert rests == [["processing", "done"], ["done"], []]
    assert events[-1].cursor == end


def test_the_oldest_cursor_stands_before_the_first_event_that_is_kept(store: Store) -> None:
    assert store.events(OLDEST)[0] == []
    finished(store, a_record())
    store.add([a_record(created_at=NOON + HOUR)])
    assert told(store, OLDEST)[-2:] == ["done", "waiting"]

    store.prune({}, NOON + MINUTE, 100)

    assert told(store, OLDEST) == ["waiting"]


def test_what_a_node_tells_of_itself_is_among_the_events(store: Store) -> None:
    cursor = now_cursor(store)
    record = a_record()
    spawned = a_node_event(about={"pid": 7, "exit": "café"})

    store.add([record])
    store.record_events([spawned, a_node_event(id="web-1/a1:became_leader:8", name="became_leader")])

    events, _ = store.events(cursor)
    assert [event.name for event in events] == ["waiting", "worker_spawned", "became_leader"]
    assert (events[1].id, events[1].at, events[1].node, events[1].about) == (
        spawned.id, NOON, "web-1", {"pid": 7, "exit": "café"},
    )  # fmt: skip
    assert (events[1].job_id, events[1].status, events[1].ended) == (None, None, None)
    assert (events[0].job_id, events[0].node, events[0].about) == (record.id, "", {})


def test_what_a_node_tells_rings(opener: Opener) -> None:
    store, other = opener(), opener()
    bell = store.bell(NEWS)

    other.record_events([a_node_event()])

    assert rings(bell)
    bell.close()
