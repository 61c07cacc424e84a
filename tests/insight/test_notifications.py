"""What receivers were told is kept so that each finding is told once, and once more when it has ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from taskqueue.insight.needs import Need, Subject
from taskqueue.insight.notifications import (
    FIRST_PAUSE,
    GONE_FOR,
    LONGEST_PAUSE,
    MOST_FINDINGS,
    STATE,
    TURN,
    State,
    attempted,
    delivered,
    document,
    flaws,
    looked,
    refused,
    state_of,
)
from taskqueue.model.finding import Level
from taskqueue.model.record import Holder
from taskqueue.model.timestamps import moment
from taskqueue.store import Lease

NOON = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
HOOK = {"hook": "https://ops.example.org/…"}
BOTH = {**HOOK, "mail": "mailto:ops@example.org"}
ANYBODY = Holder(seat="web-1", incarnation="a1")


def need(name: str = "mail", says: str = "queue mail grows", **fields: object) -> Need:
    """Return something that somebody should act on."""
    return replace(Need(subject=Subject.QUEUE, name=name, says=says, do="find out"), **fields)  # type: ignore[arg-type]


def began(state: State, receiver: str = "hook") -> list[str]:
    """Return the names of the findings whose beginning waits to be told."""
    message = state.receivers[receiver].message
    return [] if message is None else [finding.name for finding in message.began]


def over(state: State, receiver: str = "hook") -> list[str]:
    """Return the names of the findings whose end waits to be told."""
    message = state.receivers[receiver].message
    return [] if message is None else [finding.name for finding in message.over]


def after(looks: Sequence[tuple[timedelta, Sequence[Need]]], state: State | None = None) -> State:
    """Return the state after looks at these times since noon, of which each message was taken."""
    state = state or State()
    for at, needs in looks:
        state = looked(state, needs, HOOK, NOON + at)
        for receiver in state.due(NOON + at):
            state = delivered(state, receiver)
    return state


def test_a_finding_is_told_once_however_its_sentence_changes() -> None:
    state = looked(State(), [need()], HOOK, NOON)
    assert began(state) == ["mail"]

    state = looked(delivered(state, "hook"), [need(says="queue mail grows: 9 in, 1 out")], HOOK, NOON + SECOND)

    assert (began(state), state.due(NOON + SECOND)) == ([], [])


def test_its_end_is_told_when_it_has_been_gone_for_minutes() -> None:
    state = after([(0 * SECOND, [need()]), (SECOND, [])])

    early = looked(state, [], HOOK, NOON + GONE_FOR)
    assert over(early) == []

    late = looked(early, [], HOOK, NOON + SECOND + GONE_FOR)
    assert over(late) == ["mail"]
    assert delivered(late, "hook").receivers["hook"].known == ()
    assert looked(delivered(late, "hook"), [], HOOK, NOON + 2 * GONE_FOR).findings == ()


def test_a_finding_that_comes_and_goes_is_one() -> None:
    state = after([(0 * SECOND, [need()])])
    for minute in range(60):
        state = looked(state, [need()] if minute % 5 == 0 else [], HOOK, NOON + minute * 60 * SECOND)
        assert state.receivers["hook"].message is None

    assert len(state.findings) == 1


def test_a_finding_that_comes_again_after_its_end_is_a_new_one() -> None:
    state = after([(0 * SECOND, [need()])])
    first = state.findings[0].id
    state = after([(SECOND, []), (SECOND + GONE_FOR, [])], state)

    again = looked(state, [need()], HOOK, NOON + 2 * GONE_FOR)

    assert began(again) == ["mail"]
    assert again.findings[0].id != first


def test_a_message_stays_the_same_until_it_was_taken() -> None:
    state = looked(State(), [need()], HOOK, NOON)
    first = state.receivers["hook"].message

    state = looked(state, [need(), need("reports")], HOOK, NOON + SECOND)
    assert state.receivers["hook"].message == first

    state = looked(delivered(state, "hook"), [need(), need("reports")], HOOK, NOON + 2 * SECOND)
    assert began(state) == ["reports"]
    assert first is not None
    assert state.receivers["hook"].message != first


def test_a_receiver_that_refuses_is_tried_with_growing_pauses_and_keeps_no_other_waiting() -> None:
    state, now, pauses = looked(State(), [need()], BOTH, NOON), NOON, []
    assert state.due(NOON) == ["hook", "mail"]
    state = delivered(state, "mail")

    for _ in range(8):
        state = refused(attempted(state, "hook", now), "hook", "answered 500", now)
        began_at, now = now, moment(state.receivers["hook"].try_at)
        assert state.due(now - SECOND) == []
        assert state.due(now) == ["hook"]
        pauses.append(now - began_at)

    assert pauses == [*(FIRST_PAUSE * 2**number for number in range(6)), LONGEST_PAUSE, LONGEST_PAUSE]
    assert state.receivers["hook"].tries == 8
    taken = delivered(state, "hook").receivers["hook"]
    assert (taken.tries, taken.error, taken.fails_since) == (0, "", None)


def test_each_message_of_each_receiver_has_an_id_of_its_own() -> None:
    state = looked(State(), [need()], BOTH, NOON)
    ids = {delivery.message.id for delivery in state.receivers.values() if delivery.message}

    assert len(ids) == 2
    assert looked(State(), [need()], BOTH, NOON) == state  # and the same after a repetition


def test_a_new_receiver_is_told_what_lasts_and_one_that_left_is_forgotten() -> None:
    state = after([(0 * SECOND, [need()])])

    state = looked(state, [need()], {"mail": BOTH["mail"]}, NOON + SECOND)

    assert began(state, "mail") == ["mail"]
    assert list(state.receivers) == ["mail"]


def test_an_end_that_a_receiver_has_not_taken_is_kept_for_it() -> None:
    state = looked(State(), [need()], BOTH, NOON)
    state = delivered(state, "hook")  # mail takes nothing
    for seconds in (1, 400, 401):
        state = looked(state, [], BOTH, NOON + seconds * SECOND)
    assert over(state, "hook") == ["mail"]
    assert began(state, "mail") == ["mail"]

    state = looked(delivered(delivered(state, "hook"), "mail"), [], BOTH, NOON + 402 * SECOND)

    assert over(state, "mail") == ["mail"]
    assert looked(delivered(state, "mail"), [], BOTH, NOON + 403 * SECOND).findings == ()


def test_long_runs_of_a_class_are_one_finding_and_two_flaws_of_a_node_are_two() -> None:
    runs = [need(str(number), subject=Subject.RUN, topic="shop:Mail") for number in range(200)]
    nodes = [need("", subject=Subject.NODE, topic=topic) for topic in ("versions", "web-1")]

    state = looked(State(), [*runs, *nodes], HOOK, NOON)

    assert len(began(state)) == 3


def test_a_flood_is_bounded() -> None:
    flood = [need(f"queue-{number}") for number in range(10 * MOST_FINDINGS)]

    state = after([(0 * SECOND, flood), (SECOND, flood)])

    assert len(state.findings) == MOST_FINDINGS


def test_the_state_is_read_as_it_was_kept() -> None:
    state = after([(0 * SECOND, [need()]), (SECOND, [])])
    state = looked(state, [need("reports", level=Level.ERROR)], BOTH, NOON + 2 * SECOND)
    state = refused(attempted(state, "mail", NOON), "mail", "refused", NOON)

    kept = Lease(name=STATE, holder=ANYBODY, since=NOON, until=NOON, about=json.loads(json.dumps(document(state))))

    assert state_of([kept]) == state


def test_a_state_that_nobody_can_read_is_begun_again() -> None:
    abouts: list[dict[str, object]] = [
        {"findings": 1},
        {"findings": [{"id": "x"}]},
        {"receivers": {"hook": {}}},
        {"receivers": []},
    ]
    for about in abouts:
        assert state_of([Lease(name=STATE, holder=ANYBODY, since=NOON, until=NOON, about=about)]) == State()
    assert state_of([]) == State()


def leases(state: State, turn_until: datetime, *, leader: bool = True) -> list[Lease]:
    """Return the leases of a store whose notifications were last sent then."""
    kept = Lease(name=STATE, holder=ANYBODY, since=NOON, until=NOON, about=document(state))
    turn = Lease(name=TURN, holder=ANYBODY, since=NOON, until=turn_until)
    lead = Lease(name="lead", holder=ANYBODY, since=NOON, until=NOON + timedelta(days=9))
    return [kept, turn, *([lead] if leader else [])]


def test_a_receiver_that_takes_nothing_is_a_finding_itself() -> None:
    state = looked(State(), [need()], HOOK, NOON)
    for _ in range(2):
        state = refused(attempted(state, "hook", NOON), "hook", "answered 500", NOON)
    assert list(flaws(leases(state, NOON), NOON)) == []

    state = refused(attempted(state, "hook", NOON), "hook", "answered 500", NOON)

    [found] = flaws(leases(state, NOON), NOON)
    assert (found.name, found.level) == (HOOK["hook"], Level.ERROR)
    assert found.says.endswith("has accepted no notification since 12:00: answered 500")


def test_a_leader_that_sends_none_while_another_node_did_is_a_finding_for_a_day() -> None:
    later = NOON + timedelta(minutes=6)

    [found] = flaws(leases(State(), NOON), later)
    assert found.says.startswith("no notification has been sent since 12:00")
    assert list(flaws(leases(State(), NOON, leader=False), later)) == []  # that none leads is one already
    assert list(flaws(leases(State(), NOON), NOON + timedelta(days=2))) == []
    assert list(flaws([], NOON)) == []
