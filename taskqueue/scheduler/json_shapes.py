"""The one JSON shape of each thing, printed and sent: times are ISO 8601 in UTC, durations seconds, sizes bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import Enum
from math import isinf
from typing import TYPE_CHECKING, Any

from taskqueue.model.analytics import Analytics, Group
from taskqueue.model.controls import Control, Kind
from taskqueue.model.ids import JobId
from taskqueue.model.limits import limit_keys_of
from taskqueue.model.options.readers import stated_options
from taskqueue.model.record import Attempt, Failure, Record, Status
from taskqueue.model.schedules.schedule import NamedSchedule
from taskqueue.store import Lease

if TYPE_CHECKING:
    from taskqueue.insight.failure_groups import FailureGroup
    from taskqueue.insight.failure_states import FailureDecision
    from taskqueue.insight.limit_states import LimitState
    from taskqueue.insight.overview import Upcoming
    from taskqueue.insight.promises import PromiseState
    from taskqueue.insight.releases import Release
    from taskqueue.insight.work_report import Day, ErrorGroup, Work, WorkReport
    from taskqueue.model.audit import AuditEntry
    from taskqueue.model.history import Durations, HistoryEntry
    from taskqueue.model.log_lines import LogLine
    from taskqueue.model.workflow import WorkflowSummary
    from taskqueue.scheduler.bulk_actions import BulkActionState, StageResults
    from taskqueue.scheduler.declared_schedules import ScheduleChanges
    from taskqueue.scheduler.event import EventSnapshot
    from taskqueue.scheduler.operations import AnyOperation


def job(record: Record) -> dict[str, Any]:
    """Return a job as an entry of a list: its identity and its state."""
    # Not by _fields, which takes twice as long: lists have thousands.
    return {
        "id": str(record.id),
        "id_text": record.id_text,
        "job": record.job,
        "status": record.status.name,
        "cause": record.cause.value,
        "queue": record.queue,
        "priority": record.priority,
        "tags": list(record.tags),
        "meta": dict(record.meta),
        "created_at": time(record.created_at),
        "ready_at": _plain(record.ready_at),
        "started_at": _plain(record.started_at),
        "ended_at": _plain(record.ended_at),
        "progress": record.progress,
        "progress_message": record.progress_message,
        "attempt": record.attempt,
        "failures": record.failures,
        "crashes": record.crashes,
        "node": record.holder.seat if record.holder else None,
        "error": _error(record.error),
        "damage": record.damage or None,
    }


def job_in_full(record: Record) -> dict[str, Any]:
    """Return everything that is stored about a job; data, state and result are Extended JSON values."""
    return job(record) | {
        "unique": record.unique,
        "expires_at": _plain(record.expires_at),
        "options": stated_options(record.options),
        "claims": record.claims,
        "limits": [str(limit_key) for limit_key in limit_keys_of(record.lane)],
        "parent": _plain(record.parent),
        "depends_on": {str(dependency.id): dependency.on_failure.value for dependency in record.depends_on},
        "waiting_for": _plain(record.waiting_for),
        "cancel_requested_at": _plain(record.cancel.requested_at) if record.cancel else None,
        "data": _value(record.data),
        "state": _value(record.state),
        "cursor": _value(record.cursor),
        "phase": _plain(record.phase),
        "steps": 0 if record.course is None else record.course.steps,
        "reports": _value(None if record.course is None else record.course.reports),
        "result": _value(record.result),
        "error": _error(record.error, with_traceback=True),
        "attempts": [_attempt(attempt) for attempt in record.attempts],
    }


def workflow(summary: WorkflowSummary) -> dict[str, Any]:
    """Return a workflow, with how many of its members are in which status."""
    return {
        "id": str(summary.id),
        "name": summary.name,
        "state": summary.state,
        "jobs": summary.number,
        "statuses": {status.name: number for status, number in summary.statuses.items()},
        "created_at": time(summary.created_at),
        "started_at": _plain(summary.started_at),
        "ended_at": _plain(summary.ended_at),
    }


def bulk_action(action: BulkActionState) -> dict[str, Any]:
    """Return a bulk action, with how many of its copies are in which status."""
    return {
        "name": action.name,
        "by": action.first.by,
        "created_at": time(action.first.record.created_at),
        "query": json.loads(json.dumps(action.first.written, default=str)),
        "found": action.first.found,
        "left": action.left,
        "left_out": action.total("left_out"),
        "taken": action.total("taken"),
        "statuses": {status.name: number for status, number in action.statuses.items()},
        "stages": [_stage(stage) for stage in action.stages],
    }


def _stage(results: StageResults) -> dict[str, Any]:
    stage = results.stage
    return {
        "id": str(stage.record.id),
        "status": stage.record.status.name,
        "by": stage.by,
        "created_at": time(stage.record.created_at),
        "first": stage.plan.first,
        "rate": stage.plan.rate,
        "queue": stage.plan.queue,
        "at": _plain(stage.plan.at),
        "copies": stage.numbers["copies"],
        "statuses": {status.name: number for status, number in results.statuses.items()},
    }


def event(event: EventSnapshot, job: str | None, error: Failure | None) -> dict[str, Any]:
    """Return an event: of a job of this class, or, without a job, of a node."""
    return {
        "event": event.name,
        "event_id": event.id,
        "at": time(event.at),
        "id": _plain(event.job_id),
        "job": job,
        "status": _plain(event.status),
        "node": event.node or None,
        "about": dict(event.about),
        "error": _error(error),
        "cursor": event.cursor,
    }


def log_line(line: LogLine) -> dict[str, Any]:
    """Return a log line of a job."""
    return _fields(line, "at", "level", "logger", "message", "attempt", "run", "number")


def audit_entry(entry: AuditEntry) -> dict[str, Any]:
    """Return an entry of the audit."""
    return _fields(entry, "at", "by", "action", "target", "source", "about", "cursor")


def history_entry(entry: HistoryEntry) -> dict[str, Any]:
    """Return the figures of a class in a queue, in one minute or hour."""
    counted = ("added", "started", "done", "failed", "timeout", "canceled", "retried", "attempts")
    return _fields(entry, "at", "step", "queue", "job", *counted) | {
        "waiting": _durations(entry.waiting),
        "running": _durations(entry.running),
        "errors": dict(entry.errors),
    }


def control(control: Control) -> dict[str, Any]:
    """Return a control."""
    return _fields(control, "kind", "name", "since", "by", "reason", "count")


def limit(state: LimitState) -> dict[str, Any]:
    """Return a limit with the jobs that hold its places."""
    return {
        "limit": str(state.limit_key),
        "key": state.limit_key.key,
        "count": state.limit_key.count,
        "per": state.limit_key.per,
        "used": state.used,
        "waiting": state.waiting,
        "changed": None if state.control is None else control(state.control),
        "jobs": [
            {"id": str(record.id), "job": record.job, "node": record.holder.seat if record.holder else None}
            for record in state.holders
        ],
    }


def cleared(kind: Kind, name: str, number: int) -> dict[str, Any]:
    """Return how many controls of this kind and name were active until now."""
    return {"kind": kind.value, "name": name, "cleared": number}


def operation(operation: AnyOperation, name: str, result: Any, active: Control | None) -> dict[str, Any]:
    """Return what an operation did to the target of this name: the control that it set, or how many it cleared."""
    if operation.clears is not None:
        return cleared(operation.clears, name, int(result))
    if operation.sets is None:
        return {"operation": operation.name, "target": name}
    nothing = {"kind": operation.sets.value, "name": name, "since": None, "by": "", "reason": "", "count": None}
    return nothing if active is None else control(active)  # it may have been cleared since


def release(release: Release) -> dict[str, Any]:
    """Return the mark of a release."""
    return _fields(release, "name", "at", "by")


def lease(lease: Lease, *, jobs: int, is_leader: bool, is_live: bool, drain: Control | None) -> dict[str, Any]:
    """Return a node by its seat."""
    return {
        "name": lease.name.removeprefix("seat:"),
        "incarnation": lease.holder.incarnation,
        "jobs": jobs,
        "leader": is_leader,
        "live": is_live,
        "drained": None if drain is None else control(drain),
        "since": time(lease.since),
        "until": time(lease.until),
        "about": dict(lease.about),
    }


def schedule(named: NamedSchedule) -> dict[str, Any]:
    """Return a named schedule."""
    return {
        **_fields(named, "name", "stage", "reason"),
        "trigger": named.trigger.document(),
        **_fields(named, "next_run_at", "awaits"),
        "job": named.template.job,
        "data": _value(named.template.data),
        "queue": named.template.queue,
        **_fields(named, "overlap", "misfire", "grace", "until", "max_runs", "stop_after_failures", "application"),
        **_fields(named, "fired", "missed"),
        "misses": [_fields(miss, "first", "last", "count", "reason") for miss in named.misses],
        **_fields(named, "recent", "created_at"),
        "damage": named.damage or None,
    }


def schedule_changes(changes: ScheduleChanges) -> dict[str, Any]:
    """Return the changes to the schedules of an application."""
    return {
        "added": list(changes.added),
        "changed": {name: list(parts) for name, parts in changes.changed.items()},
        "removed": list(changes.removed),
    }


def analytics(value: Analytics) -> dict[str, Any]:
    """Return figures of a time."""
    return {
        "by": value.by.value,
        "since": time(value.since),
        "asked_since": time(value.asked_since),
        "until": time(value.until),
        "cut": value.is_cut,
        "groups": [_group(group) for group in value.groups],
        "whole": _group(value.whole),
        "present": asdict(value.present),
    }


def work_report(report: WorkReport, limits: Sequence[LimitState]) -> dict[str, Any]:
    """Return the report about a class or a queue."""
    from taskqueue.insight.work_report import Scope, lead  # few programs report on classes and queues

    named = "queues" if report.of.scope is Scope.CLASS else "classes"
    return {
        "of": report.of.scope.value,
        "name": report.of.name,
        "at": time(report.at),
        "lead": lead(report),
        "well": report.is_well,
        "work": {period.value: _work(work) for period, work in report.work.items()},
        "over": report.period.value,
        "parts": [{**part._asdict(), "at": time(part.at)} for part in report.parts],
        named: [{"name": name, **_work(work)} for name, work in report.named],
        "errors": [_work_error(error) for error in report.errors],
        "running": report.running,
        "runs": [{**job(run.record), "ran": run.ran, "left": run.left} for run in report.runs],
        "slowest": [{**job(record), "took": record.took} for record in report.slowest],
        "last": {
            "jobs": report.last.number,
            "since": None if report.last.since is None else time(report.last.since),
            "shares": [
                {"jobs": share.jobs, "failed": share.failed}
                | ({"tag": share.name} if share.value is None else {"meta": {share.name: share.value}})
                for share in report.last.shares
            ],
        },
        "options": None if report.example is None else stated_options(report.example.options),
        "limits": [limit(state) for state in limits],
        "promise": None if report.promise is None else _promise(report.promise),
    }


def _promise(state: PromiseState) -> dict[str, Any]:
    """Return how a class keeps its promise."""
    return {
        "share": state.promise.share,
        "begin_within": state.promise.within,
        "since": time(state.since),
        "kept": state.kept,
        "late": state.late,
        "kept_share": state.share,
        "budget_left": state.budget_left,
        "last_hour": {"kept": state.kept_in_hour, "late": state.late_in_hour},
    }


def day(day: Day, upcoming: Upcoming) -> dict[str, Any]:
    """Return the last hour against the same hour yesterday, and the next 24 hours."""
    return {
        "day": {
            "at": time(day.at),
            "hour": _work(day.hour),
            "yesterday": _work(day.yesterday),
            "pending": day.pending,
            "pending_yesterday": day.pending_yesterday,
            "hours": [{"at": time(part.at), **_counted(part.work), "pending": part.pending} for part in day.hours],
        },
        "next": {
            **upcoming.parts,
            "are_all": upcoming.is_complete,
            "hours": [{**hour._asdict(), "at": time(hour.at)} for hour in upcoming.hours],
            "schedules": [
                {"name": schedule.name, "next_run_at": time(schedule.next_run_at)}
                for schedule in upcoming.schedules
                if schedule.next_run_at is not None
            ],
        },
    }


def judged(group: FailureGroup) -> dict[str, Any]:
    """Return the failed attempts of the last hour with one error of one class, against the last week."""
    return {
        "id": group.id,
        "job": group.job,
        "fingerprint": group.fingerprint or None,
        "state": group.state.value,
        "decision": None if group.decision is None else decision(group.decision),
        "trend": group.trend.value,
        "failed": group.number,
        "attempts": group.attempts,
        "seconds": int(group.over.total_seconds()),
        "usual": group.usual,
        "release": None if group.release is None else group.release.name,
        "first": time(group.first_at),
        "last": time(group.last_at),
        "query": group.query,
    }


def decision(decision: FailureDecision) -> dict[str, Any]:
    """Return what was decided about the failures of one class with one error."""
    fingerprint = {"fingerprint": decision.fingerprint or None}
    return _fields(decision, "id", "job") | fingerprint | _fields(decision, "state", "since", "until", "by", "reason")


def time(moment: datetime) -> str:
    """Return a time as it is written everywhere: ISO 8601 in UTC."""
    return moment.isoformat(timespec="milliseconds")


def _group(group: Group) -> dict[str, Any]:
    return {**asdict(group), "ended": group.ended}


def _durations(durations: Durations) -> dict[str, Any]:
    return {
        "number": durations.number,
        "total": durations.total,
        "longest": durations.longest,
        **{f"p{percent}": durations.percentile(percent) for percent in (50, 95) if durations.number},
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        **_fields(attempt, "number", "claims", "node", "pid", "started_at", "ended_at", "outcome"),
        "error": _error(attempt.error, with_traceback=True),
        **_fields(attempt, "exit", "peak_memory"),
        "stack": attempt.stack or None,
    }


def _error(failure: Failure | None, *, with_traceback: bool = False) -> dict[str, Any] | None:
    if failure is None:
        return None
    said = {"type": failure.type, "message": failure.message}
    return said | {"traceback": failure.traceback} if with_traceback else said


def _value(text: str | None) -> Any:
    """Return the value of JSON text; text that is not JSON, which only damage causes, unchanged."""
    try:
        return None if text is None else json.loads(text)
    except (RecursionError, ValueError):
        return text


def _fields(value: Any, *names: str) -> dict[str, Any]:
    """Return the attributes of these names as JSON values."""
    return {name: _plain(getattr(value, name)) for name in names}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a status by its name, other words of ours by their text, an id as text."""
    match value:
        case datetime():
            return time(value)
        case Status():
            return value.name
        case Enum():
            return value.value
        case JobId():
            return str(value)
        case tuple():
            return [_plain(part) for part in value]
        case Mapping():
            return dict(value)
    return value


def _counted(work: Work) -> dict[str, Any]:
    counted = ("added", "done", "failed", "canceled", "failed_attempts", "failed_share", "per_minute")
    return {name: getattr(work, name) for name in counted}


def _work(work: Work) -> dict[str, Any]:
    return {
        **_counted(work),
        "waiting": _distribution(work.waiting),
        "running": _distribution(work.running),
    }


def _distribution(durations: Durations) -> dict[str, Any]:
    """Return percentiles and buckets; the last bucket, of all that were longer, has no bound."""
    from taskqueue.insight.work_report import PERCENTS, histogram

    percentiles = {f"p{percent}": durations.percentile(percent) for percent in PERCENTS if durations.number}
    buckets = [
        {"up_to": None if isinf(bucket.bound) else bucket.bound, "jobs": bucket.jobs} for bucket in histogram(durations)
    ]
    return {
        "jobs": durations.number,
        "total": durations.total,
        "longest": durations.longest,
        **percentiles,
        "buckets": buckets,
    }


def _work_error(error: ErrorGroup) -> dict[str, Any]:
    return {
        "job": error.job,
        "fingerprint": error.fingerprint or None,
        "failed": error.number,
        "first": time(error.first_at),
        "last": time(error.last_at),
        "trend": None if error.judged is None else error.judged.trend.value,
        "query": error.query,
    }
