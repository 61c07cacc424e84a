"""Writes the stack of a worker when its manager asks, and then resumes the job undisturbed.

Two signals, because neither suffices. The handler of the first is Python code: it sees all threads and tasks, and
holds the interpreter's lock, without which the frames of running threads cannot be read (``faulthandler`` crashes
there). But it waits for C code that does not come to an end. The handler of the second, of ``faulthandler``, does not
wait, and reads the frames of its own thread only, which stand still.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import FrameType
from typing import Any

from taskqueue.daemon.protocol.stack_file import ASK, DUMP, StackFile
from taskqueue.daemon.worker.interrupts import Shield
from taskqueue.model.stack import MAIN, MOST_BYTES, frame, head, shortened, task_head, without_worker

MOST_THREADS = MOST_TASKS = 100
"""Maximum number of threads, and tasks of an event loop, whose stacks are written."""

MOST_FRAMES = 100
"""Of each thread and task, the latest ones."""

OWN_THREADS = ("event loop watch",)
"""Threads of the worker itself."""


class StackDump:
    """The handlers of one worker."""

    def __init__(self, file: StackFile, shield: Shield, tasks: Callable[[str], Iterable[tuple[str, Any]]]) -> None:
        """``tasks`` returns the asyncio tasks of a job, each with its job if there are several, this one's first."""
        self._file = file
        self._shield = shield
        self._tasks = tasks

    def install(self) -> None:
        """Handle the signals; none is sent before the first run."""
        signal.signal(ASK, self._on_ask)
        faulthandler.register(DUMP, file=self._file.fileno(), all_threads=False, chain=False)

    def answer(self, interrupted: FrameType | None) -> None:
        """Answer the last request, if there was one, in the midst of a job's code: take no lock, and raise nothing."""
        self._shield.depth += 1  # an interrupt would be raised here, and then wherever this code was called
        try:
            number, job = self._file.read_request()
            if number:
                self._file.answer(number, shortened("\n".join(self._lines(job, interrupted)), MOST_BYTES))
        except Exception:  # noqa: S110 - the manager asks in the other way
            pass
        finally:
            self._shield.depth -= 1

    def _on_ask(self, _signum: int, interrupted: FrameType | None) -> None:
        self.answer(interrupted)

    def _lines(self, job: str, interrupted: FrameType | None) -> Iterator[str]:
        for of_job, task in islice(self._tasks(job), MOST_TASKS):
            if not task.done():
                yield from (task_head(task.get_name(), of_job), *_frames(_awaited(task.get_coro())))
        yield from (head(MAIN), *_frames(_callers(interrupted)))
        threads = sys._current_frames()  # noqa: SLF001 - the public way to another thread's stack
        threads.pop(threading.get_ident(), None)
        for ident, latest in list(threads.items())[:MOST_THREADS]:
            thread = threading._active.get(ident)  # type: ignore[attr-defined]  # noqa: SLF001 - enumerate() locks
            name = f"{ident:#x}" if thread is None else thread.name
            if name not in OWN_THREADS:
                yield from (head(f"Thread {name}"), *_frames(_callers(latest)))


def running_tasks() -> Iterator[tuple[str, Any]]:
    """Yield the asyncio tasks of the loop that runs in this thread, if one does; they are all of one job."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop runs
        return
    for task in sorted(tasks, key=lambda task: (len(task.get_name()), task.get_name())):
        yield "", task


def _frames(places: Iterable[tuple[str, int | None, str]]) -> list[str]:
    frames = without_worker([frame(*place) for place in places])
    omitted = len(frames) - MOST_FRAMES
    return frames if omitted <= 0 else [*frames[:MOST_FRAMES], f"  … {omitted} earlier frames"]


def _callers(latest: FrameType | None) -> Iterator[tuple[str, int | None, str]]:
    """Yield the frames of a thread, the latest first."""
    while latest is not None:
        yield _place(latest)
        latest = latest.f_back


def _awaited(coroutine: Any) -> list[tuple[str, int | None, str]]:
    """Return the frames of a coroutine and of the coroutines that it awaits, innermost first."""
    frames: list[tuple[str, int | None, str]] = []
    while coroutine is not None and len(frames) < 10 * MOST_FRAMES:
        for prefix, awaits in (("cr_", "cr_await"), ("gi_", "gi_yieldfrom"), ("ag_", "ag_await")):
            if hasattr(coroutine, f"{prefix}frame"):
                suspended = getattr(coroutine, f"{prefix}frame")
                coroutine = getattr(coroutine, awaits)
                if suspended is not None:
                    frames.append(_place(suspended))
                break
        else:
            break
    frames.reverse()
    return frames


def _place(of: FrameType) -> tuple[str, int | None, str]:
    code = of.f_code
    return code.co_filename, of.f_lineno, getattr(code, "co_qualname", code.co_name)
