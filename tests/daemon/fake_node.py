"""A node without a store: a test gives runs to a real manager with real workers, and reads its reports."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from taskqueue.daemon.manager.manager import fork_manager
from taskqueue.daemon.protocol.channel import ChannelClosed
from taskqueue.daemon.protocol.codec import decode, encode
from taskqueue.daemon.protocol.messages import (
    Ended,
    Message,
    OutcomeSettled,
    Progressed,
    RunsHandedBack,
    Shutdown,
    Started,
    StartPool,
)
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.settings import PoolMode, Settings
from taskqueue.execution.run import Run
from taskqueue.model.ids import JobId
from taskqueue.model.record import Status
from tests.nodes import LIMIT, given_time

MOST = LIMIT
"""Seconds that any fact may take to come true."""

Kind = TypeVar("Kind")
JOBS = "tests.daemon.jobs"
CHECKOUT = Path(__file__).resolve().parents[2]


def settings(**given: Any) -> Settings:
    """Return settings with which tests are quick; where a worker is to be killed, the test gives a shorter grace.

    A job that obeys has longer than a slow machine stands still.
    """
    values = {"name": "test", "min_children": 1, "max_children": 2, "grace": 20.0, "finish": 0.3, "chdir": CHECKOUT}
    return Settings(**{**values, **given})


class FakeNode:
    """Sends runs to a manager, and keeps the messages that come back."""

    def __init__(self, **given: Any) -> None:
        self._claims = itertools.count(1)
        self.settings = settings(**given)
        self._handed_back: set[tuple[str, int]] = set()
        """The runs that were handed back and not given again since."""
        self.heard: list[Message] = []
        self.manager, self.channel, self.start_log = fork_manager(self.settings)
        self.exit: child_process.ChildExit | None = None

    def __enter__(self) -> FakeNode:
        self.tell(StartPool(url=self.settings.url or "sqlite:///dev/null/nowhere", seat="test", incarnation="i"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.exit is None:
            self.channel.close()
            self.exit = self.manager.reap()
        self.manager.close()
        self.channel.close()

    def tell(self, message: Message) -> None:
        """Send a message."""
        self.channel.send(encode(message))

    def run(self, job: str, data: Any = None, **given: Any) -> Run:
        """Have a job of ``jobs.py`` run, and return the claim."""
        values = {
            "id": str(JobId()),
            "claims": next(self._claims),
            "job": job if ":" in job else f"{JOBS}:{job}",
            "data": json.dumps(data),
            "state": None,
            "attempt": 1,
            "is_last": True,
            "timeout": None,
            "force_spawn": False,
        }
        run = Run(**{**values, **given})
        self.tell(run)
        return run

    def hear(self, wanted: Callable[[Message], bool], what: str = "what was waited for") -> Message:
        """Wait for a message of which ``wanted`` is true, among those that have been heard already too."""
        for message in self.heard:
            if wanted(message):
                return message
        deadline = time.monotonic() + MOST
        while (payload := self.channel.wait(max(0.0, deadline - time.monotonic()))) is not None:
            if wanted(message := self._note(payload)):
                return message
        raise AssertionError(f"{what} was not heard; but {self.heard}")

    def expect(self, kind: type[Kind], /, run: Run | None = None, **fields: Any) -> Kind:
        """Wait for a message of this kind, about this run, with these fields.

        A run that is handed back meanwhile, because the one before it took long, is given again.
        """

        def wanted(message: Message) -> bool:
            if run is not None and kind is not RunsHandedBack:
                self._give_again(run)
            if not isinstance(message, kind):
                return False
            if run is not None and not _is_about(message, run):
                return False
            return all(getattr(message, name) == value for name, value in fields.items())

        found = self.hear(wanted, f"{kind.__name__} {fields}")
        assert isinstance(found, kind)
        return found

    def _give_again(self, run: Run) -> None:
        """Give a run again that was handed back."""
        if (run.id, run.claims) in self._handed_back:
            self._handed_back.remove((run.id, run.claims))
            self.tell(run)

    def _note(self, payload: bytes) -> Message:
        """Keep a message that has come, and return it."""
        message = decode(payload)
        self.heard.append(message)
        if isinstance(message, RunsHandedBack):
            self._handed_back.update((id, claims) for id, claims in message.runs)
        return message

    def exceed(
        self, runs: Fifo, job: str, data: Mapping[str, Any] | None = None, limit: str = "timeout", **given: Any
    ) -> tuple[Run, Ended]:
        """Have a job exceed a limit behind the place at which it says that it runs, and return its run and its end."""

        def attempt(seconds: float) -> tuple[Run, Ended] | None:
            run = self.run(job, {**(data or {}), "runs": runs.path}, **{limit: seconds, **given})
            ended = self.expect(Ended, run)
            if runs.holds_a_line():
                return run, ended
            if ended.confirm:
                self.confirm(ended, Status.TIMEOUT, accepted=False)
            return None

        return given_time(attempt)

    def all_of(self, kind: type[Kind], run: Run) -> list[Kind]:
        """Return what has been heard of this kind about this run."""
        return [message for message in self.heard if isinstance(message, kind) and _is_about(message, run)]

    def result(self, run: Run) -> Any:
        """Wait for the end of a run that is DONE, and return its result."""
        ended = self.expect(Ended, run)
        assert ended.outcome == "Done", ended
        return json.loads(ended.fields["result"])

    def confirm(self, ended: Ended, status: int, *, accepted: bool = True) -> None:
        """Say that the store took an outcome."""
        self.tell(OutcomeSettled(id=ended.id, claims=ended.claims, accepted=accepted, status=status))

    def drain(self, mode: str = "quick") -> child_process.ChildExit:
        """End the manager in the given way, hear all it says until then, and return how it ended."""
        self.tell(Shutdown(mode=mode))
        return self.leave()

    def leave(self) -> child_process.ChildExit:
        """Hear all that the manager says until it leaves, and return how it ended."""
        deadline = time.monotonic() + MOST
        with contextlib.suppress(ChannelClosed):
            while (payload := self.channel.wait(max(0.0, deadline - time.monotonic()))) is not None:
                self._note(payload)
        ready, _, _ = select.select([self.manager], [], [], MOST)
        assert ready, "the manager did not leave"
        self.exit = self.manager.reap()
        return self.exit

    def workers(self) -> list[int]:
        """Return the pids of the manager's children."""
        return children_of(self.manager.pid)


def _is_about(message: object, run: Run) -> bool:
    if isinstance(message, RunsHandedBack):
        return [run.id, run.claims] in message.runs
    if isinstance(message, Started | Ended | Progressed):
        return (message.id, message.claims) == (run.id, run.claims)
    return False


class Fifo:
    """A FIFO through which a job tells a fact, or is told to go on."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # both, so that opening it blocks nobody

    def hear(self) -> str:
        """Wait for one line."""
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._descriptor], [], [], MOST)
            assert ready, f"nothing was heard through {self.path}"
            line += os.read(self._descriptor, 1)
        return line.decode().strip()

    def holds_a_line(self) -> bool:
        """Return whether there is something to hear."""
        return bool(select.select([self._descriptor], [], [], 0)[0])

    def tell(self, text: str = "go") -> None:
        """Write one line."""
        os.write(self._descriptor, f"{text}\n".encode())

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)


def fifos(folder: Path) -> Iterator[Callable[[str], Fifo]]:
    """Yield what makes FIFOs, and close them in the end."""
    made: list[Fifo] = []

    def make(name: str) -> Fifo:
        made.append(Fifo(folder / name))
        return made[-1]

    yield make
    for fifo in made:
        fifo.close()


def children_of(pid: int) -> list[int]:
    """Return the pids of the children of another process."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except FileNotFoundError:
        return []


def is_gone(pid: int) -> bool:
    """Return whether a process is dead; a zombie is."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def becomes_true(fact: Callable[[], bool]) -> bool:
    """Wait until something is so that tells nobody when it becomes so."""
    deadline = time.monotonic() + MOST
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


MODES = [PoolMode.STATIC, PoolMode.DYNAMIC, PoolMode.ONDEMAND]
