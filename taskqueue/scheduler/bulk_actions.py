"""Runs ended jobs again in stages: each stage of a bulk action is a job, and the copies that it adds are its children.

So a bulk action needs nothing that a store does not have: its name is the id of its first job, a stage that dies
midway continues as any job does, and its results are counts of children.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from taskqueue.errors import DuplicateId, InvalidOption, JobNotFound, WrongStatus
from taskqueue.insight import records
from taskqueue.model.ids import JobId, copy_id, id_of_text
from taskqueue.model.job import Job, Snooze
from taskqueue.model.lifecycle.recovered_copy import copy, copy_of, origin_of
from taskqueue.model.options import checked, named, validators, value_of
from taskqueue.model.options.update import revised
from taskqueue.model.query import FINAL, And, Compare, Operator, Query, parse
from taskqueue.model.record import Record, Status, changed
from taskqueue.model.schedules import moment_of
from taskqueue.model.serializer import clipped, decode
from taskqueue.model.shown_text import as_code
from taskqueue.model.timestamps import MILLISECOND, milliseconds
from taskqueue.model.wording import local
from taskqueue.scheduler.changes import BATCH, NO_STAGE, STAGE, cancel_each
from taskqueue.store import Store

if TYPE_CHECKING:
    from taskqueue.scheduler.process import Process
    from taskqueue.scheduler.scheduler import Scheduler

MOST = 1_000_000
"""Maximum number of copies that a stage may be asked for."""

STOPPED_AT_ONCE = 10 * BATCH
"""How many copies a stop reads at once: for each page, the store looks at the whole stage."""

TRIES_AGAIN = 5
"""How often a node retries a failed stage, for instance after an outage of the store."""

PRIORITY = -20
"""A stage that a node continues comes before the jobs that wait."""

SECONDS: Mapping[str, int] = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""The seconds of each unit of a rate."""

_NAME = re.compile(r"(?![0-9a-f]{24}$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RATE = re.compile(r"([1-9]\d{0,8})/([smhd])")
_WORDS = frozenset({"$and", "$or", *(operator.value for operator in Operator)})
_MAY_CONTINUE = "be followed by another stage once it has added its copies"
_OFTEN_FIRST = sorted(Status, key=lambda status: status not in (Status.POSTPONED, Status.DONE, Status.FAILED))
_STAGES = Compare("job", Operator.EQ, STAGE)
_DATA = frozenset(["first", "rate", "queue", "at", "by", "queues", "found", "query", "ended_before", "after"])
_NEW = {"after": None, "seen": 0, "copies": 0, "left_out": 0, "taken": 0}


class BulkAction(Job):
    """Adds a copy of each job that matched when the action started, a batch at a time; the result has the numbers."""

    def start(self) -> dict[str, Any]:
        """Add the copies after the last checkpoint: a batch that was cut off is not added twice."""
        store = _store(self.scheduler)
        [own] = records.read(store, [self.id])
        stage = Stage.of(own)
        numbers: dict[str, Any] = {**_NEW, "after": stage.after, **(self.state or {})}
        while room := min(BATCH, stage.plan.most - numbers["copies"]):
            after = numbers["after"]
            page = store.find(stage.query, limit=room, after=None if after is None else (after, after))
            if not page:
                break
            numbers = _with_copies(store, stage, page, numbers)
            self.checkpoint(numbers)
            self.progress(100 * min(1, numbers["seen"] / max(stage.found, 1)))
            if _is_canceled(store, self.id):
                raise Snooze(0)  # what would run again ends as CANCELED, and its children with it
        return numbers


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many copies a stage adds, when they run, and in which queue."""

    first: int | None = None
    rate: str | None = None
    queue: str | None = None
    at: datetime | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any], now: datetime) -> Plan:
        """Return the plan with these values, each of which may be None; raise ``InvalidOption``."""
        first, rate, queue = (given.get(name) for name in ("first", "rate", "queue"))
        at = checked({"at": given.get("at")}, "a bulk action")["at"]
        return cls(
            first=None if first is None else named("first", first, validators.whole(1, MOST)),
            rate=None if rate is None else named("rate", rate, _rate),
            queue=None if queue is None else value_of("queue", queue),
            at=None if at is None else moment_of(at, now),
        )

    @property
    def most(self) -> int:
        """Return the most copies it allows."""
        return sys.maxsize if self.first is None else self.first

    @property
    def says(self) -> str:
        """Return the plan in words: ``the first 5``, ``all at 50/m in queue backfill``."""
        words = ["all" if self.first is None else f"the first {self.first:,}"]
        words += [f"{word} {value}" for word, value in (("at", self.rate), ("in queue", self.queue)) if value]
        words += [f"from {local(self.at)}"] if self.at else []
        return " ".join(words)

    def at_place(self, place: int, begun_at: datetime) -> datetime | None:
        """Return when the copy at this place runs, from 0 on; None means at once."""
        if self.rate is None:
            return self.at
        number, _, unit = self.rate.partition("/")
        first = begun_at if self.at is None else max(self.at, begun_at)  # from a past time, many would be due at once
        return first + place * timedelta(seconds=SECONDS[unit]) / int(number)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage: a job that adds copies, what it was asked for, and what it has done."""

    record: Record
    plan: Plan
    by: str
    queues: Sequence[str] | None
    """The queues that its author may act on; None for all."""
    found: int
    """How many matching jobs no earlier stage has looked at."""
    written: Mapping[str, Any]
    """The query as it was written."""
    ended_before: datetime
    after: JobId | None
    """The last job that an earlier stage has looked at."""

    @classmethod
    def of(cls, record: Record) -> Stage:
        """Return the stage of a job of the class ``BulkAction``."""
        data = decode(record.data)
        return cls(
            record=record,
            plan=Plan(**{name: data[name] for name in ("first", "rate", "queue", "at")}),
            by=data["by"],
            queues=data["queues"],
            found=data["found"],
            written=_as_query(data["query"]),
            ended_before=data["ended_before"],
            after=data["after"],
        )

    @property
    def query(self) -> Query:
        """Return the query for the jobs that it may copy: their ends never change, so that neither does their set."""
        return _ended(self.written, self.ended_before)

    @property
    def numbers(self) -> Mapping[str, Any]:
        """Return the numbers of its last checkpoint."""
        return {**_NEW, "after": self.after, **(decode(self.record.state) if self.record.state else {})}

    @property
    def place(self) -> tuple[bool, str, datetime]:
        """Return the sort key of stages: how far each has got, as two users at once may both follow the same stage."""
        return self.record.parent is not None, str(self.numbers["after"] or ""), self.record.created_at


@dataclass(frozen=True, kw_only=True)
class StageResults:
    """A stage, and how many of its copies are in which status."""

    stage: Stage
    statuses: Mapping[Status, int]


@dataclass(frozen=True, kw_only=True)
class BulkActionState:
    """A bulk action: its stages, and what became of their copies."""

    name: str
    stages: Sequence[StageResults]

    @property
    def first(self) -> Stage:
        """Return the stage that the action started with."""
        return self.stages[0].stage

    @property
    def last(self) -> Stage:
        """Return its last stage."""
        return self.stages[-1].stage

    @property
    def statuses(self) -> dict[Status, int]:
        """Return how many copies of all stages are in which status."""
        return {status: sum(results.statuses[status] for results in self.stages) for status in Status}

    def total(self, name: str) -> int:
        """Return the sum of a number of all stages: ``seen``, ``copies``, ``left_out`` or ``taken``."""
        return sum(results.stage.numbers[name] for results in self.stages)

    @property
    def left(self) -> int:
        """Return how many matching jobs no stage has looked at; retention may have removed some since."""
        if self.last.record.status is Status.DONE and self.last.numbers["copies"] < self.last.plan.most:
            return 0  # it has looked at all existing ones
        return max(0, self.last.found - int(self.last.numbers["seen"]))

    @property
    def unstarted(self) -> int:
        """Return how many copies a stop would cancel."""
        return self.statuses[Status.WAITING] + self.statuses[Status.POSTPONED]

    @property
    def may_continue(self) -> bool:
        """Return whether another stage may be added."""
        is_adding = any(results.stage.record.status.is_pending for results in self.stages)
        return self.left > 0 and not is_adding and not self.is_cut

    @property
    def is_cut(self) -> bool:
        """Return whether it was stopped while a stage added copies."""
        return any(results.stage.record.status is Status.CANCELED for results in self.stages)


def plan_of(scheduler: Scheduler, given: Mapping[str, Any]) -> Plan:
    """Return the plan with these values, whose time counts from the store's clock. Raises ``InvalidOption``."""
    return Plan.of(given, _store(scheduler).now())


def begin(
    scheduler: Scheduler, name: str, query: Mapping[str, Any], plan: Plan, by: str, queues: Sequence[str] | None = None
) -> BulkActionState:
    """Add copies of the jobs that match and have ended, as planned, and return the action.

    Raises ``InvalidOption`` for a name that another bulk action has, and ``InvalidQuery``.
    """
    check_name(name)
    store = _store(scheduler)
    now = store.now()
    ended = _ended(query, now)
    sample = store.find(ended, limit=1)
    given = {"query": _as_data(query), "ended_before": now, "found": store.count(ended), "after": None}
    queue = plan.queue or (sample[0].queue if sample else None)
    try:
        _run(scheduler, {**given, "by": by, "queues": queues}, plan, queue, id=name)
    except DuplicateId:
        raise InvalidOption(f"name={name!r}: a bulk action has this name already: choose another one") from None
    return read(scheduler, name)


def add_rest(
    scheduler: Scheduler, name: str, plan: Plan, by: str, queues: Sequence[str] | None = None
) -> BulkActionState:
    """Add copies of the jobs that no stage of the action has looked at, as planned, and return the action.

    Raises ``JobNotFound``, ``WrongStatus`` if a stage still adds copies or was stopped, and ``InvalidOption`` if no
    job is left.
    """
    action = read(scheduler, name)
    last = action.last
    if not action.may_continue:
        if action.left == 0:
            raise InvalidOption(f"no job is left for bulk action {name}: it has covered all matching jobs")
        stages = (results.stage.record for results in action.stages)
        record = next(stage for stage in stages if stage.status is not Status.DONE)
        raise WrongStatus(record.id, record.status.name, _MAY_CONTINUE)
    given: dict[str, Any] = {"query": _as_data(action.first.written), "ended_before": action.first.ended_before}
    given |= {"found": action.left, "after": last.numbers["after"], "by": by, "queues": queues}
    queue = plan.queue or action.first.record.queue
    process = _run(scheduler, given, plan, queue, parent=action.first.record.id, unique=f"bulk:{name}")
    if process.existed:
        raise WrongStatus(process.id, process.status.name, _MAY_CONTINUE)
    return read(scheduler, name)


def stop(scheduler: Scheduler, name: str, reason: str) -> BulkActionState:
    """Cancel the copies that have not started, and a stage that still adds some; return the action.

    What such a stage adds at this moment is canceled with it, as children are.
    """
    store = _store(scheduler)
    for results in read(scheduler, name).stages:
        stage = results.stage.record
        if stage.status.is_pending:
            store.cancel(stage.id, reason, store.now())
        for page in records.pages(store, parse(unstarted(stage.id)), STOPPED_AT_ONCE):
            cancel_each(store, [record.id for record in page], reason)
    return read(scheduler, name)


def read(scheduler: Scheduler, name: str) -> BulkActionState:
    """Return the bulk action of this name. Raises ``JobNotFound``."""
    store = _store(scheduler)
    firsts = records.present(store, [id_of_text(STAGE, name)])
    if not firsts or not _is_stage(firsts[0]):
        reason = "no bulk action has this name, or it was removed like other ended jobs"
        raise JobNotFound(as_code(name), f"{reason}; `taskqueue bulk` lists the others")
    return _state(store, firsts[0])


def recent(scheduler: Scheduler, limit: int = 20) -> list[BulkActionState]:
    """Return the last bulk actions that have started, the newest first."""
    store = _store(scheduler)
    firsts = And((_STAGES, Compare("parent", Operator.EQ, None)))
    return [_state(store, first) for first in store.find(firsts, order="-created_at", limit=limit) if _is_stage(first)]


def _state(store: Store, first: Record) -> BulkActionState:
    stages = [first, *records.matching(store, And((_child_of(first.id), _STAGES)))]
    results = [_results(store, Stage.of(record), stages) for record in stages if _is_stage(record)]
    return BulkActionState(name=str(first.id_text), stages=sorted(results, key=lambda result: result.stage.place))


def unstarted(stage: JobId) -> dict[str, Any]:
    """Return the query, as it is written, for the copies of a stage that have not started."""
    return {"parent": str(stage), "status": {"$lt": int(Status.PROCESSING)}, "job": {"$ne": STAGE}}


def copies_in(stage: JobId, status: Status) -> dict[str, Any]:
    """Return the query, as it is written, for the copies of a stage in a status."""
    return {"parent": str(stage), "status": status.name, "job": {"$ne": STAGE}}


def new_name(now: datetime) -> str:
    """Return an unused name."""
    return f"rerun-{now:%Y%m%d}-{secrets.token_hex(3)}"


def check_name(name: str) -> None:
    """Raise ``InvalidOption`` for a name that a bulk action cannot have."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOption(f"name={as_code(name)}: pass 1 to 64 letters, digits, '.', '_' and '-', such as vat-fix")


def _with_copies(store: Store, stage: Stage, page: Sequence[Record], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Add copies of the jobs of a page that have none, and return the numbers with them."""
    now, own = max(store.now(), stage.ended_before + MILLISECOND), stage.record  # so no copy matches
    copied = [id for id in map(copy_of, page) if id is not None]
    ours = {origin_of(record) for record in records.present(store, copied) if record.parent == own.id}
    new: list[Record] = []
    place = numbers["copies"] + numbers["taken"]
    left_out = 0
    for ended in page:
        if copy_of(ended) is None:
            new.append(_copy(stage, ended, place, now))
        elif ended.id not in ours:
            left_out += 1
            continue
        place += 1
    stored = store.add(new) if new else []
    pairs = list(zip(new, stored, strict=True))
    taken = sum(1 for again, record in pairs if record.id != again.id)
    others = sum(1 for again, record in pairs if record.id == again.id and record.parent != own.id)
    added = len(page) - left_out - taken - others
    return {
        "after": page[-1].id,
        "seen": numbers["seen"] + len(page),
        "copies": numbers["copies"] + added,
        "left_out": numbers["left_out"] + left_out + others,
        "taken": numbers["taken"] + taken,
    }


def _copy(stage: Stage, ended: Record, place: int, now: datetime) -> Record:
    at = stage.plan.at_place(place, stage.record.created_at)
    id = copy_id(ended.id, ended.ended_at or ended.created_at)
    again = changed(copy(ended, id, at, now), parent=stage.record.id)
    return again if stage.plan.queue is None else revised(again, {"queue": stage.plan.queue}, None, now)


def _run(scheduler: Scheduler, given: Mapping[str, Any], plan: Plan, queue: str | None, **options: Any) -> Process:
    """Run a stage here; if this process dies, a node continues it."""
    data = {**given, "by": clipped(given["by"]), **vars(plan)}
    if queue is not None:
        options["queue"] = queue
    return scheduler.run_job(BulkAction, data, priority=PRIORITY, retry=TRIES_AGAIN, **options)


def _results(store: Store, stage: Stage, stages: Sequence[Record]) -> StageResults:
    """Count the copies of a stage by status; if it has ended, stop as soon as all are counted."""
    own = Counter(record.status for record in stages if record.parent == stage.record.id)
    copies_left = stage.numbers["copies"] if stage.record.status.is_final else sys.maxsize
    counts = dict.fromkeys(Status, 0)
    for status in _OFTEN_FIRST:
        if copies_left > 0:
            of_status = Compare("status", Operator.EQ, int(status))
            counts[status] = store.count(And((_child_of(stage.record.id), of_status))) - own[status]
            copies_left -= counts[status]
    return StageResults(stage=stage, statuses=counts)


def _is_stage(record: Record) -> bool:
    """Return whether this is a stage, and not a job of its class that somebody has added with data of their own."""
    data = decode(record.data)
    return isinstance(data, dict) and data.keys() >= _DATA


def _child_of(stage: JobId) -> Query:
    return Compare("parent", Operator.EQ, str(stage))


def _ended(query: Mapping[str, Any], before: datetime) -> Query:
    latest = milliseconds(before)
    times = (Compare(name, Operator.LTE, latest) for name in ("created_at", "ended_at"))  # a node's clock may be behind
    return And((parse(query), FINAL, *times, NO_STAGE))


def _is_canceled(store: Store, id: JobId) -> bool:
    """Return whether somebody has asked the stage to end, or has removed all jobs."""
    stages = records.present(store, [id])
    return not stages or stages[0].cancel is not None or stages[0].status.is_final


def _rate(value: Any) -> str:
    if not isinstance(value, str) or not _RATE.fullmatch(value):
        raise InvalidOption("write a number and a unit, s, m, h or d, such as 50/m for 50 a minute")
    return value


def _as_data(query: Any) -> Any:
    """Return a query in a form that data can hold, without keys that start with ``$``."""
    if isinstance(query, Mapping):
        return {key[1:] if key in _WORDS else key: _as_data(value) for key, value in query.items()}
    if isinstance(query, list | tuple | set | frozenset):
        return [_as_data(item) for item in query]
    return query


def _as_query(data: Any) -> Any:
    """Return the query that ``_as_data`` was given: no field has the name of an operator."""
    if isinstance(data, dict):
        return {f"${key}" if f"${key}" in _WORDS else key: _as_query(value) for key, value in data.items()}
    return [_as_query(item) for item in data] if isinstance(data, list) else data


def _store(scheduler: Scheduler) -> Store:
    return scheduler._connections.store  # noqa: SLF001 - the store of a scheduler is for this layer
