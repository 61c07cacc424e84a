"""Explains a job's status in sentences: from its record, the live nodes, and the jobs before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from shlex import quote

from taskqueue.errors import JobNotFound
from taskqueue.model.controls import Controls
from taskqueue.model.ids import JobId, occurrence_id
from taskqueue.model.lifecycle.recovered_copy import copy_of, origin_of
from taskqueue.model.limits import limit_keys_of
from taskqueue.model.query import And, Compare, Operator, Or
from taskqueue.model.record import Cause, Record, Status
from taskqueue.model.schedules.next_run import ends_series
from taskqueue.model.schedules.origin import FromSchedule, Series
from taskqueue.model.shown_text import shown
from taskqueue.model.wording import at, local, since, some, span, times
from taskqueue.scheduler import host
from taskqueue.scheduler.records import present
from taskqueue.scheduler.why_ended import end_of, ended, ended_runs, last_error, vanished
from taskqueue.scheduler.why_nodes import holder_of, node_sentence, nodes_taking
from taskqueue.store import Store

CONTINUED = "\n    "
"""The prefix of further lines of an error, so that none of them reads like a sentence of the report."""

MOST_BEFORE = 10_000
"""The most jobs before a waiting one that are counted: there may be millions."""


def why(store: Store, id: JobId) -> str:
    """Return the reasons as lines of text; raise ``JobNotFound``."""
    found = store.find(Compare("id", Operator.EQ, str(id)), limit=1)
    if not found:
        raise JobNotFound(id)
    return "\n".join(shown(line).replace("\n", CONTINUED) for line in _lines(store, found[0], store.now()))


def _lines(store: Store, record: Record, now: datetime) -> Iterator[str]:
    yield f"Job {record.id} ({record.job}) is {record.status.name}."
    if record.damage:
        yield from _unreadable(record, now)
        return
    match record.status:
        case Status.WAITING:
            yield from _waiting(store, record, now)
        case Status.POSTPONED:
            yield from _postponed(store, record, now)
        case Status.PROCESSING:
            yield from _processing(store, record, now)
        case _:
            yield from ended(record, now)
    yield from _copies(record)
    yield from _continuation(record)
    yield from _series(store, record, now)
    yield from ended_runs(record)
    if record.error is not None and store.log_lines(record.id):
        yield f"What it logged: `taskqueue logs {record.id}`"


def _unreadable(record: Record, now: datetime) -> Iterator[str]:
    yield f"Its record {record.damage}."
    if record.status.is_final:
        yield "It stays until it is pruned." if record.ended_at is None else f"It ended {at(record.ended_at, now)}."
        yield from last_error(record.error)
    else:
        yield "It cannot run: the node that takes it ends it as FAILED (unreadable); until then it can be canceled."


_WAITING: Mapping[Cause, str] = {
    Cause.ADDED: "it was added to run at once",
    Cause.SCHEDULED: "the time it was planned for has come",
    Cause.BEHIND: "what it waited for has ended",
    Cause.CHILDREN: "the children that it waited for have ended",
    Cause.RETRY: "its pause after a failed attempt is over",
    Cause.SNOOZED: "it asked to run later, and that time has come",
    Cause.STEPPED: "a step of it is over, and others of its priority have their turn before the next one",
    Cause.CLEAN_UP: "it is to clean up before it comes to its end",
    Cause.NOT_READY: "it was not ready when it was asked, and is asked again",
    Cause.INTERRUPTED: "its last run was interrupted by a stop of its node or by another run, which is no attempt",
    Cause.HANDED_BACK: "a node had taken it and gave it back before it began",
    Cause.CRASHED: "its last run vanished with its worker or node, and it is to run again",
    Cause.LOST: "the node that had taken it is gone, or was silent until its lease ended; it had not begun",
    Cause.UNLOADABLE: "it could not be loaded, and is tried again",
}


def _waiting(store: Store, record: Record, now: datetime) -> Iterator[str]:
    yield f"It waits since {at(record.ready_at or record.created_at, now)}: {_WAITING[record.cause]}."
    yield from last_error(record.error)
    controls = store.controls()
    yield from _paused(controls, record.queue, now)
    yield from _held_back(store, controls, record, now)
    yield _place(store, record)
    yield nodes_taking(store, controls, record.queue, now)
    yield from _question(record)
    yield from _expiry(record, now)


def _paused(controls: Controls, queue: str, now: datetime) -> Iterator[str]:
    """Say which pause keeps it waiting."""
    pause = controls.pause_of(queue)
    if pause is not None:
        what, way_out = (f"Queue {queue}", quote(queue)) if pause.name else ("Every queue", "--all")
        yield f"{what} is paused {since(pause, now)}: `taskqueue resume {way_out}` lets its jobs begin."


def _held_back(store: Store, controls: Controls, record: Record, now: datetime) -> Iterator[str]:
    """Say which limits are used up."""
    limit_keys = limit_keys_of(record.lane)
    held = store.limit_usage([limit_key.key for limit_key in limit_keys], now) if limit_keys else {}
    for limit_key in map(controls.now, limit_keys):
        if held[limit_key.key] >= limit_key.count:
            change = controls.limit_of(limit_key)
            changed = "" if change is None else f", a number that holds {since(change, now)}"
            yield f"It is held back by a limit that is used up: {limit_key}{changed}."


def _place(store: Store, record: Record) -> str:
    """Return how many of its queue come first: those with the lower (rank, id), as nodes take them."""
    is_before = Or((Compare("rank", Operator.LT, record.rank), Compare("id", Operator.LT, str(record.id))))
    earlier = And((Compare("rank", Operator.LTE, record.rank), is_before))
    waiting = Compare("status", Operator.EQ, int(Status.WAITING))
    before = store.count(And((waiting, Compare("queue", Operator.EQ, record.queue), earlier)), MOST_BEFORE + 1)
    place = "it is the next" if before == 0 else f"{before:,} {'stands' if before == 1 else 'stand'} before it"
    if before > MOST_BEFORE:
        place = f"more than {MOST_BEFORE:,} stand before it"
    return f"In queue {record.queue}, with priority {record.priority}, {place}."


def _postponed(store: Store, record: Record, now: datetime) -> Iterator[str]:
    if record.waiting_for:
        yield f"It waits until these have ended: {_others(store, record)}."
        yield from kept_waiting(store, record)
    if record.ready_at is not None:
        yield f"It can run from {at(record.ready_at, now)}: {_pause(record)}."
    yield from last_error(record.error)
    yield from _question(record)
    yield from _expiry(record, now)


def _question(record: Record) -> Iterator[str]:
    if record.options.ready is not None and record.phase is None:
        yield f"Before it begins a worker asks whether it is ready: {record.options.ready}."


def _others(store: Store, record: Record) -> str:
    others = present(store, record.waiting_for)
    return some([f"{other.id} ({other.job}, {other.status.name})" for other in others])


def kept_waiting(store: Store, record: Record) -> Iterator[str]:
    """Say which dependencies have failed or are gone, so that only a user's action ends the wait."""
    kept = {other.id: other for other in present(store, record.waiting_for)}
    for id in record.waiting_for:
        other = kept.get(id)
        if other is None:
            yield f"Job {id} is gone, so this one waits until it is canceled."
        elif other.status.is_final:
            yield (
                f"Job {id} has ended as {other.status.name}, and on_dependency_failure='wait' keeps this one waiting: "
                "until that one is recovered, or this one canceled."
            )


def _pause(record: Record) -> str:
    options = record.options
    match record.cause:
        case Cause.RETRY:
            return f"attempt {record.attempt - 1} failed, and its policy is: {options.retry}"
        case Cause.CRASHED:
            return f"{vanished(record)}, up to {times(options.crash_retries)} it runs again"
        case Cause.SNOOZED:
            return "it asked to run later (Snooze), which counts as no attempt"
        case Cause.NOT_READY if record.unready is not None:
            asked = f"asked {times(record.unready.times)}, and again with growing pauses"
            return f"it was not ready, for {record.unready.reason} ({asked})"
        case Cause.CLEAN_UP:
            return "clean_up() failed and is tried again with growing pauses"
        case Cause.UNLOADABLE:
            since = f" since {local(record.unloadable_since)}" if record.unloadable_since else ""
            return f"it could not be loaded{since}, and is tried again with growing pauses"
    return "that is the time it was added for"


def _processing(store: Store, record: Record, now: datetime) -> Iterator[str]:
    if record.holder is None or record.ready_at is None:
        yield "Its record says nothing of the node that has it: it is damaged."
        return
    seat = record.holder.seat
    lease = holder_of(store, seat)
    is_dead_caller = host.is_gone_caller(record.holder)
    state = "its process has ended" if is_dead_caller else node_sentence(lease, now)
    yield f"Node {seat} has it, with claim {record.claims}; {state}."
    is_dead = is_dead_caller or (lease is not None and host.is_gone(lease))
    if record.ready_at <= now:
        follows = "that is over, so another node takes it back"
    elif is_dead:
        here = "this host" if is_dead_caller else f"the host of {seat}"
        follows = f"then any node takes it back; one on {here} does so at once"
    else:
        follows = "unless it renews"
    yield f"The node's claim holds until {at(record.ready_at, now)}, {follows}."
    if record.started_at is None:
        yield "It has not begun there yet."
    elif is_dead:
        yield f"Attempt {record.attempt} began {at(record.started_at, now)} and has died with its node."
    else:
        yield f"Attempt {record.attempt} runs since {at(record.started_at, now)}{_limit(record)}."
        yield f"Where it is now: `taskqueue stack {record.id}`"
    if record.progress_at is not None:
        words = f" ({record.progress_message})" if record.progress_message else ""
        yield f"Its progress is {record.progress:.4g} %{words}, told {at(record.progress_at, now)}."
    if record.cancel is not None:
        reason = f" ({record.cancel.reason})" if record.cancel.reason else ""
        yield f"Its end was requested{reason} {at(record.cancel.requested_at, now)}: its node is to end it."
    yield from last_error(record.error)


def _limit(record: Record) -> str:
    return "" if record.options.timeout is None else f", at most {span(record.options.timeout)}"


def _copies(record: Record) -> Iterator[str]:
    """Say of which job it is a copy, and which one is its last copy."""
    origin, copied = origin_of(record), copy_of(record)
    if origin is not None:
        yield f"It was added to recover job {origin}."
    if copied is not None:
        yield f"It was recovered: job {copied} is its copy."


def _continuation(record: Record) -> Iterator[str]:
    """Yield sentences on the step of a stepwise job, its reports, and the positions of its loops."""
    course = record.course
    if course is not None and course.phase is not None:
        end = f", to end as {Status(course.ends_as).name}" if course.ends_as is not None else ""
        yield f"It runs in steps: phase {course.phase.value}{end}, iterations over: {course.steps}."
        if course.reports != "{}":
            yield f"It reports: {course.reports}"
    if record.cursor is not None:
        how = "ended" if record.status.is_final else "go on"
        yield f"Its loops (each) {how} behind: {record.cursor}"


def _series(store: Store, record: Record, now: datetime) -> Iterator[str]:
    """Say which occurrence it is, and of one that has ended whether another follows."""
    origin = record.origin
    match origin:
        case FromSchedule():
            yield f"Schedule {origin.schedule} started it for {at(origin.slot, now)}."
        case Series():
            yield f"It is occurrence {origin.occurrence} of series {origin.id}: {origin.trigger}."
            if record.status.is_final:
                end = ends_series(record)
                yield f"The series ended with it: {end}." if end else _following(store, origin)


def _following(store: Store, series: Series) -> str:
    """Return a sentence on the next occurrence."""
    id = occurrence_id(series.id, series.occurrence + 1)
    following = next(iter(present(store, [id])), None)
    if following is None:
        return f"The next occurrence, job {id}, was removed, or did not come in: another job had its unique key."
    if following.status is Status.CANCELED:
        return f"The next occurrence, job {id}, is CANCELED: {end_of(following)}."
    return f"The next occurrence is job {id}."


def _expiry(record: Record, now: datetime) -> Iterator[str]:
    if record.expires_at is not None:
        yield f"It is canceled unless it has begun before {at(record.expires_at, now)}."
