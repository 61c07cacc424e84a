"""The beats of open pages: the same for all, and further apart where answers take long."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise

import pytest

from taskqueue.web.overviews import LONGEST, PACE, SHARE, SILENCE, Beats


class Clock:
    """A time that moves when it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def beats(clock: Clock) -> Beats:
    return Beats(clock)


def gap(beats: Beats, clock: Clock) -> float:
    """Go on to the next beat, and return how long that was."""
    began, before = clock.now, beats.present()
    clock.now += beats.until_next()
    assert beats.present().number == before.number + 1
    return clock.now - began


def answered(beats: Beats, clock: Clock, seconds: float, at_once: int = 1) -> None:
    """Answer so many pages at once, all in these seconds."""
    with ExitStack() as answers:
        for _ in range(at_once):
            answers.enter_context(beats.answering())
        clock.now += seconds


def test_pages_that_open_at_different_times_are_told_at_the_same_beats(beats: Beats, clock: Clock) -> None:
    told = set()
    for opened in (1000.0, 1000.5, 1001.999):
        clock.now = opened
        beats.present()
        told.add(clock.now + beats.until_next())
    assert told == {1000.0 + PACE}


def test_a_beat_stays_the_same_until_the_next_one(beats: Beats, clock: Clock) -> None:
    first = beats.present()
    clock.now += PACE / 2
    assert beats.present() == first


def test_all_pages_are_told_when_there_was_silence_for_a_while(beats: Beats, clock: Clock) -> None:
    told, since = [clock.now], beats.present()
    while len(told) < 4:
        gap(beats, clock)
        if beats.present().for_all > since.number:
            told.append(clock.now)
            since = beats.present()
    spans = {later - before for before, later in pairwise(told)}
    assert all(SILENCE <= span < SILENCE + PACE for span in spans)


@pytest.mark.parametrize("at_once", [1, 8])
def test_beats_are_rarer_the_longer_answers_take(beats: Beats, clock: Clock, at_once: int) -> None:
    gap(beats, clock)
    answered(beats, clock, 4.5 * PACE / SHARE, at_once)
    assert gap(beats, clock) < PACE
    assert gap(beats, clock) == 4 * PACE


def test_beats_come_quickly_again_when_nobody_was_answered(beats: Beats, clock: Clock) -> None:
    gap(beats, clock)
    answered(beats, clock, 4.5 * PACE / SHARE)
    gap(beats, clock)
    gap(beats, clock)
    assert gap(beats, clock) == PACE


def test_an_answer_that_takes_very_long_stops_no_page_for_long(beats: Beats, clock: Clock) -> None:
    gap(beats, clock)
    with beats.answering():
        clock.now += 10 * LONGEST
        beats.present()
        assert LONGEST - PACE <= beats.until_next() <= LONGEST
