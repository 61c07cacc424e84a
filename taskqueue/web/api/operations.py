"""The operations on queues, limits, schedules, nodes, failures and releases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from taskqueue.errors import InvalidOption
from taskqueue.insight.limit_states import MOST_KEYS
from taskqueue.insight.nodes import Node
from taskqueue.insight.overview import QueueState
from taskqueue.model.controls import EVERY_QUEUE
from taskqueue.model.record import Status
from taskqueue.model.schedules.schedule import Overlap
from taskqueue.scheduler import json_shapes
from taskqueue.scheduler.operations import AnyOperation, Target, of_target
from taskqueue.scheduler.operator_api import numbers_of
from taskqueue.scheduler.schedule import Schedule
from taskqueue.web.api import schemas
from taskqueue.web.api.jobs import ADDS, OPTIONS, data_of
from taskqueue.web.api.route import Answer, ApiRoute, Call, Param, Schema
from taskqueue.web.api.schemas import BOOLEAN, REASON, TEXT, TIME, exactly, listed, record, ref
from taskqueue.web.paging import Part, Row, part_of
from taskqueue.web.problems import Problem

NOTHING: Mapping[str, int] = {status.name: 0 for status in Status}
"""The numbers of a queue without jobs."""


def list_queues(call: Call) -> Any:
    """Return a page of queues, that with the oldest waiting job first, and the cursor of the next page."""
    state = call.dashboard.overviews.read()
    counts, moving = numbers_of(state.tally)["queues"], {queue.name: queue for queue in state.queues}
    every = next((pause for pause in call.scheduler.paused() if pause.name == EVERY_QUEUE), None)
    idle = {name: QueueState(name=name, pause=every) for name in counts}
    queues = [_queue(queue, counts.get(name, NOTHING), state.at) for name, queue in {**idle, **moving}.items()]
    queues.sort(key=lambda queue: (-(queue["oldest"] or 0), queue["name"]))
    part = _part(call, queues, lambda queue: str(queue["name"]))
    return {"queues": part.rows, "cursor": part.next or None}


def _queue(queue: QueueState, statuses: Mapping[str, int], at: datetime) -> dict[str, Any]:
    return {
        "name": queue.name,
        "statuses": statuses,
        "waiting_since": None if queue.oldest is None else json_shapes.time(at - timedelta(seconds=queue.oldest)),
        "oldest": queue.oldest,
        "added_per_minute": queue.added_per_minute,
        "ended_per_minute": queue.ended_per_minute,
        "paused": None if queue.pause is None else json_shapes.control(queue.pause),
    }


def list_controls(call: Call) -> Any:
    """Return all controls."""
    return {"controls": [json_shapes.control(control) for control in call.scheduler.controls()]}


def list_limits(call: Call) -> Any:
    """Return the limits of running and waiting jobs, full ones first; of over 100, the ones that most jobs wait for."""
    mask, states = call.dashboard.masking.limit, call.scheduler.limits()
    limits = [json_shapes.limit(replace(state, limit_key=mask(state.limit_key))) for state in states]
    return {"limits": limits, "are_all": len(limits) < MOST_KEYS}


def set_limit(call: Call) -> Any:
    """Set a limit's number, or restore the declared one."""
    call.actions.set_limit(call.body["name"], call.body["limit"], call.body.get("reason", ""))
    return list_controls(call)


def list_schedules(call: Call) -> Any:
    """Return a page of schedules, by name, and the cursor of the next page."""
    part = _part(call, call.scheduler.get_schedules(), lambda schedule: schedule.name)
    return {"schedules": [_schedule(call, schedule) for schedule in part.rows], "cursor": part.next or None}


def get_schedule(call: Call) -> Any:
    """Return a schedule."""
    return _schedule(call, call.scheduler.get_schedule(call.path["name"]))


def define_schedule(call: Call) -> Any:
    """Define a schedule, or redefine the one of this name."""
    options = {name: value for name, value in call.body.items() if name not in ("job", "data")}
    data = data_of(call.body.get("data"))
    return _schedule(call, call.actions.define_schedule(call.path["name"], call.body["job"], data, options))


def remove_schedule(call: Call) -> Any:
    """Remove a schedule; jobs that it has started stay."""
    call.actions.remove_schedule(call.path["name"])
    return {"name": call.path["name"], "removed": True}


def preview_schedule(call: Call) -> Any:
    """Return the next times of a schedule, in a zone."""
    try:
        zone = ZoneInfo(call.query["tz"])
    except (LookupError, OSError, ValueError):
        raise InvalidOption(f"tz={call.query['tz']!r} is not a time zone: pass one such as Europe/Berlin") from None
    times = call.scheduler.get_schedule(call.path["name"]).preview(call.query["count"])
    return {"times": [json_shapes.time(time.astimezone(zone)) for time in times]}


def trigger_schedule(call: Call) -> Any:
    """Start a job of a schedule now."""
    process = call.actions.trigger_schedule(call.path["name"])
    return Answer(status=201, document=call.masked(json_shapes.job_in_full(process.snapshot)))


def pause_schedule(call: Call) -> Any:
    """Stop a schedule from starting jobs."""
    return _schedule(call, call.actions.pause_schedule(call.path["name"], call.body.get("reason", "")))


def resume_schedule(call: Call) -> Any:
    """Allow a schedule to start jobs again."""
    return _schedule(call, call.actions.resume_schedule(call.path["name"]))


def list_nodes(call: Call) -> Any:
    """Return a page of nodes, by name, and the cursor of the next page."""
    part = _part(call, call.scheduler.nodes(), lambda node: node.name)
    return {"nodes": [_node(node) for node in part.rows], "cursor": part.next or None}


def list_releases(call: Call) -> Any:
    """Return the marked releases, the oldest first."""
    return {"releases": [json_shapes.release(release) for release in call.scheduler.releases()]}


def _part(call: Call, rows: Sequence[Row], name_of: Callable[[Row], str]) -> Part[Row]:
    """Return the requested rows. Raises ``Problem`` if the row of the cursor is gone."""
    given = {"name": call.query.get("name", ""), "after": call.query.get("cursor", "")}
    part = part_of(rows, name_of, given, call.query["limit"])
    if given["after"] and part.is_first:
        raise Problem("cursor-too-old", f"cursor={given['after']!r} no longer exists: start without one")
    return part


def _schedule(call: Call, schedule: Schedule) -> Any:
    return call.masked(json_shapes.schedule(schedule.snapshot))


def _node(node: Node) -> dict[str, Any]:
    shape = json_shapes.lease(
        node.lease, jobs=node.jobs, is_leader=node.is_leader, is_live=node.is_live, drain=node.drain
    )
    return {**shape, "state": node.state}


def _paged(name: str, item: str) -> Schema:
    return listed(name, ref(item), cursor=schemas.optional(TEXT))


_PAGED = (
    schemas.text("name", "Only those with this text in their name."),
    schemas.limit(500, 100),
    schemas.text("cursor", "The cursor of the previous page."),
)
_CLEARED = record({"kind": TEXT, "name": TEXT, "cleared": schemas.INTEGER})
_DONE = record({"operation": TEXT, "target": TEXT})
_QUEUE: Schema = {
    "type": ["string", "null"],
    "maxLength": 200,
    "description": "The queue; null is all of them.",
    "examples": ["mail"],
}
_JOB = ref("JobInFull")
_REASONED = exactly(None, reason=REASON)
_CONTROLS = listed("controls", ref("Control"))
_TIMES = record({"times": {"type": "array", "items": TIME}})
_LIMIT = exactly(
    {"name": {**TEXT, "examples": ["stripe"]}, "limit": {"type": ["integer", "string", "null"], "maxLength": 200}},
    reason=REASON,
)
_DEFINITION = exactly(
    {"job": {**TEXT, "examples": ["shop.jobs:ReportJob"]}},
    data={},
    cron={**TEXT, "examples": ["15 3 * * *"]},
    tz={**TEXT, "examples": ["Europe/Berlin"]},
    every={"type": ["string", "number"], "maxLength": 100, "examples": ["5m"]},
    overlap={"type": "string", "enum": [overlap.value for overlap in Overlap]},
    misfire={**TEXT, "examples": ["all(10)"]},
    grace={"type": ["string", "number"], "maxLength": 100},
    until={**TIME, "maxLength": 100},
    max_runs={"type": "integer", "minimum": 1},
    stop_after_failures={"type": "integer", "minimum": 1, "maximum": 100},
    **{name: schema for name, schema in OPTIONS.items() if name != "at"},
)
_ZONE = schemas.text("tz", "The time zone of the answer, such as `Europe/Berlin`.", default="UTC")
_COUNT = Param("count", {"type": "integer", "minimum": 1, "maximum": 100, "default": 5}, "How many times.")
_VALUES: Mapping[str, Schema] = {
    "reason": REASON,
    "until": {**TEXT, "maxLength": 100, "description": "When this ends by itself: a time, or `2h` from now."},
    "at": {
        **TEXT,
        "maxLength": 100,
        "description": "When it went into service, if not now: a time, or how long ago: `20m`.",
    },
}
"""The values that methods of declared operations accept."""
_OF_ALL = "operators of all queues"


def _route(operation: AnyOperation) -> ApiRoute:
    """Return the route of a declared operation: one on queues has the queue in its body, others a name in the path."""
    is_of_queue = operation.target is Target.QUEUE

    optional = {value: schema for value, schema in _VALUES.items() if operation.takes(value)}

    def do(call: Call) -> Any:
        name: str = (call.body["queue"] or EVERY_QUEUE) if is_of_queue else call.path["name"]
        result = call.actions.operate(operation, name, {key: call.body[key] for key in optional if key in call.body})
        return json_shapes.operation(operation, name, result, operation.control_of(call.scheduler.controls(), name))

    do.__name__, do.__doc__ = f"{operation.verb}_{operation.target}", operation.help
    path = f"/{operation.target}s{'' if is_of_queue else '/{name}'}/{operation.verb}"
    body = exactly({"queue": _QUEUE} if is_of_queue else None, **optional)
    answer = ref("Control") if operation.sets else _CLEARED if operation.clears else _DONE
    users = "" if is_of_queue else _OF_ALL
    return ApiRoute(f"POST {path}", do, answer, body=body, needs_body=is_of_queue, users=users)


ROUTES = (
    ApiRoute("GET /queues", list_queues, _paged("queues", "Queue"), *_PAGED, statuses=(410,)),
    *map(_route, of_target(Target.QUEUE)),
    ApiRoute("GET /controls", list_controls, _CONTROLS),
    ApiRoute("GET /limits", list_limits, listed("limits", ref("Limit"), are_all=BOOLEAN)),
    ApiRoute("POST /limits", set_limit, _CONTROLS, body=_LIMIT, needs_body=True, users=_OF_ALL),
    ApiRoute("GET /schedules", list_schedules, _paged("schedules", "Schedule"), *_PAGED, statuses=(410,)),
    ApiRoute("GET /schedules/{name}", get_schedule, ref("Schedule")),
    ApiRoute("PUT /schedules/{name}", define_schedule, ref("Schedule"), body=_DEFINITION, needs_body=True, users=ADDS),
    ApiRoute("DELETE /schedules/{name}", remove_schedule, record({"name": TEXT, "removed": BOOLEAN})),
    ApiRoute("GET /schedules/{name}/preview", preview_schedule, _TIMES, _COUNT, _ZONE, statuses=(409,)),
    ApiRoute("POST /schedules/{name}/trigger", trigger_schedule, _JOB, body=exactly(), created=True, statuses=(409,)),
    ApiRoute("POST /schedules/{name}/pause", pause_schedule, ref("Schedule"), body=_REASONED),
    ApiRoute("POST /schedules/{name}/resume", resume_schedule, ref("Schedule"), body=exactly(), statuses=(409,)),
    ApiRoute("GET /nodes", list_nodes, _paged("nodes", "Node"), *_PAGED, statuses=(410,)),
    *map(_route, of_target(Target.NODE)),
    *map(_route, of_target(Target.FAILURE)),
    ApiRoute("GET /releases", list_releases, listed("releases", ref("Release"))),
    *map(_route, of_target(Target.RELEASE)),
)
