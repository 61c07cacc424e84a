"""Jobs that the tests of this folder add and run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

from taskqueue import Fail, Job, Retry, Snooze, task


class Echo(Job):
    """Returns its data."""

    def start(self) -> Any:
        return self.data


class Collecting(Job):
    """Returns what it depends on has returned."""

    def start(self) -> list[Any]:
        return list(self.dependencies.values())


class Dividing(Job):
    """Adds a child for each part, once, and returns the sum of what they returned."""

    def start(self) -> int:
        if self.state is None:
            for part in self.data["parts"]:
                self.scheduler.add_job(Broken if part == "broken" else Echo, part, parent=self)
            self.checkpoint("divided")
        children = self.wait_children(self.data.get("on_failure", "fail"))
        return sum(child.result or 0 for child in children)


class Awaiting(Job):
    """Returns how many children it waited for."""

    def start(self) -> int:
        return len(self.wait_children())


class Mail(Job):
    """Declares options."""

    options: ClassVar[Any] = {"retry": 5, "queue": "mail", "timeout": "1m", "tags": ["mail"]}

    def start(self) -> str:
        return f"sent to {self.data['to']}"


class Broken(Job):
    """Always fails."""

    def start(self) -> None:
        raise ValueError(f"no such address, attempt {self.attempt}")


class Lucky(Job):
    """Fails until the attempt that its data name."""

    def start(self) -> int:
        if self.attempt < self.data:
            raise OSError(f"attempt {self.attempt}")
        return self.attempt


class Giving(Job):
    """Gives up at once."""

    def start(self) -> None:
        raise Fail("the address is wrong")


class Impatient(Job):
    """Asks for its own pause."""

    def start(self) -> None:
        raise Retry(7, "the server is busy")


class Sleepy(Job):
    """Snoozes once."""

    def start(self) -> str:
        if self.state is None:
            self.checkpoint("snoozed")
            raise Snooze(60)
        return f"{self.state}, attempt {self.attempt}"


class Working(Job):
    """Uses all that surrounds a job."""

    def start(self) -> dict[str, Any]:
        began = time.monotonic()
        for percent in (10, 50.123, 99.999):
            self.progress(percent, f"at {percent}")
        took = time.monotonic() - began
        self.checkpoint({"page": 7})
        self.log.info("works")
        stored = self.scheduler.get_job(self.id)
        return {
            "key": self.key,
            "run_key": self.run_key,
            "attempt": self.attempt,
            "last": self.is_last_attempt,
            "stopping": self.stopping,
            "progress": stored.progress,
            "took": took,
            "status": stored.status.name,
        }


class Fanning(Job):
    """Adds other jobs."""

    def start(self) -> int:
        self.scheduler.add_jobs([(Echo, number) for number in range(self.data)])
        return int(self.data)


class Writing(Job):
    """Appends its data to a file, so that a test sees in which order jobs ran."""

    def start(self) -> None:
        with Path(self.data["file"]).open("a") as file:
            file.write(f"{self.data['word']}\n")


class Quitting(Job):
    """Calls ``sys.exit``."""

    def start(self) -> None:
        raise SystemExit(3)


class Unkept(Job):
    """Returns what no store keeps."""

    def start(self) -> object:
        return object()


class CannotBegin(Job):
    """Fails in its constructor."""

    def __init__(self) -> None:
        raise RuntimeError("no disk")


class WithoutStart(Job):
    """Does not say what to do."""


class Hooked(Job):
    """Writes down which hooks were called."""

    def start(self) -> None:
        if self.data.get("error"):
            raise ValueError(self.data["error"])

    def _tell(self, word: str) -> None:
        with Path(self.data["file"]).open("a") as file:
            file.write(f"{word}\n")

    def on_success(self) -> None:
        self._tell("success")
        raise RuntimeError("a hook that fails changes nothing")

    def on_failure(self, error: Exception) -> None:
        self._tell(f"failure {error}")

    def on_last_failure(self, error: Exception) -> None:
        self._tell(f"last failure {error}")

    def finalize(self) -> None:
        self._tell("finalize")


class Reports:
    """No job, but its methods can be run by name."""

    def monthly(self, year: int, month: int) -> str:
        return f"report of {year}-{month:02}"

    def nothing(self) -> str:
        return "done without data"

    def one(self, value: object) -> object:
        return value


@task(retry=2, queue="sums")
def add(x: int, y: int = 1) -> int:
    """Return the sum."""
    return x + y


@task
def plain() -> str:
    """Return a word."""
    return "plain"


def undecorated() -> None:
    """Is no task."""


class Deferring(Job):
    """Says how it is to end, and goes on."""

    def start(self) -> str:
        self.end_with(Retry(7, "the server is busy"))
        if self.attempt > 1:
            self.end_with(Fail("had enough"))
        if self.data == "raise":
            raise OSError("worse")
        return "not kept"


class Remembering(Job):
    """Returns why the attempt before failed."""

    def start(self) -> list[str]:
        before = self.previous_error
        if before is None:
            raise OSError("no disk")
        return [before.type, before.message, before.traceback]


def is_there(job: Job, name: str = "file") -> bool:
    """Return whether the file that the job's data name exists."""
    return Path(job.data[name]).exists()


def stumbles(job: Job) -> bool:
    """Cannot tell."""
    raise LookupError(f"no shop for {job.data}")


def forgets(job: Job) -> None:
    """Forgets to answer."""


class Shop:
    """Has a predicate as a method."""

    def has(self, job: Job, ware: str) -> bool:
        """Return whether the job wants this ware."""
        return bool(job.data == ware)

    def sell(self, file: str, told: str) -> str:
        """Do the work."""
        return "sold"

    def is_open(self, job: Job) -> bool:
        """Return whether the file that the job's data name exists."""
        return Path(job.data["file"]).exists()


class Patient(Job):
    """Runs once the file that its data name exists."""

    def is_ready(self) -> bool:
        return Path(self.data["file"]).exists()

    def is_urgent(self, limit: int = 5) -> bool:
        return bool(self.data.get("urgency", 0) > limit)

    def start(self) -> str:
        return "it was there"

    def on_last_failure(self, error: Exception) -> None:
        Path(self.data["told"]).write_text(str(error))


class Bringer(Job):
    """Makes a file."""

    def start(self) -> None:
        Path(self.data["file"]).touch()


def is_interrupted(job: Job) -> bool:
    """Ctrl-C comes while it looks."""
    raise KeyboardInterrupt
