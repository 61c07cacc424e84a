"""Actions on jobs, queues and nodes: each asks first, with a count and a sample, and reports its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from taskqueue.cli import ids
from taskqueue.errors import TaskqueueError
from taskqueue.insight import records
from taskqueue.model.controls import EVERY_QUEUE, Control, Kind
from taskqueue.model.lifecycle.recovered_copy import copy_of
from taskqueue.model.query import FINAL, PENDING, And, Or, Query, parse
from taskqueue.model.record import Record, Status
from taskqueue.model.wording import count
from taskqueue.scheduler import changes, controls
from taskqueue.scheduler.audit_trail import acting_command
from taskqueue.store import Store

MOST = 10_000
"""The most jobs that one action changes."""

SAMPLE = 5
CHUNK = 500


class NothingToDo(TaskqueueError):
    """The action changes nothing."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """An action that waits for a yes."""

    title: str
    sample: Sequence[str]
    act: Callable[[str], str]
    """Does it, for this reason, and returns the result in words."""
    takes_reason: bool = True


def cancel(store: Store, chosen: Sequence[tuple[str, Query]]) -> Question:
    """Ask whether to cancel the pending jobs of these; raise ``NothingToDo``."""
    query = And((_any(chosen), PENDING))
    meant = list(islice(records.matching(store, query), MOST))
    if not meant:
        raise NothingToDo("no pending job to cancel")
    number = len(meant) if len(meant) < MOST else store.count(query)

    def act(reason: str) -> str:
        with _acting(store, "cancel", meant, _words(chosen), reason=reason):
            canceled, asked = changes.cancel_each(store, [record.id for record in meant], reason)
        begun = f"; asked to end: {asked:,} that had started" if asked else ""
        return f"canceled {count(canceled, 'job')}{begun}"

    return Question(
        title=f"Cancel {_some(number)}{_words(chosen)}?",
        sample=_sample(meant[:SAMPLE], number),
        act=act,
    )


def run_again(store: Store, chosen: Sequence[tuple[str, Query]]) -> Question:
    """Ask whether to run the ended jobs of these again, as copies; raise ``NothingToDo``."""
    query = And((_any(chosen), FINAL))
    meant: list[Record] = []
    left_out = 0
    for record in islice(records.matching(store, query), MOST):
        if copy_of(record) is None:
            meant.append(record)
        else:
            left_out += 1
    if not meant:
        again = f": {count(left_out, 'job')} ran again before" if left_out else ""
        raise NothingToDo(f"no ended job to run again{again}")

    def act(_: str) -> str:
        copies = taken = 0
        with _acting(store, "run again", meant, _words(chosen)):
            for first in range(0, len(meant), CHUNK):
                chunk = [str(record.id) for record in meant[first : first + CHUNK]]
                recovered = changes.recover_all(store, parse({"id": {"$in": chunk}}), None)
                copies, taken = copies + len(recovered.copies), taken + recovered.taken
        rest = f"; left out: {left_out:,} that ran again before" if left_out else ""
        rest += f"; left out: {taken:,} whose unique key another job has" if taken else ""
        return f"added {count(copies, 'copy')}{rest}"

    return Question(
        title=f"Run {count(len(meant), 'job')}{_words(chosen)} again, as copies?",
        sample=_sample(meant[:SAMPLE], len(meant)),
        act=act,
        takes_reason=False,
    )


def pause(store: Store, queue: str) -> Question:
    """Ask whether to pause the queue, or resume it if it is paused."""
    of = f"queue {queue}" if queue else "every queue"

    def act(reason: str) -> str:
        with acting_command(store, "pause", queue or EVERY_QUEUE, reason=reason):
            return str(controls.pause(store, queue or None, reason, None))

    def resume(_: str) -> str:
        with acting_command(store, "resume", queue or EVERY_QUEUE):
            return f"{of} is resumed" if controls.resume(store, queue or None) else f"{of} was resumed before"

    paused = next((pause for pause in controls.in_force(store, Kind.PAUSE) if pause.name == queue), None)
    if paused is not None:
        return Question(title=f"Resume {of}?", sample=[_decision("paused", paused)], act=resume, takes_reason=False)
    numbers = {status: number for (name, status), number in store.tally().items() if name == queue}
    waiting, running = numbers.get(Status.WAITING, 0), numbers.get(Status.PROCESSING, 0)
    return Question(
        title=f"Pause {of}?",
        sample=[f"{count(waiting, 'job')} waiting; {running:,} running, which continue"],
        act=act,
    )


def drain(store: Store, node: str) -> Question:
    """Ask whether to drain the node, or undrain it if it is drained."""

    def act(reason: str) -> str:
        with acting_command(store, "drain", node, reason=reason):
            return str(controls.drain(store, node, reason, None))

    def undrain(_: str) -> str:
        with acting_command(store, "undrain", node):
            return f"node {node} works again" if controls.undrain(store, node) else f"{node} was not drained"

    drained = store.controls().drain_of(node)
    if drained is not None:
        title = f"Undrain node {node}?"
        return Question(title=title, sample=[_decision("drained", drained)], act=undrain, takes_reason=False)
    running = store.count(parse({"seat": node, "status": int(Status.PROCESSING)}))
    return Question(
        title=f"Drain node {node}?",
        sample=[f"it starts no more jobs; {running:,} running, which continue"],
        act=act,
    )


def _decision(what: str, control: Control) -> str:
    return f"{what} by {control.by}{f': {control.reason}' if control.reason else ''}"


def _acting(
    store: Store, action: str, meant: Sequence[Record], which: str, **about: Any
) -> AbstractContextManager[None]:
    """Write the action of the block to the audit: with the job, or with the number of jobs and their description."""
    if len(meant) == 1:
        return acting_command(store, action, str(meant[0].id), job=meant[0].job, **about)
    return acting_command(store, action, "jobs", which=which.strip(), number=len(meant), **about)


def _any(chosen: Sequence[tuple[str, Query]]) -> Query:
    return chosen[0][1] if len(chosen) == 1 else Or(tuple(query for _, query in chosen))


def _some(number: int) -> str:
    return count(number, "job") if number <= MOST else f"the first {MOST:,} of {number:,} jobs"


def _words(chosen: Sequence[tuple[str, Query]]) -> str:
    words = list(dict.fromkeys(words for words, _ in chosen))
    return words[0] if len(words) == 1 else ""


def _sample(shown: Sequence[Record], total: int) -> list[str]:
    lines = [f"{ids.named(record)} {record.job} {record.status.name}" for record in shown]
    return [*lines, f"and {total - len(lines):,} more"] if total > len(lines) else lines
