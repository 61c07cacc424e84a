"""Answers that are shared for a moment: one look at the store for all who look at the same page."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from taskqueue import Scheduler
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
