"""Look at the jobs again and again, show how far they are, and return as soon as a fact is there."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TypeVar

from library import named
from node import Node

from taskqueue import Process, Scheduler
from taskqueue.cli import terminal

LOOK_EVERY = 0.1
"""Seconds between two looks."""

PATIENCE = 120.0
"""Seconds after which a fact will not come any more."""

TELL_EVERY = 2.0
"""Seconds between two lines about the progress where there is no terminal to draw a bar on."""

Fact = TypeVar("Fact")


class Stopped(Exception):
    """Somebody asked for the end with a signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


class Stuck(Exception):
    """What had to happen has not happened."""


class Signals:
    """Signals that ask for the end are noted where they strike, and acted on where the quickstart expects it."""

    def __init__(self) -> None:
        self._noted: int | None = None
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            if signal.getsignal(signum) != signal.SIG_IGN:  # nohup wants it to go on
                signal.signal(signum, self._note)

    def check(self) -> None:
        """Raise ``Stopped`` if one has come."""
        if self._noted is not None:
            raise Stopped(self._noted)

    def _note(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002  (the interpreter passes both)
        self._noted = signum


class Watch:
    """The jobs of the quickstart, as it looks at them; ``files`` says how many files each folder has."""

    def __init__(
        self, scheduler: Scheduler, node: Node, signals: Signals, files: Mapping[str, int], bar: terminal.Advance | None
    ) -> None:
        self._scheduler = scheduler
        self._node = node
        self._signals = signals
        self._files = files
        self._bar = bar
        self._began_at = self._told_at = time.monotonic()

    def say(self, sentence: str) -> None:
        """Print a line with the time since the start."""
        print(f"{time.monotonic() - self._began_at:5.1f} s  {sentence}", flush=True)  # the bar makes room for it
        self._told_at = time.monotonic()

    def until(self, fact: Callable[[Sequence[Process]], Fact | None], what: str) -> Fact:
        """Return the fact that is found in the pending jobs, as soon as there is one.

        Raises ``Stopped`` after a signal, ``NodeLeft`` if the node is gone, and ``Stuck`` if there never is one.
        """
        gives_up_at = time.monotonic() + PATIENCE
        while True:
            self._signals.check()
            self._node.check()
            pending = list(self._scheduler.get_jobs())
            self._show(pending)
            found = fact(pending)
            if found:
                return found
            if time.monotonic() > gives_up_at:
                raise Stuck(f"after {PATIENCE:g} s still not so: {what}")
            time.sleep(LOOK_EVERY)

    def done_files(self, process: Process) -> int:
        """Return how many files of its folder a job has examined."""
        return round(self._files[process.data["folder"]] * process.progress / 100)

    def files_left(self, process: Process) -> int:
        """Return how many files of its folder a job has before it."""
        return self._files[process.data["folder"]] - self.done_files(process)

    def _show(self, pending: Sequence[Process]) -> None:
        indexing = [process for process in pending if process.data.get("folder") in self._files]
        total = sum(self._files.values())
        left = sum(self.files_left(process) for process in indexing)
        running = [named(process.data["folder"]) for process in indexing if process.is_processing]
        if self._bar is not None:
            self._bar(done=total - left, total=total, words=_fitted(", ".join(running) or "files"))
        elif time.monotonic() - self._told_at >= TELL_EVERY:
            self.say(f"{total - left:,} of {total:,} files; {len(indexing)} jobs wait or run")


def _fitted(words: str, room: int = 24) -> str:
    """Return the words in exactly so many columns, so that the bar beside them stands still."""
    return f"{words if len(words) <= room else words[: room - 1] + '…':{room}}"
