"""One job: its timeline, attempts, values, error, log, events and place among others, and why it is so."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from itertools import groupby, takewhile
from typing import Any, TypeAlias

from taskqueue.errors import TaskqueueError
from taskqueue.insight.overview import runs_of
from taskqueue.insight.why import IN_SHORT
from taskqueue.insight.work_report import options_in_words
from taskqueue.model.controls import Controls
from taskqueue.model.ids import JobId
from taskqueue.model.job_filter import JobFilter
from taskqueue.model.lifecycle.pending import waits_again
from taskqueue.model.limits import limit_keys_of
from taskqueue.model.log_lines import LogLine
from taskqueue.model.record import Failure, Record, Status
from taskqueue.model.schedules.origin import FromSchedule, Series
from taskqueue.model.wording import in_utc, size
from taskqueue.scheduler.changes import STAGE
from taskqueue.scheduler.event import EventSnapshot
from taskqueue.scheduler.operations import OPERATIONS
from taskqueue.scheduler.operator_api import explained
from taskqueue.scheduler.process import Process
from taskqueue.web.charts import kind_of, timeline
from taskqueue.web.graph import graph_of
from taskqueue.web.masking import Masking
from taskqueue.web.pages.jobs import chips_of, rows_of
from taskqueue.web.view import Button, View, button_of, see_other
from taskqueue.web.words import lines

MOST_LINES = 200
MOST_LOGGED = 24_000
"""Log lines on the page, the last ones, and their characters in HTML."""

MOST_CHARACTERS = 8_000
"""Characters in HTML of a value, a traceback or a stack: with all of them the page stays below 150 kB."""

MOST_CHILDREN = 20
MOST_EVENTS = 50

SHOWN_ELSEWHERE = ("What it logged", "Where it is now", f"{IN_SHORT}it does not run again by itself")
"""How sentences begin that only name a command for what the log or a button of the page is for."""

OF_CLAIM = (" has it, with claim ", "The node's claim holds until ")
"""Words of the sentences on the claim of a running job, which matter least to people."""

MOST_SAID = 300
"""Characters of an error in the table of attempts."""

Masked: TypeAlias = Callable[[Any], Any]


def job(view: View) -> Any:
    """Return everything that is known about a job, with values that look secret masked."""
    process = view.scheduler.get_job(view.path["id"])
    if not JobId.is_valid(view.path["id"]):  # updates of the page use the 24 digits
        return see_other(view, f"/jobs/{process.id}")
    return _shown(view, process, view.masking.masked)


def unmasked(view: View) -> Mapping[str, Any]:
    """Return the same with unmasked values, for a user who may see them; this is recorded in the audit.

    The page stays as it is: each update would be another look at secrets.
    """
    shown = _shown(view, view.actions.unmask_job(view.path["id"]), lambda value: value)
    return {**shown, "is_unmasked": True}


def _shown(view: View, process: Process, masked: Masked) -> Mapping[str, Any]:
    record, now = process.snapshot, datetime.now(timezone.utc)
    logged = view.scheduler.logs(process.id)
    last = _last(logged)
    events = list(folded(view.scheduler.events_of(process.id)))
    children = view.scheduler.find_jobs({"parent": process.id}, limit=MOST_CHILDREN + 1)
    return {
        "process": process,
        "record": record,
        "why": _why(_in_utc(view, process)),
        "tries": _tries(record),
        "resume": _resume(view, record),
        "pieces": timeline(record, now) if record.attempts or record.started_at else [],
        "left": runs_of([record], {}, now)[0].left if record.status is Status.PROCESSING else None,
        "attempts": [_attempt(record, number) for number in range(len(record.attempts))],
        "values": _values(record, masked),
        "is_unmasked": False,
        "may_unmask": view.user.unmask,
        "error": None if record.error is None else _error(record.error),
        "lines": last,
        "dropped": len(logged) - len(last),
        "events": events[-MOST_EVENTS:],
        "more_events": sum(number for _, number in events[:-MOST_EVENTS]),
        "graph": graph_of(view.scheduler, process),
        "children": rows_of(view, children[:MOST_CHILDREN]),
        "has_more_children": len(children) > MOST_CHILDREN,
        "facts": _facts(record, view.masking),
        "links": defaultdict(str, _links(record)),
        "chips": chips_of(view, record, JobFilter()),
        "series": record.origin if isinstance(record.origin, Series) else None,
        "schedule": record.origin.schedule if isinstance(record.origin, FromSchedule) else None,
        "may_act": view.may_act_on(process.queue),
        "may_edit": view.actions.may_add(process.job),
        "waits_again": waits_again(record),
        "is_stage": process.job == STAGE,
    }


def _resume(view: View, record: Record) -> Button | None:
    """Return the button that ends the pause which keeps the job waiting, if there is one and the user may."""
    pause = Controls(view.scheduler.controls()).pause_of(record.queue) if record.status is Status.WAITING else None
    if pause is None or not view.may_act_on(pause.name or None):
        return None
    return replace(button_of(OPERATIONS["resume"], pause.name), label=OPERATIONS["resume"].words(pause.name))


def _last(logged: list[LogLine]) -> list[LogLine]:
    """Return the last lines that the page has room for."""
    first, room = len(logged), MOST_LOGGED
    while first > max(0, len(logged) - MOST_LINES) and room >= _size(logged[first - 1].message):
        first -= 1
        room -= _size(logged[first].message)
    return logged[first:]


def _in_utc(view: View, process: Process) -> str:
    with in_utc():
        return explained(view.scheduler, process.id, view.masking.limit)


def _why(text: str) -> list[tuple[str, bool]]:
    """Return the sentences, each with whether it continues the previous line: the short answer first, the claim last.

    The first line of the text says what the headline does. The lines on ended runs say what the table of attempts does.
    """
    lines = text.split("\n")[1:]
    said = list(takewhile(lambda line: line != "Runs that have ended:", lines))
    if len(said) < len(lines):
        said += [line for line in lines[-1:] if line.startswith(IN_SHORT)]
    shown = [line for line in said if not line.startswith(SHOWN_ELSEWHERE)]
    shown.sort(key=lambda line: (not line.startswith(IN_SHORT), any(words in line for words in OF_CLAIM)))
    return [(cut(line.strip().removeprefix(IN_SHORT)), line.startswith("    ")) for line in shown]


def _tries(record: Record) -> str:
    if record.status is Status.PROCESSING:
        return f"attempt {record.attempt}"
    return f"{record.tries} attempt{'' if record.tries == 1 else 's'}" if record.tries else ""


def _attempt(record: Record, place: int) -> dict[str, Any]:
    attempt = record.attempts[place]
    took = None if attempt.started_at is None else (attempt.ended_at - attempt.started_at).total_seconds()
    how = f"{attempt.error.type.rpartition('.')[2]}: {attempt.error.message}" if attempt.error else attempt.exit
    return {
        "number": attempt.number,
        "kind": kind_of(attempt),
        "outcome": attempt.outcome,
        "node": attempt.node,
        "pid": attempt.pid,
        "started_at": attempt.started_at,
        "took": took,
        "memory": size(attempt.peak_memory) if attempt.peak_memory else "",
        "how": how[:MOST_SAID],
        "stack": cut(attempt.stack) if place == len(record.attempts) - 1 else "",
    }


def _values(record: Record, masked: Masked) -> list[dict[str, Any]]:
    """Return data, meta, result, checkpoint and reports as text."""
    reports = record.course.reports if record.course else None
    named = (
        ("data", record.data),
        ("meta", json.dumps(dict(record.meta))),
        ("result", record.result),
        ("checkpoint", record.state),
        ("reports", reports),
    )
    return [_value(masked, name, text) for name, text in named if text not in (None, "null", "{}")]


def _value(masked: Masked, name: str, text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "null")
    except (RecursionError, ValueError):  # damaged
        return {"name": name, "text": "(cannot be read)", "is_masked": False}
    shown = masked(value)
    return {"name": name, "text": cut(json.dumps(shown, ensure_ascii=False, indent=2)), "is_masked": shown != value}


def cut(text: str) -> str:
    """Return the text; without its middle if it is too long for the page."""
    size = _size(text)
    if size <= MOST_CHARACTERS:
        return text
    half = len(text) * MOST_CHARACTERS // size // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters …]\n{text[-half:]}"


def _size(text: str) -> int:
    """Return the length of the text in HTML."""
    return len(lines(text))


def _error(failure: Failure) -> dict[str, str]:
    return {"type": failure.type, "message": cut(failure.message), "traceback": cut(failure.traceback.rstrip())}


def _links(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the address of the jobs that share a fact, by its name."""
    yield "class", JobFilter.of({"class": record.job}).address()
    yield "queue", JobFilter.of({"queue": record.queue}).address()
    if record.holder is not None:
        yield "node", JobFilter.of({"node": record.holder.seat}).address()


def folded(events: Iterable[EventSnapshot]) -> Iterator[tuple[EventSnapshot, int]]:
    """Yield the events, each with 1; of reports of progress in a row only the last, with their number."""
    for is_progress, group in groupby(events, lambda event: event.name == "progress"):
        row = list(group)
        yield from [(row[-1], len(row))] if is_progress else [(event, 1) for event in row]


def _facts(record: Record, masking: Masking) -> list[tuple[str, str]]:
    facts = [
        ("id text", record.id_text or ""),
        ("class", record.job),
        ("queue", f"{record.queue}, priority {record.priority}"),
        ("unique key", record.unique or ""),
        ("node", record.holder.seat if record.holder else ""),
        *(fact for fact in options_in_words(record) if fact[0] != "limits"),
        ("limits", "; ".join(str(masking.limit(key)) for key in limit_keys_of(record.lane))),
        ("record", record.damage),
    ]
    return [(name, value) for name, value in facts if value]


def stack(view: View) -> Mapping[str, Any]:
    """Return where the running job is now, asked of its node, or why that cannot be known."""
    process, problem, text = view.scheduler.get_job(view.path["id"]), "", ""
    try:
        text = process.stack()
    except TaskqueueError as error:
        problem = str(error)
    return {"process": process, "problem": problem, "text": cut(text), "may_act": view.may_act_on(process.queue)}
