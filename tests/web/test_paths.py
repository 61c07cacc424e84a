"""The dashboard below a path, in a real browser behind a proxy that passes the path on, or removes and names it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from taskqueue import Scheduler
from taskqueue.web.application import application
from taskqueue.web.settings import settings_from
from tests.web import jobs
from tests.web.conftest import PASSWORD
from tests.web.proxies import proxied
from tests.web.servers import served

ROOT = "/jobs"
"""The path, which is also that of a page."""

NAMES = ("Overview", "Jobs", "Queues", "Classes", "Schedules", "Nodes", "Failures", "Audit")
ADDRESSES = re.compile(r'\b(?:href|src|action|formaction|data-live|data-url)="([^"]+)"')

People = tuple[Path, dict[str, str]]
Open = Callable[..., Page]


class Shop:
    """A store with jobs, and a dashboard on it below the path."""

    def __init__(self, scheduler: Scheduler, address: str) -> None:
        self.scheduler = scheduler
        self.address = address
        self.failed = scheduler.run_job(jobs.Invoice, {"password": "hunter2"})
        scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * 1-5")
        scheduler.pause("letters", "moves", by="ana")


@pytest.fixture(scope="module", params=["passes the path on", "removes the path"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, people: People) -> Iterator[Shop]:
    """Return a dashboard behind a proxy for all tests of this file."""
    settings = settings_from(users=people[0], hosts=["127.0.0.1"], proxies=["127.0.0.1"], addable=jobs.ADDABLE)
    removes_path = request.param == "removes the path"
    if not removes_path:
        settings = replace(settings, path=ROOT)
    url = f"sqlite://{tmp_path_factory.mktemp('shop')}/jobs.db?synchronous=normal"
    with (
        Scheduler(url) as scheduler,
        served(application(scheduler, settings)) as behind,
        proxied(behind, ROOT, removes_path=removes_path) as address,
    ):
        yield Shop(scheduler, address)


def test_each_page_is_reached_by_its_link(visit: Open, shop: Shop) -> None:
    page = visit("/")
    for name in NAMES:
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(page.get_by_role("link", name=name, exact=True)).to_have_attribute("aria-current", "page")
        assert page.url.startswith(f"{shop.address}/")
    page.goto(shop.address.removesuffix(ROOT) + ROOT + "/jobs")
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")


def test_every_address_on_every_page_is_below_the_path(visit: Open, shop: Shop) -> None:
    page = visit("/")
    job = f"/jobs/{shop.failed.id}"
    paths = ["/", "/queues", "/schedules", "/schedules/nightly", "/nodes", "/failures", "/audit", "/jobs", job]
    paths += ["/classes", f"/classes/{shop.failed.job}", "/queues/mail", "/workflows"]
    paths += ["/jobs?status=failed", f"{job}/edit", "/jobs/matching?action=again&status=failed"]
    for path in paths:
        answer = page.request.get(f"{shop.address}{path}")
        assert answer.status == 200, path
        addresses = [one for one in ADDRESSES.findall(answer.text()) if not one.startswith("#")]
        assert len(addresses) > 10, path
        assert [one for one in addresses if not one.startswith(f"{ROOT}/")] == [], path


def test_the_files_of_a_page_and_its_cookie_are_below_the_path(visit: Open, shop: Shop) -> None:
    page = visit("/")
    loaded = page.evaluate("performance.getEntriesByType('resource').map(one => one.name)")

    assert len([one for one in loaded if one.startswith(f"{shop.address}/static/")]) >= 4
    assert [one for one in loaded if not one.startswith(f"{shop.address}/")] == []
    assert [(one["name"], one["path"]) for one in page.context.cookies()] == [("taskqueue_session", ROOT)]


def test_a_page_is_updated_when_something_happens(visit: Open, shop: Shop) -> None:
    added = shop.scheduler.add_job(jobs.Mail, queue="live")
    page = visit(f"/jobs/{added.id}")
    expect(page.get_by_role("button", name="Cancel…")).to_be_visible()

    added.cancel()

    expect(page.get_by_role("button", name="Run again", exact=True)).to_be_visible()


def test_an_action_leads_to_its_page_and_can_be_undone(visit: Open, shop: Shop) -> None:
    page = visit(f"/jobs/{shop.failed.id}")
    page.get_by_role("button", name="show secrets").click()
    expect(page.get_by_role("region", name="data", exact=True)).to_contain_text("hunter2")
    page.goto(f"{shop.address}/jobs/{shop.failed.id}")
    page.get_by_role("button", name="Run again", exact=True).click()
    expect(page.locator(".flash")).to_contain_text("this copy runs again")
    assert page.url.startswith(f"{shop.address}/jobs/")

    page.goto(f"{shop.address}/queues")
    page.get_by_role("button", name="Resume").first.click()
    expect(page.locator(".flash")).to_contain_text("the queue is resumed")
    shop.scheduler.pause("letters", "moves", by="ana")


def test_a_user_logs_in_to_the_page_that_was_asked_for_and_out(chromium: Browser, shop: Shop) -> None:
    page = chromium.new_page()
    page.goto(f"{shop.address}/jobs?queue=mail")
    page.get_by_label("Name").fill("olaf")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{shop.address}/jobs?queue=mail")

    page.get_by_role("button", name="Log out").click()

    expect(page).to_have_url(f"{shop.address}/login")
    assert page.context.cookies() == []
    page.close()


def test_programs_find_the_operations_below_the_path(shop: Shop, visit: Open) -> None:
    page = visit("/")
    document = page.request.get(f"{shop.address}/api/v1/openapi.json").json()
    [server] = document["servers"]

    answer = page.request.get(f"{shop.address.removesuffix(ROOT)}{server['url']}/jobs/{shop.failed.id}")

    assert answer.json()["status"] == "FAILED"
