"""The JSON shape of what is known of a class or a queue, printed and sent; times as in ``json_shapes``."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from typing import Any

from taskqueue.insight.failure_groups import FailureGroup
from taskqueue.insight.failure_states import FailureDecision
from taskqueue.insight.work_report import PERCENTS, ErrorGroup, Scope, Work, WorkReport, histogram, lead
from taskqueue.model.history import Durations
from taskqueue.model.options.readers import stated_options
from taskqueue.scheduler import json_shapes
from taskqueue.scheduler.controls import LimitState


def work_report(report: WorkReport, limits: Sequence[LimitState]) -> dict[str, Any]:
    """Return what is known of a class or a queue."""
    named = "queues" if report.of.scope is Scope.CLASS else "classes"
    return {
        "of": report.of.scope.value,
        "name": report.of.name,
        "at": json_shapes.time(report.at),
        "lead": lead(report),
        "well": report.is_well,
        "work": {period.value: _work(work) for period, work in report.work.items()},
        "over": report.period.value,
        "parts": [{**part._asdict(), "at": json_shapes.time(part.at)} for part in report.parts],
        named: [{"name": name, **_work(work)} for name, work in report.named],
        "errors": [_work_error(error) for error in report.errors],
        "running": report.running,
        "runs": [{**json_shapes.job(run.record), "ran": run.ran, "left": run.left} for run in report.runs],
        "slowest": [{**json_shapes.job(record), "took": record.took} for record in report.slowest],
        "last": {
            "jobs": report.last.number,
            "since": None if report.last.since is None else json_shapes.time(report.last.since),
            "shares": [
                {"jobs": share.jobs, "failed": share.failed}
                | ({"tag": share.name} if share.value is None else {"meta": {share.name: share.value}})
                for share in report.last.shares
            ],
        },
        "options": None if report.example is None else stated_options(report.example.options),
        "limits": [json_shapes.limit(state) for state in limits],
    }


def judged(group: FailureGroup) -> dict[str, Any]:
    """Return the failed attempts of the last hour by one error of one class, against the last week."""
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
        "first": json_shapes.time(group.first_at),
        "last": json_shapes.time(group.last_at),
        "query": group.query,
    }


def decision(decision: FailureDecision) -> dict[str, Any]:
    """Return what was decided about the failures of one class by one error."""
    return {
        "id": decision.id,
        "job": decision.job,
        "fingerprint": decision.fingerprint or None,
        "state": decision.state.value,
        "since": json_shapes.time(decision.since),
        "until": None if decision.until is None else json_shapes.time(decision.until),
        "by": decision.by,
        "reason": decision.reason,
    }


def _work(work: Work) -> dict[str, Any]:
    counted = ("added", "done", "failed", "canceled", "failed_attempts", "failed_share", "per_minute")
    return {
        **{name: getattr(work, name) for name in counted},
        "waiting": _distribution(work.waiting),
        "running": _distribution(work.running),
    }


def _distribution(durations: Durations) -> dict[str, Any]:
    """Return percentiles and buckets; the last bucket, of all that were longer, has no bound."""
    percentiles = {f"p{one}": durations.percentile(one) for one in PERCENTS if durations.number}
    buckets = [{"up_to": None if isinf(one.bound) else one.bound, "jobs": one.jobs} for one in histogram(durations)]
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
        "first": json_shapes.time(error.first_at),
        "last": json_shapes.time(error.last_at),
        "trend": None if error.judged is None else error.judged.trend.value,
        "query": error.query,
    }
