"""The page of a bulk action: 900 jobs run again as five, then 50 a minute, and then it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from starlette.testclient import TestClient

from taskqueue import Scheduler, Status
from taskqueue.scheduler.changes import STAGE
from taskqueue.store.open import open_store
from taskqueue.web import app
from tests.store.records import BROKEN, a_record
from tests.web import jobs
from tests.web.conftest import MakeBrowser, log_in
from tests.web.servers import served

People = tuple[Path, dict[str, str]]
Open = Callable[..., Page]


class Shop:
    """A store with failed jobs, and a dashboard on it."""

    def __init__(self, scheduler: Scheduler, address: str) -> None:
        self.scheduler = scheduler
        self.address = address


def fail(url: str, queue: str, number: int) -> None:
    """Store many jobs of a queue that have failed."""
    with closing(open_store(url)) as store:
        now = store.now()
        record = replace(
            a_record(job=f"{jobs.__name__}:Mail", queue=queue), status=Status.FAILED, ready_at=None, ended_at=now
        )
        store.add([replace(record, id=a_record().id, error=BROKEN) for _ in range(number)])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, people: People) -> Iterator[Shop]:
    """Return a dashboard for all tests of this file."""
    url = f"sqlite://{tmp_path_factory.mktemp('shop')}/jobs.db?synchronous=normal"
    with Scheduler(url) as scheduler:
        fail(url, "invoices", 900)
        with served(app(scheduler, users=people[0], hosts=["127.0.0.1"])) as address:
            yield Shop(scheduler, address)


def test_900_jobs_run_again_as_five_then_50_a_minute_and_then_it_is_stopped(visit: Open, shop: Shop) -> None:
    page = visit("/jobs/matching?action=again&status=failed&queue=invoices")
    page.get_by_label("Name").fill("vat-fix")
    expect(page.get_by_label("Only the first")).to_have_value("5")
    page.get_by_role("button", name="Begin the bulk action").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("Bulk action vat-fix")
    expect(page.get_by_role("heading", name="Copies of 5 of 900 jobs")).to_be_visible()
    shop.scheduler.run_pending()
    expect(page.get_by_role("row").filter(has_text="1: the first 5")).to_contain_text("5 done")

    page.get_by_role("button", name="Run the rest…").click()
    page.get_by_label("Rate, such as 50/m").fill("50/m")
    page.get_by_label("Queue").fill("backfill")
    page.get_by_role("button", name="Run the rest", exact=True).click()
    expect(page.get_by_role("heading", name="Copies of 900 of 900 jobs")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="2: all at 50/m in queue backfill")).to_contain_text("later")
    expect(page.get_by_role("button", name="Run the rest…")).to_have_count(0)

    page.get_by_role("button", name="Stop…").click()
    page.get_by_role("textbox", name="Reason").fill("the bank has called")
    page.get_by_role("button", name="Stop vat-fix").click()
    expect(page.locator(".flash")).to_contain_text("the copies that had not started are canceled")
    row = page.get_by_role("row").filter(has_text="2: all at 50/m")
    expect(row).to_contain_text("895 canceled")

    row.get_by_role("link", name="canceled").click()
    expect(page.get_by_role("row").filter(has_text="Mail").first).to_contain_text("canceled")
    page.goto(f"{shop.address}/audit")
    expect(page.get_by_role("row").filter(has_text="stop bulk action")).to_contain_text("the bank has called")
    page.get_by_role("link", name="vat-fix").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Bulk action vat-fix")


def begin(name: str, **more: str) -> dict[str, str]:
    """Return the form that begins a bulk action."""
    return {"name": name, "at": "4102444800000", "status": "failed", "first": "5", **more}


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_rights_are_those_of_the_single_action(scheduler: Scheduler, url: str, browser: MakeBrowser) -> None:
    fail(url, "mail", 3)
    fail(url, "invoices", 3)
    mia, olaf, rita = browser(), browser(), browser()
    csrf = {client: log_in(client, name) for client, name in ((mia, "mia"), (olaf, "olaf"), (rita, "rita"))}

    def post(client: TestClient, path: str, **form: str) -> int:
        return client.post(path, data={**form, "csrf": csrf[client]}).status_code

    assert post(rita, "/bulk", **begin("reader")) == 403
    assert post(mia, "/bulk", **begin("hers", queue="")) == 303  # the jobs of her queue alone
    assert post(mia, "/bulk", **begin("other", first="1", starts="+1 hour")) == 303
    assert scheduler.count_jobs({"queue": "mail", "status": "WAITING"}) == 3
    assert post(olaf, "/bulk", **begin("his", first="1", starts="+1 hour")) == 303
    for path in ("/bulk/his/stop", "/bulk/his/rest"):
        assert (post(mia, path), post(rita, path)) == (403, 403)
    assert post(mia, "/bulk/hers/rest", queue="invoices") == 403
    stage = next(scheduler.get_jobs({"queue": "mail", "job": STAGE})).id
    assert "Run again" not in mia.get(f"/jobs/{stage}").text
    assert post(mia, f"/jobs/{stage}/again") == 422
    assert post(mia, "/bulk/hers/stop") == 303
    assert rita.get("/bulk/his").status_code == 200
    assert "Stop…" not in rita.get("/bulk/his").text
    assert post(olaf, "/bulk/his/rest", rate="1/s") == 303
    assert scheduler.count_jobs({"queue": "invoices", "status": {"$lt": "PROCESSING"}}) == 3


@pytest.mark.parametrize(
    ("form", "status", "words"),
    [
        ({"first": "0"}, 422, "first=0: pass a whole number"),
        ({"first": "some"}, 422, "pass a whole number"),
        ({"first": "9" * 5000}, 422, "pass a whole number"),
        ({"rate": "50"}, 422, "write a number and a unit"),
        ({"starts": "soon"}, 422, "is not a time"),
        ({"name": "a/b"}, 422, "pass 1 to 64 letters"),
        ({"name": "taken"}, 422, "has this name already: choose another one"),
    ],
)
def test_what_cannot_be_begun_is_said(
    scheduler: Scheduler, url: str, browser: MakeBrowser, form: dict[str, str], status: int, words: str
) -> None:
    fail(url, "mail", 1)
    client = browser()
    csrf = log_in(client)
    assert client.post("/bulk", data={**begin("taken"), "csrf": csrf}).status_code == 303

    answer = client.post("/bulk", data={**begin("new"), **form, "csrf": csrf})

    assert (answer.status_code, words in answer.text) == (status, True)
    assert client.get("/bulk/unknown").status_code == 404
