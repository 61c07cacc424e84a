"""The list of jobs: what an address filters, sorted, page by page, and updated in place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from taskqueue.errors import InvalidQuery, JobNotFound
from taskqueue.model.controls import Controls
from taskqueue.model.ids import JobId
from taskqueue.model.record import Record, Status
from taskqueue.model.timestamps import milliseconds
from taskqueue.model.wording import count
from taskqueue.scheduler.process import Process
from taskqueue.web.job_filter import STATUSES, JobFilter, moment
from taskqueue.web.view import View, see_other
from taskqueue.web.words import WORDS

PAGE = 50

ORDERS: Mapping[str, str] = {
    "-created_at": "newest first",
    "created_at": "oldest first",
    "-ended_at": "last ended first",
    "rank": "next to run first",
}

ENDED = tuple(word for word, statuses in STATUSES.items() if all(status.is_final for status in statuses))
"""The words of statuses whose jobs are listed by their end, unless another order is asked for."""

ANCHORED = ("-created_at", "-ended_at")
"""The orders in which new jobs come first: they are announced, and do not move the jobs that a reader is looking at."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One job in the list."""

    process: Process
    cause: str

    @property
    def tries(self) -> int:
        """Return how many attempts there were."""
        return self.process.snapshot.tries

    @property
    def took(self) -> float | None:
        """Return the seconds of the last attempt."""
        return self.process.snapshot.took


def jobs(view: View) -> Any:
    """Return a page of the list, or the job whose id was written into the filter."""
    job_filter = JobFilter.of(view.query)
    if job_filter.q and (address := _address_of(view, job_filter.q)):
        return see_other(view, address)
    usual = "-ended_at" if job_filter.status in ENDED else "-created_at"
    order = view.query.get("order", usual)
    processes: list[Process] = []
    problem, new = "", 0
    try:
        processes, new = _search(view, job_filter, order)
    except InvalidQuery as error:
        problem = str(error)
    stats = view.numbers() if view.is_fragment else view.scheduler.stats()  # updates share it
    statuses = STATUSES.get(job_filter.status, tuple(Status))
    more = {"order": order} if order != usual else {}
    anchor = _anchor(processes, order, view)
    live = {**job_filter.fields(), **more, **({"after": view.query["after"]} if "after" in view.query else {})}
    return {
        "filter": job_filter,
        "problem": problem,
        "rows": rows_of(view, processes[:PAGE]),
        "new": _announced(new),
        "order": order,
        "orders": ORDERS,
        "tabs": _tabs(job_filter, stats),
        "queues": list(stats["queues"]),
        "first": job_filter.address(**more),
        "next": job_filter.address(**more, after=str(processes[PAGE - 1].id)) if len(processes) > PAGE else "",
        "is_first": "after" not in view.query,
        "live": urlencode({**live, **({"until": anchor} if anchor else {})}),
        "may_act": view.may_act,
        "may_cancel": any(status.is_pending for status in statuses),
        "may_run_again": any(status.is_final for status in statuses),
        "total": stats["total"],
    }


def _address_of(view: View, written: str) -> str:
    """Return the address of the job, or of the list of jobs, whose id was written; empty if it is a query."""
    if JobId.is_valid(written):
        return f"/jobs/{written.lower()}"
    if written.startswith("{") or not written.isprintable():
        return ""
    if len(view.scheduler.find_jobs({"id_text": written}, limit=2)) > 1:
        return f"/jobs?{urlencode({'q': json.dumps({'id_text': written})})}"
    with suppress(JobNotFound):
        return f"/jobs/{view.scheduler.get_job(written).id}"
    return ""


def rows_of(view: View, processes: Iterable[Process]) -> list[Row]:
    """Return the jobs as rows; the pauses in force are asked for only where a job waits."""
    listed = list(processes)
    does_wait = any(process.status is Status.WAITING for process in listed)
    controls = Controls(view.scheduler.controls() if does_wait else ())
    return [Row(process=process, cause=_cause(process.snapshot, controls)) for process in listed]


def _search(view: View, job_filter: JobFilter, order: str) -> tuple[list[Process], int]:
    """Return a page and one job more, and how many newer jobs there are than the updated page shows, up to a page."""
    query = job_filter.query()
    view.masking.check_query(query, view.user)
    until = moment("until", view.query["until"]) if view.query.get("until") else None
    processes = _found(view, query, order, until)
    if until is None or not view.is_fragment or order not in ANCHORED or "after" in view.query:
        return processes, 0
    later = {"$and": [query, {order[1:]: {"$gt": until}}]}
    return processes, len(view.scheduler.find_jobs(later, order=order, limit=PAGE + 1))


def _announced(new: int) -> str:
    """Return how many newer jobs there are than the page shows; empty if there are none."""
    if not new:
        return ""
    return count(new, "new job") if new <= PAGE else f"more than {PAGE} new jobs"


def _found(view: View, query: dict[str, Any], order: str, until: datetime | None) -> list[Process]:
    """Return a page and one job more; where a page is updated, no job that came later than those it shows.

    What has ended has no place in the order of ranks.
    """
    after = None
    if view.query.get("after"):
        with suppress(JobNotFound):  # the job was pruned: show the first page
            after = view.scheduler.get_job(view.query["after"])
    if order == "rank":  # without a status, jobs that can run next: postponed ones may be many, in another order
        last = Status.PROCESSING if view.query.get("status") else Status.WAITING
        query = {"$and": [query, {"status": {"$lte": int(last)}}]}
    if until is not None and order in ANCHORED:
        query = {"$and": [query, {order[1:]: {"$lte": until}}]}
    return view.scheduler.find_jobs(query, order=order, limit=PAGE + 1, after=after)


def _anchor(found: list[Process], order: str, view: View) -> str:
    """Return until when jobs that the page shows were added, or had ended, in milliseconds."""
    if view.query.get("until"):
        return view.query["until"]
    at = getattr(found[0], order[1:]) if found and order in ANCHORED else None
    return str(milliseconds(at)) if at else ""


def _tabs(wanted: JobFilter, stats: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the statuses with the number of their jobs, if it is known: in a queue, or in all."""
    counts = stats["queues"].get(wanted.queue, {}) if wanted.queue else stats["statuses"]
    is_known = not (wanted.job or wanted.tag or wanted.error or wanted.q or wanted.since)
    tabs = [{"word": "all", "address": wanted.address(status=""), "number": None, "is_here": not wanted.status}]
    for status in Status:
        word = WORDS[status]
        number = counts.get(status.name, 0) if is_known else None
        tabs.append(
            {"word": word, "address": wanted.address(status=word), "number": number, "is_here": wanted.status == word}
        )
    if wanted.status in STATUSES and wanted.status not in WORDS.values():
        tabs.append({"word": wanted.status, "address": wanted.address(), "number": None, "is_here": True})
    return tabs


def _cause(record: Record, controls: Controls) -> str:
    """Return why the job is as it is, in few words."""
    said = record.cause.value.replace("_", " ")
    if record.status is Status.PROCESSING:
        where = f"on {record.holder.seat}" if record.holder else ""
        return ", ".join(filter(None, (record.progress_message, where)))
    paused = controls.pause_in_words(record.queue)
    if paused and record.status is Status.WAITING:
        return paused
    if record.error is not None and record.status is not Status.DONE:
        return f"{record.error.type.rpartition('.')[2]}: {record.error.message}"[:200]
    return "" if said in ("added", "returned") else said
