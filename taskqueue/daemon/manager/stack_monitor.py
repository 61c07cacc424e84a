"""Takes the stack of runs from their workers, by signals and memory that worker and manager share; never waits."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from taskqueue.daemon.manager.runs import CurrentRun
from taskqueue.daemon.manager.worker_handle import RunSlot, WorkerHandle
from taskqueue.daemon.protocol.stack_file import ASK, DUMP
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.model.stack import KEPT_BYTES, MAIN, head, of_job, shortened, without_worker

ANSWERS_WITHIN = 0.15
"""How many seconds Python code of a worker has to answer; then C code writes the frames of its main thread."""

GIVES_UP_AFTER = 0.6
"""Seconds after which a worker that has not answered at all is reported as silent."""

LOOKS_EVERY = 0.02
"""Seconds between two checks for an answer; the first ones follow faster, as most answers take a millisecond."""

HELD_UP = "C code runs in the main thread, called by its latest frame; other threads cannot be read until it returns."
ENDED = "its run has just ended"
NOT_BEGUN = "it waits for its node and has not started, or has just ended"

_STATES = {
    "T": "its worker is stopped (SIGSTOP)",
    "t": "a debugger has stopped its worker",
    "D": "its worker is in a system call that cannot be interrupted: a file system or device does not answer",
    "Z": "its worker has just died",
}
"""Why a process in this state of proc(5) does not answer."""

Taken: TypeAlias = Callable[[str, str], None]
"""Called with a stack, or with the reason why there is none."""


@dataclass(eq=False)
class _Request:
    slot: RunSlot
    run: CurrentRun
    taken: Taken
    number: int = 0
    asked_at: float = 0.0
    is_dumping: bool = False
    dumped: str = ""


class StackMonitor:
    """The requests for stacks of the runs of one manager: one at a time for each worker."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._numbers = 0
        self._requests: dict[WorkerHandle, deque[_Request]] = {}

    def take(self, slot: RunSlot, taken: Taken) -> None:
        """Call ``taken`` with the stack of the current run of the slot, now or soon."""
        if slot.current is None:
            taken("", ENDED)
            return
        request = _Request(slot, slot.current, taken)
        requests = self._requests.setdefault(slot.worker, deque())
        requests.append(request)
        if len(requests) == 1:
            self._ask(request)

    def request_last(self, slot: RunSlot) -> None:
        """Make the worker write the stack of the current run at each SIGTERM that asks the run to end."""
        run = slot.current
        if run is not None:
            self._numbers += 1
            run.stack_request = self._numbers
            slot.worker.stack_file.request(run.stack_request, run.queued.run.id)
            self._loop.at(time.monotonic() + ANSWERS_WITHIN, partial(self._dump_last, slot, run))

    def last(self, slot: RunSlot, run: CurrentRun) -> str:
        """Return the last stack of a run that was asked to end; empty if there is none."""
        if not run.stack_request:
            return ""
        file = slot.worker.stack_file
        answer = file.read_answer(run.stack_request)
        stack = _readable(file.read_dump()) if answer is None else of_job(answer, run.queued.run.id)
        return shortened(stack, KEPT_BYTES)

    def _dump_last(self, slot: RunSlot, run: CurrentRun) -> None:
        """Make C code write the frames of the main thread, if Python code has not answered."""
        if slot.current is run and slot.worker.stack_file.read_answer(run.stack_request) is None:
            _, handles = _state_of(slot.pid)
            if handles:
                slot.worker.child.signal_main_thread(DUMP)

    def _ask(self, request: _Request) -> None:
        worker = request.slot.worker
        if request.slot.current is not request.run:
            self._finish(request, "", ENDED)
            return
        state, handles = _state_of(request.slot.pid)
        if state in "TtZ" or not handles:
            self._finish(request, "", _STATES.get(state, "its worker no longer handles the signal for it"))
            return
        self._numbers += 1
        request.number, request.asked_at = self._numbers, time.monotonic()
        worker.stack_file.request(request.number, request.run.queued.run.id)
        worker.child.signal_main_thread(ASK)
        self._look_later(request, 0.001)

    def _look_later(self, request: _Request, after: float) -> None:
        self._loop.at(time.monotonic() + after, partial(self._look, request))

    def _look(self, request: _Request) -> None:
        worker = request.slot.worker
        if request.slot.current is not request.run:
            self._finish(request, "", ENDED)
            return
        waited = time.monotonic() - request.asked_at
        answer = worker.stack_file.read_answer(request.number)
        if answer is None and request.is_dumping:
            answer = self._dumped(request)
        if answer is not None:
            self._finish(request, of_job(answer, request.run.queued.run.id), "")
        elif waited > GIVES_UP_AFTER:
            state, _ = _state_of(request.slot.pid)
            self._finish(request, "", _STATES.get(state, f"its worker did not answer within {GIVES_UP_AFTER:g} s"))
        else:
            if waited > ANSWERS_WITHIN and not request.is_dumping:
                request.is_dumping = True
                worker.child.signal_main_thread(DUMP)
            self._look_later(request, min(max(waited, 0.001), LOOKS_EVERY))

    def _dumped(self, request: _Request) -> str | None:
        """Return the text that C code has written, if it has not grown since the last look: it has no end mark."""
        before, request.dumped = request.dumped, request.slot.worker.stack_file.read_dump()
        return _readable(request.dumped) if request.dumped and request.dumped == before else None

    def _finish(self, request: _Request, stack: str, why_not: str) -> None:
        requests = self._requests[request.slot.worker]
        requests.popleft()
        request.taken(stack, why_not)
        if requests:
            self._ask(requests[0])
        elif self._requests.get(request.slot.worker) is requests:
            del self._requests[request.slot.worker]


def _readable(dump: str) -> str:
    """Return the text of ``faulthandler`` in the form of others; empty if there is none."""
    frames = without_worker(dump.rstrip("\n").split("\n")[1:])
    return "\n".join((head(MAIN), *frames, HELD_UP)) if frames else ""


def _state_of(pid: int) -> tuple[str, bool]:
    """Return the state of a process as proc(5) names it, and whether it handles both signals."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return "Z", False
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    caught = int(fields.get("SigCgt", "0"), 16)
    handles = all(caught >> (signum - 1) & 1 for signum in (ASK, DUMP))
    return fields.get("State", "?")[:1], handles
