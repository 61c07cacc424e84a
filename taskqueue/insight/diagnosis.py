"""Examines the contents of a store: its clock, its nodes, jobs that no node can run, and jobs that wait forever."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone

from taskqueue.insight.nodes import LEAD, live_seats, name_of, seats
from taskqueue.insight.why import WAY_OUT_OF_UNKNOWN, kept_waiting, unknown, why_no_node
from taskqueue.model.controls import Controls
from taskqueue.model.environment import node_command
from taskqueue.model.finding import Finding, Level, below
from taskqueue.model.query import parse
from taskqueue.model.record import Cause, Failure, Record, Status
from taskqueue.model.wording import count, since, some, span
from taskqueue.store import Lease, Store

SKEW, LARGE_SKEW = 1.0, 15.0
"""Seconds between the clocks of host and store: harmless below the first, a danger to leases above the second."""

LOOKED_AT = 500
"""Maximum number of jobs of one kind that are read."""

LONG = timedelta(days=1)


def diagnose(store: Store) -> list[Finding]:
    """Return the findings; reads only. Raises ``StoreUnavailable``."""
    now, controls = store.now(), store.controls()
    leases = store.leases()
    return [
        _clock(now),
        *_nodes(leases, now),
        *_queues(store, leases, controls, now),
        *unloadable(store),
        *blocked(store),
        *unknown_names(store, now),
        *disagreeing(store),
    ]


def _clock(now: datetime) -> Finding:
    return _skew("clock", "this host", (datetime.now(timezone.utc) - now).total_seconds())


def _skew(about: str, host: str, seconds: float) -> Finding:
    words = f"the clocks of {host} and the store differ by {span(abs(seconds))}"
    do = f"run a time service on {host} and on the servers of the store (chrony, systemd-timesyncd)"
    return below(about, words, -abs(seconds), warning=-SKEW, error=-LARGE_SKEW, do=do)


def _nodes(leases: Sequence[Lease], now: datetime) -> Iterator[Finding]:
    live = [name_of(seat) for seat in live_seats(leases, now)]
    do = "" if live else f"start one: `{node_command()}`, or `systemctl start taskqueue-node`"
    yield Finding("nodes", f"live: {some(live) or 'none'}", Level.OK if live else Level.ERROR, do)
    yield from flaws_of_nodes(leases, now)


def flaws_of_nodes(leases: Sequence[Lease], now: datetime) -> Iterator[Finding]:
    """Yield nodes that are gone or degraded or whose clock is wrong, different versions, and a missing leader."""
    live = live_seats(leases, now)
    gone = [name_of(lease) for lease in seats(leases) if lease not in live]
    if gone:
        yield Finding("nodes", f"silent or killed: {some(gone)}", Level.WARNING, "start them again, unless retired")
    for lease in live:
        degraded = lease.about.get("degraded")
        if degraded:
            do = "fix the cause it names; it then continues by itself"
            yield Finding("nodes", f"{name_of(lease)} is degraded: {degraded}", Level.ERROR, do)
        skew = lease.about.get("skew")
        if isinstance(skew, int | float) and abs(skew) > SKEW:
            name = name_of(lease)
            yield _skew("clocks", f"the host of node {name}", skew)._replace(name=name)
    versions = Counter(str(lease.about.get("version", "?")) for lease in live)
    if len(versions) > 1:
        words = ", ".join(f"{count(number, 'node')} of {version}" for version, number in sorted(versions.items()))
        yield Finding("versions", words, Level.WARNING, "upgrade all: two versions may coexist only in an upgrade")
    is_led = any(lease.name == LEAD and lease.until > now for lease in leases)
    if live and not is_led:
        do = "wait half a minute; if this persists, no node reaches the store"
        yield Finding("leader", "no node leads", Level.WARNING, do)


def _queues(store: Store, leases: Sequence[Lease], controls: Controls, now: datetime) -> Iterator[Finding]:
    waiting = {queue: number for (queue, status), number in store.tally().items() if status is Status.WAITING}
    for queue, number in sorted(waiting.items()):
        jobs = f"{number:,} in queue {queue}"
        pause = controls.pause_of(queue)
        no_node = "" if pause else why_no_node(leases, controls, queue, now)
        if pause is not None:
            is_long = now - pause.since > LONG
            words = f"{jobs}, and it is paused {since(pause, now)}"
            do = "resume it if the pause is no longer needed: `taskqueue resume`" if is_long else ""
            yield Finding("waiting jobs", words, Level.WARNING if is_long else Level.OK, do)
        elif no_node:
            says, do = way_out_of(no_node)
            yield Finding("waiting jobs", f"{jobs}. {says}", Level.ERROR, do)
        else:
            yield Finding("waiting jobs", jobs)
    if not waiting:
        yield Finding("waiting jobs", "none")


def way_out_of(no_node: str) -> tuple[str, str]:
    """Return why no node takes jobs of a queue (``why_no_node``), and what to do."""
    says, _, start = no_node.rstrip(".").partition(": start one with ")
    return says, f"start one: {start}" if start else "let a drained node work again: `taskqueue undrain`"


def unloadable(store: Store) -> Iterator[Finding]:
    """Yield the classes that nodes could not load, from jobs that will be retried."""
    query = parse({"cause": Cause.UNLOADABLE.value, "status": int(Status.POSTPONED)})
    by_job: dict[str, list[Record]] = {}
    for record in store.find(query, limit=LOOKED_AT):
        by_job.setdefault(record.job, []).append(record)
    for job, records in sorted(by_job.items()):
        error = records[0].error
        reason = f": {error.message.removeprefix(f'{job} cannot be loaded: ')}" if error is not None else ""
        words = f"{job}, of {count(len(records), 'job')}{reason}"
        end = f"`taskqueue cancel --query {shlex.quote(json.dumps({'job': job}))} --yes`"
        do = f"deploy its module to a node (--chdir, --allow), and reload that node; or end the jobs: {end}"
        yield Finding("class that cannot be loaded", words, Level.ERROR, do, job)
    if not by_job:
        yield Finding("classes", "every class that was tried could be loaded, or has no waiting jobs")


def unknown_names(store: Store, now: datetime) -> Iterator[Finding]:
    """Yield classes whose retry policies name exceptions that the processes running them have not loaded.

    Reads jobs that will be retried, and jobs that failed within a day.
    """
    failed = parse({"cause": Cause.NOT_RETRIABLE.value, "status": int(Status.FAILED)})
    ended = store.find(failed, order="-ended_at", limit=LOOKED_AT)
    retried = store.find(parse({"cause": Cause.RETRY.value, "status": int(Status.POSTPONED)}), limit=LOOKED_AT)
    errors: dict[str, tuple[Record, Failure]] = {}
    for record in (*retried, *(record for record in ended if record.ended_at and now - record.ended_at < LONG)):
        if record.error is not None and record.error.unknown_names:
            errors.setdefault(record.job, (record, record.error))
    for job, (record, error) in sorted(errors.items()):
        yield Finding("retry policy", f"{record.id} ({job}): {unknown(error)}", Level.WARNING, WAY_OUT_OF_UNKNOWN, job)


def blocked(store: Store) -> Iterator[Finding]:
    """Yield jobs whose dependencies can never be met."""
    query = parse({"cause": Cause.BEHIND.value, "status": int(Status.POSTPONED), "waiting_for": {"$exists": True}})
    records = store.find(query, limit=LOOKED_AT)
    stuck = [(record, sentence) for record in records for sentence in list(kept_waiting(store, record))[:1]]
    for record, sentence in stuck[:5]:
        do = f"`taskqueue recover` the one, or `taskqueue cancel {record.id}`"
        words = f"{record.id} ({record.job}): {sentence}"
        yield Finding("job that waits forever", words, Level.WARNING, do, str(record.id))
    if len(stuck) > 5:
        yield Finding("jobs that wait forever", f"{len(stuck) - 5} more", Level.WARNING, "`taskqueue list`")


def disagreeing(store: Store) -> Iterator[Finding]:
    """Yield the jobs and queues whose derived fields disagree with their sources."""
    disagreements, is_complete = store.disagreeing(LOOKED_AT)
    do = "`taskqueue doctor --repair` rewrites these fields; nodes may keep running"
    for disagreement in disagreements[:5]:
        fields = disagreement.fields
        verb = "disagrees with the fields that it repeats" if len(fields) == 1 else "disagree with what they repeat"
        words = f"{disagreement.about}: {' and '.join(fields)} {verb}"
        name = "" if disagreement.job is None else str(disagreement.job)
        yield Finding("derived fields", words, Level.ERROR, do, name)
    if len(disagreements) > 5:
        number = f"{len(disagreements) - 5} more{' at least' if len(disagreements) >= LOOKED_AT else ''}"
        yield Finding("derived fields", number, Level.ERROR, do)
    if not disagreements:
        words = "they agree with the fields that they repeat"
        yield Finding("derived fields", words if is_complete else f"{words}, among the records that were read in time")
