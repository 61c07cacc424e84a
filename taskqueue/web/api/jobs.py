"""The operations on jobs: find, add, change, cancel, run again, wait for, and explain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from taskqueue.errors import InvalidJob, InvalidQuery, JobNotFound, Unreadable
from taskqueue.model.events import FLUSHED
from taskqueue.model.ids import TEXT_LIMIT, JobId
from taskqueue.model.job_filter import JobFilter
from taskqueue.model.limits import limit_keys_of
from taskqueue.model.options import named
from taskqueue.model.schedules import moment_of
from taskqueue.model.serializer import decode
from taskqueue.scheduler import json_shapes, workflows
from taskqueue.scheduler.changes import SAME_DATA
from taskqueue.scheduler.operator_api import explained
from taskqueue.scheduler.process import Process
from taskqueue.web.api import schemas
from taskqueue.web.api.route import Answer, ApiRoute, Call, Param, Schema
from taskqueue.web.api.schemas import BOOLEAN, INTEGER, REASON, TEXT, TIME, WHEN, exactly, listed, record, ref
from taskqueue.web.problems import Problem
from taskqueue.web.rendering import JsonResponse

ORDERS = ["created_at", "-created_at", "ended_at", "-ended_at", "id", "-id", "rank", "-rank"]
LONGEST_WAIT = 60.0
"""Maximum number of seconds that a request waits for a job; to wait longer, ask again."""


def find_jobs(call: Call) -> Any:
    """Return a page of jobs, and the cursor of the next one."""
    order, limit = call.query["order"], call.query["limit"]
    after = None
    if (cursor := _cursor(call)) is not None:
        try:
            after = call.scheduler.get_job(cursor)
        except JobNotFound:
            detail = f"the job of cursor {cursor!r} is no longer kept: start without a cursor"
            raise Problem("cursor-too-old", detail) from None
    processes = call.scheduler.find_jobs(_query(call), order=order, limit=limit, after=after)
    return {"jobs": _listed(call, processes), "cursor": str(processes[-1].id) if len(processes) == limit else None}


def count_jobs(call: Call) -> Any:
    """Return how many jobs match."""
    return {"count": call.scheduler.count_jobs(_query(call))}


def add_job(call: Call) -> Any:
    """Add a job; with the header ``Idempotency-Key`` only once, however often it is requested."""
    options = {name: value for name, value in call.body.items() if name not in ("job", "data")}
    key = call.query.get("idempotency-key")
    process = call.actions.add_job(call.body["job"], data_of(call.body.get("data")), options, key)
    return Answer(status=200 if process.existed else 201, document=_full(call, process) | {"existed": process.existed})


def get_job(call: Call) -> Any:
    """Return everything that is stored about a job."""
    if call.query["unmask"]:
        return json_shapes.job_in_full(call.actions.unmask_job(call.path["id"]).snapshot)
    return _full(call, call.scheduler.get_job(call.path["id"]))


def update_job(call: Call) -> Any:
    """Change a waiting job."""
    changes = dict(call.body)
    if "data" in changes:
        changes["data"] = data_of(changes["data"])
    return _full(call, call.actions.update_job(call.path["id"], changes))


def cancel_job(call: Call) -> Any:
    """Cancel a waiting job, or ask a running one to end."""
    return _full(call, call.actions.cancel_job(call.path["id"], call.body.get("reason", "")))


def give_up_job(call: Call) -> Any:
    """End a job that waits to run again after an error, or for its class to be loaded, as failed."""
    return _full(call, call.actions.give_up_job(call.path["id"], call.body.get("reason", "")))


def run_job_again(call: Call) -> Any:
    """Run an ended job once more as a copy."""
    data = data_of(call.body["data"]) if "data" in call.body else SAME_DATA
    copy = call.actions.run_again(call.path["id"], call.body.get("at"), data)
    return Answer(status=201, document=_full(call, copy))


def list_workflows(call: Call) -> Any:
    """Return a page of workflows, the newest first, and the cursor of the next one."""
    limit = call.query["limit"]
    listed = workflows.recent(call.scheduler, limit, after=_cursor(call))
    shapes = [json_shapes.workflow(summary) for summary in listed]
    return {"workflows": shapes, "cursor": str(listed[-1].id) if len(listed) == limit else None}


def _cursor(call: Call) -> str | None:
    """Return the id after which a page begins. Raises ``Problem`` for another text."""
    cursor: str | None = call.query.get("cursor")
    if cursor is not None and not JobId.is_valid(cursor):
        raise Problem("invalid-parameter", f"cursor={cursor[:100]!r}: pass that of the previous page, or none")
    return cursor


def get_workflow(call: Call) -> Any:
    """Return how far a workflow is, which its id or the id of a member names."""
    return json_shapes.workflow(workflows.summary(call.scheduler, call.path["id"]))


def run_failed_part_again(call: Call) -> Any:
    """Run the members of a workflow that failed, and the members canceled because of them, once more as copies."""
    return {"jobs": _listed(call, call.actions.run_failed_part_again(call.path["id"]))}


def act_on_matching(call: Call) -> Any:
    """Cancel, give up, run again or start all matching jobs; without ``confirm`` only return how many, with a sample.

    With the ``at`` of that answer it concerns only the jobs that were counted.
    """
    action, actions, reason = call.body["action"], call.actions, call.body.get("reason", "")
    query = matching_query(call)
    now = call.dashboard.overviews.now()
    at = named("at", call.body["at"], lambda given: moment_of(given, now)) if "at" in call.body else now
    matching = actions.matching(action, query, at)
    done = actions.act_on_matching(action, query, at, reason) if call.body.get("confirm", False) else 0
    return {
        "found": matching.number,
        "sample": _listed(call, matching.sample),
        "done": done,
        "at": json_shapes.time(at),
    }


def matching_query(call: Call) -> Mapping[str, Any]:
    """Return the query in the body of a request, if the user may ask it."""
    return _allowed(call, _parsed(call.body["query"]))


def get_logs(call: Call) -> Any:
    """Return the log lines that are kept with a job."""
    return {"lines": call.masked([json_shapes.log_line(line) for line in call.scheduler.logs(call.path["id"])])}


def get_events(call: Call) -> Any:
    """Return the events of a job that are kept, the oldest first."""
    return {"events": [json_shapes.event(event, None, None) for event in call.scheduler.events_of(call.path["id"])]}


def explain_job(call: Call) -> Any:
    """Say why a job is in its status."""
    return {"why": explained(call.scheduler, call.path["id"], call.dashboard.masking.limit)}


async def wait_for_job(call: Call) -> Response:
    """Return the job once it has ended, or after the timeout."""
    dashboard, id = call.dashboard, call.path["id"]
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + call.query["timeout"]
    async with dashboard.hub.listen(call.viewer) as listener:
        process = await dashboard.in_thread(call.viewer, call.scheduler.get_job, id)
        while not process.is_final and not listener.is_closed and (left := ends_at - loop.time()) > 0:
            notices = await listener.next(left)
            missed = {"gap", FLUSHED}.intersection(notice.name for notice in notices)
            if not notices or missed or str(process.id) in [notice.document.get("id") for notice in notices]:
                process = await dashboard.in_thread(call.viewer, call.scheduler.get_job, id)
    return await dashboard.in_thread(call.viewer, lambda: JsonResponse(_full(call, process)))


def _query(call: Call) -> Mapping[str, Any]:
    """Return the query for the parameters of ``FILTER``. Raises ``InvalidQuery``."""
    return _allowed(call, JobFilter.of(call.query).query(call.dashboard.overviews.now()))


def _allowed(call: Call, query: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the query, unless it searches for masked values. Raises ``InvalidQuery``."""
    call.dashboard.masking.check_query_of(query, call.viewer.user)
    return query


def _parsed(query: Any) -> Mapping[str, Any]:
    """Return the query with the values that Extended JSON carries, such as times. Raises ``InvalidQuery``."""
    try:
        decoded = decode(json.dumps(query))
    except (Unreadable, ValueError, RecursionError) as error:
        raise InvalidQuery(f"the query cannot be read: {error}") from None
    if not isinstance(decoded, dict):
        raise InvalidQuery(f"a query is a mapping of fields to values, not {query!r}")
    return decoded


def data_of(value: Any) -> Any:
    """Return data with the values that Extended JSON carries. Raises ``InvalidJob``."""
    try:
        return decode(json.dumps(value))
    except Unreadable as error:
        raise InvalidJob(f"the data cannot be read as Extended JSON: {error.__cause__}") from None


def _listed(call: Call, found: list[Process]) -> Any:
    return call.masked([json_shapes.job(process.snapshot) for process in found])


def _full(call: Call, process: Process) -> dict[str, Any]:
    document: dict[str, Any] = call.masked(json_shapes.job_in_full(process.snapshot))
    limit_keys = map(call.dashboard.masking.limit, limit_keys_of(process.snapshot.lane))
    return {**document, "limits": list(map(str, limit_keys))}


OPTIONS: dict[str, Schema] = {
    "queue": {"type": "string", "maxLength": 200},
    "priority": {"type": "integer", "minimum": -20, "maximum": 20},
    "at": WHEN,
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 200}, "maxItems": 100},
}
_ID: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": TEXT_LIMIT,
    "examples": ["invoice-7"],
    "description": "The id of the job: the same text and class are the same job, and add it once.",
}
_NEW = exactly({"job": {**TEXT, "examples": ["shop.jobs:MailJob"]}}, data={}, id=_ID, **OPTIONS)
_CHANGES = {**exactly(None, data={}, **OPTIONS), "minProperties": 1}
_MATCHING = exactly(
    {
        "action": {"type": "string", "enum": ["cancel", "give-up", "run-again", "start-now"]},
        "query": {"type": "object", "examples": [{"queue": "mail"}]},
    },
    reason=REASON,
    confirm=BOOLEAN,
    at={**TIME, "maxLength": 100, "description": "The `at` of a count: only jobs that were counted are concerned."},
)
_KEY = Param(
    "idempotency-key",
    {"type": "string", "pattern": "^[!-~]{1,150}$", "examples": ["order-17"]},
    "With the same key one job is added, for a day or until it ends without success.",
    place="header",
)
_TIMEOUT = Param(
    "timeout",
    {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT, "default": 30},
    "Seconds to wait at most; the job is answered as it is then.",
)
_UNMASK = Param("unmask", {**BOOLEAN, "default": False}, "With secret values: a right of its own, kept in the audit.")
_ORDER = schemas.choice("order", ORDERS, "What is sorted by.", default="-created_at")
_CURSOR = schemas.text("cursor", "The cursor of the previous page.")
_FULL = ref("JobInFull")
_PAGE = listed("jobs", ref("Job"), cursor=schemas.optional(TEXT))
_COUNTED = record({"found": INTEGER, "done": INTEGER, "at": TIME, "sample": {"type": "array", "items": ref("Job")}})
ADDS = "operators; classes that --addable names"
_AGAIN = exactly(None, at=WHEN, data={})
_WORKFLOW = record(
    {
        "id": TEXT,
        "name": TEXT,
        "state": {"type": "string", "enum": ["running", "waiting", "failed", "canceled", "done"]},
        "jobs": INTEGER,
        "statuses": {"type": "object", "additionalProperties": INTEGER},
        **dict.fromkeys(("created_at", "started_at", "ended_at"), schemas.optional(TIME)),
    }
)
_WORKFLOWS = listed("workflows", _WORKFLOW, cursor=schemas.optional(TEXT))

ROUTES = (
    ApiRoute("GET /jobs", find_jobs, _PAGE, *schemas.FILTER, _ORDER, schemas.limit(500, 50), _CURSOR, statuses=(410,)),
    ApiRoute("POST /jobs", add_job, _FULL, _KEY, body=_NEW, needs_body=True, created=True, statuses=(409,), users=ADDS),
    ApiRoute("GET /jobs/count", count_jobs, record({"count": INTEGER}), *schemas.FILTER),
    ApiRoute("POST /jobs/matching", act_on_matching, _COUNTED, body=_MATCHING, needs_body=True, statuses=(409,)),
    ApiRoute("GET /jobs/{id}", get_job, _FULL, _UNMASK),
    ApiRoute("PATCH /jobs/{id}", update_job, _FULL, body=_CHANGES, needs_body=True, statuses=(409,)),
    ApiRoute("POST /jobs/{id}/cancel", cancel_job, _FULL, body=exactly(None, reason=REASON)),
    ApiRoute("POST /jobs/{id}/give-up", give_up_job, _FULL, body=exactly(None, reason=REASON), statuses=(409,)),
    ApiRoute("POST /jobs/{id}/run-again", run_job_again, _FULL, body=_AGAIN, created=True, statuses=(409,)),
    ApiRoute("GET /workflows", list_workflows, _WORKFLOWS, schemas.limit(200, 50), _CURSOR),
    ApiRoute("GET /workflows/{id}", get_workflow, _WORKFLOW),
    ApiRoute("POST /workflows/{id}/run-again", run_failed_part_again, listed("jobs", ref("Job"))),
    ApiRoute("GET /jobs/{id}/logs", get_logs, listed("lines", ref("LogLine"))),
    ApiRoute("GET /jobs/{id}/events", get_events, listed("events", ref("Event"))),
    ApiRoute("GET /jobs/{id}/why", explain_job, record({"why": TEXT})),
    ApiRoute("GET /jobs/{id}/wait", wait_for_job, _FULL, _TIMEOUT),
)
