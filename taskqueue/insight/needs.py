"""Lists everything in a store that somebody should act on, in sentences, each with its subject and the way out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from shlex import quote

from taskqueue.insight import diagnosis
from taskqueue.insight.failure_groups import FailureGroup, Lately, Trend
from taskqueue.insight.failure_states import FailureState
from taskqueue.insight.nodes import Node, live_seats, slots
from taskqueue.insight.obstacles import taking_seats
from taskqueue.insight.overview import QueueState, Run
from taskqueue.insight.why import why_no_node
from taskqueue.model.controls import Control, Controls, Kind
from taskqueue.model.environment import node_command
from taskqueue.model.finding import Finding, Level
from taskqueue.model.schedules.schedule import NamedSchedule, Stage
from taskqueue.model.wording import count, local, minute, percent, span, times
from taskqueue.store import Lease

MISSED_WITHIN = timedelta(hours=12)
"""How long missed times of schedules stay listed."""

LONG_RUN = 40.0
"""Seconds after which a run may count as long."""

LONGER = 2.0
"""A run is long if it takes this many times as long as the longest of its class."""

OVERDUE = timedelta(seconds=40)
"""A schedule that has started no job for this long after its time is not served."""

ELECTED_WITHIN = timedelta(seconds=30)
"""A store that had a leader this recently has none only until another node takes the lead, as when nodes restart."""

CANCEL_TAKES = 15.0
"""Seconds after which a requested end counts as late."""

ENOUGH = 10
"""The fewest jobs of a class from which to judge whether a run is unusually long, or whether the class fails."""


MANY_RETRIES, STORM = 50, 4
"""A class is retried in vain if an hour has this many retried attempts, and this many times as many as ended jobs."""

MOST_OF_CLASS = 3
"""Maximum number of unusual errors of one class that are named."""


class Subject(str, Enum):
    """The kind of thing that a need names."""

    __str__ = str.__str__

    STORE = "store"
    NODE = "node"
    QUEUE = "queue"
    JOB = "job"
    RUN = "running job"
    CLASS = "class"
    RETRIED = "class that is retried in vain"
    UNLOADABLE = "class that cannot be loaded"
    PROMISE = "promise of a class"
    SCHEDULE = "schedule"
    NOTIFICATIONS = "notifications"


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something that somebody should act on."""

    subject: Subject
    name: str
    """The name of the queue, node, class or schedule, or the id of the job; empty if the need concerns all of them."""
    says: str
    do: str
    """The way out, in words or as a command."""
    level: Level = Level.WARNING
    error: str = ""
    """The fingerprint of the error, if the need is about one."""
    control: Control | None = None
    """The pause or drain to lift, if the need is about one."""
    topic: str = ""
    """What distinguishes it from other needs about the same thing; unlike the sentence, it never changes."""

    @property
    def key(self) -> str:
        """Return a text that is the same for the same need each time. Long runs of one class are one need."""
        name = "" if self.subject is Subject.RUN else self.name
        return f"{self.subject.value}\n{name}\n{self.topic}\n{self.error}\n{self.level.value}"


def of_nodes(
    leases: Sequence[Lease],
    nodes: Sequence[Node],
    queues: Iterable[QueueState],
    now: datetime,
    led_at: datetime | None = None,
) -> Iterator[Need]:
    """Yield needs for missing nodes, drained nodes, and other problems of nodes that ``doctor`` names.

    ``led_at`` is when a node was last seen to lead.
    """
    waiting = sum(queue.waiting for queue in queues)
    if not any(node.is_live for node in nodes):
        says = f"no node is running on this store; waiting: {count(waiting, 'job')}"
        do = f"start one: `{node_command()}`, or `systemctl start taskqueue-node`"
        yield Need(subject=Subject.NODE, name="", says=says, do=do, level=Level.ERROR)
    for finding in diagnosis.flaws_of_nodes(leases, now):
        if finding.about == "leader" and led_at is not None and now - led_at < ELECTED_WITHIN:
            continue
        topic = finding.says.partition(" is degraded:")[0] if finding.about == "nodes" else finding.about
        yield replace(of_finding(finding, Subject.NODE), topic=topic)
    for node in nodes:
        if node.drain is not None:
            says = f"{node.drain} {_since(node.drain, now)}"
            do = f"let it work again: `taskqueue undrain {quote(node.name)}`"
            yield Need(subject=Subject.NODE, name=node.name, says=says, do=do, control=node.drain, topic="drain")


def of_queues(
    leases: Sequence[Lease], queues: Sequence[QueueState], controls: Controls, now: datetime
) -> Iterator[Need]:
    """Yield pauses, queues on which no live node works, and queues whose jobs wait longer than usual."""
    by_name = {queue.name: queue for queue in queues}
    for pause in controls.kept:
        if pause.kind is Kind.PAUSE:
            waiting = f"; waiting: {by_name[pause.name].waiting:,}" if pause.name in by_name else ""
            do = f"resume it: `taskqueue resume {quote(pause.name) if pause.name else '--all'}`"
            says = f"{pause} {_since(pause, now)}{waiting}"
            yield Need(subject=Subject.QUEUE, name=pause.name, says=says, do=do, control=pause, topic="pause")
    if live_seats(leases, now):
        for queue in queues:
            if queue.pause is None and queue.waiting:
                yield from _of_backlog(leases, queue, controls, now)


def of_runs(runs: Iterable[Run], now: datetime) -> Iterator[Need]:
    """Yield running jobs whose lease has ended, that ignore a stop, stand still, or run longer than any of their class.

    A run stands still that has reported no progress for twice as long as its class runs on average, and for half as
    long as all of it would take at its own pace.
    """
    for run in runs:
        record, says = run.record, ""
        do = f"see why: `taskqueue why {record.id}`"
        asked_for = 0.0 if record.cancel is None else (now - record.cancel.requested_at).total_seconds()
        if record.ready_at is not None and record.ready_at <= now:
            says = f"its lease ended {span((now - record.ready_at).total_seconds())} ago, and no node has rescued it"
        elif asked_for > CANCEL_TAKES:
            says = f"it was asked to end {span(asked_for)} ago, and still runs"
        elif _is_long(run):
            assert run.usual is not None  # it is long in comparison
            longest = f"the longest took {span(run.usual.longest)}"
            says = f"it has run for {span(run.ran or 0)}, longer than any of its class in the last day ({longest})"
        elif (silent_for := _stands_still_for(run)) is not None:
            at = percent(record.progress / 100)
            says = f"it has made no progress for {span(silent_for)}, and is at {at} after {span(run.ran or 0)}"
            do = f"see where it is: `taskqueue stack {record.id}`"
        if says:
            says = f"{record.job} {record.id}: {says}"
            yield Need(subject=Subject.RUN, name=str(record.id), says=says, do=do, topic=record.job)


def _is_long(run: Run) -> bool:
    """Return whether it has run for twice as long as any of its class: of many runs, some is always the longest yet."""
    if run.usual is None or run.usual.number < ENOUGH:
        return False
    return (run.ran or 0) >= max(LONG_RUN, LONGER * run.usual.longest)


def _stands_still_for(run: Run) -> float | None:
    """Return for how many seconds a run has made no progress; None if that may be usual, or it reports none."""
    record, ran = run.record, run.ran
    if not record.progress or record.progress_at is None or record.started_at is None or ran is None:
        return None
    moved_for = (record.progress_at - record.started_at).total_seconds()
    if moved_for <= 0 or run.usual is None or run.usual.number < ENOUGH:
        return None  # the progress may be that of an earlier attempt
    mean, whole = run.usual.total / run.usual.number, moved_for * 100 / record.progress
    silent_for = ran - moved_for
    return silent_for if silent_for >= max(LONG_RUN, LONGER * mean, whole / LONGER) else None


def of_failures(groups: Iterable[FailureGroup], lately: Lately, now: datetime) -> Iterator[Need]:
    """Yield classes that are retried in vain, of which at least half the attempts fail, or with an unusual error.

    Errors that are muted or resolved do not count; one that fails although it was resolved is a need of its own.
    """
    by_job: dict[str, list[FailureGroup]] = {}
    silent: Counter[str] = Counter()
    for group in groups:
        if group.state.is_silent:
            silent[group.job] += lately.number_of(group)
        else:
            by_job.setdefault(group.job, []).append(group)
    for job, of_class in by_job.items():
        made = lately.all_of(job)
        failed = made.failed - silent[job]
        retried = min(made.retried, failed)
        which = "--since 1h --status failed" if made.last else "--status retrying"
        do = f"see them: `taskqueue list {which} --job {quote(job)}`"
        regressed = [group for group in of_class if group.state is FailureState.REGRESSED]
        for group in regressed[:MOST_OF_CLASS]:
            yield _of_regressed(group, do, now)
        if retried >= MANY_RETRIES and retried >= STORM * made.ended:
            says = (
                f"{job} is tried again and again: {count(retried, 'attempt')} failed in the last hour, and "
                f"{count(made.ended, 'job')} ended{_often(of_class, now)}"
            )
            do = f"cancel those that cannot succeed: `taskqueue list --status postponed --job {quote(job)}`"
            yield Need(subject=Subject.RETRIED, name=job, says=says, do=do, level=Level.ERROR)
        elif made.all >= ENOUGH and 2 * failed >= made.all:
            often = _often(of_class, now)
            says = f"{job} fails: {failed:,} of {made.all:,} attempts in the last hour{often}"
            yield Need(subject=Subject.CLASS, name=job, says=says, do=do, level=Level.ERROR)
        else:
            unusual = [group for group in of_class if group.needs_attention and group not in regressed]
            for group in unusual[:MOST_OF_CLASS]:
                yield _of_group(group, f"{job} fails {_judged(group, now)}", _or_mute(do, group))


def _of_group(group: FailureGroup, says: str, do: str, topic: str = "") -> Need:
    """Return the need of an error."""
    return Need(
        subject=Subject.CLASS,
        name=group.job,
        says=says,
        do=do,
        level=Level.ERROR,
        error=group.fingerprint,
        topic=topic,
    )


def _or_mute(do: str, group: FailureGroup) -> str:
    return f"{do}; if the error is known: `taskqueue mute {group.id}`"


def _of_regressed(group: FailureGroup, do: str, now: datetime) -> Need:
    """Return the need about a resolved error that has occurred again, in the last hour or before that."""
    assert group.decision is not None  # it has regressed
    decided = f"with an error that was resolved {minute(group.decision.since, now)} by {group.decision.by}"
    if group.number:
        says = f"{group.job} fails again {decided}: {_number(group)}"
        return _of_group(group, says, _or_mute(do, group), topic="regressed")
    says = f"{group.job} failed again {decided}: {_error(group)}, last {minute(group.last_at, now)}"
    return _of_group(group, says, f"if it is fixed now: `taskqueue resolve {group.id}`", topic="regressed")


def _often(groups: Sequence[FailureGroup], now: datetime) -> str:
    """Return the most frequent error of a class, and since when it has been new."""
    most = max(groups, key=lambda group: group.number)
    since = f", new since {_first(most, now)}" if most.trend is Trend.NEW else ""
    return f", most often with {most.fingerprint}{since}" if most.fingerprint else ""


def _judged(group: FailureGroup, now: datetime) -> str:
    """Return since when or how much more than usual attempts fail by this error, and how many do."""
    is_new = group.trend is Trend.NEW
    how = f"with a new error since {_first(group, now)}" if is_new else "more than usual"
    return f"{how}: {_number(group)}"


def _first(group: FailureGroup, now: datetime) -> str:
    """Return when a new error was first seen, and after which release."""
    first = minute(group.first_at, now)
    return first if group.release is None else f"release {group.release.name}, first at {first}"


def _number(group: FailureGroup) -> str:
    """Return the error, and how many attempts failed with it."""
    usually = "" if group.usual is None else f", usually {percent(group.usual)}"
    share = f"{percent(group.share)}{usually}"
    return f"{_error(group)}: {group.number:,} of {group.attempts:,} attempts in the {group.lately} ({share})"


def _error(group: FailureGroup) -> str:
    return group.fingerprint or "an end without an error"


def of_schedules(schedules: Iterable[NamedSchedule], now: datetime) -> Iterator[Need]:
    """Yield schedules that are damaged, overdue or paused, or that missed times in the last hours."""
    for schedule in schedules:
        says, level, name, topic = "", Level.WARNING, schedule.name, ""
        recent = [miss for miss in schedule.misses if now - miss.last < MISSED_WITHIN]
        if schedule.damage:
            says, level = f"starts no jobs: {schedule.damage}", Level.ERROR
        elif schedule.stage is Stage.ACTIVE and schedule.next_run_at and now - schedule.next_run_at >= OVERDUE:
            says, topic = f"was due at {local(schedule.next_run_at)}, and no node has started its job", "overdue"
        elif schedule.stage is Stage.PAUSED:
            says = f"is paused: {schedule.reason}" if schedule.reason else "is paused"
        elif recent:
            miss = recent[-1]
            how_often = f"{times(miss.count)} " if miss.count > 1 else ""
            says, topic = f"missed a time {how_often}until {local(miss.last)}: {miss.reason}", "missed"
        if says:
            do, says = f"see it: `taskqueue schedule show {quote(name)}`", f"schedule {name} {says}"
            yield Need(subject=Subject.SCHEDULE, name=name, says=says, do=do, level=level, topic=topic)


def of_finding(finding: Finding, subject: Subject) -> Need:
    """Return the need for a problem that ``doctor`` found."""
    says = f"{finding.about}: {finding.says}"
    return Need(subject=subject, name=finding.name, says=says, do=finding.do, level=finding.level)


def of_work(all_needs: Iterable[Need]) -> Iterator[Finding]:
    """Yield the needs that ``diagnosis`` lacks as findings for ``doctor``: runs, failures, schedules, growth."""
    classes = {Subject.CLASS: "class", Subject.RETRIED: "class"}
    abouts = {
        **classes,
        Subject.RUN: "running job",
        Subject.PROMISE: "promise",
        Subject.SCHEDULE: "schedule",
        Subject.NOTIFICATIONS: "notifications",
    }
    are_classes_well = True
    for need in all_needs:
        grows = need.subject is Subject.QUEUE and need.control is None and need.level is Level.WARNING
        about = "waiting jobs" if grows else abouts.get(need.subject)
        if about is not None:
            are_classes_well = are_classes_well and need.subject not in classes
            yield Finding(about, need.says.removeprefix(f"{about} "), need.level, need.do, need.name)
    if are_classes_well:
        yield Finding("failures", "no class fails more than usual, or is retried in vain")


def _of_backlog(leases: Sequence[Lease], queue: QueueState, controls: Controls, now: datetime) -> Iterator[Need]:
    waiting = count(queue.waiting, "job")
    no_node = why_no_node(leases, controls, queue.name, now)
    says, do, level = "", "", Level.WARNING
    if no_node:
        why, do = diagnosis.way_out_of(no_node)
        says, level = f"queue {queue.name}: {waiting} waiting. {why}", Level.ERROR
    elif queue.is_late:
        usually = f", usually {span(queue.usual_wait)} at most" if queue.usual_wait else ""
        waited = f"has waited {span(queue.oldest or 0)}{usually}"
        says = f"queue {queue.name} is late: the oldest of {waiting} {waited}"
        if queue.grows:
            added, ended = f"{queue.added_per_minute:,.0f}", f"{queue.ended_per_minute:,.0f}"
            says = f"queue {queue.name} is growing: {added} in, {ended} out per minute; the oldest job {waited}"
        says += _busy(leases, queue.name, controls, now)
        do = "start more workers (--max-children) or nodes, or find out what its jobs wait for: `taskqueue why ID`"
    if says:
        yield Need(subject=Subject.QUEUE, name=queue.name, says=says, do=do, level=level)


def _busy(leases: Sequence[Lease], queue: str, controls: Controls, now: datetime) -> str:
    """Return how many workers of the nodes that take jobs of the queue are busy; empty if one has not reported it."""
    taking = taking_seats(leases, controls, queue, now)
    busy = [number for seat in taking if isinstance(number := seat.about.get("busy"), int)]
    most = [number for seat in taking if (number := slots(seat)) is not None]
    is_known = taking and len(busy) == len(most) == len(taking)
    return f"; {sum(busy):,} of {count(sum(most), 'worker')} that take its jobs are busy" if is_known else ""


def _since(control: Control, now: datetime) -> str:
    """Return since when, by whom and why: ``since 14:02 (5 min ago) by ann (why)``, with a date if it is not today."""
    reason = f" ({control.reason})" if control.reason else ""
    ago = span(max(round((now - control.since).total_seconds()), 1))
    return f"since {minute(control.since, now)} ({ago} ago) by {control.by}{reason}"
