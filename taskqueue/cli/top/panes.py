"""The panes of the first screen, and lists of jobs and failures: their columns, and each thing as a row."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from taskqueue.cli import ids, record_facts, terminal
from taskqueue.cli.terminal import Column
from taskqueue.cli.top.rows import Row
from taskqueue.insight.failure_groups import FailureGroup, Trend
from taskqueue.insight.needs import Need
from taskqueue.insight.nodes import Node
from taskqueue.insight.overview import QueueState, Run
from taskqueue.insight.overview_reader import Overview
from taskqueue.model.controls import Controls
from taskqueue.model.finding import Level
from taskqueue.model.record import Record
from taskqueue.model.wording import count, local, minute, percent, span

STATUSES: Mapping[str, str] = {
    status: " ".join(f"ansi_{word}" if word != "bold" else word for word in style.split())
    for status, style in terminal.STATUS_STYLES.items()
}
LEVELS: Mapping[str, str] = {Level.ERROR.value: "bold ansi_red", Level.WARNING.value: "ansi_yellow"}
STATES: Mapping[str, str] = {
    "degraded:": "bold ansi_red", "gone:": "bold ansi_red", "silent": "bold ansi_red", "is": "ansi_yellow",
    "drains,": "ansi_yellow", "paused": "ansi_yellow", "grows": "ansi_yellow", "never": "ansi_yellow",
}  # fmt: skip
"""Styles by the first word of a cell; the word is always there, too."""

TRENDS: Mapping[str, str] = {Trend.NEW.value: "bold ansi_red", Trend.RISING.value: "ansi_yellow"}

NEEDS = (Column(head="", styles=LEVELS), Column(head="", cut="end"))
QUEUES = (
    Column(head="queue", cut="end", least=12),
    Column(head="oldest", side="right"),
    Column(head="waiting", side="right"),
    Column(head="in/min", side="right"),
    Column(head="out/min", side="right"),
    Column(head="empty in", side="right", styles=STATES),
    Column(head="running", side="right"),
    Column(head="later", side="right", is_spare=True),
)
RUNS = (
    Column(head="job", cut="start", least=14),
    Column(head="id", is_spare=True),
    Column(head="done", side="right"),
    Column(head="runs", side="right"),
    Column(head="left", side="right"),
    Column(head="", cut="end", least=8),
)
NODES = (
    Column(head="node", cut="end", least=12),
    Column(head="state", cut="end", least=9, styles=STATES),
    Column(head="lead"),
    Column(head="workers", cut="end", least=8),
    Column(head="jobs", side="right"),
    Column(head="up", side="right", is_spare=True),
    Column(head="host", cut="end", is_spare=True),
    Column(head="pid", side="right", is_spare=True),
    Column(head="version", is_spare=True),
)
JOBS = (
    Column(head="job", cut="start", least=14),
    Column(head="id"),
    Column(head="status", styles=STATUSES),
    Column(head="queue", cut="end", is_spare=True),
    Column(head="age", side="right", is_spare=True),
    Column(head="done", side="right", is_spare=True),
    Column(head="tries", side="right", is_spare=True),
    Column(head="cause", cut="end"),
)
FAILURES = (
    Column(head="class", cut="start", least=14),
    Column(head="error", cut="end", least=12),
    Column(head="trend", styles=TRENDS),
    Column(head="failed", side="right"),
    Column(head="of", side="right"),
    Column(head="usual", side="right", is_spare=True),
    Column(head="last at", side="right", is_spare=True),
)


def need_row(need: Need) -> Row:
    """Return the row of a problem that needs action."""
    return Row(
        key=f"{need.subject} {need.name} {need.error or need.says[:20]}",
        thing=need,
        cells=(need.level.value, need.says),
        detail=f"To do: {need.do}. {need.says}" if need.do else need.says,
    )


def queue_row(queue: QueueState) -> Row:
    """Return the row of a queue."""
    pause = queue.pause
    detail = f"queue {queue.name}"
    if pause is not None:
        reason = f": {pause.reason}" if pause.reason else ""
        whole = "" if pause.name else ", as every queue is"
        detail += f" is paused{whole}, since {local(pause.since)} by {pause.by}{reason}"
    elif queue.grows:
        detail += " grows: more jobs come than end"
    detail += f"; {queue.waiting:,} waiting, {queue.postponed:,} later, {queue.running:,} running"
    return Row(
        key=queue.name,
        thing=queue,
        cells=(
            queue.name,
            _time(queue.oldest) if queue.oldest is not None else "-",
            f"{queue.waiting:,}",
            _rate(queue.added_per_minute),
            _rate(queue.ended_per_minute),
            _empty(queue),
            f"{queue.running:,}",
            f"{queue.postponed:,}" if queue.postponed else "-",
        ),
        detail=detail,
    )


def run_row(run: Run, now: datetime) -> Row:
    """Return the row of a running job."""
    record = run.record
    cause = record_facts.cause(record, now)
    left = "" if run.left is None else f", about {_time(run.left)} left"
    usual = (
        f"; {count(run.usual.number, 'job')} of the last day took {_time(run.usual.total / run.usual.number)}"
        if run.usual
        else ""
    )
    return Row(
        key=str(record.id),
        thing=run,
        cells=(
            record.job,
            ids.named(record),
            f"{record.progress:.0f}%" if record.progress else "-",
            _time(run.ran) if run.ran is not None else "-",
            f"~{_time(run.left)}" if run.left is not None else "-",
            cause,
        ),
        detail=f"{record.job} {record.id}, attempt {record.attempt}, queue {record.queue}: {cause}{left}{usual}",
    )


def node_row(node: Node, now: datetime) -> Row:
    """Return the row of a node."""
    about = node.about
    queues = about.get("queues")
    takes = f"takes {', '.join(map(str, queues))}" if isinstance(queues, Mapping) and queues else "takes every queue"
    pool = f"{about.get('pm', '?')}, {about.get('min_children', '?')} to {about.get('max_children', '?')} workers"
    workers = f"{pool}: {about.get('busy', '?')} busy, {about.get('idle', '?')} idle"
    return Row(
        key=node.name,
        thing=node,
        cells=(
            node.name,
            node.state,
            "yes" if node.is_leader else "",
            node.pool,
            f"{node.jobs:,}",
            _time(max((now - node.lease.since).total_seconds(), 1)),
            str(about.get("host", "?")),
            str(about.get("pid", "?")),
            str(about.get("version", "?")),
        ),
        detail=f"node {node.name} {node.state}; pool {workers}; {takes}; pid {about.get('pid', '?')} "
        f"on {about.get('host', '?')}",
    )


def job_row(record: Record, now: datetime, controls: Controls) -> Row:
    """Return the row of a job in a list."""
    cause = record_facts.cause(record, now, controls)
    state = ", ".join(filter(None, (record.status.name, cause)))
    error = "" if record.error is None else f". Its last error: {record.error.type}: {record.error.message}"
    return Row(
        key=str(record.id),
        thing=record,
        cells=(
            record.job,
            ids.named(record),
            record.status.name,
            record.queue,
            record_facts.age(record, now),
            record_facts.progress(record),
            record_facts.attempts(record),
            cause,
        ),
        detail=f"{record.job} {record.id} is {state}{error}",
    )


def failures_row(group: FailureGroup, now: datetime) -> Row:
    """Return the row of one class and error."""
    error, usual = group.fingerprint or "no error", "-" if group.usual is None else percent(group.usual)
    return Row(
        key=f"{group.job} {group.fingerprint}",
        thing=group,
        cells=(
            group.job,
            error,
            group.trend.value,
            f"{group.number:,}",
            f"{group.attempts:,}",
            usual,
            minute(group.last_at, now),
        ),
        detail=f"{group.number:,} of {count(group.attempts, 'attempt')} of {group.job} failed in the last "
        f"{'5 minutes' if group.is_sudden else 'hour'}, first at {minute(group.first_at, now)}: {error}",
    )


def summary(overview: Overview) -> str:
    """Return whether it works and keeps up, in one line."""
    live = [node for node in overview.nodes if node.is_live]
    busy, most = (sum(_number(node, name) for node in live) for name in ("busy", "max_children"))
    ended, failed = (
        sum(getattr(queue, name) for queue in overview.queues) for name in ("ended_per_minute", "failed_per_minute")
    )
    oldest = max((queue.oldest for queue in overview.queues if queue.oldest is not None), default=None)
    parts = [
        f"{'Working' if live else 'Nothing works'}. {count(len(live), 'node')}",
        f"{busy} of {most} workers busy",
        f"{_rate(ended)} jobs/min",
        *([f"{100 * failed / ended:.3g} % failed"] if failed else []),
        "none waits" if oldest is None else f"oldest {_time(oldest)}",
    ]
    return ", ".join(parts)


def _time(seconds: float) -> str:
    """Return a duration without needless digits."""
    return span(round(seconds, 1) if seconds < 10 else round(seconds))


def _number(node: Node, name: str) -> int:
    value = node.about.get(name)
    return value if isinstance(value, int) else 0


def _rate(per_minute: float) -> str:
    if per_minute == 0:
        return "0"
    return f"{per_minute:,.0f}" if per_minute >= 9.5 else f"{per_minute:.1f}"


def _empty(queue: QueueState) -> str:
    if queue.pause is not None:
        return "paused"
    if not queue.waiting:
        return "-"
    if queue.empty_in is None:
        return "never"
    return "grows" if queue.grows else _time(queue.empty_in)
