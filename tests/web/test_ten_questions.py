"""What somebody on call asks first: each answer is on a page within two clicks from the overview."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
from playwright.sync_api import Locator, Page, expect

from taskqueue import Scheduler
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import Done
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store
from taskqueue.store.open import open_store
from taskqueue.web import app
from tests.insight.test_failure_groups import run_all
from tests.nodes import LIMIT, eventually
from tests.store.records import a_record
from tests.web import jobs
from tests.web.servers import served

INVOICE = f"{jobs.__name__}:Invoice"
ABOUT = {"host": "web", "pid": 4711, "pm": "dynamic", "max_children": 8, "busy": 0, "version": "0.1.0"}
Step: TypeAlias = "tuple[str, Literal['link', 'button'], str]"
"""A click: the label of a part of the page, or "" for all of it, and the role and name of what is clicked there."""


class Shop:
    """A store in which one customer's invoices fail, a limit is full, a job runs and a node is silent."""

    def __init__(self, scheduler: Scheduler, store: Store, address: str) -> None:
        self.scheduler = scheduler
        self.address = address
        self.running = JobId()
        now = store.now()
        for name, until in (("web-1", now + timedelta(hours=1)), ("web-2", now - timedelta(minutes=5))):
            seat, since = Holder(seat=name, incarnation="a1b2"), now - timedelta(hours=1)
            store.acquire(Lease(name=f"seat:{name}", holder=seat, since=since, until=until, about=ABOUT), since)
        yesterday = now - timedelta(days=1)
        for at, number in ((yesterday, 60), (now, 30)):
            done = [a_record(job=INVOICE, created_at=at, ready_at=at, tags=("customer:acme",)) for _ in range(number)]
            run_all(store, done, Done(), at)
        for _ in range(10):
            scheduler.run_job(jobs.Invoice, {}, tags=["customer:initech"])
        scheduler.pause("mail", "the server moves", by="ana")
        scheduler.add_jobs((jobs.Mail, None, {"limits": "2 name=smtp"}) for _ in range(5))
        scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * *", tz="Europe/Berlin")
        reader = scheduler.overview_reader()
        eventually(lambda: any("new error" in need.says for need in reader.read().needs))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, people: tuple[Path, dict[str, str]]) -> Iterator[Shop]:
    """Return a dashboard while a job runs."""
    url = f"sqlite://{tmp_path_factory.mktemp('shop')}/jobs.db?synchronous=normal"
    with (
        Scheduler(url) as scheduler,
        closing(open_store(url)) as store,
        served(app(scheduler, users=people[0], hosts=["127.0.0.1"], addable=jobs.ADDABLE)) as address,
    ):
        shop = Shop(scheduler, store, address)
        jobs.GATE.clear()
        running = threading.Thread(target=scheduler.run_job, args=(jobs.Slow,), kwargs={"id": shop.running})
        running.start()
        try:
            eventually(lambda: scheduler.count_jobs({"id": shop.running, "progress": {"$gt": 0}}))
            yield shop
        finally:
            jobs.GATE.set()
            running.join(LIMIT)


def menu(name: str) -> Step:
    """Return the click on a page of the navigation."""
    return ("Main", "link", name)


TO_WAITING: Step = ("Queues", "link", "5")
TO_RUNNING: Step = ("Running now", "link", "Slow")
TO_FAILED: Step = ("Failed jobs by class and type of error", "link", "Run all jobs of Invoice with KeyError again")

QUESTIONS: Sequence[tuple[str, Sequence[Step], Sequence[tuple[str, str]]]] = [
    ("what is wrong", [], [("Needs attention", "Invoice fails with a new error"), ("Needs attention", "web-2")]),
    ("why is a job late", [TO_WAITING, ("Jobs", "link", "Mail")], [("Why", "Queue mail is paused")]),
    ("why are these jobs late", [TO_WAITING], [("Jobs", "queue is paused")]),
    (
        "what failed since yesterday",
        [menu("Failures")],
        [(TO_FAILED[0], "last 24 hours"), (TO_FAILED[0], "KeyError.*10")],
    ),
    ("is it new", [menu("Failures")], [("Now, against the last week", "KeyError.*new.*since")]),
    (
        "which customer is affected",
        [menu("Classes"), ("Last 24 hours", "link", "Invoice")],
        [("Tags and meta", "customer:initech.*10.*10.*100 %.*customer:acme.*0 %")],
    ),
    ("what runs tonight", [], [("Next 24 hours", "0 scheduled.*0 retrying"), ("Next 24 hours", "nightly.*02:00")]),
    ("which node is sick", [menu("Nodes")], [("web-1", "works"), ("web-2", "silent")]),
    ("run again safely", [menu("Failures"), TO_FAILED], [("", "10 jobs.*Or in stages.*Only the first.*Rate")]),
    ("pause", [menu("Queues"), ("Queues", "button", "Pause every queue…")], [("", "Reason")]),
    ("drain", [menu("Nodes"), ("web-1", "button", "Drain…")], [("web-1", "Drain the node")]),
    ("cancel and change", [TO_WAITING, ("Jobs", "link", "Mail")], [("", "Cancel….*Change…")]),
    ("change a limit", [menu("Queues"), ("Limits", "link", "Change limit smtp")], [("", "Limit smtp.*At most")]),
    ("edit data", [menu("Jobs"), ("Jobs", "link", "Invoice")], [("", "Run again with other data…")]),
    ("log", [menu("Jobs"), ("Jobs", "link", "Invoice")], [("Log", "no price in")]),
    ("progress", [TO_RUNNING], [("Timeline", "62 %.*row 124,000 of 200,000")]),
    ("stack", [TO_RUNNING, ("", "link", "Stack")], [("", "Where it is now.*Cancel…")]),
]
"""Each question, the clicks, and patterns of the answers with the part of the page that has them; "" is all of it."""


@pytest.mark.parametrize(("clicks", "answers"), [rest for _, *rest in QUESTIONS], ids=[name for name, *_ in QUESTIONS])
def test_the_answer_is_within_two_clicks_from_the_overview(
    visit: Callable[..., Page], clicks: Sequence[Step], answers: Sequence[tuple[str, str]]
) -> None:
    assert len(clicks) <= 2
    page = visit("/")
    for place, role, name in clicks:
        part(page, place).get_by_role(role, name=name, exact=True).first.click()
    for place, answer in answers:
        expect(part(page, place)).to_contain_text(re.compile(answer, re.DOTALL))


def part(page: Page, label: str) -> Locator:
    """Return the outermost part of the page with this label."""
    return page.get_by_label(label, exact=True).first if label else page.get_by_role("main")
