"""Jobs for the tests of the testing kit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, ClassVar

from taskqueue import Job, Rate, Snooze, task


class Mail(Job):
    """Returns what it got."""

    options: ClassVar = {"queue": "mail"}

    def start(self) -> Any:
        return self.data


class Parent(Job):
    """Adds a mail."""

    def start(self) -> None:
        self.scheduler.add_job(Mail, {"to": "child"})


class Broken(Job):
    """Fails."""

    def start(self) -> None:
        raise LookupError("broken")


class Unsteady(Job):
    """Fails in its first attempts."""

    options: ClassVar = {"retry": 3, "retry_interval": "1h"}

    def start(self) -> str:
        if self.attempt < self.data:
            raise ConnectionError("not yet")
        return f"attempt {self.attempt}"


class Later(Job):
    """Never ready."""

    def start(self) -> None:
        raise Snooze(60)


class Paced(Job):
    """Starts once an hour at most."""

    options: ClassVar = {"limits": [Rate(1, per=3600)]}

    def start(self) -> None:
        return None


class Counting(Job):
    """Counts to its data, with a checkpoint for each number, and returns the numbers that this run has counted."""

    def start(self) -> list[int]:
        first = self.state or 0
        for number in range(first + 1, self.data + 1):
            self.checkpoint(number)
        return [first, self.data]


class Walking(Job):
    """Walks over the items of its data."""

    def start(self) -> int:
        walked = 0
        for _ in self.each(self.data):
            walked += 1
            self.progress(walked)
        return walked


class Kind(Enum):
    """A kind of letter."""

    BILL = "bill"
    ADVERT = "advert"


@dataclass
class Letter:
    """The data of Post."""

    to: str
    day: date
    kind: Kind = Kind.BILL


class Post(Job[Letter, date]):
    """Returns the day of its letter."""

    def start(self) -> date:
        return self.data.day


class Awaiting(Job):
    """Keeps three checkpoints in an event loop."""

    async def start(self) -> int:
        done: int = self.state or 0
        for number in range(done, 3):
            await asyncio.sleep(0)
            self.checkpoint(number + 1)
        return done


@task
def stamp(letter: Letter) -> date:
    """Return the day of the letter."""
    return letter.day


@task
def add(left: int, right: int) -> int:
    """Return the sum."""
    return left + right
