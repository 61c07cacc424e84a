"""Plays weeks of a shop on a clock of its own, and counts what an operator is told: in normal weeks, and after faults.

``python -m tests.insight.shop_week HOURS SEED …`` prints the false findings of these hours, and after how many seconds
each planted fault was reported, for each seed. The figures of jobs are drawn at random; nodes, schedules, and jobs that
wait or run for long are those of a real store, which is read as the overview, ``top`` and nodes that notify read it.
"""

from __future__ import annotations

import math
import random
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

from bson import ObjectId

from taskqueue.insight.needs import Need, Subject
from taskqueue.insight.overview_reader import OverviewReader
from taskqueue.insight.releases import Release
from taskqueue.model.history import Figures, Part, Step, add_figures, count_end, part_text
from taskqueue.model.lifecycle.outcomes import Done, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Cause, Failure, Holder, Record, Status
from taskqueue.model.schedules import Every
from taskqueue.model.schedules.schedule import NamedSchedule
from taskqueue.model.timestamps import milliseconds
from taskqueue.store import ClaimRequest, Lease, Note, Settlement
from taskqueue.store.open import open_store

MONDAY = datetime(2026, 6, 1, tzinfo=timezone.utc)
SECOND, MINUTE, HOUR, DAY = (timedelta(**{name: 1}) for name in ("seconds", "minutes", "hours", "days"))

LOOK = 15 * SECOND
"""The time between two looks after a fault, as between those of a node that notifies; in a normal week, a minute."""

NODES, LEASE = ("web-1", "web-2"), 30 * SECOND

NEWSLETTER, NEWSLETTERS, SENT_IN_A_SECOND = "shop:Newsletter", 600, 0.7
"""A newsletter is sent each night at three: about so many mails at once, which wait for each other."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The jobs of a class: how many come in a minute of a busy hour, how long they run, and which share fails."""

    queue: str
    peak: float
    takes: float
    spread: float = 0.6
    failing: Mapping[str, float] = field(default_factory=dict)
    retried: Mapping[str, float] = field(default_factory=dict)
    """The share of attempts that fail with an error and are retried."""
    all_day: bool = False


SHOP: Mapping[str, Work] = {
    "shop:MakeInvoice": Work(queue="billing", peak=60, takes=0.4, failing={"ValueError: no such country": 0.005},
                             retried={"TimeoutError: no answer from … (bank.get(url))": 0.015}),
    "shop:SendMail": Work(queue="mail", peak=90, takes=0.2, failing={"SMTPRecipientsRefused: … (send(mail))": 0.005},
                          retried={"ConnectionResetError: … (server.connect())": 0.01}),
    "shop:CallWebhook": Work(queue="webhooks", peak=24, takes=0.8, spread=1.0, failing={"HTTPError: 410": 0.01},
                             retried={"HTTPError: 503": 0.03, "TimeoutError: (post(url))": 0.06}),
    "shop:Resize": Work(queue="images", peak=12, takes=3, failing={"OSError: cannot identify image file": 0.004}),
    "shop:Index": Work(queue="search", peak=16, takes=0.5, failing={"NotFound: document … (index.put(id))": 0.02}),
    "shop:PushPrice": Work(queue="prices", peak=8, takes=1.0, retried={"TooManyRequests: (api.push(price))": 0.04}),
    "shop:RenderPdf": Work(queue="reports", peak=1, takes=20, spread=0.9, failing={"TimeoutExpired: (run())": 0.02}),
    "shop:Report": Work(queue="reports", peak=0.3, takes=70, spread=0.5, failing={"MemoryError: (rows.sort())": 0.01}),
    "shop:Import": Work(queue="imports", peak=0.1, takes=400, failing={"ValueError: row … has no price": 0.05}),
    "shop:Sync": Work(queue="sync", peak=2, takes=5, retried={"ConnectionError: (api.pull())": 0.03}, all_day=True),
    "shop:CleanUp": Work(queue="sync", peak=0.02, takes=30, all_day=True),
}  # fmt: skip


class Shop:
    """A store with a shop in it, and the reader of its overview."""

    def __init__(self, folder: Path, seed: int, now: datetime, tick: timedelta) -> None:
        self.folder, self.now, self.tick, self.dice = folder, now, tick, random.Random(seed)
        self.store = open_store(f"sqlite://{folder}/jobs.db?synchronous=normal", lambda: self.now)
        self.raw: sqlite3.Connection = self.store._engine._raw  # type: ignore[attr-defined]
        self.reader = OverviewReader(self.store)
        self.away: dict[str, tuple[datetime, datetime]] = {}
        """Nodes that are stopped, from when and until when."""
        self.killed: set[str] = set()
        self.queues: dict[str, None] = {}
        """The queues that the nodes take; none means all."""
        self.extra: Part = {}
        """Figures that come to those of the next tick."""
        self._moods: dict[str, tuple[datetime, float]] = {}
        self._mails_left = 0
        self._long_runs: list[tuple[datetime, Record]] = []

    def look(self, *, is_whole: bool = True) -> list[Need]:
        """Return what an operator sees; a whole look also reads what is read every quarter of a minute."""
        self.reader._seldom_at = 0.0 if is_whole else math.inf
        return self.reader.read().needs

    def step(self) -> None:
        """Pass a tick: what comes, ends and fails in it."""
        self.now += self.tick
        part, self.extra = self.extra, {}
        for job, work in SHOP.items():
            self._work(part, job, work)
        if self._happens(8 * HOUR):
            job, error = self.dice.choice(list(SHOP)), f"RuntimeError: odd thing {self.dice.random()}"
            self.fail(part, job, error, self.dice.randint(1, 2))
        if self._is(11, 30) and self.now.weekday() < 5:
            self._deploy()
        if self._is(3, 0):
            self.add_mails(part)
        at = Step.MINUTE.begin(milliseconds(self.now))
        self.raw.execute("INSERT INTO turns (at, counts, figures) VALUES (?, NULL, ?)", (at, part_text(part)))
        self.store.tidy_history(self.now, 10_000)
        self._renew_leases()
        self._send_mails()
        self._end_long_runs()

    def _is(self, hour: int, minute: int) -> bool:
        return self.now.hour == hour and self.now.minute == minute and self.tick >= MINUTE

    def _happens(self, every: timedelta) -> bool:
        return self.tick < HOUR and self.dice.random() < self.tick / every

    def _work(self, part: Part, job: str, work: Work) -> None:
        """Draw how many jobs of a class come, fail and are done."""
        dice = self.dice
        number = _poisson(dice, work.peak * (1.0 if work.all_day else _busy(self.now)) * (self.tick / MINUTE))
        if not number:
            return
        figures: Figures = part.setdefault((work.queue, job), {})
        add_figures(figures, {"added": number, "started": number})
        mood, is_done = self._mood(job), number
        for errors, is_retried in ((work.failing, False), (work.retried, True)):
            for error, share in errors.items():
                failed = _poisson(dice, min(number, number * share * mood))
                self.fail(part, job, error, failed, is_retried=is_retried)
                is_done -= 0 if is_retried else failed
        for _ in range(is_done) if work.takes >= 3 else [1] * min(1, is_done):
            took = dice.lognormvariate(math.log(work.takes), work.spread)
            if took > 60 and self.tick < HOUR:
                self.start(job, self.now + timedelta(seconds=took))
            else:
                slow = 40 if work.queue in ("reports", "imports") else 1
                _end(figures, Status.DONE, slow * min(dice.lognormvariate(-1.0, 0.8), 20), took)
        if work.takes < 3 and is_done > 1:
            add_figures(figures, {"done": is_done - 1})  # one of them shows how long they took

    def fail(self, part: Part, job: str, error: str, number: int, *, is_retried: bool = False) -> None:
        """Have attempts of a class fail in these figures."""
        figures = part.setdefault((SHOP[job].queue, job), {})
        if number:
            add_figures(figures, {f"x:{error}": number})
        for _ in range(0 if is_retried else number):
            _end(figures, Status.FAILED, 0.1, 0.3)

    def _mood(self, job: str) -> float:
        """Return how much more or less than usual fails: it changes each hour, and at times for some minutes."""
        until, mood = self._moods.get(job, (self.now, 1.0))
        if until <= self.now:
            until, mood = self.now + HOUR, self.dice.lognormvariate(0, 0.4)
        elif self._happens(12 * HOUR * len(SHOP)):
            until, mood = self.now + self.dice.uniform(3, 10) * MINUTE, 2.5 * mood
        self._moods[job] = (until, mood)
        return mood

    def _renew_leases(self) -> None:
        now, stopped = self.now, [name for name, (begin, end) in self.away.items() if begin <= self.now < end]
        for name in sorted(NODES, key=lambda name: name not in stopped):  # those that stay take the lead
            holder, about = Holder(seat=name, incarnation="a1"), {"busy": 3, "max_children": 8, "queues": self.queues}
            until = now + max(LEASE, 2 * self.tick)
            seat = Lease(name=f"seat:{name}", holder=holder, since=now, until=until, about=about)
            for lease in (seat, replace(seat, name="lead", about={})) if name not in self.killed else ():
                if name in stopped:
                    self.store.resign(lease.name, holder)
                else:
                    self.store.acquire(lease, now)

    def _deploy(self) -> None:
        """Put a release into service: nodes restart one after the other, and a few jobs meet what is half there."""
        now, dice = self.now, self.dice
        mark = Release(name=f"v{now:%d}", at=now, by="deployment")
        holder = Holder(seat="", incarnation="release")
        self.store.acquire(Lease(name=mark.key, holder=holder, since=now, until=now, about=mark.about), now)
        begin = now - dice.uniform(0, 60) * SECOND
        for name in NODES:
            end = begin + dice.uniform(20, 60) * SECOND
            self.away[name] = (begin, end)
            begin = end + dice.uniform(0, 30) * SECOND
        if dice.random() < 0.5:
            job = dice.choice(["shop:SendMail", "shop:MakeInvoice"])
            self.fail(self.extra, job, f"ImportError: of release {now:%d}", dice.randint(1, 4), is_retried=True)

    def add_mails(self, part: Part, times: float = 1) -> None:
        """Add the mails of a newsletter; in a week that nobody looks at, have them sent at once."""
        number = round(times * NEWSLETTERS * self.dice.lognormvariate(0, 0.15))
        if self.tick < HOUR:
            self.store.add([self.a_job("mail", NEWSLETTER) for _ in range(number)])
            self._mails_left += number
            return
        figures = part.setdefault(("mail", NEWSLETTER), {})
        add_figures(figures, {"added": number, "started": number})
        for place in range(number):
            _end(figures, Status.DONE, place / SENT_IN_A_SECOND, 0.2)

    def _send_mails(self) -> None:
        if self._mails_left:
            request = ClaimRequest(pooled=round(SENT_IN_A_SECOND * self.tick / SECOND), queues={"mail": None})
            records = self.store.claim(_HOLDER, request, self.now, self.now + DAY).records
            self._settle(records)
            self._mails_left -= len(records)

    def a_job(self, queue: str, job: str) -> Record:
        """Return a job that is added now."""
        return Record(id=ObjectId(), job=job, queue=queue, created_at=self.now, ready_at=self.now).at_rank()

    def start(self, job: str, until: datetime) -> None:
        """Start a run that ends at this time."""
        record = self.a_job(SHOP[job].queue, job)
        self.store.add([record])
        claimed = self.store.claim_one(record.id, _HOLDER, self.now, self.now + 30 * DAY)
        assert claimed is not None
        self.store.note(_HOLDER, {record.id: Note(started_at=self.now)})
        self._long_runs.append((until, replace(claimed, started_at=self.now)))

    def _end_long_runs(self) -> None:
        """End the runs whose time has come; others report progress now and then, as far as they are."""
        over = [(until, record) for until, record in self._long_runs if until <= self.now]
        self._long_runs = [(until, record) for until, record in self._long_runs if until > self.now]
        self._settle([record for _, record in over])
        notes = {}
        for until, record in self._long_runs:
            begin = record.started_at or until
            if begin < self.now and self._happens(MINUTE * 2) and record.job != "shop:SendMail":
                done = 100 * ((self.now - begin) / (until - begin)) ** 1.5  # the end is faster than the beginning
                notes[record.id] = Note(progress=done, progress_at=self.now)
        if notes:
            self.store.note(_HOLDER, notes)

    def _settle(self, records: Iterable[Record]) -> None:
        settlements = []
        for record in records:
            run = Run(node="web-1", started_at=record.started_at or self.now - SECOND)
            after = ended(record, Done(), run, self.now)
            settlements.append(Settlement(claims=record.claims, holder=_HOLDER, after=after))
        if settlements:
            self.store.settle(settlements, self.now)


_HOLDER = Holder(seat="web-1", incarnation="a1")


def _end(figures: Figures, status: Status, waited: float, ran: float) -> None:
    count_end(figures, status, 1, round(1000 * waited), round(1000 * ran), None)


def _busy(now: datetime) -> float:
    """Return how busy the shop is, 0 to 1: little at night, half as much at weekends."""
    hour = now.hour + now.minute / 60
    by_day = 0.15 + 0.85 * max(0.0, math.sin(math.pi * (hour - 6) / 15))
    return by_day * (0.5 if now.weekday() >= 5 else 1.0)


def _poisson(dice: random.Random, expected: float) -> int:
    if expected > 50:
        return max(0, round(dice.gauss(expected, math.sqrt(expected))))
    limit, product, number = math.exp(-expected), dice.random(), 0
    while product > limit:
        product *= dice.random()
        number += 1
    return number


class Fault(NamedTuple):
    """What is done to the shop before each tick of a fault, the first time with True, and the finding about it."""

    plant: Callable[[Shop, bool], None]
    is_told_by: Callable[[Need], bool]


def _failing(job: str, error: str, in_a_minute: float, *, is_retried: bool = False) -> Callable[[Shop, bool], None]:
    """Return what has about that many more attempts of the class fail in a minute."""

    def plant(shop: Shop, is_first: bool) -> None:
        number = _poisson(shop.dice, in_a_minute * (shop.tick / MINUTE))
        shop.fail(shop.extra, job, error, number, is_retried=is_retried)

    return plant


def _once(plant: Callable[[Shop], object]) -> Callable[[Shop, bool], None]:
    return lambda shop, is_first: plant(shop) if is_first else None  # type: ignore[return-value]


def _stop_all(shop: Shop) -> None:
    shop.away = dict.fromkeys(NODES, (shop.now, shop.now + DAY))


def _hang(shop: Shop) -> None:
    shop.start("shop:SendMail", shop.now + DAY)


def _forget_schedule(shop: Shop) -> None:
    """Have a schedule whose time has come, and no node that starts its job."""
    template = shop.a_job("reports", "shop:Report")
    schedule = NamedSchedule(name="nightly", trigger=Every(86400, shop.now), template=template, created_at=shop.now)
    shop.store.replace_schedule(None, replace(schedule, next_run_at=shop.now), [], shop.now)


def _unloadable(shop: Shop) -> None:
    error = Failure(type="ModuleNotFoundError", message="No module named 'stripe'")
    job, at = shop.a_job("billing", "shop:Charge"), shop.now + HOUR
    job = replace(job, status=Status.POSTPONED, cause=Cause.UNLOADABLE, ready_at=at, error=error)
    shop.store.add([job.at_rank()])


def _unserved(shop: Shop) -> None:
    """Have both nodes take other queues than the one of a new job."""
    shop.queues = {"mail": None, "billing": None}
    shop.store.add([shop.a_job("video", "shop:Cut")])


def _of(subject: Subject, *words: str) -> Callable[[Need], bool]:
    return lambda need: need.subject is subject and all(word in need.says for word in words)


FAULTS: Mapping[str, Fault] = {
    "a new error of one customer": Fault(
        _failing("shop:MakeInvoice", "KeyError: 'vat' (total)", 12), _of(Subject.CLASS, "KeyError: 'vat'")
    ),
    "a known error becomes frequent": Fault(
        _failing("shop:SendMail", "SMTPRecipientsRefused: … (send(mail))", 25), _of(Subject.CLASS, "SMTPRecipients")
    ),
    "an endless retry loop": Fault(
        _failing("shop:PushPrice", "Refused: (api.push(price))", 800, is_retried=True),
        lambda need: need.name == "shop:PushPrice",
    ),
    "a class fails": Fault(_failing("shop:Import", "KeyError: 'price'", 20), _of(Subject.CLASS, "shop:Import")),
    "a backlog": Fault(_once(lambda shop: shop.add_mails({}, 2.5)), _of(Subject.QUEUE, "queue mail")),
    "a job waits behind another queue": Fault(
        _once(lambda shop: shop.store.add([shop.a_job("billing", "shop:MakeInvoice")])),
        _of(Subject.QUEUE, "queue billing"),
    ),
    "a node is killed": Fault(_once(lambda shop: shop.killed.add("web-2")), _of(Subject.NODE, "web-2")),
    "no node is left": Fault(_once(_stop_all), _of(Subject.NODE, "no node is running")),
    "a run hangs": Fault(_once(_hang), _of(Subject.RUN, "shop:SendMail")),
    "a schedule is not served": Fault(_once(_forget_schedule), _of(Subject.SCHEDULE, "nightly")),
    "a class cannot be loaded": Fault(_once(_unloadable), _of(Subject.UNLOADABLE, "shop:Charge")),
    "no node takes a queue": Fault(_once(_unserved), _of(Subject.QUEUE, "video")),
}
"""The faults that are planted, by name."""

WATCHED = 8 * MINUTE
"""How long a planted fault may remain unnoticed until it counts as not found."""


class Findings(NamedTuple):
    """The findings of a time in which nothing was planted, and after how many seconds each fault was reported."""

    false: list[tuple[datetime, str]]
    found_after: Mapping[str, float]
    """By fault; infinite if it was not found, negative if the same was reported before."""


def played(seed: int, folder: Path, hours: int) -> Findings:
    """Play a week that nobody looks at, then these hours with a look each minute, then each fault on a copy."""
    (folder / "shop").mkdir()
    shop = Shop(folder / "shop", seed, MONDAY, HOUR)
    with closing(shop.store):
        while shop.now < MONDAY + 7 * DAY - HOUR:  # the figures of an hour are those of its first minute
            shop.step()
        shop.tick, false, open_until = MINUTE, [], dict[str, datetime]()
        while shop.now < MONDAY + 7 * DAY + hours * HOUR:
            shop.step()
            for need in shop.look(is_whole=shop.now.minute % 10 == 1):
                if need.key not in open_until or open_until[need.key] < shop.now:
                    false.append((shop.now, need.says))
                open_until[need.key] = shop.now + 5 * MINUTE
    found_after = {}
    for number, (name, fault) in enumerate(FAULTS.items()):
        copy = shutil.copytree(shop.folder, folder / str(number))
        found_after[name] = _found_after(Shop(copy, 1000 * seed + number, shop.now, LOOK), fault)
        shutil.rmtree(copy)
    return Findings(false, found_after)


def _found_after(shop: Shop, fault: Fault) -> float:
    with closing(shop.store):
        for _ in range(shop.dice.randint(1, 4)):  # it may come at any time of a minute
            shop.step()
        if any(map(fault.is_told_by, shop.look())):
            return -1.0
        began = shop.now
        while shop.now < began + WATCHED:
            fault.plant(shop, shop.now == began)
            shop.step()
            if any(map(fault.is_told_by, shop.look())):
                return (shop.now - began).total_seconds()
    return math.inf


def main(hours: int, *seeds: int) -> None:
    """Play the hours of each seed, and print what was found."""
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            findings = played(seed, Path(folder), hours)
        after = ", ".join(f"{seconds:g}" for seconds in findings.found_after.values())
        print(f"seed {seed}: {len(findings.false)} false; faults found after {after} s", flush=True)
        for at, says in findings.false:
            print(f"    {at:%a %H:%M} {says[:180]}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
