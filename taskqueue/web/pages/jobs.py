"""The list of jobs: what an address filters, sorted, page by page, and updated in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from starlette.responses import Response

from taskqueue.errors import InvalidQuery, JobNotFound
from taskqueue.insight.records import ends_of, with_ends
from taskqueue.model.controls import Controls
from taskqueue.model.ids import JobId
from taskqueue.model.job_filter import KEYS, PARTS_OF_POSTPONED, WORDS_OF_PARTS, JobFilter, Names, Token
from taskqueue.model.meta import ADDED_BY
from taskqueue.model.record import Record, Status
from taskqueue.model.timestamps import milliseconds
from taskqueue.model.wording import count
from taskqueue.scheduler.operator_api import holds_of
from taskqueue.scheduler.process import Process
from taskqueue.scheduler.search import LOOKS_AT, Search, search
from taskqueue.web.masking import Masking
from taskqueue.web.rendering import JsonResponse
from taskqueue.web.view import View, moment, see_other
from taskqueue.web.words import WORDS, rough

PAGE = 50

ORDERS: Mapping[str, str] = {
    "-created_at": "newest first",
    "created_at": "oldest first",
    "-ended_at": "last ended first",
    "ended_at": "first ended first",
    "rank": "next to run first",
}

USUAL_ORDERS = ("-created_at", "-ended_at")
"""The usual order of a list, and that of ended jobs alone."""

MOST_CHIPS, LONGEST_CHIP = 3, 40
"""How many tags and values of the meta a row shows, and the most characters of one."""

LONGEST_WORD = 200
"""Maximum number of characters of a word to complete."""

INDEXED = frozenset(("status", "queue", "id", "parent", "node", "workflow", "since", "before", "late"))
"""The words of a filter whose jobs are found through indexes."""

NEWEST = 200
"""The newest jobs whose names are known."""

ANCHORED = ("-created_at", "-ended_at")
"""The orders in which new jobs come first: new jobs are announced instead of moving the ones that a reader looks at."""


class Chip(NamedTuple):
    """A tag or a value of the meta, and the address of all jobs that have it."""

    text: str
    address: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """One job in the list."""

    process: Process
    cause: str
    chips: Sequence[Chip]

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
    job_filter, problem, new, found = JobFilter(), "", 0, Search([])
    processes: list[Process] = []
    order, usual = view.query.get("order", USUAL_ORDERS[0]), USUAL_ORDERS[0]
    try:
        job_filter = JobFilter.of(view.query)
        if address := _address_of(view, job_filter):
            return see_other(view, address)
        usual = USUAL_ORDERS[all(status.is_final for status in job_filter.statuses())]
        order = view.query.get("order", usual)
        found, new = _search(view, job_filter, order)
        processes = found.processes
    except InvalidQuery as error:
        problem = str(error)
    stats = view.overviews.numbers() if view.is_fragment else view.overviews.numbers_now()  # updates share the answer
    more = {"order": order} if order != usual else {}
    by = {"by": view.query["by"]} if view.query.get("by") else {}
    place = {"after": view.query["after"]} if "after" in view.query else {}
    return {
        "filter": job_filter,
        "written": str(job_filter) or view.query.get("q", ""),
        "problem": problem,
        "unknown": [] if processes or problem else _unknown(view, job_filter, stats),
        "rows": rows_of(view, processes[:PAGE], job_filter),
        "breakdown": breakdown(view, job_filter, _query(view, job_filter, order), order) if processes else None,
        "keys": keys_of(view, (process.snapshot for process in processes[:PAGE])),
        "new": _announced(new),
        "order": order,
        "orders": ORDERS,
        "matching": None if problem or not job_filter.values("status") else _number_here(job_filter, stats),
        "columns": _time_columns(job_filter, order, usual),
        "tabs": [] if problem else _tabs(job_filter, stats, _parts(view, job_filter)),
        "first": job_filter.address(**more),
        "next": job_filter.address(**more, after=str(processes[PAGE - 1].id)) if len(processes) > PAGE else "",
        "further": job_filter.address(**more, after=str(found.last.id)) if found.last is not None else "",
        "looked_to": found.last and getattr(found.last, order.removeprefix("-")),
        "looks_at": LOOKS_AT,
        "is_first": "after" not in view.query,
        "live": job_filter.address(**more, **by, **place, until=_anchor(processes, order, view)),
        "may_act": view.may_act,
        **_possible_actions(job_filter, problem),
        "total": stats["total"],
    }


def _time_columns(job_filter: JobFilter, order: str, usual: str) -> list[dict[str, str]]:
    """Return the columns with times, first the time that the list is sorted by; each header sorts by its time."""
    fields = {"created_at": "added", "ended_at": "ended"}
    sorted_by = order.removeprefix("-")
    if "ended_at" not in (sorted_by, usual.removeprefix("-")):
        del fields["ended_at"]
    columns = []
    for field, name in sorted(fields.items(), key=lambda item: item[0] != sorted_by):
        wanted = field if order == f"-{field}" else f"-{field}"
        is_here = sorted_by == field
        columns.append(
            {
                "field": field,
                "name": name,
                "sorted": ("ascending" if order == field else "descending") if is_here else "",
                "address": job_filter.address(**({} if wanted == usual else {"order": wanted})),
            }
        )
    return columns


def _possible_actions(job_filter: JobFilter, problem: str) -> dict[str, bool]:
    statuses = set() if problem else job_filter.statuses()
    words = {word.lower() for word in job_filter.values("status")}
    return {
        "may_start_now": bool(job_filter.values("status")) and statuses == {Status.POSTPONED},
        "may_give_up": bool(words) and words <= {"retrying", "unloadable", "cannot load"},
        "may_cancel": any(status.is_pending for status in statuses),
        "may_run_again": any(status.is_final for status in statuses),
    }


def _address_of(view: View, job_filter: JobFilter) -> str:
    """Return the address of the job, or of the list of jobs, whose id was written; empty if it is a filter."""
    if len(job_filter.tokens) != 1 or job_filter.tokens[0].key in KEYS:
        return ""
    written = str(job_filter).strip('"')
    if JobId.is_valid(written):
        return f"/jobs/{written.lower()}"
    processes = _shortened(view, written)
    if not processes and written.isprintable():
        processes = view.scheduler.find_jobs({"id_text": written}, limit=2)
        if not processes:
            with suppress(JobNotFound):
                processes = [view.scheduler.get_job(written)]
    if len(processes) > 1:
        return f"/jobs?{JobFilter.of({'id': written}).address()}" if processes[0].id_text == written else ""
    return f"/jobs/{processes[0].id}" if processes else ""


def _shortened(view: View, written: str) -> list[Process]:
    """Return the jobs, two at most, with this id as lists show it: its beginning, dots and its end."""
    ends = ends_of(written)
    if ends is None:
        return []

    def between(lowest: str, highest: str, limit: int) -> list[Process]:
        return view.scheduler.find_jobs({"id": {"$gte": lowest, "$lte": highest}}, order="id", limit=limit)

    return with_ends(between, *ends, most=2)


def _unknown(view: View, job_filter: JobFilter, stats: Mapping[str, Any]) -> list[str]:
    """Return for each token that no job matches a sentence with the nearest one that recent jobs match.

    If only a part of the jobs was looked at, an older one may match.
    """
    if not job_filter:
        return []
    names = recent_names(view, stats)
    return [
        sentence
        for token, sentence in names.unknown(job_filter)
        if search(view.scheduler, JobFilter((token,)).query(view.overviews.now()), "-created_at", 1) == Search([])
    ]


def recent_names(view: View, stats: Mapping[str, Any]) -> Names:
    """Return the names that the newest jobs have, and all queues."""
    newest = view.scheduler.find_jobs(order="-created_at", limit=NEWEST)
    return Names((process.snapshot for process in newest), stats["queues"])


def rows_of(view: View, processes: Iterable[Process], job_filter: JobFilter | None = None) -> list[Row]:
    """Return the jobs as rows; pauses and limits are asked for only if a job waits."""
    listed = list(processes)
    holds, now = holds_of(view.scheduler, listed), view.overviews.now()
    return [
        Row(
            process=process,
            cause=_cause(process.snapshot, holds, view.masking, now),
            chips=[
                chip
                for chip in chips_of(view, process.snapshot, job_filter or JobFilter())
                if len(chip.text) <= LONGEST_CHIP and not chip.text.startswith(f"{ADDED_BY}:")
            ][:MOST_CHIPS],
        )
        for process in listed
    ]


def chips_of(view: View, record: Record, job_filter: JobFilter) -> list[Chip]:
    """Return the tags and the meta of a job, without secrets; each adds its token to the filter."""
    tags = [Token("tag", tag) for tag in record.tags]
    meta = [Token(f"meta.{key}", value) for key, value in record.meta.items() if value.strip()]
    chips = [Chip(tag.value, job_filter.adding(*tag).address()) for tag in tags if tag.value.strip()]
    return chips + [
        Chip(f"{token.key[5:]}:{token.value}", job_filter.adding(*token).address())
        for token in meta
        if not view.masking.is_secret(token.key[5:])
    ]


def suggestions(view: View) -> Response:
    """Return the completions of the word at the cursor, as JSON; masked values are not suggested."""
    names = recent_names(view, view.overviews.numbers())
    suggested = names.suggestions(view.query.get("word", "")[:LONGEST_WORD])
    return JsonResponse(
        {
            "suggestions": [
                {"token": text, "about": about}
                for text, about in suggested
                if not any(map(view.masking.is_secret, text.partition(":")[0].split(".")[1:]))
            ]
        }
    )


def _search(view: View, job_filter: JobFilter, order: str) -> tuple[Search, int]:
    """Return a page and one job more, and how many newer jobs there are than the updated page shows, up to a page."""
    query = _query(view, job_filter, order)
    until = moment("until", view.query["until"]) if view.query.get("until") else None
    found = _found(view, job_filter, query, order, until)
    if until is None or not view.is_fragment or order not in ANCHORED or "after" in view.query:
        return found, 0
    later = {"$and": [query, {order[1:]: {"$gt": until}}]}
    return found, len(view.scheduler.find_jobs(later, order=order, limit=PAGE + 1))


def _announced(new: int) -> str:
    """Return how many newer jobs there are than the page shows; empty if there are none."""
    if not new:
        return ""
    return count(new, "new job") if new <= PAGE else f"more than {PAGE} new jobs"


def _query(view: View, job_filter: JobFilter, order: str) -> dict[str, Any]:
    """Return the query for a list in this order: what has ended has no place in the order of ranks.

    Without a status these are the jobs that can run next: postponed ones may be many, in another order.
    """
    query = job_filter.query(view.overviews.now())
    view.masking.check_query_of(query, view.user)
    if order != "rank":
        return query
    last = Status.PROCESSING if job_filter.values("status") else Status.WAITING
    return {"$and": [query, {"status": {"$lte": int(last)}}]}


def _found(view: View, job_filter: JobFilter, query: dict[str, Any], order: str, until: datetime | None) -> Search:
    """Return a page and one job more; where a page is updated, no job that came later than those it shows.

    Words that no index has are looked for among a bounded number of jobs.
    """
    after = None
    if view.query.get("after"):
        with suppress(JobNotFound):  # the job was pruned: show the first page
            after = view.scheduler.get_job(view.query["after"])
    if until is not None and order in ANCHORED:
        query = {"$and": [query, {order[1:]: {"$lte": until}}]}
    if INDEXED.issuperset(token.key for token in job_filter.tokens):
        return Search(view.scheduler.find_jobs(query, order=order, limit=PAGE + 1, after=after))
    end = until if order in ANCHORED else None
    return search(view.scheduler, query, order, PAGE + 1, after, sorted(job_filter.statuses()), until=end)


def _anchor(processes: list[Process], order: str, view: View) -> str:
    """Return until when jobs that the page shows were added, or had ended, in milliseconds."""
    if view.query.get("until"):
        return view.query["until"]
    at = getattr(processes[0], order[1:]) if processes and order in ANCHORED else None
    return str(milliseconds(at)) if at else ""


def _parts(view: View, job_filter: JobFilter) -> Mapping[str, int]:
    """Return the numbers of the parts of the postponed jobs if they are shown and known: not of a queue alone."""
    postponed = {Status.POSTPONED} <= job_filter.statuses() and job_filter.values("status")
    if not postponed or any(token.key != "status" for token in job_filter.tokens):
        return {}
    upcoming = view.overviews.upcoming()
    return upcoming.parts if upcoming.is_complete else {}


def _tabs(job_filter: JobFilter, stats: Mapping[str, Any], parts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the statuses with the number of their jobs, if it is known: in a queue, or in all."""
    queues, written = job_filter.values("queue"), job_filter.values("status")
    counts = stats["queues"].get(queues[0], {}) if queues else stats["statuses"]
    is_known = len(queues) < 2 and len(job_filter.tokens) == len(queues) + len(written)
    everything = {"word": "all", "address": job_filter.replacing("status", "").address(), "number": None}
    tabs: list[dict[str, Any]] = [{**everything, "is_here": not written}]
    here = [word.lower() for word in written]
    for status, word in WORDS.items():
        number = counts.get(status.name, 0) if is_known else None
        tabs.append(_tab(job_filter, word, number, here in ([word], [status.name.lower()])))
        if status is Status.POSTPONED and set(here) & {word, *PARTS_OF_POSTPONED}:
            tabs += [
                _tab(job_filter, part, parts.get(part), here == [part]) | {"word": word}
                for part, word in WORDS_OF_PARTS.items()
            ]
    if here and not any(tab["is_here"] for tab in tabs):
        words = ", ".join(written)
        tabs.append({"word": words, "address": job_filter.address(), "number": None, "is_here": True})
    return tabs


def _number_here(job_filter: JobFilter, stats: Mapping[str, Any]) -> int | None:
    """Return how many jobs have the status of the filter, if it is known."""
    return next((tab["number"] for tab in _tabs(job_filter, stats, {}) if tab["is_here"]), None)


def _tab(job_filter: JobFilter, word: str, number: int | None, is_here: bool) -> dict[str, Any]:
    address = job_filter.replacing("status", word).address()
    return {"word": word, "address": address, "number": number, "is_here": is_here}


def _cause(record: Record, holds: Controls, masking: Masking, now: datetime) -> str:
    """Return why the job has its status, in a few words."""
    cause = record.cause.value.replace("_", " ")
    if record.status is Status.PROCESSING:
        where = f"on {record.holder.seat}" if record.holder else ""
        return ", ".join(filter(None, (record.progress_message, where)))
    if record.status is Status.WAITING and (held := holds.hold_in_words(record.queue, record.lane, masking.limit)):
        return held
    if record.error is not None and record.status is not Status.DONE:
        return f"{record.error.type.rpartition('.')[2]}: {record.error.message}"[:200]
    if record.status is Status.POSTPONED and record.ready_at is not None:
        seconds = (record.ready_at - now).total_seconds()
        return f"{cause}, in {rough(seconds)}" if seconds > 0 else f"{cause}, due {rough(-seconds)} ago"
    return "" if cause in ("added", "returned") else cause


MOST_READ = 1000
"""How many jobs are divided: the first of the list."""

MOST_PARTS, MOST_KEYS = 20, 12
"""The largest parts that are shown, and how many keys of tags and meta are offered."""

OWN = ("class", "queue", "error")
"""The keys of all jobs."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The jobs with the same value; an empty value stands for jobs that have none."""

    value: str
    number: int
    failed: int
    ended: int
    address: str

    @property
    def failed_share(self) -> float | None:
        """Return how many of the ended jobs failed, 0 to 1; None if none has ended."""
        return self.failed / self.ended if self.ended else None


def breakdown(view: View, job_filter: JobFilter, query: dict[str, Any], order: str) -> dict[str, Any] | None:
    """Return the parts of the first jobs that match by the key that the address names as ``by``, if it names any."""
    key = view.query.get("by", "").strip()
    if not key or view.masking.is_secret(key):
        return None
    records = [process.snapshot for process in view.scheduler.find_jobs(query, order=order, limit=MOST_READ)]
    jobs: Counter[Token] = Counter()
    failed: Counter[Token] = Counter()
    ended: Counter[Token] = Counter()
    for record in records:
        for token in set(_tokens(record, key)) or {Token(key, "")}:
            jobs[token] += 1
            failed[token] += record.status in (Status.FAILED, Status.TIMEOUT)
            ended[token] += record.status.is_final
    parts = [
        Part(
            value=token.value.removeprefix(f"{key}:"),
            number=number,
            failed=failed[token],
            ended=ended[token],
            address=job_filter.adding(*token).address() if token.value else "",
        )
        for token, number in jobs.most_common(MOST_PARTS)
    ]
    return {"key": key, "parts": parts, "others": len(jobs) - len(parts), "read": len(records)}


def keys_of(view: View, records: Iterable[Record]) -> Sequence[str]:
    """Return the keys by which these jobs can be divided, except secret ones."""
    own: dict[str, None] = {}
    for record in records:
        names = [*(tag.partition(":")[0] for tag in record.tags if ":" in tag), *record.meta]
        own.update(dict.fromkeys(name for name in names if name and name != ADDED_BY))
    return [*OWN, *[key for key in own if not view.masking.is_secret(key)][:MOST_KEYS]]


def _tokens(record: Record, key: str) -> Iterator[Token]:
    """Yield the tokens with this key that the job matches."""
    match key:
        case "class":
            yield Token("class", record.job)
        case "queue":
            yield Token("queue", record.queue)
        case "error":
            if record.error is not None:
                yield Token("error", record.error.type)
        case _:
            yield from (Token("tag", tag) for tag in record.tags if tag.startswith(f"{key}:") and tag != f"{key}:")
            if record.meta.get(key, "").strip():
                yield Token(f"meta.{key}", record.meta[key])
