"""Explains a job's status in sentences: from its record, its runs, the live nodes, and the jobs before it."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from shlex import quote
from typing import TypeAlias

from taskqueue.errors import JobNotFound
from taskqueue.insight import obstacles
from taskqueue.insight.claimed_job import RUNS, ask, claimed_job
from taskqueue.insight.deadlock import wait_sentences
from taskqueue.insight.nodes import live_seats, name_of, seats, trouble
from taskqueue.insight.records import present
from taskqueue.model.conditions import FAILED_CHECKS
from taskqueue.model.controls import Control, Controls
from taskqueue.model.environment import node_command
from taskqueue.model.ids import JobId, occurrence_id
from taskqueue.model.lifecycle.recovered_copy import copy_of, origin_of
from taskqueue.model.query import Compare, Operator
from taskqueue.model.record import Attempt, Cause, Failure, OnCrash, Record, Status
from taskqueue.model.retry import NO_RETRY
from taskqueue.model.schedules.origin import FromSchedule, Series
from taskqueue.model.schedules.series import ends_series
from taskqueue.model.shown_text import shown
from taskqueue.model.stack import latest
from taskqueue.model.wording import at, count, local, since, size, some, span, times
from taskqueue.store import Lease, Store

CONTINUED = "\n    "
"""The prefix of the further lines of an error, so that none reads like a sentence of the report."""

IN_SHORT = "In short: "

WAY_OUT_OF_UNKNOWN = "check the spelling, and whether the job imports the module"

MOST_ASKED = 3
"""Maximum number of nodes of this host that are asked why they take no jobs."""

MOST_FOLLOWED = 50
"""Maximum number of dependencies, one of the other, that are followed."""

Report: TypeAlias = Generator[str, None, str]
"""Yields sentences, and returns the most important one as a clause."""

_SELF_EXPLAINING = (Cause.CANCELED, Cause.EXPIRED, Cause.DEPENDENCY, Cause.DUPLICATE, Cause.REPLACED)

_ENDS: Mapping[Cause, str] = {
    Cause.RETURNED: "start() returned",
    Cause.INTERRUPTED: "its run was interrupted, and on_crash='fail' forbids another",
    Cause.UNLOADABLE: "it could not be loaded for as long as its node tries (--unroutable-after)",
    Cause.CLEAN_UP_FAILED: "its clean-up before the end failed again and again",
    Cause.CHECK_FAILED: f"its checks failed {FAILED_CHECKS} times in a row, so its readiness is unknown",
    Cause.GIVEN_UP: "it was given up while it waited to run again (`taskqueue audit` says by whom)",
    Cause.UNREADABLE: "a part of its record, or its data, could not be read by the node that claimed it",
    Cause.REPLACED: "a changed job was added in its place (add_job_once)",
}

_RETRY_ENDS: Mapping[Cause, Callable[[Record], str]] = {
    Cause.FAILED: lambda _: "its attempt failed",
    Cause.EXHAUSTED: lambda record: f"attempt {record.failures + record.crashes} failed too",
    Cause.NOT_RETRIABLE: lambda _: "its error is of no type that is retried",
    Cause.UNDECIDED: lambda _: "its attempt failed, its retry policy could not decide",
    Cause.TIMED_OUT: lambda record: f"its last attempt took longer than {span(record.options.timeout or 0)}",
    Cause.STALLED: lambda record: (
        f"its last attempt gave no sign of progress for {span(record.options.stall_timeout or 0)}"
    ),
}

_WAITING: Mapping[Cause, str] = {
    Cause.ADDED: "it was added to run at once",
    Cause.SCHEDULED: "the time it was planned for has come",
    Cause.BEHIND: "what it waited for has ended",
    Cause.CHILDREN: "the children that it waited for have ended",
    Cause.RETRY: "its pause after a failed attempt has ended",
    Cause.SNOOZED: "it asked to run later, and that time has come",
    Cause.STEPPED: "it has finished a step, and other jobs of its priority take their turn before the next one",
    Cause.CLEAN_UP: "it must clean up before it ends",
    Cause.NOT_READY: "it was not ready when it was asked, and is asked again",
    Cause.INTERRUPTED: "its last run was interrupted, which is not an attempt",
    Cause.HANDED_BACK: "a node had claimed it and gave it back before it started",
    Cause.CRASHED: "its last run was lost with its worker or node, and it runs again",
    Cause.LOST: "the node that had claimed it is gone, or was silent until its lease expired; it had not started",
    Cause.UNLOADABLE: "it could not be loaded, and is tried again",
}


def why(store: Store, id: JobId, mask: obstacles.Mask = lambda limit_key: limit_key) -> str:
    """Return the reasons as lines of text, with each limit key masked before it is named; raise ``JobNotFound``."""
    records = store.find(Compare("id", Operator.EQ, str(id)), limit=1)
    if not records:
        raise JobNotFound(id)
    return "\n".join(shown(line).replace("\n", CONTINUED) for line in _lines(store, records[0], store.now(), mask))


def why_no_node(leases: Sequence[Lease], controls: Controls, queue: str, now: datetime) -> str:
    """Say why no node takes jobs of the queue, and what to do; empty if a node does."""
    is_taken, sentence = _nodes_taking(leases, controls, queue, now)
    return "" if is_taken else sentence


def nodes_for(store: Store, records: Iterable[Record]) -> str:
    """Say why no node takes one of these jobs, or which nodes take them; empty if none of them waits."""
    waiting = [record for record in records if record.status in (Status.WAITING, Status.POSTPONED)]
    if not waiting:
        return ""
    leases, controls, now = store.leases(), store.controls(), store.now()
    queues = dict.fromkeys(record.queue for record in waiting)
    answers = [_nodes_taking(leases, controls, queue, now) for queue in queues]
    return next((sentence for is_taken, sentence in answers if not is_taken), answers[0][1])


def end_of(record: Record) -> str:
    options = record.options
    message = record.error.message if record.error is not None else ""
    match record.cause:
        case Cause.FAILED if record.attempts and record.attempts[-1].outcome == "GivenUp":
            return "it failed for good, even if attempts were left: it raised Fail, or its data or result do not fit"
        case cause if cause in _RETRY_ENDS:
            has = "it has" if options.retry == NO_RETRY else "its policy is:"
            return f"{_RETRY_ENDS[cause](record)}, and {has} {options.retry}"
        case Cause.UNLOADABLE if record.error is not None and record.error.type == "taskqueue.InvalidOption":
            return "the options that its class declares cannot be"
        case Cause.UNLOADABLE if record.unloadable_times == 0:
            return "its node could not load it, and tries that once only (taskqueue run, --unroutable-after 0)"
        case Cause.REPLACED if record.error is not None and record.error.type == "Canceled":
            return f"it was added by its path, and {message}"
        case Cause.CRASHED if options.on_crash is OnCrash.FAIL:
            return "its run was lost, and on_crash='fail' forbids another"
        case Cause.CRASHED:
            return f"{vanished(record)}, and crash_retries is {options.crash_retries}"
        case Cause.CANCELED:
            return f"it was canceled{f' ({message})' if message not in ('', 'canceled') else ''}"
        case Cause.EXPIRED:
            return f"it {message}"
        case Cause.DEPENDENCY | Cause.DUPLICATE:
            return f"it was canceled: {message}"
    return _ENDS[record.cause]


def vanished(record: Record) -> str:
    """Say how often its run vanished; an interruption that no node requested also counts."""
    is_interruption = record.attempts and record.attempts[-1].outcome == "Interrupted"
    how = "vanished, or was ended again by a SIGTERM that no node sent," if is_interruption else "vanished"
    return f"its run {how} {times(record.counted_crashes)}"


def ended(record: Record, now: datetime) -> Iterator[str]:
    when = "at a time that its record does not say" if record.ended_at is None else at(record.ended_at, now)
    yield f"It ended {when}: {end_of(record)}."
    yield from last_error(record.error if record.cause not in _SELF_EXPLAINING else None)


def unknown(error: Failure) -> str:
    """Return a sentence about names in the retry policy that no loaded module of its process defines."""
    names = ", ".join(error.unknown_names)
    return f"Its retry policy names {names}: no module that was loaded when it failed has an exception of that name"


def last_error(error: Failure | None) -> Iterator[str]:
    if error is not None:
        yield f"Its last error: {error.type}: {error.message}"
        if error.unknown_names:
            yield f"{unknown(error)}: {WAY_OUT_OF_UNKNOWN}."


def _last_errors(record: Record) -> Iterator[str]:
    """Yield the last error; if a clean-up failed, its error and the one before it."""
    tried = record.attempts[-1].error if record.cause is Cause.CLEAN_UP and record.attempts else None
    if tried is not None and record.error is not None and tried != record.error:
        yield f"The last error of its clean-up: {tried.type}: {tried.message}"
        yield f"The error before its clean-up: {record.error.type}: {record.error.message}"
        return
    yield from last_error(tried or record.error)


def ended_runs(record: Record) -> Iterator[str]:
    if record.attempts:
        yield "Runs that have ended:"
        yield from (f"  {_attempt(attempt)}" for attempt in record.attempts)
        stack = record.attempts[-1].stack
        if stack:
            yield f"Where the last of them was when it was ended: {latest(stack, record.job) or stack}"
            yield f"The stack it had then: `taskqueue show {record.id}`"


def kept_waiting(store: Store, record: Record) -> Iterator[str]:
    """Say which dependencies have failed or are gone, so that only a user can end the wait."""
    dependencies = {dependency.id: dependency for dependency in present(store, record.waiting_for)}
    for id in record.waiting_for:
        dependency = dependencies.get(id)
        if dependency is None:
            yield f"Job {id} is gone, so this one waits until it is canceled."
        elif dependency.status.is_final:
            ended_as = dependency.status.name
            yield (
                f"Job {id} has ended as {ended_as}, and on_dependency_failure='wait' keeps this one waiting: "
                "until that one is recovered, or this one canceled."
            )


def _lines(store: Store, record: Record, now: datetime, mask: obstacles.Mask) -> Iterator[str]:
    name = record.job if record.id_text is None else f"{record.job}:{record.id_text}"
    if record.options.name:
        name = f"{record.options.name}, {name}"
    yield f"Job {record.id} ({name}) is {record.status.name}."
    if record.damage:
        yield from _unreadable(record, now)
        return
    match record.status:
        case Status.WAITING:
            in_short = yield from _waiting(store, record, now, mask)
        case Status.POSTPONED:
            in_short = yield from _postponed(store, record, now)
        case Status.PROCESSING:
            in_short = yield from claimed_job(store, record, now)
            yield from last_error(record.error)
        case _:
            yield from ended(record, now)
            in_short = _after_end(record)
    if not record.status.is_final:
        awaited = yield from wait_sentences(store, record, now)
        root = yield from _followed(store, awaited, now)
        if awaited and in_short == RUNS:
            in_short = f"{RUNS}, and waits for {count(len(awaited), 'other job')}{root}"
    yield from _copies(record)
    yield from _continuation(record)
    yield from _series(store, record, now)
    yield from ended_runs(record)
    if record.attempts and record.attempts[-1].outcome == "Interrupted" and record.cause is not Cause.INTERRUPTED:
        yield f"Why the last of them was interrupted: {_interruption(store.leases(), record.attempts[-1])}."
    if record.error is not None and store.log_lines(record.id):
        yield f"What it logged: `taskqueue logs {record.id}`"
    if in_short:
        yield f"{IN_SHORT}{in_short}."


def _after_end(record: Record) -> str:
    """Return what follows the end of a job that is not DONE."""
    if record.status is Status.DONE:
        return ""
    copied = copy_of(record)
    if copied is not None:
        return f"it was recovered as job {copied}"
    return f"it does not run again by itself, `taskqueue recover {record.id}` runs it again"


def _unreadable(record: Record, now: datetime) -> Iterator[str]:
    yield f"Its record {record.damage}."
    if record.status.is_final:
        yield "It stays until it is pruned." if record.ended_at is None else f"It ended {at(record.ended_at, now)}."
        yield from last_error(record.error)
    else:
        yield "It cannot run: the node that takes it ends it as FAILED (unreadable); until then it can be canceled."


def _waiting(store: Store, record: Record, now: datetime, mask: obstacles.Mask) -> Report:
    leases, controls = store.leases(), store.controls()
    because = _WAITING[record.cause]
    if record.cause is Cause.INTERRUPTED and record.attempts:
        because += f": {_interruption(leases, record.attempts[-1])}"
    yield f"It has been waiting since {at(record.ready_at or record.created_at, now)}: {because}."
    yield from _last_errors(record)
    yield from _paused(controls, record.queue, now)
    full = list(obstacles.full_limits(store, controls, record, now))
    for limit in full:
        yield from limit.sentences(controls, now, mask)
    before = store.count(obstacles.before_in(record, record.queue), obstacles.MOST_BEFORE + 1)
    yield _place(record, before)
    is_taken, nodes = _nodes_taking(leases, controls, record.queue, now)
    yield nodes
    taking = obstacles.taking_seats(leases, controls, record.queue, now)
    busy = list(obstacles.busy_nodes(store, record, taking))
    yield from (node.sentence(now) for node in busy)
    place = yield from obstacles.sharing(store, controls, record, taking)
    yield from _question(record)
    yield from _expiry(record, now)
    pause = controls.pause_of(record.queue)
    if pause is not None:
        return _paused_in_short(pause)
    if not is_taken:
        trouble = yield from _troubles(taking)
        return f"no node takes jobs of queue {record.queue}{trouble}"
    if full:
        return full[0].in_short(now)
    if not before and (trouble := (yield from _troubles(taking))):
        return f"it is next in its queue{trouble}"
    return _turn(record, before, place, taking, busy)


def _interruption(leases: Sequence[Lease], attempt: Attempt) -> str:
    """Return who interrupted the run, as far as its attempt and the lease of its node show, as a clause."""
    if attempt.error is not None:
        return attempt.error.message
    seat = next((lease for lease in seats(leases) if name_of(lease) == attempt.node), None)
    has_stayed = seat is not None and attempt.started_at is not None and seat.since <= attempt.started_at
    if has_stayed and seat is not None and seat.about.get("phase", "works") == "works":
        how = "a signal had stopped it, or its host was overloaded"
        return f"node {attempt.node} did not renew its claim in time, as if {how}, and works again"
    return f"node {attempt.node} was stopped, or loaded new code"


def _troubles(taking: Sequence[Lease]) -> Report:
    """Say why nodes of this host take no jobs, asked of them now; return the first as a clause."""
    in_short = ""
    for lease in taking[:MOST_ASKED]:
        report = ask(lease)
        if report is not None and report.reason:
            yield f"Node {name_of(lease)} takes no jobs: {report.reason}."
            in_short = in_short or f", and node {name_of(lease)} takes none: {report.reason}"
    return in_short


def _turn(
    record: Record, before: int, place: obstacles.Place, taking: Sequence[Lease], busy: Sequence[obstacles.BusyNode]
) -> str:
    """Return what a job waits for if only other jobs keep it from running."""
    if taking and len(place.bounds) == len(taking):
        bound = f"--work-on {quote(record.queue)}={place.bounds[0]}"
        return f"as many jobs of queue {record.queue} run as the nodes that take it may run at once ({bound})"
    of_queue = f"{obstacles.many(before)} of queue {record.queue}" if before else ""
    of_others = f"{obstacles.many(place.others)} of other queues" if place.others else ""
    both = " and ".join(filter(None, (of_queue, of_others)))
    first = f"{both} {'comes' if before + place.others == 1 else 'come'} first" if both else ""
    if taking and len(busy) == len(taking):
        return f"every worker is busy, and {first or 'it is next in its queue'}"
    return first or "it is next in its queue"


def _paused(controls: Controls, queue: str, now: datetime) -> Iterator[str]:
    """Say which pause keeps it waiting."""
    pause = controls.pause_of(queue)
    if pause is not None:
        what, way_out = (f"Queue {queue}", quote(queue)) if pause.name else ("Every queue", "--all")
        yield f"{what} is paused {since(pause, now)}: `taskqueue resume {way_out}` lets its jobs start."


def _paused_in_short(pause: Control) -> str:
    return f"queue {pause.name} is paused" if pause.name else "every queue is paused"


def _place(record: Record, before: int) -> str:
    """Say how many jobs of its queue come first: those with a lower (rank, id), as nodes take them."""
    place = "it is the next" if before == 0 else f"{before:,} {'stands' if before == 1 else 'stand'} before it"
    if before > obstacles.MOST_BEFORE:
        place = f"more than {obstacles.MOST_BEFORE:,} stand before it"
    return f"In queue {record.queue}, with priority {record.priority}, {place}."


def _postponed(store: Store, record: Record, now: datetime) -> Report:
    sentences: list[str] = []
    root = ""
    if record.waiting_for:
        awaited = "its children have ended" if record.cause is Cause.CHILDREN else "these have ended"
        yield f"It waits until {awaited}: {_dependencies(store, record)}."
        sentences += kept_waiting(store, record)
        yield from sentences
        root = yield from _followed(store, record.waiting_for, now)
    if record.ready_at is not None:
        yield f"It can run from {at(record.ready_at, now)}: {_pause(record)}."
    yield from _last_errors(record)
    yield from _question(record)
    yield from _expiry(record, now)
    if sentences:
        return "what it waits for did not end as DONE, so only a person can end this wait"
    if record.waiting_for:
        things = "child job" if record.cause is Cause.CHILDREN else "job"
        return f"it waits for the end of {count(len(record.waiting_for), things)}{root}"
    if record.ready_at is None:
        return ""
    return "its time has come" if record.ready_at <= now else f"its time comes {at(record.ready_at, now)}"


def _followed(store: Store, ids: Iterable[JobId], now: datetime) -> Report:
    """Say what keeps the first of these jobs waiting, following dependencies to their cause."""
    cause: Record | None = None
    seen_ids: set[JobId] = set()
    while len(seen_ids) < MOST_FOLLOWED:
        pending = [record for record in present(store, ids) if not record.status.is_final]
        if not pending or pending[0].id in seen_ids:
            break
        cause, ids = pending[0], pending[0].waiting_for
        seen_ids.add(cause.id)
    if cause is None:
        return ""
    if cause.waiting_for and len(seen_ids) == MOST_FOLLOWED:
        yield f"It is in a long chain of jobs that wait for one another: see `taskqueue why {cause.id}` ({cause.job})."
        return ", in a long chain of jobs"
    keeps, in_short = _keeps(store, cause, now)
    yield f"In the end it waits for job {cause.id} ({cause.job}), which {keeps}"
    return f", in the end for job {cause.id}: {in_short}"


def _keeps(store: Store, record: Record, now: datetime) -> tuple[str, str]:
    """Return the end of a sentence on what a pending job waits for, or since when it runs; and a clause."""
    if record.status is Status.PROCESSING:
        began_at = record.started_at
        if began_at is None:
            return "has not started on its node yet.", "a node has claimed it, and it has not started"
        return f"has been running since {at(began_at, now)}.", RUNS
    if record.status is Status.WAITING:
        controls = store.controls()
        is_taken, sentence = _nodes_taking(store.leases(), controls, record.queue, now)
        pause = controls.pause_of(record.queue)
        why_not = next(_paused(controls, record.queue, now), "") or ("" if is_taken else sentence)
        in_short = "it waits" if is_taken else f"no node takes jobs of queue {record.queue}"
        if pause is not None:
            in_short = _paused_in_short(pause)
        says = f"has been waiting since {at(record.ready_at or record.created_at, now)}."
        return f"{says} {why_not or f'See `taskqueue why {record.id}`.'}", in_short
    if record.ready_at is None or record.waiting_for:
        return f"waits for jobs that cannot end it: see `taskqueue why {record.id}`.", "only a person can end this wait"
    comes = f"its time comes {at(record.ready_at, now)}"
    return f"can run from {at(record.ready_at, now)}: {_pause(record)}.", comes


def _question(record: Record) -> Iterator[str]:
    if record.options.ready is not None and record.phase is None:
        yield f"Before it starts, a worker checks whether it is ready: {record.options.ready}."


def _dependencies(store: Store, record: Record) -> str:
    dependencies = present(store, record.waiting_for)
    return some([f"{dependency.id} ({dependency.job}, {dependency.status.name})" for dependency in dependencies])


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


def _copies(record: Record) -> Iterator[str]:
    """Say which job it is a copy of, and which job is its last copy."""
    origin, copied = origin_of(record), copy_of(record)
    if origin is not None:
        yield f"It was added to recover job {origin}."
    if copied is not None:
        yield f"It was recovered: job {copied} is its copy."


def _continuation(record: Record) -> Iterator[str]:
    """Yield sentences about the step of a stepwise job, its reports, and the positions of its loops."""
    course = record.course
    if course is not None and course.phase is not None:
        end = f", to end as {Status(course.ends_as).name}" if course.ends_as is not None else ""
        yield f"It runs in steps: phase {course.phase.value}{end}, iterations done: {course.steps}."
        if course.reports != "{}":
            yield f"It reports: {course.reports}"
    if record.cursor is not None:
        yield from _loops(record.cursor)


def _loops(positions: str) -> Iterator[str]:
    """Say how much each loop of the job has finished; ``positions`` is what ``execution/resumable_loops.py`` writes."""
    try:
        read = json.loads(positions)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        yield f"The positions of its loops cannot be read: {positions}"
        return
    for name, position in read.items():
        loop = f"each(name={name!r})" if name else "each()"
        if isinstance(position, int):
            yield f"Its loop {loop} has finished {count(position, 'item')}."
        elif position:
            yield f"Its loop {loop} has finished the items up to the cursor {json.dumps(position[0])}."


def _series(store: Store, record: Record, now: datetime) -> Iterator[str]:
    """Say which occurrence it is and, if it has ended, whether another follows."""
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
        return f"The next occurrence, job {id}, was removed, or was not added: another job had its unique key."
    if following.status is Status.CANCELED:
        return f"The next occurrence, job {id}, is CANCELED: {end_of(following)}."
    return f"The next occurrence is job {id}."


def _expiry(record: Record, now: datetime) -> Iterator[str]:
    if record.expires_at is not None:
        yield f"It is canceled unless it starts before {at(record.expires_at, now)}."


def _nodes_taking(leases: Sequence[Lease], controls: Controls, queue: str, now: datetime) -> tuple[bool, str]:
    """Return whether a node takes jobs of the queue, and a sentence that says which, or why none does."""
    live = live_seats(leases, now)
    if not live:
        return False, f"No node is running on this store: start one with `{node_command()}`."
    of_queue = [lease for lease in live if obstacles.takes(lease, queue)]
    drains = [drain for lease in of_queue if (drain := controls.drain_of(name_of(lease)))]
    taking = [lease for lease in of_queue if controls.drain_of(name_of(lease)) is None]
    if drains and not taking:
        nodes = some([f"{drain.name} {since(drain, now)}" for drain in drains])
        way_out = "`taskqueue undrain NODE` lets it work."
        return False, f"Every node that takes jobs of this queue is drained: {nodes}; {way_out}"
    if taking:
        nodes = some([_described(lease, now) for lease in taking])
        if all(trouble(lease, now) for lease in taking):
            return False, f"No node takes jobs of this queue just now: {nodes}; see the log of the node."
        return True, f"Nodes that take jobs of this queue: {nodes}."
    nodes = some([f"{name_of(lease)} takes {', '.join(obstacles.queues_of(lease))}" for lease in live])
    return (
        False,
        f"No node takes jobs of queue {queue} ({nodes}): start one with `{node_command()} --work-on {quote(queue)}`.",
    )


def _described(lease: Lease, now: datetime) -> str:
    about = lease.about
    does = trouble(lease, now) or about.get("phase", "works")
    pool = f"{about.get('busy', '?')} busy, {about.get('idle', '?')} idle"
    return f"{name_of(lease)} ({does}, {pool})"


def _attempt(attempt: Attempt) -> str:
    parts = [f"{local(attempt.ended_at)}, attempt {attempt.number} on node {attempt.node}"]
    if attempt.pid is not None:
        parts[0] += f" (pid {attempt.pid})"
    took = (
        "" if attempt.started_at is None else f" after {span((attempt.ended_at - attempt.started_at).total_seconds())}"
    )
    parts.append(f"{attempt.outcome}{took}")
    is_named = attempt.error is not None and attempt.exit in attempt.error.message
    if attempt.exit and not is_named:
        parts.append(f"its worker {'was ' if attempt.exit.startswith('killed') else ''}{attempt.exit}")
    if attempt.peak_memory is not None and not is_named:
        parts.append(f"{size(attempt.peak_memory)} at most")
    error = f": {attempt.error.type}: {attempt.error.message}" if attempt.error is not None else ""
    return ", ".join(parts) + error
