"""Explains a job that a node has claimed, partly by asking that node: whether it lives, how the run is doing."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from taskqueue.insight import control_socket, host, records
from taskqueue.insight.nodes import live_seats, name_of, seats
from taskqueue.insight.overview import usual_times
from taskqueue.model.environment import node_command
from taskqueue.model.history import Durations, Step
from taskqueue.model.record import Holder, Record, Status
from taskqueue.model.wording import at, percent, span
from taskqueue.store import Lease, Store

RUNS = "it is running"
"""What matters most about a job that runs as it should."""

USUAL_AFTER = 10.0
"""After this many seconds a run is compared with others of its class, which reads the figures of a day."""


class NodeOfClaim(NamedTuple):
    """The node or process that holds a claim."""

    holder: Holder
    lease: Lease | None
    """The lease of its seat; None if no node holds it."""
    is_dead: bool
    """None of its processes lives on this host."""
    stopped: int
    """The pid of its process if a signal has stopped it on this host, else 0."""
    is_alone: bool
    """No other live node will take the job back."""

    @classmethod
    def of(cls, holder: Holder, leases: Sequence[Lease], now: datetime) -> NodeOfClaim:
        """Return what the leases and this host know about the holder."""
        lease = next((lease for lease in seats(leases) if name_of(lease) == holder.seat), None)
        is_dead = host.is_gone_caller(holder) or (lease is not None and host.is_gone(lease))
        others = [other for other in live_seats(leases, now) if other != lease]
        stopped = {} if lease is None or is_dead else host.stopped(lease)
        return cls(holder, lease, is_dead, stopped.get("node", 0), not others)

    def sentence(self, now: datetime) -> str:
        """Say whether it is alive, as the end of a sentence."""
        if host.is_gone_caller(self.holder):
            return "its process has ended"
        if self.lease is None:
            return "it has no seat now"
        about, until = self.lease.about, self.lease.until
        where = f"pid {about.get('pid', 'unknown')} on host {about.get('host', 'unknown')}"
        if self.is_dead:
            return f"{where}, dead: its processes have ended"
        if self.stopped:
            return f"{where}, stopped by a signal: `kill -CONT {self.stopped}` lets it continue"
        state = "alive, its seat holds until" if until > now else "not heard from, its seat ended"
        return f"{where}, {state} {at(until, now)}"

    def end_of_claim(self, ends_at: datetime, now: datetime) -> str:
        """Say what follows when the claim ends, as the end of a sentence."""
        if ends_at <= now:
            return "which has passed, so another node takes it back"
        if self.is_dead:
            here = "this host" if self.lease is None else f"the host of {self.holder.seat}"
            return f"then any node takes it back; one on {here} does so at once"
        return "unless it renews" if not self.stopped else "then the run is interrupted"

    def in_short(self, how: str) -> str:
        """Say in a clause what follows for the job if the node is dead or silent, as ``how`` states."""
        if self.is_alone:
            return (
                f"its node {how}, and no other node is running to take the job back: start one with `{node_command()}`"
            )
        return f"its node {how}, and another one takes the job back"


def claimed_job(store: Store, record: Record, now: datetime) -> Generator[str, None, str]:
    """Yield sentences about the claim and its run, and return what matters most."""
    if record.holder is None or record.ready_at is None:
        yield "Its record says nothing of the node that has it: it is damaged."
        return ""
    ends_at = record.ready_at
    node = NodeOfClaim.of(record.holder, store.leases(), now)
    yield f"Node {record.holder.seat} has it, with claim {record.claims}; {node.sentence(now)}."
    yield f"The node's claim holds until {at(ends_at, now)}, {node.end_of_claim(ends_at, now)}."
    if node.is_alone and (node.is_dead or ends_at <= now):
        yield f"No other node is running that could take it back: start one with `{node_command()}`."
    report = None if node.lease is None or node.is_dead or node.stopped else ask(node.lease)
    if report is not None and report.reason:
        yield f"The node takes no jobs: {report.reason}."
    run = None if report is None else report.run_of(record)
    if report is not None and run is None and record.started_at is None:
        record = _read_again(store, record)  # its start may have been stored after it was read
    if run is not None and run.ended_as:
        return (yield from _ended(report, run, now))
    pid = 0 if report is None else report.pids.get(str(record.id), 0)
    usual = yield from _run(store, record, node, run, pid, now)
    if record.cancel is not None:
        reason = f" ({record.cancel.reason})" if record.cancel.reason else ""
        yield f"Its end was requested{reason} {at(record.cancel.requested_at, now)}: its node must end it."
    if node.is_dead or ends_at <= now:
        return node.in_short("has died" if node.is_dead else "is silent")
    if node.stopped:
        return f"its node is stopped by a signal, `kill -CONT {node.stopped}` lets it continue"
    if record.cancel is not None:
        return "it was asked to end, and has not ended yet"
    if record.started_at is None and run is None:
        return "a node has claimed it, and it has not started"
    return usual or RUNS


def _read_again(store: Store, record: Record) -> Record:
    """Return the current record, if the node still has the job with the same claim."""
    again = (read for read in records.present(store, [record.id]) if read.holder == record.holder)
    return next((read for read in again if read.claims == record.claims), record)


def _ended(report: NodeReport | None, run: UnwrittenRun, now: datetime) -> Generator[str, None, str]:
    """Say that the run has ended on its node, which could not store that yet."""
    when = "" if run.ended_at is None else f" {at(run.ended_at, now)}"
    yield f"Its run has ended there{when}, as {run.ended_as}: the node stores that as soon as the store answers."
    why_not = "" if report is None or not report.reason else f": {report.reason}"
    what = f"it has ended as {run.ended_as}" if Status[run.ended_as].is_final else "its run has ended"
    return f"{what}, which its node could not write yet{why_not}"


def _run(
    store: Store, record: Record, node: NodeOfClaim, run: UnwrittenRun | None, pid: int, now: datetime
) -> Generator[str, None, str]:
    """Say how the run is doing; return a clause if it takes unusually long, else nothing."""
    began_at = record.started_at or (run.began_at if run is not None else None)
    if began_at is None:
        yield "It has not started there yet."
        return ""
    if node.is_dead:
        yield f"Attempt {record.attempt} started {at(began_at, now)} and died with its node."
        return ""
    most = "" if record.options.timeout is None else f"; its timeout is {span(record.options.timeout)}"
    worker = f" in its worker, pid {pid}," if pid else ""
    yield f"Attempt {record.attempt} has been running{worker} since {at(began_at, now)}{most}."
    usual = yield from _usual(store, record.job, (now - began_at).total_seconds(), now)
    yield from _limits(record)
    yield f"Where it is now: `taskqueue stack {record.id}`"
    if record.progress_at is None:
        if record.cursor is None:  # the positions of its loops are its progress
            yield "It has reported no progress yet."
    else:
        words = f" ({record.progress_message})" if record.progress_message else ""
        yield f"Its progress is {percent(record.progress / 100)}{words}, reported {at(record.progress_at, now)}."
    return usual


def _limits(record: Record) -> Iterator[str]:
    """Say whether nothing ends a run that hangs."""
    if record.options.timeout is None and record.options.stall_timeout is None:
        yield f"It has no timeout: if it hangs, nothing ends it but `taskqueue cancel {record.id}`."


def _usual(store: Store, job: str, ran: float, now: datetime) -> Generator[str, None, str]:
    """Compare a run with those of its class in the last day; return a clause if it is longer than all."""
    if ran < USUAL_AFTER:
        return ""
    usual = usual_times(store.history(Step.HOUR, now - timedelta(days=1), now)).get(job)
    if usual is None:
        yield "No other jobs of its class have run in the last day, so how long it takes is not known."
        return ""
    yield f"In the last day {_durations(usual)}."
    return f"{RUNS}, longer than any of its class in the last day" if ran > usual.longest else ""


def _durations(usual: Durations) -> str:
    mean = span(usual.total / usual.number)
    return f"{usual.number:,} jobs of its class ran for {mean} on average, for {span(usual.longest)} at most"


ANSWERS_WITHIN = 1.0
"""Seconds that a node has to answer; most need a hundredth."""


@dataclass(frozen=True, kw_only=True)
class UnwrittenRun:
    """A run whose start or end the store does not have yet."""

    began_at: datetime | None
    ended_at: datetime | None
    ended_as: str
    """The status that the end of the run gives the job; empty while it runs."""


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """The answer of a node."""

    reason: str
    """Why it takes no jobs now; empty if it does."""
    unwritten: Mapping[tuple[str, int], UnwrittenRun] = field(default_factory=dict)
    """The runs by job and claim."""
    pids: Mapping[str, int] = field(default_factory=dict)
    """The pids of workers by the id of the job that each runs."""

    def run_of(self, record: Record) -> UnwrittenRun | None:
        """Return what it knows about the current run of the job that the store does not know; None if nothing."""
        return self.unwritten.get((str(record.id), record.claims))


def ask(lease: Lease) -> NodeReport | None:
    """Return the answer of the node that has this lease; None if it is on another host, or may not be asked."""
    if not lease.about.get("machine") or lease.about["machine"] != host.machine():
        return None
    for path in control_socket.sockets(name_of(lease)):
        answer = control_socket.ask(path, ANSWERS_WITHIN)
        health = answer.health
        if answer.silence is control_socket.Silence.HUNG:
            return NodeReport(reason=f"it did not answer within {ANSWERS_WITHIN:g} s: its host may be overloaded")
        if health is not None and health["incarnation"] == lease.holder.incarnation:
            unwritten = {(run["job"], run["claims"]): _unwritten(run) for run in health.get("unwritten", ())}
            return NodeReport(reason=health["reason"], unwritten=unwritten, pids=health.get("pids", {}))
    return None


def _unwritten(run: Mapping[str, Any]) -> UnwrittenRun:
    began_at, ended_at = (run[name] and datetime.fromisoformat(run[name]) for name in ("began_at", "ended_at"))
    return UnwrittenRun(began_at=began_at, ended_at=ended_at, ended_as=run["ended_as"])
