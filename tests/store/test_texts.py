"""Text with a NUL, or no valid Unicode, such as a name of a file that cannot be decoded: kept written out."""

from __future__ import annotations

from dataclasses import replace

from taskqueue.model.lifecycle.outcomes import Failed, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Failure, Options
from taskqueue.model.retry import FixedRetry
from taskqueue.model.schedules import Every
from taskqueue.model.schedules.schedule import Miss, NamedSchedule
from taskqueue.model.serializer import LONGEST_TEXT
from taskqueue.store import Note, Settlement, Store
from tests.store.records import NOON, SECOND, WEB_1, a_record, claim, kept, running, settle

TORN = "caf\udce9\0.txt"
WRITTEN_OUT = "caf\\udce9\\x00.txt"
FAILURE = Failure(type=TORN, message=TORN, traceback=TORN, bases=(TORN,))


def test_a_message_with_progress_is_kept_and_the_notes_beside_it_too(store: Store) -> None:
    one, other = running(store, a_record()), running(store, a_record())

    store.note(WEB_1, {other.id: Note(started_at=NOON), one.id: _noted()})

    assert kept(store, one.id).progress_message == WRITTEN_OUT
    assert kept(store, other.id).started_at == NOON


def test_what_an_attempt_says_is_kept(store: Store) -> None:
    run = running(store, a_record(options=Options(retry=FixedRetry(3))))
    said = replace(run, progress_message=TORN)
    after = ended(said, Failed(failure=FAILURE), Run(node="web-1", exit=TORN), NOON)

    assert store.settle([Settlement(claims=run.claims, holder=WEB_1, after=after)], NOON) == {run.id}

    found = kept(store, run.id)
    [attempt] = found.attempts
    cleaned = Failure(type=WRITTEN_OUT, message=WRITTEN_OUT, traceback=WRITTEN_OUT, bases=(WRITTEN_OUT,))
    assert (found.error, attempt.error, attempt.exit, found.progress_message) == (
        cleaned,
        cleaned,
        WRITTEN_OUT,
        WRITTEN_OUT,
    )


def test_the_reason_of_a_cancel_is_kept_and_returned_alike(store: Store) -> None:
    waiting, run = a_record(), running(store, a_record())
    store.add([waiting])

    canceled, asked = store.cancel(waiting.id, TORN, NOON), store.cancel(run.id, TORN, NOON)

    assert (canceled, asked) == (kept(store, waiting.id), kept(store, run.id))
    assert canceled is not None
    assert canceled.error is not None
    assert canceled.error.message == WRITTEN_OUT
    assert asked is not None
    assert asked.cancel is not None
    assert asked.cancel.reason == WRITTEN_OUT


def test_a_copy_with_such_texts_can_be_added(store: Store) -> None:
    copied = a_record(error=FAILURE, progress_message=TORN)

    store.add([copied])

    [found] = claim(store).records
    assert found.progress_message == WRITTEN_OUT
    settle(store, found, now=NOON + SECOND)


def test_of_an_endless_reason_of_a_cancel_the_beginning_is_kept(store: Store) -> None:
    """A record on MongoDB can have 16 MB: what is larger would be refused at each settle, and its node stand still."""
    waiting, run, other = a_record(), running(store, a_record()), running(store, a_record())
    store.add([waiting])
    endless = "x" * 9_000_000

    for one in (waiting, run):
        store.cancel(one.id, endless, NOON)
    store.cancel_many([other.id], endless, NOON)

    for one in (run, other):
        request = kept(store, one.id).cancel
        assert request is not None
        assert request.reason == "x" * LONGEST_TEXT
    error = kept(store, waiting.id).error
    assert error is not None
    assert error.message == "x" * LONGEST_TEXT


def test_the_reasons_of_a_schedule_are_kept(store: Store) -> None:
    miss = Miss(first=NOON, last=NOON, count=1, reason=TORN)
    plan = NamedSchedule(
        name="nightly", trigger=Every(60, NOON), template=a_record(), created_at=NOON, reason=TORN, misses=(miss,)
    )

    assert store.replace_schedule(None, plan, [], NOON)

    [found] = store.schedules(None)
    assert (found.reason, found.misses) == (WRITTEN_OUT, (replace(miss, reason=WRITTEN_OUT),))


def _noted() -> Note:
    return Note(progress=1.0, progress_message=TORN, progress_at=NOON)
