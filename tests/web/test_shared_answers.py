"""Answers that are shared for a moment: one look at the store for all who look at the same page."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from taskqueue import Scheduler
from taskqueue.scheduler.connection import StoreOpener
from taskqueue.store import Store
from taskqueue.store.open import open_store
from taskqueue.web.overviews import MOST, PACE, Beats, Overviews, SharedAnswers
from taskqueue.web.view import Answer
from tests.nodes import LIMIT


def test_all_who_want_the_same_at_once_share_one_answer() -> None:
    shared, made, go = SharedAnswers(Beats(lambda: 100.0)), [], threading.Event()

    def make() -> Answer:
        made.append(1)
        assert go.wait(LIMIT)
        return {"number": len(made)}

    answers: list[Answer] = []
    askers = [threading.Thread(target=lambda: answers.append(shared.answer("/", make))) for _ in range(8)]
    for asker in askers:
        asker.start()
    go.set()
    for asker in askers:
        asker.join(LIMIT)

    assert answers == [{"number": 1}] * 8


def test_what_fails_is_not_kept() -> None:
    shared = SharedAnswers(Beats())

    def fail() -> Answer:
        raise LookupError

    with pytest.raises(LookupError):
        shared.answer("/", fail)
    assert shared.answer("/", lambda: {"ok": True}) == {"ok": True}


def test_old_answers_make_room_and_others_have_their_own() -> None:
    shared = SharedAnswers(Beats())

    answers = [shared.answer(number, lambda number=number: {"n": number}) for number in range(2 * MOST)]  # type: ignore[misc]

    assert answers == [{"n": number} for number in range(2 * MOST)]


def test_an_answer_is_made_anew_in_the_next_beat() -> None:
    now = 100.0
    shared, made = SharedAnswers(Beats(lambda: now)), []

    def make() -> Answer:
        made.append(1)
        return {"number": len(made)}

    first, again = (shared.answer("/", make) for _ in range(2))
    now += PACE
    assert (first, again, shared.answer("/", make)) == ({"number": 1}, {"number": 1}, {"number": 2})


class Slow:
    """A store that returns its tally only once it may."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.has_counted, self.may_return = threading.Event(), threading.Event()
        self.may_return.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def tally(self) -> Any:
        tally = self._store.tally()
        self.has_counted.set()
        assert self.may_return.wait(LIMIT)
        return tally


@pytest.mark.parametrize("read", ["read", "numbers"])
def test_a_change_while_the_store_is_read_is_seen_by_the_next_reader_and_waits_for_no_one(url: str, read: str) -> None:
    slow = Slow(open_store(url))
    with Scheduler(StoreOpener(open=lambda: cast("Store", slow))) as scheduler:
        overviews = Overviews(scheduler)
        if read == "numbers":  # so that they are counted apart
            overviews.read()
        slow.has_counted.clear()
        slow.may_return.clear()
        reading = threading.Thread(target=getattr(overviews, read))
        reading.start()
        assert slow.has_counted.wait(LIMIT)

        scheduler.add_job("shop:Mail")
        changing = threading.Thread(target=overviews.forget)
        changing.start()
        changing.join(LIMIT / 4)
        did_wait = changing.is_alive()
        slow.may_return.set()
        for thread in (reading, changing):
            thread.join(LIMIT)

        assert not did_wait
        assert overviews.numbers()["total"] == 1
        assert sum(overviews.read().tally.values()) == 1


def test_numbers_and_an_overview_that_is_due_share_one_count(url: str) -> None:
    counts: list[str] = []

    class Counting(Scheduler):
        def stats(self) -> dict[str, Any]:
            counts.append("stats")
            return super().stats()

    with Counting(url) as scheduler:
        overviews = Overviews(scheduler)
        first = overviews.numbers_now(due_after=LIMIT)
        assert (first["total"], counts) == (0, [])
        overviews.needs()

        scheduler.add_job("shop:Mail")

        assert (overviews.numbers_now(due_after=LIMIT)["total"], counts) == (1, ["stats"])
