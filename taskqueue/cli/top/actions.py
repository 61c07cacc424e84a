"""Actions on jobs, queues, nodes and failures: each asks first, with a count and a sample, and reports its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

from taskqueue.cli import ids
from taskqueue.errors import TaskqueueError
from taskqueue.insight import records
from taskqueue.model.controls import Control, Kind
from taskqueue.model.lifecycle.recovered_copy import copy_of
from taskqueue.model.query import FINAL, PENDING, And, Or, Query, parse
from taskqueue.model.record import Record, Status
from taskqueue.model.wording import count
from taskqueue.scheduler import changes
from taskqueue.scheduler.audit_trail import acting_command
from taskqueue.scheduler.operations import AnyOperation, StoreOperations, Target
from taskqueue.store import Store

MOST = 10_000
"""Maximum number of jobs that one action changes."""

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
    """Performs the action for this reason, and returns the result in words."""
    takes_reason: bool = True


def cancel(store: Store, chosen: Sequence[tuple[str, Query]]) -> Question:
    """Ask whether to cancel the pending jobs of these; raise ``NothingToDo``."""
    meant, number = _meant(store, And((_any(chosen), PENDING)), "no pending job to cancel")

    def act(reason: str) -> str:
        with _acting(store, "cancel", meant, _words(chosen), reason=reason):
            canceled, asked = changes.cancel_each(store, [record.id for record in meant], reason)
        asked_too = f"; asked {count(asked, 'running job')} to end" if asked else ""
        return f"canceled {count(canceled, 'job')}{asked_too}"

    return Question(title=f"Cancel {_some(number)}{_words(chosen)}?", sample=_sample(meant[:SAMPLE], number), act=act)


def give_up(store: Store, chosen: Sequence[tuple[str, Query]]) -> Question:
    """Ask whether to give up the jobs of these that wait to run again; raise ``NothingToDo``."""
    query = And((_any(chosen), parse(changes.WAITS_AGAIN)))
    meant, number = _meant(store, query, "no job waits to run again after an error")

    def act(reason: str) -> str:
        with _acting(store, "give up", meant, _words(chosen), reason=reason):
            return f"gave up {count(changes.give_up_each(store, [record.id for record in meant], reason), 'job')}"

    return Question(title=f"Give up {_some(number)}{_words(chosen)}?", sample=_sample(meant[:SAMPLE], number), act=act)


def _meant(store: Store, query: Query, nothing: str) -> tuple[list[Record], int]:
    """Return the first jobs that match, and how many match; raise ``NothingToDo`` with this text if none does."""
    meant = list(islice(records.matching(store, query), MOST))
    if not meant:
        raise NothingToDo(nothing)
    return meant, len(meant) if len(meant) < MOST else store.count(query)


def run_again(store: Store, chosen: Sequence[tuple[str, Query]], most: int = MOST) -> Question:
    """Ask whether to run the ended jobs of these again, as copies, up to ``most``; raise ``NothingToDo``."""
    query = And((_any(chosen), FINAL))
    meant: list[Record] = []
    left_out = 0
    for record in records.matching(store, query):
        if copy_of(record) is not None:
            left_out += 1
        elif len(meant) < most:
            meant.append(record)
        else:
            break
    number = len(meant) if len(meant) < most else store.count(query) - left_out
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
        title=f"Run {_some(number, most)}{_words(chosen)} again, as copies?",
        sample=_sample(meant[:SAMPLE], number),
        act=act,
        takes_reason=False,
    )


def operate(store: Store, operation: AnyOperation, name: str) -> Question:
    """Ask whether to do a declared operation to the target, or its reverse if the control that it sets is active."""
    control = operation.control_of(store.controls().kept, name)
    if control is not None:
        operation = operation.reverse() or operation
    operations = StoreOperations(store)
    about = _decision(control) if control is not None else _about(store, operation, name)

    def act(reason: str) -> str:
        values = {"reason": reason} if operation.takes("reason") else {}
        details = operation.details(operations, name, values)
        with acting_command(store, operation.name, name, **details) if operation.is_audited else nullcontext():
            result = operation.call(operations, name or None, values)
        return operation.answer(operation.target.words(name), result)

    return Question(
        title=f"{operation.words(name)}?",
        sample=[*filter(None, [operation.ask]), about],
        act=act,
        takes_reason=operation.takes("reason"),
    )


def _about(store: Store, operation: AnyOperation, name: str) -> str:
    """Return how many jobs of a queue wait and run, or how many run on a node, or what the failure is."""
    target = operation.target
    if target is Target.FAILURE:
        return "{job}: {error}".format_map(operation.details(StoreOperations(store), name, {}))
    if target is Target.NODE:
        running = store.count(parse({"seat": name, "status": int(Status.PROCESSING)}))
        return count(running, "running job")
    numbers = {status: number for (queue, status), number in store.tally().items() if queue == name}
    waiting, running = numbers.get(Status.WAITING, 0), numbers.get(Status.PROCESSING, 0)
    return f"{count(waiting, 'job')} waiting; {running:,} running"


def _decision(control: Control) -> str:
    what = "drained" if control.kind is Kind.DRAIN else "paused"
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


def _some(number: int, most: int = MOST) -> str:
    return count(number, "job") if number <= most else f"the first {most:,} of {number:,} jobs"


def _words(chosen: Sequence[tuple[str, Query]]) -> str:
    words = list(dict.fromkeys(words for words, _ in chosen))
    return words[0] if len(words) == 1 else ""


def _sample(shown: Sequence[Record], total: int) -> list[str]:
    lines = [f"{ids.named(record)} {record.job} {record.status.name}" for record in shown]
    return [*lines, f"and {total - len(lines):,} more"] if total > len(lines) else lines
