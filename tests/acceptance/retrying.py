"""The jobs of the tests of retries, and the retry policies of a user, good and bad."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from taskqueue import Interrupted, Job, retry


class Refused(Exception):
    """Something that can be tried again."""


class Refusing(Job):
    """Fails with what its data name, until its attempt number is ``data["until"]``."""

    def start(self) -> int:
        if self.attempt < self.data["until"]:
            raise Refused(self.data.get("words", "no"))
        return self.attempt


class Patient:
    """Retries so many times without a pause, in another queue, and knows which attempt is the last."""

    def __init__(self, times: int, queue: str | None = None) -> None:
        self.times = times
        self.queue = queue

    def decide(self, situation: retry.Situation) -> retry.RetryIn | None:
        """Return another attempt after errors of ours, a few times."""
        if self.is_last(situation) or not situation.is_a("tests.acceptance.retrying.Refused"):
            return None
        return retry.RetryIn(after=0, queue=self.queue)

    def is_last(self, situation: retry.Situation) -> bool:
        """Return whether this attempt is the last."""
        return situation.failures > self.times


class Raising:
    """Fails itself."""

    def decide(self, situation: retry.Situation) -> None:
        """Raise."""
        raise RuntimeError(f"cannot judge {situation.message!r}")


class Babbling:
    """Answers nonsense."""

    def decide(self, _situation: retry.Situation) -> Any:
        """Return a word."""
        return "soon"


class Relenting:
    """Retries once after a timeout, by plain seconds."""

    def decide(self, situation: retry.Situation) -> float | None:
        """Return no pause."""
        return 0 if situation.timed_out and situation.failures == 1 else None


class Remembering(Job):
    """Returns why the attempt before failed."""

    def start(self) -> list[str]:
        if self.previous_error is None:
            raise Refused("not today")
        return [self.previous_error.type, self.previous_error.message]


class Last(Job):
    """Returns at its last attempt, as far as it knows."""

    def start(self) -> int:
        if not self.is_last_attempt:
            raise Refused("not yet")
        return self.attempt


class Slow(Job):
    """Stops at a gate that nobody opens, if ``deaf`` whoever asks; from the attempt ``until`` on it returns."""

    def start(self) -> str:
        if self.attempt >= self.data.get("until", 100):
            return "at last"
        while True:
            try:
                Path(self.data["gate"]).read_text()
            except Interrupted:
                if not self.data.get("deaf"):
                    raise


class Stuck(Job):
    """Waits in the standard library for what never comes."""

    def start(self) -> None:
        threading.Event().wait()


class Quiet(Job):
    """Works on for a while, telling its progress, and then stops at the gate."""

    def start(self) -> None:
        for percent in range(5):
            self.progress(percent, "busy")
        Path(self.data["gate"]).read_text()


class Busy(Job):
    """Is at it for longer than its ``stall_timeout``, but tells so: a line from the other end of the gate is a step."""

    def start(self) -> str:
        with Path(self.data["gate"]).open() as steps:
            for number, _ in enumerate(steps):
                self.progress(number)
        return "through"
