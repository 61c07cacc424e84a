"""The operations for figures and for what happened: counts, history, failures, the audit and events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.responses import Response

from taskqueue.errors import InvalidOption, InvalidQuery
from taskqueue.insight.overview import Failures, bounded_tally, failures_of
from taskqueue.insight.work_report import Period, Scope, WorkOf
from taskqueue.model.analytics import Grouping
from taskqueue.model.controls import Controls
from taskqueue.model.events import EVENTS
from taskqueue.model.finding import Level
from taskqueue.model.history import MOST_CLASSES, OTHER, Step
from taskqueue.scheduler import json_shapes
from taskqueue.web.api import schemas
from taskqueue.web.api.route import ApiRoute, Call, Param, Schema, SlowRoute
from taskqueue.web.api.schemas import ANYTHING, BOOLEAN, INTEGER, TEXT, TIME, listed, optional, record, ref
from taskqueue.web.event_hub import event_stream
from taskqueue.web.overviews import KEPT_FOR
from taskqueue.web.problems import Problem


def get_session(call: Call) -> Any:
    """Return the user of the request, what this user may do, and the token that changes need without a bearer token."""
    user = call.viewer.user
    return {
        "user": user.name,
        "role": user.role.value,
        "queues": None if user.queues is None else list(user.queues),
        "unmask": user.unmask,
        "csrf_token": call.viewer.csrf or None,
    }


def get_stats(call: Call) -> Any:
    """Return how many jobs there are, the last hour against the same hour yesterday, and what is due in 24 hours."""
    overviews = call.dashboard.overviews
    stats = overviews.numbers_now(KEPT_FOR)
    queues, waiting = stats["queues"], stats["waiting_since"]

    def first(name: str) -> tuple[Any, ...]:
        since = waiting.get(name)
        size = sum(queues.get(name, {}).values())
        return since is None, 0.0 if since is None else since.timestamp(), -size, name

    shown = frozenset(sorted({**queues, **waiting}, key=first)[: call.query["limit"]])
    return {
        **stats,
        "queues": {name: statuses for name, statuses in queues.items() if name in shown},
        "waiting_since": {name: json_shapes.time(at) for name, at in waiting.items() if name in shown},
        "left_out": len({*queues, *waiting} - shown),
        **json_shapes.day(overviews.day(), overviews.upcoming()),
    }


def get_metrics(call: Call) -> Response:
    """Return metrics of the whole store for Prometheus, under the names that they have in those of the leading node."""
    state = call.dashboard.overviews.read()
    levels = Counter(need.level for need in state.needs)
    oldest = [(queue.name, queue.oldest) for queue in state.queues if queue.oldest is not None][:MOST_CLASSES]
    budgets = [(job, promise.budget_left) for job, promise in state.promises.items()][:MOST_CLASSES]
    due, done = ([(name, at.timestamp()) for name, at in times.items()] for times in state.schedule_times)
    held, limits = Controls(call.scheduler.controls()).shown(), call.dashboard.overviews.limit_uses().items()
    lines = [
        *_gauge("jobs", ("queue", "status"), bounded_tally(state.tally).items()),
        *_gauge("oldest_waiting_seconds", ("queue",), oldest),
        *_gauge("nodes", ("state",), state.numbers_of_nodes.items()),
        *_gauge("paused", ("queue",), [(name, 1.0) for name in held["paused"]]),
        *_gauge("drained", ("node",), [(name, 1.0) for name in held["drained"]]),
        *_gauge("limit_used", ("limit",), [(limit, use.used) for limit, use in limits]),
        *_gauge("limit_size", ("limit",), [(limit, use.size) for limit, use in limits]),
        *_gauge("limit_waiting", ("limit",), [(limit, use.waiting) for limit, use in limits]),
        *_gauge("leader", (), [((), float(any(node.is_leader for node in state.nodes)))]),
        *_gauge("findings", ("severity",), [(level.value, levels[level]) for level in (Level.WARNING, Level.ERROR)]),
        *_gauge("promise_budget_ratio", ("class",), budgets),
        *_gauge("schedule_last_due_timestamp_seconds", ("schedule",), due),
        *_gauge("schedule_last_success_timestamp_seconds", ("schedule",), done),
    ]
    text = "".join(f"{line}\n" for line in lines).encode(errors="replace")
    return Response(text, media_type="text/plain; version=0.0.4")


def _gauge(name: str, labels: Sequence[str], rows: Iterable[tuple[str | tuple[str, ...], float]]) -> Iterator[str]:
    """Yield the lines of one metric in the text format 0.0.4 of Prometheus."""
    yield f"# TYPE taskqueue_{name} gauge"
    for values, value in rows:
        texts = (values,) if isinstance(values, str) else values
        shown = (f'{label}="{text.translate(_ESCAPES)}"' for label, text in zip(labels, texts, strict=True))
        yield f"taskqueue_{name}{{{','.join(shown)}}} {value!r}"


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def report_class(call: Call) -> Any:
    """Say how a class does: figures of an hour, a day and a week, histograms, errors, slowest runs, tags and meta."""
    return _report(call, Scope.CLASS)


def report_queue(call: Call) -> Any:
    """Say how a queue does, as of a class."""
    return _report(call, Scope.QUEUE)


def _report(call: Call, scope: Scope) -> Any:
    report = call.dashboard.overviews.report(WorkOf(scope, call.path["name"]), Period(call.query["over"]))
    mask = call.dashboard.masking.limit
    limits = call.scheduler.limits(families) if (families := report.limit_families) else []
    shown = [replace(state, limit_key=mask(state.limit_key)) for state in limits]
    return call.masked(json_shapes.work_report(report, shown))


def get_history(call: Call) -> Any:
    """Return figures of jobs by minute or hour, queue and class."""
    query = call.query
    entries = call.scheduler.history(
        query["since"], query.get("until"), queue=query.get("queue"), job=query.get("job"), step=query["step"]
    )
    part = entries[-query["limit"] :]
    return {"history": [json_shapes.history_entry(entry) for entry in part], "left_out": len(entries) - len(part)}


def get_analytics(call: Call) -> Any:
    """Return figures of the jobs that ended in a time."""
    query = call.query
    analytics = call.scheduler.analytics(query["by"], query["since"], query.get("until"))
    is_in_time = analytics.by in (Grouping.HOUR, Grouping.DAY)  # keep the last ones, else the largest
    groups = analytics.groups[-query["limit"] :] if is_in_time else analytics.groups[: query["limit"]]
    return {**json_shapes.analytics(replace(analytics, groups=groups)), "left_out": len(analytics.groups) - len(groups)}


def list_failures(call: Call) -> Any:
    """Return the failures of a time by class and error, and the failed attempts of the last hour, judged."""
    groups = failures_of(call.scheduler.history(call.query["since"], step=call.query["step"]))
    state = call.dashboard.overviews.read()
    return {
        "failures": [
            {
                "job": group.job,
                "error": group.error or None,
                "count": group.number,
                "first": json_shapes.time(group.first_at),
                "last": json_shapes.time(group.last_at),
                "query": _query_of(group),
            }
            for group in groups[: call.query["limit"]]
        ],
        "left_out": len(groups[call.query["limit"] :]),
        "judged": [json_shapes.judged(group) for group in state.groups[: call.query["limit"]]],
        "decisions": [json_shapes.decision(decision) for decision in state.decisions],
    }


def _query_of(failures: Failures) -> dict[str, Any]:
    """Return the query for their jobs; errors that are counted together cannot be distinguished."""
    error = {} if failures.error == OTHER else {"error.type": failures.error or None}
    return {"job": failures.job, "status": {"$in": ["FAILED", "TIMEOUT"]}, **error}


def list_audit(call: Call) -> Any:
    """Return what users did, the newest first."""
    limit = call.query["limit"]
    try:
        page = call.scheduler.audit(limit, call.query.get("cursor"))
    except InvalidQuery as refused:
        raise Problem("invalid-parameter", f"cursor: {refused}") from None
    entries = [json_shapes.audit_entry(call.dashboard.masking.entry(entry)) for entry in page]
    return {"audit": call.masked(entries), "cursor": page[-1].cursor if len(page) == limit else None}


async def follow_events(call: Call) -> Response:
    """Return what happens as server-sent events; with ``Last-Event-ID`` or a cursor from there on."""
    dashboard, viewers = call.dashboard, call.dashboard.viewers
    if dashboard.settings.site:
        raise Problem(
            "not-found", "a view of a site sends no streams: `manage.py taskqueue web` serves an API that does"
        )
    name = "last-event-id" if "last-event-id" in call.query else "cursor"
    cursor = call.query.get(name)
    names = frozenset(call.query.get("names", "").split(",")) - {""}
    unknown = sorted(names - {*EVENTS})
    if unknown:
        raise Problem("invalid-parameter", f"names: there is no event {unknown[0]!r}: use {', '.join(EVENTS)}")
    if cursor is not None:
        try:  # a wrong cursor is refused before the stream begins
            await dashboard.in_thread(call.viewer, call.scheduler.read_events, cursor, 1)
        except InvalidOption as refused:
            raise Problem("invalid-parameter", f"{name}: {refused}") from None
    dashboard.hub.check_room(call.viewer)
    still = partial(viewers.still_knows, call.request, call.viewer)
    one_by_one = partial(dashboard.compute, call.viewer)  # there may be millions of past events
    return event_stream(dashboard.hub, cursor, still, names, call.viewer, one_by_one)


_SINCE = schemas.text("since", "From this time on, or this long ago: `2h`, `2030-07-20T00:15:00Z`.", default="1h")
_UNTIL = schemas.text("until", "Up to this time.")
_STEP = schemas.choice("step", (step.value for step in Step), "Minutes or hours.", default="minute")
_BY = schemas.choice("by", (grouping.value for grouping in Grouping), "What groups them.", default="queue")
_PERIODS = [period.value for period in Period]
_OVER = schemas.choice("over", _PERIODS, "The time of histograms, errors and slowest runs.", default=Period.DAY.value)


def _limit(meaning: str, most: int = 1000, default: int = 200) -> Param:
    """Return the parameter that cuts an answer, which says in ``left_out`` how many more there are."""
    return schemas.limit(most, default, f"{meaning} `left_out` says how many more there are.")


_GROUPS = _limit("How many groups at most: the largest ones, of hours and days the last.")
_QUEUES = _limit("How many queues at most: those whose first job has waited longest, then the largest.")
_ENTRIES = _limit("How many entries at most: the last ones.", most=10_000, default=1000)
_MOST_FREQUENT = _limit("How many at most: the most frequent.")
_LAST = Param("last-event-id", {"type": "string", "maxLength": 100}, "The id of the last event.", place="header")
_CURSOR = schemas.text("cursor", "The cursor of the previous page.")
_BEHIND = schemas.text("cursor", "Start after this event; `oldest` starts with the first one that is kept.")
_NAMES = schemas.text("names", "Only these events, with commas between them.")
_QUEUE, _JOB = schemas.text("queue", "Only this queue."), schemas.text("job", "Only this class.")
_SESSION = record(
    {"user": TEXT, "role": TEXT, "queues": {"type": ["array", "null"]}, "unmask": BOOLEAN, "csrf_token": optional(TEXT)}
)
_REPORT = record(
    {
        "of": TEXT,
        "name": TEXT,
        "at": TIME,
        "lead": TEXT,
        "well": BOOLEAN,
        "work": {"type": "object"},
        "over": TEXT,
        "parts": {"type": "array", "items": {"type": "object"}},
        "errors": {"type": "array", "items": {"type": "object"}},
        "running": INTEGER,
        "runs": {"type": "array", "items": {"type": "object"}},
        "slowest": {"type": "array", "items": {"type": "object"}},
        "last": {"type": "object"},
        "options": {"type": ["object", "null"]},
        "limits": {"type": "array", "items": ref("Limit")},
        "promise": {"type": ["object", "null"]},
    }
)
_COUNTS: Schema = {"type": "object", "additionalProperties": INTEGER}
_STATS = record(
    {
        "total": INTEGER,
        "statuses": _COUNTS,
        "queues": {"type": "object"},
        "waiting_since": {"type": "object"},
        "left_out": INTEGER,
        "day": {"type": "object"},
        "next": {"type": "object"},
    }
)
_AUDIT = listed("audit", ref("AuditEntry"), cursor=optional(TEXT))
_HISTORY = record({"at": TIME, "queue": TEXT, "job": TEXT, "added": INTEGER, "done": INTEGER, "failed": INTEGER})
_ENTRIES_OF_HISTORY = listed("history", _HISTORY, left_out=INTEGER)
_FAILURES = listed(
    "failures",
    ref("Failures"),
    left_out=INTEGER,
    judged={"type": "array", "items": ref("JudgedFailures")},
    decisions={"type": "array", "items": ref("FailureDecision")},
)
_ANALYTICS = record(
    {"by": TEXT, "groups": {"type": "array"}, "whole": ANYTHING, "present": ANYTHING, "left_out": INTEGER}
)

ROUTES = (
    ApiRoute("GET /session", get_session, _SESSION),
    ApiRoute("GET /stats", get_stats, _STATS, _QUEUES),
    ApiRoute("GET /metrics", get_metrics, TEXT, media_type="text/plain"),
    ApiRoute("GET /classes/{name}", report_class, _REPORT, _OVER),
    ApiRoute("GET /queues/{name}", report_queue, _REPORT, _OVER),
    SlowRoute("GET /history", get_history, _ENTRIES_OF_HISTORY, _SINCE, _UNTIL, _QUEUE, _JOB, _STEP, _ENTRIES),
    SlowRoute("GET /analytics", get_analytics, _ANALYTICS, _BY, _SINCE, _UNTIL, _GROUPS),
    SlowRoute("GET /failures", list_failures, _FAILURES, _SINCE, _STEP, _MOST_FREQUENT),
    ApiRoute("GET /audit", list_audit, _AUDIT, schemas.limit(500, 100), _CURSOR),
    ApiRoute(
        "GET /events", follow_events, TEXT, _LAST, _BEHIND, _NAMES, statuses=(410,), media_type="text/event-stream"
    ),
)
