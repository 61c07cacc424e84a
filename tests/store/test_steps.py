"""Jobs that run in steps: turns, places and cleaning up are kept by both stores."""

from __future__ import annotations

from dataclasses import replace

from taskqueue.model.lifecycle.continuation import Continuation, Phase
from taskqueue.model.lifecycle.outcomes import Canceled, Crashed, Done, Failed, HandedBack, Interrupted, Stepped
from taskqueue.model.record import Cause, Options, Record, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.store import Note, Store
from tests.store.records import (
    BROKEN,
    HOUR,
    LEASE,
    MINUTE,
    NOON,
    SECOND,
    WEB_1,
    a_record,
    claim,
    ids,
    kept,
    postponed,
    running,
    settle,
)

UNDER_WAY = Continuation(phase=Phase.RUNNING, steps=2, reports='{"done":2}')


def stepping(**fields: object) -> Record:
    """Return a record that waits for its next step."""
    return a_record(course=UNDER_WAY, **fields)


def test_steps_of_several_jobs_take_turns(store: Store) -> None:  # JB-7, X-31
    jobs = [stepping() for _ in range(3)]
    store.add(jobs)
    order = []
    for second in range(6):
        [run] = claim(store, now=NOON + second * SECOND).records
        order.append(run.id)
        settle(store, run, Stepped(phase=Phase.RUNNING), NOON + (second + 1) * SECOND)

    assert order == ids(jobs) * 2


def test_a_job_added_meanwhile_has_its_turn_before_the_next_step(store: Store) -> None:
    run = running(store, stepping())
    other = a_record(ready_at=NOON + SECOND)
    store.add([other])

    settle(store, run, Stepped(phase=Phase.RUNNING), NOON + 2 * SECOND)

    assert ids(claim(store, 2, now=NOON + 2 * SECOND).records) == [other.id, run.id]


def test_what_a_step_leaves_behind_comes_with_the_next_claim(store: Store) -> None:
    run = running(store, stepping(state='{"n":1}'))

    assert settle(store, run, Stepped(phase=Phase.ENDING, state='{"n":2}', reports='{"done":3}')) == {run.id}

    [again] = claim(store, now=NOON + MINUTE).records
    assert (again.state, again.claims) == ('{"n":2}', 2)
    assert again.course == Continuation(phase=Phase.ENDING, steps=3, reports='{"done":3}')


def test_a_late_step_is_refused(store: Store) -> None:
    first = running(store, stepping())
    settle(store, first, HandedBack())
    [second] = claim(store, now=NOON + MINUTE).records

    assert settle(store, first, Stepped(phase=Phase.ENDING)) == set()
    assert settle(store, second, Stepped(phase=Phase.RUNNING), NOON + MINUTE) == {first.id}
    assert kept(store, first.id).course == replace(UNDER_WAY, steps=3)


def test_places_of_loops_are_kept_while_the_claim_holds(store: Store) -> None:
    run = running(store, a_record())
    store.note(WEB_1, {run.id: Note(cursor='{"":7}')})
    store.renew(WEB_1, NOON + HOUR, {run.id: Note(state="1")})
    assert kept(store, run.id).cursor == '{"":7}'

    settle(store, kept(store, run.id), Crashed(failure=BROKEN))
    store.note(WEB_1, {run.id: Note(cursor='{"":9}')})

    crashed = kept(store, run.id)
    assert (crashed.cursor, crashed.counted_crashes) == ('{"":7}', 1)
    assert crashed.course == Continuation(crashed_at='{"":7}')


def test_one_that_waits_cleans_up_when_it_is_canceled(store: Store) -> None:  # JB-6
    for record in (stepping(), postponed(NOON + HOUR, course=UNDER_WAY)):
        store.add([record])

        asked = store.cancel(record.id, "enough", NOON + SECOND)

        assert asked == kept(store, record.id)
        assert (asked.status, asked.phase) == (Status.WAITING, Phase.FAILING)
        [cleaning] = claim(store, now=NOON + MINUTE).records
        settle(store, cleaning, Done(), NOON + MINUTE)
        assert (kept(store, record.id).status, kept(store, record.id).cause) == (Status.CANCELED, Cause.CANCELED)


def test_one_that_runs_cleans_up_when_it_is_canceled(store: Store) -> None:  # JB-6, X-28
    run = running(store, stepping())
    store.cancel(run.id, "enough", NOON)
    settle(store, run, Canceled())

    [cleaning] = claim(store, now=NOON + MINUTE).records

    assert cleaning.phase is Phase.FAILING
    again = settle(store, cleaning, Interrupted(), NOON + MINUTE)
    assert again == {run.id}
    [cleaning] = claim(store, now=NOON + MINUTE).records
    assert settle(store, cleaning, Failed(failure=BROKEN), NOON + MINUTE) == {run.id}
    [cleaning] = claim(store, now=NOON + 2 * MINUTE).records
    assert settle(store, cleaning, Done(), NOON + 2 * MINUTE) == {run.id}
    assert (kept(store, run.id).status, kept(store, run.id).error) == (Status.CANCELED, cleaning.error)


def test_a_cancel_request_that_the_node_did_not_know_of_leads_to_a_clean_up(store: Store) -> None:
    run = running(store, stepping())
    store.cancel(run.id, "enough", NOON)

    assert settle(store, run, Stepped(phase=Phase.RUNNING)) == {run.id}

    failing = kept(store, run.id)
    assert (failing.status, failing.phase) == (Status.WAITING, Phase.FAILING)


def test_a_wish_does_not_end_the_cleaning(store: Store) -> None:
    run = running(store, stepping(options=Options(retry=FixedRetry())))
    settle(store, run, Failed(failure=BROKEN))
    [cleaning] = claim(store, now=NOON + MINUTE).records

    assert store.cancel(run.id, "enough", NOON + MINUTE) == cleaning
    assert store.renew(WEB_1, NOON + HOUR, {}).claims[run.id].cancel_reason is None
    settle(store, cleaning, Done(), NOON + MINUTE)

    assert kept(store, run.id).status is Status.FAILED


def test_one_that_waits_to_clean_up_is_canceled_at_once(store: Store) -> None:
    run = running(store, stepping())
    settle(store, run, Failed(failure=BROKEN))

    asked = store.cancel(run.id, "at once", NOON + MINUTE)

    assert asked is not None
    assert asked.status is Status.CANCELED


def test_children_clean_up_when_their_tree_is_canceled(store: Store) -> None:
    parent = postponed(NOON + HOUR)
    waiting, busy = stepping(parent=parent.id), stepping(parent=parent.id)
    store.add([parent, busy])
    [busy] = claim(store, 2).records
    store.add([waiting])

    store.cancel(parent.id, "", NOON)

    assert kept(store, waiting.id).phase is Phase.FAILING
    assert kept(store, waiting.id).status is Status.WAITING
    assert kept(store, busy.id).cancel is not None


def test_children_that_clean_up_already_are_left_to_it(store: Store) -> None:
    parent = postponed(NOON + HOUR)
    failing = replace(UNDER_WAY, phase=Phase.FAILING, ends_as=int(Status.FAILED), ends_because="failed")
    children = [a_record(parent=parent.id, course=failing) for _ in range(2)]
    store.add([parent, *children])
    [cleaning] = claim(store).records

    store.cancel(parent.id, "", NOON)

    assert kept(store, cleaning.id) == cleaning
    assert {kept(store, child.id).phase for child in children} == {Phase.FAILING}
    assert not any(kept(store, child.id).status.is_final for child in children)


def test_one_that_was_handed_back_between_steps_does_not_expire(store: Store) -> None:
    run = running(store, stepping(expires_at=NOON + HOUR))
    settle(store, run, Stepped(phase=Phase.RUNNING))
    [again] = claim(store, now=NOON + MINUTE).records
    settle(store, again, HandedBack(), NOON + MINUTE)

    [late] = claim(store, now=NOON + 2 * HOUR).records

    assert late.id == run.id


def test_a_lease_that_ends_in_a_step_leaves_the_place_that_was_told(store: Store) -> None:
    run = running(store, stepping())
    store.note(WEB_1, {run.id: Note(started_at=NOON, cursor='{"":3}')})

    [lost] = store.expired(NOON + LEASE, 10)

    assert (lost.cursor, lost.course) == ('{"":3}', UNDER_WAY)
