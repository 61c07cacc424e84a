"""Jobs that pass values of absurd types to the methods of a running job, or return them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taskqueue import Job, Snooze, retry

WORDS = "half \ud800 and \0 of mongodb://app:hidden@db/jobs " + "x" * 2_000_000
"""The message of an error, too long to be kept as it is."""


class Unspeakable:
    """Has no words for itself."""

    def __repr__(self) -> str:
        raise RuntimeError


class ComputedFloat(float):
    """Is another number than it seems, as a class of a library may be."""

    def __float__(self) -> float:
        return float("nan")


def _snooze(_: Job) -> None:
    snooze = Snooze(1)
    snooze.seconds = ComputedFloat(1)
    raise snooze


CASES: dict[str, tuple[Callable[[Any], object], str]] = {
    "progress": (lambda job: job.progress(Unspeakable()), "progress(an Unspeakable whose repr() raises RuntimeError)"),
    "number": (lambda job: job.progress(10**5000), "progress(a whole number of 16,610 bits)"),
    "computed": (lambda job: job.progress(ComputedFloat(5)), "pass a number from 0 to 100"),
    "checkpoint": (lambda job: job.checkpoint({Unspeakable(): 1}), "checkpoint has the key an Unspeakable"),
    "end_with": (lambda job: job.end_with([Unspeakable()]), "end_with(a list whose repr() raises RuntimeError)"),
    "turn": (lambda job: job.each([1], turn=Unspeakable()), "each(turn=an Unspeakable"),
    "pairs": (lambda job: list(job.each(lambda _: [Unspeakable()])), "yield pairs of a cursor and an item"),
    "snooze": (_snooze, "pass seconds between 0 and ten years"),
    "result": (lambda _: {Unspeakable(): 1}, "result has the key an Unspeakable"),
}
"""What each job does, and what its error says."""


class Absurd(Job):
    """Does what its data name."""

    def start(self) -> Any:
        return CASES[self.data][0](self)


class Raising:
    """A retry policy that fails with such a message."""

    def decide(self, _situation: retry.Situation) -> retry.GiveUp:
        """Raise."""
        raise ValueError(WORDS)


class GivingUp:
    """A retry policy that gives up with such a reason."""

    def decide(self, _situation: retry.Situation) -> retry.GiveUp:
        """Give up."""
        return retry.GiveUp(reason=WORDS)
