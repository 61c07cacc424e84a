"""Ends a worker at a point of one job, once; as the bootstrap file of a node it watches the worker's calls."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from taskqueue.daemon.worker.worker_context import WorkerContext
from taskqueue.errors import InvalidOption
from taskqueue.execution.executor import execute
from taskqueue.execution.job_context import JobContext
from taskqueue.model.ids import JobId

VARIABLE = "TASKQUEUE_TESTING_CRASH"
POINT = re.compile(r"(?P<once>start|end)|(?P<kind>checkpoint|progress|position) (?P<number>[1-9]\d*)")

WATCHED: dict[str, tuple[CodeType, str, int]] = {
    "start": (execute.__code__, "call", 1),
    "end": (execute.__code__, "return", 1),
    "checkpoint": (JobContext.checkpoint.__code__, "return", 0),
    "progress": (JobContext.progress.__code__, "return", 0),
    "position": (WorkerContext._keep_position.__code__, "return", 0),  # noqa: SLF001 - it is what survives
}
"""For each kind of point: the function, whether its call or its return counts, and which argument is the context."""


class CrashPoint:
    """A point at which the first worker that reaches it ends; a file exists until that has happened."""

    def __init__(self, id: JobId, signum: int, at: str) -> None:
        match = POINT.fullmatch(at)
        if match is None:
            raise InvalidOption(
                f"at={at!r}: pass start, end, or checkpoint, progress or position with a number: 'checkpoint 3'"
            )
        self._words = (str(id), str(int(signum)), match["once"] or match["kind"], match["number"] or "1")

    def __enter__(self) -> CrashPoint:
        handle, name = tempfile.mkstemp(prefix="taskqueue-crash-")
        os.close(handle)
        self._mark = Path(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mark.unlink(missing_ok=True)

    @property
    def was_reached(self) -> bool:
        """Return whether a worker has ended there."""
        return not self._mark.exists()

    @property
    def node_options(self) -> tuple[str, ...]:
        """The options of the node whose workers watch for the point."""
        return ("--bootstrap", __file__)

    @property
    def variables(self) -> dict[str, str]:
        """The environment of that node."""
        return {VARIABLE: " ".join((*self._words, str(self._mark)))}


def watch(words: str) -> None:
    """Watch the calls of this worker, and end it at the point."""
    id, signum, kind, number, mark = words.split(" ", 4)
    code, event, place = WATCHED[kind]
    name = code.co_varnames[place]
    remaining = int(number)

    def on_call(frame: FrameType, happened: str, _: Any) -> None:
        nonlocal remaining
        if frame.f_code is not code or happened != event or str(frame.f_locals[name].id) != id:
            return
        remaining -= 1
        if remaining == 0:
            with suppress(FileNotFoundError):  # another worker has already ended there
                Path(mark).unlink()
                os.kill(os.getpid(), int(signum))

    if Path(mark).exists():
        sys.setprofile(on_call)


if VARIABLE in os.environ:
    watch(os.environ[VARIABLE])
