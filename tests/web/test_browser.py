"""The dashboard in a real browser: pages, actions, live updates, lost connections, roles, keys, and hostile text."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from taskqueue import Scheduler, workflows
from taskqueue.model.ids import JobId
from taskqueue.scheduler import bulk_actions
from taskqueue.web import app
from tests.nodes import LIMIT, eventually, node
from tests.web import jobs
from tests.web.conftest import PASSWORD
from tests.web.servers import Server, listen, port_of, served

HOSTS = ["127.0.0.1"]
WIDER = "[...document.querySelectorAll('.scroll')].some(one => one.scrollWidth > one.clientWidth)"
OF_ANOTHER_DAY = """
document.querySelectorAll("time[data-kind=clock], time[data-kind=minute]").forEach(
    (one) => { one.textContent = `2026-11-28 ${one.textContent.slice(-5)}`; })
"""
"""Gives each time of the day a date, as it has when it is of another day than today."""

NAMES = ("Overview", "Jobs", "Queues", "Classes", "Schedules", "Nodes", "Failures", "Audit")
LONG = "a-very-long-queue-name-that-nobody-would-choose-but-somebody-did-in-production"

People = tuple[Path, dict[str, str]]
Open = Callable[..., Page]


class Shop:
    """A store with jobs in every status, and a dashboard on it."""

    def __init__(self, scheduler: Scheduler, address: str) -> None:
        self.scheduler = scheduler
        self.address = address
        secrets = {"to": jobs.HOSTILE, "password": "hunter2"}
        self.done = scheduler.run_job(jobs.Mail, secrets, tags=["news"])
        self.failed = scheduler.run_job(jobs.Invoice, {"customer": 7})
        globex = scheduler.run_job(jobs.Invoice, {}, tags=["customer:globex"])
        self.waiting = scheduler.add_job(jobs.Mail, {"to": "ann"}, queue=LONG, limits="2 name=smtp")
        plan = bulk_actions.plan_of(scheduler, {"first": 1})
        bulk_actions.begin(scheduler, "repair", {"id": str(globex.id)}, plan, "olaf")
        scheduler.set_limit("smtp", 3, "they allow more", by="ana")
        self.chain = workflows.chain(scheduler, jobs.Mail, [jobs.Mail, jobs.Mail], jobs.Mail)
        scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * 1-5", tz="Europe/Berlin")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, people: People) -> Iterator[Shop]:
    """Return a dashboard with jobs for all tests of this file."""
    folder = tmp_path_factory.mktemp("shop")
    with (
        Scheduler(f"sqlite://{folder}/jobs.db?synchronous=normal") as scheduler,
        served(app(scheduler, users=people[0], hosts=HOSTS, addable=jobs.ADDABLE)) as address,
    ):
        yield Shop(scheduler, address)


def heading(page: Page) -> str:
    return page.get_by_role("heading", level=1).inner_text()


def test_each_page_of_the_navigation_is_reached_by_its_link(visit: Open) -> None:
    page = visit("/")
    for name in NAMES:
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(page.get_by_role("link", name=name, exact=True)).to_have_attribute("aria-current", "page")


def test_the_navigation_has_a_link_to_the_openapi_document(visit: Open, shop: Shop) -> None:
    page = visit("/")
    address = page.get_by_role("link", name="API", exact=True).get_attribute("href")

    assert page.request.get(f"{shop.address}{address}").json()["openapi"] == "3.1.0"


def test_the_overview_says_what_needs_attention_and_how_old_backlogs_are(visit: Open, shop: Shop) -> None:
    page = visit("/")

    expect(page.get_by_text("Not working: no node is live")).to_be_visible()
    expect(page.get_by_role("region", name="Queues").get_by_role("row", name=LONG)).to_be_visible()
    expect(page.get_by_label("Needs attention").get_by_role("listitem").first).to_be_visible()


def test_every_page_and_its_tab_have_the_number_of_things_to_do(chromium: Browser, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/jobs.db?synchronous=normal"
    with Scheduler(url) as scheduler, served(app(scheduler, local=True)) as address:
        page = chromium.new_page()
        page.goto(f"{address}/schedules")
        badge = page.get_by_role("navigation").get_by_title("Needs attention")
        expect(page).to_have_title("(1) Schedules – taskqueue")  # no node lives
        expect(badge).to_have_text("1 to do")

        scheduler.pause("mail", "tests")

        expect(page).to_have_title("(2) Schedules – taskqueue")
        expect(badge).to_have_text("2 to do")
        scheduler.resume("mail")
        with node(url, tmp_path):
            expect(page).to_have_title("Schedules – taskqueue")
            expect(badge).to_be_hidden()
        page.close()


def test_a_failed_job_shows_its_error_log_data_and_timeline(visit: Open, shop: Shop) -> None:
    page = visit(f"/jobs/{shop.failed.id}")

    assert heading(page) == "Invoice"
    expect(page.get_by_role("region", name="Traceback")).to_contain_text("raise KeyError")
    expect(page.get_by_role("log")).to_contain_text("no price in")
    expect(page.get_by_role("region", name="data", exact=True)).to_contain_text('"customer": 7')
    expect(page.get_by_role("img", name="Timeline of waits and attempts")).to_be_visible()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="copy").last.click()
    expect(page.get_by_role("button", name="copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == '{\n  "customer": 7\n}'


def test_text_of_jobs_is_harmless_and_secrets_are_masked(visit: Open, shop: Shop) -> None:
    for process in (shop.failed, shop.done):
        page = visit(f"/jobs/{process.id}")
        expect(page.get_by_text("onerror=").first).to_be_visible()
        assert "owned" not in page.title()
    assert "hunter2" not in page.content()
    page.get_by_role("button", name="show secrets").click()
    expect(page.get_by_role("region", name="data", exact=True)).to_contain_text("hunter2")
    assert shop.scheduler.audit(1)[0].action == "unmask"
    visit("/jobs")
    assert "owned" not in visit("/audit").title()


def test_jobs_are_filtered_by_a_query_whose_errors_stand_beside_it(visit: Open, shop: Shop) -> None:
    page = visit("/jobs")
    page.keyboard.press("/")
    page.keyboard.type('{"data.customer": 7}')
    page.keyboard.press("Enter")
    expect(page.get_by_role("row")).to_have_count(2)

    page.get_by_label("Filter or id").fill('{"data.customer"')
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("alert")).to_contain_text("the query is not JSON")

    page.go_back()
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_label("Filter or id").fill(str(shop.done.id))
    page.get_by_role("button", name="Filter").click()
    expect(page).to_have_url(re.compile(f"/jobs/{shop.done.id}$"))


def test_a_filter_is_completed_by_keys_and_narrowed_by_chips(visit: Open, shop: Shop) -> None:
    shop.scheduler.add_job(jobs.Mail, queue="chips", tags=["customer:initech", "a b"])
    shop.scheduler.add_job(jobs.Mail, queue="chips", tags=["customer:acme"])
    page = visit("/jobs")
    box = page.get_by_role("combobox", name="Filter or id")
    options = page.get_by_role("listbox", name="Suggestions").get_by_role("option")
    page.keyboard.press("/")
    page.keyboard.type("que")
    expect(options.first).to_have_text(re.compile("^queue:"))
    page.keyboard.press("Tab")
    expect(box).to_have_value("queue:")
    page.keyboard.type("chip")
    expect(options).to_have_count(1)
    page.keyboard.press("ArrowDown")
    expect(options.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(box).to_have_value("queue:chips ")
    page.keyboard.press("Escape")
    expect(options).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.get_by_role("row")).to_have_count(3)

    page.get_by_role("link", name="customer:initech").click()
    expect(page.get_by_role("row")).to_have_count(2)
    expect(box).to_have_value("queue:chips tag:customer:initech")


def test_new_jobs_are_announced_and_not_pushed_into_the_list(visit: Open, shop: Shop) -> None:
    page = visit("/jobs?queue=fresh")
    shop.scheduler.add_job(jobs.Mail, queue="fresh")
    with page.expect_response(lambda answer: "/live?" in answer.url):
        page.reload()
    expect(page.get_by_role("row")).to_have_count(2)
    shop.scheduler.add_job(jobs.Mail, queue="fresh")

    expect(page.get_by_text("1 new job.")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(2)
    page.get_by_role("link", name="Show").click()
    expect(page.get_by_role("row")).to_have_count(3)


def test_a_running_job_is_followed_to_its_end(visit: Open, shop: Shop) -> None:
    jobs.GATE.clear()
    process = shop.scheduler.add_job(jobs.Slow, queue="slow")
    page = visit(f"/jobs/{process.id}")
    running = threading.Thread(target=shop.scheduler.run_pending, kwargs={"once": True})
    running.start()
    try:
        expect(page.get_by_text("row 124,000 of 200,000").first).to_be_visible()
        page.get_by_role("link", name="Stack").click()
        expect(page.get_by_role("alert")).to_be_visible()  # no node runs it, which the page says
        page.get_by_role("link", name="Back").click()
    finally:
        jobs.GATE.set()
        running.join(LIMIT)
    expect(page.locator("#content .status").first).to_have_text("done")


def test_a_paused_page_waits_and_goes_on(visit: Open, shop: Shop) -> None:
    page = visit("/queues")
    page.keyboard.press("p")
    expect(page.get_by_text("Paused: nothing on this page changes")).to_be_visible()
    with page.expect_request(lambda request: request.url.endswith("/live?of=/queues")):
        page.reload()
    page.get_by_role("button", name="live").click()
    shop.scheduler.add_job(jobs.Mail, queue="pausing")
    expect(page.get_by_role("row", name="pausing")).to_have_count(0)

    page.get_by_role("button", name="paused").click()
    expect(page.get_by_role("row", name="pausing")).to_be_visible()


def test_a_lost_connection_is_said_and_what_was_missed_comes_after(
    chromium: Browser, people: People, tmp_path: Path
) -> None:
    with Scheduler(f"sqlite://{tmp_path}/jobs.db?synchronous=normal") as scheduler:
        application = app(scheduler, local=True)
        listening = listen()
        port = port_of(listening)
        server = Server(application, listening)
        server.begin()
        page = chromium.new_page()
        page.goto(f"http://127.0.0.1:{port}/queues")
        expect(page.get_by_text("No queues yet")).to_be_visible()
        server.end()
        expect(page.get_by_text("The connection is lost")).to_be_visible()
        scheduler.add_job(jobs.Mail, queue="meanwhile")
        server = Server(application, listen(port))
        server.begin()
        try:
            expect(page.get_by_role("row", name="meanwhile")).to_be_visible()
            expect(page.get_by_text("The connection is lost")).to_be_hidden()
        finally:
            page.close()
            server.end()


def test_a_store_that_is_away_is_said(chromium: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    with (
        Scheduler(f"sqlite://{folder}/jobs.db?synchronous=normal") as scheduler,
        served(app(scheduler, local=True)) as address,
    ):
        page = chromium.new_page()
        page.goto(f"{address}/queues")
        expect(page.get_by_text("No queues yet")).to_be_visible()
        folder.rename(tmp_path / "elsewhere")
        folder.mkdir()
        (folder / "jobs.db").write_bytes(b"another program's file")
        expect(page.get_by_text("The connection is lost")).to_be_visible()
        page.reload()
        expect(page.get_by_role("alert")).to_contain_text(str(folder))
        expect(page.get_by_role("link", name="Try again")).to_be_visible()
        expect(page.get_by_role("button", name="live")).to_be_hidden()
        page.close()


def test_a_queue_is_paused_with_a_reason_and_resumed_by_undo(visit: Open, shop: Shop) -> None:
    page = visit("/queues")
    page.get_by_role("row", name=LONG).get_by_role("button", name="Pause").click()
    page.get_by_role("textbox", name="Reason").fill("db migration")
    page.get_by_role("button", name="Pause the queue").click()
    expect(page.get_by_role("row", name=LONG)).to_contain_text("paused by olaf")

    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("the queue is resumed")).to_be_visible()
    assert shop.scheduler.paused() == []


def test_a_job_is_canceled_and_its_page_says_by_whom(visit: Open, shop: Shop) -> None:
    process = shop.scheduler.add_job(jobs.Mail)
    page = visit(f"/jobs/{process.id}")
    page.get_by_role("button", name="Cancel…", exact=True).click()
    page.get_by_role("textbox", name="Reason").fill("not needed")
    page.get_by_role("button", name="Cancel the job").click()

    expect(page.locator("#content .status").first).to_have_text("canceled")
    expect(page.get_by_label("Why")).to_contain_text("not needed (olaf)")


def test_an_ended_job_runs_again_also_with_other_data(visit: Open, shop: Shop) -> None:
    page = visit(f"/jobs/{shop.done.id}")
    page.get_by_role("button", name="Run again", exact=True).click()
    expect(page.get_by_text("this copy runs again")).to_be_visible()

    page.goto(f"{shop.address}/jobs/{shop.done.id}")
    page.get_by_role("link", name="Run again with other data").click()
    page.get_by_label("Data, as JSON").fill('{"to": ')
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_role("alert")).to_contain_text("not JSON")
    page.get_by_label("Data, as JSON").fill('{"to": "bob"}')
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_role("region", name="data", exact=True)).to_contain_text('"to": "bob"')


def test_a_waiting_job_gets_another_queue_and_priority(visit: Open, shop: Shop) -> None:
    process = shop.scheduler.add_job(jobs.Mail)
    page = visit(f"/jobs/{process.id}")
    page.get_by_role("link", name="Change").click()
    page.get_by_label("Queue").fill("fast")
    page.get_by_label("Priority").fill("-99")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_contain_text("priority")
    page.get_by_label("Priority").fill("-5")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Change the job").click()

    expect(page.get_by_text("fast, priority -5")).to_be_visible()


def test_all_jobs_that_match_are_canceled_behind_their_number(visit: Open, shop: Shop) -> None:
    added = shop.scheduler.add_jobs([(jobs.Mail, None, {"queue": "batch"}) for _ in range(7)])
    page = visit("/jobs?queue=batch")
    page.get_by_role("link", name="Cancel all that match").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 7 jobs")
    expect(page.get_by_role("row")).to_have_count(6)
    page.get_by_role("button", name="Cancel 7 jobs").click()

    expect(page.get_by_text("Done: 7 jobs.")).to_be_visible()
    assert {process.refresh().status.name for process in added} == {"CANCELED"}


def test_a_schedule_shows_its_times_in_words_and_zones_and_starts_a_job(visit: Open, shop: Shop) -> None:
    page = visit("/schedules")
    expect(page.get_by_text("At 02:00, Monday through Friday")).to_be_visible()
    page.get_by_role("link", name="nightly").click()
    page.get_by_label("Time zone").fill("Asia/Tokyo")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_label("Next times")).to_contain_text("JST")
    page.get_by_role("button", name="Start one now").click()
    expect(page.get_by_text("the schedule has started this job")).to_be_visible()


def test_failures_are_grouped_and_lead_to_their_jobs(visit: Open, shop: Shop) -> None:
    page = visit("/failures?since=1h")
    for title in ("Now, against the last week", "Failed jobs by class and type of error"):
        row = page.get_by_role("region", name=title).last.get_by_role("row", name="Invoice")
        expect(row).to_contain_text("KeyError")
        row.get_by_role("link", name="KeyError").first.click()
        expect(page.get_by_role("row", name="Invoice").first).to_be_visible()
        page.go_back()


def test_a_release_is_marked_on_charts_and_unmarked_with_its_name_asked(visit: Open, shop: Shop) -> None:
    shop.scheduler.mark_release("v42", by="deployment")
    for path, chart in (("/", "Last hour"), (f"/classes/{jobs.__name__}:Invoice", "Ended in the last 24 hours")):
        page = visit(path)
        drawn = page.get_by_role("img", name=re.compile(f"{chart}.*; release v42, "))
        expect(drawn).to_be_visible()
        expect(drawn.locator("line.release title")).to_have_text(re.compile("^release v42, "))
        expect(page.locator("svg.releases text").first).to_contain_text("v42")

    page = visit("/failures")
    row = page.get_by_role("region", name="Releases").last.get_by_role("row", name="v42")
    expect(row).to_contain_text("deployment")
    row.get_by_role("button", name="Unmark…").click()
    expect(page.get_by_role("dialog", name="Unmark release v42?")).to_be_visible()
    page.get_by_role("button", name="Unmark", exact=True).click()
    expect(page.locator(".flash")).to_contain_text("the release is no longer marked")
    assert shop.scheduler.releases() == []


def test_one_customers_share_of_the_failures_is_two_clicks_from_the_page_of_failures(visit: Open, shop: Shop) -> None:
    for customer in ("initech", "initech", "acme"):
        shop.scheduler.run_job(jobs.Invoice, {}, tags=[f"customer:{customer}"])
    page = visit("/failures?since=1h")
    failed = page.get_by_role("region", name="Failed jobs by class and type of error").last
    failed.get_by_role("row", name="Invoice").get_by_role("link", name="KeyError", exact=True).click()
    page.get_by_role("link", name="customer", exact=True).click()

    customers = page.get_by_role("region", name="By customer").last
    expect(customers.get_by_role("row", name="initech")).to_contain_text(re.compile("2.*2.*100 %"))
    customers.get_by_role("link", name="initech").click()
    expect(page.get_by_role("row", name="Invoice")).to_have_count(2)


def test_the_graph_of_a_workflow_leads_from_job_to_job(visit: Open, shop: Shop) -> None:
    last = shop.chain.processes[-1]
    page = visit(f"/jobs/{shop.chain.processes[0].id}")
    page.get_by_role("link", name=re.compile(str(last.id))).click()
    expect(page.get_by_text("3 before, 0 after")).to_be_visible()
    page.get_by_role("link", name="Its workflow").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Mail")
    page.get_by_role("link", name="All its jobs").click()
    expect(page.get_by_role("row", name="Mail")).to_have_count(4)


def test_a_reader_sees_no_buttons_and_is_refused(visit: Open, shop: Shop) -> None:
    page = visit(f"/jobs/{shop.waiting.id}", "rita")
    expect(page.get_by_role("button", name="Cancel…", exact=True)).to_have_count(0)
    page = visit("/queues", "rita")
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)

    answer = page.request.post(f"{shop.address}/queues/pause", form={"queue": "mail"})
    assert answer.status == 403
    assert shop.scheduler.paused() == []


def test_actions_are_in_the_audit(visit: Open, shop: Shop) -> None:
    shop.scheduler.record_action("pause", jobs.HOSTILE, by="olaf", source="127.0.0.1")
    expect(visit("/audit").get_by_role("row", name="olaf").first).to_be_visible()


def test_all_is_reached_by_keyboard(visit: Open, shop: Shop) -> None:
    page = visit("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    button = page.get_by_role("row", name=LONG).get_by_role("button", name="Pause")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Reason")).to_be_focused()
    page.keyboard.press("Escape")
    expect(button).to_be_focused()


def test_a_class_says_how_it_does_and_leads_to_its_errors_customers_and_slow_runs(visit: Open, shop: Shop) -> None:
    page = visit("/classes")
    page.get_by_role("link", name="Invoice").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Invoice")
    expect(page.get_by_role("region", name="Errors").get_by_role("link")).to_contain_text("KeyError")
    expect(page.get_by_role("region", name="Run time")).to_contain_text("p95")
    expect(page.get_by_role("region", name="Hour, day and week").last).to_contain_text("100 %")

    page.get_by_role("link", name="last 7 days").click()
    expect(page.get_by_role("link", name="last 7 days")).to_have_attribute("aria-current", "page")
    page.get_by_role("region", name="Slowest runs").last.get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Invoice")

    page.goto(f"{shop.address}/jobs/{shop.done.id}")
    page.get_by_role("link", name="mail", exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("mail")
    page.get_by_role("region", name="Tags and meta").last.get_by_role("link", name="news").click()
    expect(page.locator(f"#job-{shop.done.id}")).to_be_visible()


def test_the_theme_is_kept(visit: Open) -> None:
    page = visit("/", color_scheme="light")
    page.get_by_role("button", name="Dark").click()
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def paths(shop: Shop) -> list[str]:
    job, other = shop.failed.id, shop.waiting.id
    pending = shop.scheduler.add_job(jobs.Mail, at="+1 hour").id  # others may have run before this test
    listed = [
        "/",
        "/jobs",
        "/queues",
        "/schedules",
        "/schedules/nightly",
        "/define-schedule?name=nightly",
        "/nodes",
        "/failures",
        "/audit",
    ]
    work = ["/classes", f"/classes/{jobs.__name__}:Invoice", f"/queues/{LONG}", "/queues/mail?over=7d", "/queues/none"]
    work += ["/workflows", f"/workflows/{shop.chain.id}"]
    more = [f"/jobs/{job}", f"/jobs/{other}", f"/jobs/{job}/edit", "/jobs/matching?action=cancel", "/jobs?q={"]
    more += [f"/jobs/{pending}/change", f"/jobs/{job}/stack", f"/jobs/{shop.chain.processes[0].id}", "/bulk/repair"]
    more += [
        "/jobs?class=Invoice&by=customer",
        "/jobs/matching?action=again",
        "/limits/change?of=limit:name%3Dsmtp&count=4",
    ]
    return [*listed, *work, *more]


@contextmanager
def running(shop: Shop) -> Iterator[str]:
    """Yield the path of a job that runs."""
    jobs.GATE.clear()
    id = JobId()
    thread = threading.Thread(target=shop.scheduler.run_job, args=(jobs.Slow,), kwargs={"id": id})
    thread.start()
    try:
        eventually(lambda: shop.scheduler.count_jobs({"id": str(id), "progress": {"$gt": 0}}))
        yield f"/jobs/{id}"
    finally:
        jobs.GATE.set()
        thread.join(LIMIT)


def serious(page: Page, path: str, **options: Any) -> list[tuple[str, str, list[str]]]:
    """Return the serious barriers that axe-core finds on the page, and landmarks with the same name."""
    found = page.evaluate("options => axe.run(document, options)", {**options, "resultTypes": ["violations"]})
    return [
        (path, violation["id"], [node["html"][:200] for node in violation["nodes"][:3]])
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical") or violation["id"] == "landmark-unique"
    ]


def test_no_page_has_a_serious_barrier(visit: Open, shop: Shop) -> None:
    page = visit("/", color_scheme="light")
    found = []
    with running(shop) as run:
        for path in (*paths(shop), run, f"{run}/stack", "/login"):
            if path == "/login":
                page.context.clear_cookies()
            page.goto(f"{shop.address}{path}")
            page.evaluate(Axe().axe_script)
            found += serious(page, path)
            page.emulate_media(color_scheme="dark")
            found += serious(page, path, runOnly=["color-contrast"])  # the rest is the same in the dark
            page.emulate_media(color_scheme="light")
    assert found == []


@pytest.mark.parametrize(
    "width", [360, pytest.param(768, marks=pytest.mark.long), pytest.param(1280, marks=pytest.mark.long)]
)
def test_no_page_is_wider_than_the_window_or_heavier_than_150_kb(visit: Open, shop: Shop, width: int) -> None:
    page = visit("/", viewport={"width": width, "height": 800})
    for path in paths(shop):
        page.goto(f"{shop.address}{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        one_comes_for = {"/queues", "/schedules", "/failures", f"/jobs/{shop.failed.id}"}  # buttons, times, errors
        if path in one_comes_for or path.startswith(("/classes", "/queues/")):
            assert not page.evaluate(WIDER), path
        assets = page.evaluate(
            "performance.getEntriesByType('resource').reduce((sum, one) => sum + one.decodedBodySize, 0)"
        )
        assert len(page.content()) + assets < 150_000, path


def test_no_table_is_cut_off_on_a_tablet(visit: Open, shop: Shop) -> None:
    queue = "a-very-long-queue-name-that-nobody-would-choose-but-somebody-did"
    process = shop.scheduler.add_job(f"shop.accounting:{'GenerateMonthlyInvoices' * 2}", queue=queue, at="+1h")
    about = {"job": process.job, "reason": "the customer has asked for it by telephone"}
    by, source = "a.very.long.name.of.a.user@example.org", "command line of a.very.long.name.of.a.host"
    shop.scheduler.record_action("update refused", str(process.id), by=by, source=source, about=about)
    shop.scheduler.record_action("pause", queue, by=by, source=source)
    page = visit("/", viewport={"width": 768, "height": 800})
    work = ("/classes", f"/classes/{jobs.__name__}:Invoice", f"/queues/{queue}", "/queues/mail", "/workflows")
    for path in ("/", "/jobs", "/queues", "/schedules", "/nodes", "/failures", "/audit", *work):
        page.goto(f"{shop.address}{path}")
        page.evaluate(OF_ANOTHER_DAY)
        assert not page.evaluate(WIDER), path


def test_the_page_of_a_job_that_says_too_much_is_bounded(visit: Open, shop: Shop) -> None:
    process = shop.scheduler.run_job(jobs.Wordy, {"text": "<" * 200_000, "rows": list(range(50_000))})
    page = visit(f"/jobs/{process.id}")
    expect(page.get_by_role("log")).to_contain_text("199 ")
    answer = page.request.get(page.url)
    assert len(answer.body()) < 150_000


def test_login_says_what_is_wrong_and_leads_to_the_page_that_was_asked_for(chromium: Browser, shop: Shop) -> None:
    page = chromium.new_page()
    page.goto(f"{shop.address}/jobs?queue=mail")
    page.get_by_label("Name").fill("olaf")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Name").fill("olaf")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{shop.address}/jobs?queue=mail")
    page.close()


def test_times_are_those_of_the_readers_zone(visit: Open, shop: Shop) -> None:
    page = visit(f"/jobs/{shop.done.id}", timezone_id="Asia/Tokyo", locale="en-GB")
    title = page.locator("time[title]").first.get_attribute("title")
    assert title is not None
    assert title.endswith(("GMT+9", "JST"))


def test_rows_are_walked_selected_and_acted_on(visit: Open, shop: Shop) -> None:
    shop.scheduler.add_jobs((jobs.Mail, {"to": "selected"}, {"queue": "selected", "at": "+1d"}) for _ in range(4))
    page = visit("/jobs?q=queue:selected")
    rows = page.locator("#content tr[id^=job-]")
    expect(rows).to_have_count(4)
    first, second = rows.nth(0).get_attribute("id") or "", rows.nth(1).get_attribute("id") or ""
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("#selected")).to_have_text("2 jobs selected")
    page.keyboard.press("Escape")
    expect(page.locator("#selected")).to_be_hidden()
    rows.nth(0).get_by_role("checkbox").check()
    rows.nth(1).get_by_role("checkbox").click(modifiers=["Shift"])
    page.get_by_role("button", name="Cancel selected…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 2 jobs")
    expect(page.locator("tr[id^=job-]")).to_have_count(2)
    assert {row.get_attribute("id") for row in page.locator("tr[id^=job-]").all()} == {first, second}
    page.get_by_role("button", name="Cancel 2 jobs").click()
    expect(page.get_by_text("Done: 2 jobs.")).to_be_visible()
    assert shop.scheduler.count_jobs({"queue": "selected", "status": "CANCELED"}) == 2


def test_a_row_is_a_link_and_headers_sort_by_the_time_they_show(visit: Open, shop: Shop) -> None:
    page = visit("/jobs?q=status:failed")
    ended = page.get_by_role("columnheader", name="ended")
    expect(ended).to_have_attribute("aria-sort", "descending")
    ended.get_by_role("link").click()
    expect(page.get_by_role("columnheader", name="ended")).to_have_attribute("aria-sort", "ascending")
    page.get_by_role("columnheader", name="added").get_by_role("link").click()
    expect(page.get_by_role("columnheader", name="added")).to_have_attribute("aria-sort", "descending")
    page.locator("#content tr[id^=job-]").first.locator("td.cut").click(force=True)  # the link covers the row
    expect(page).to_have_url(re.compile(r"/jobs/[0-9a-f]{24}$"))


def test_keys_are_shown_and_the_palette_finds_a_class_an_id_and_an_action(visit: Open, shop: Shop) -> None:
    page = visit("/queues")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Ctrl+K")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Control+k")
    find = page.get_by_role("combobox", name="Find")
    find.fill("Invoice")
    expect(page.get_by_role("option").filter(has_text=f"class:{jobs.__name__}:Invoice")).to_be_visible()
    page.get_by_role("option").filter(has_text=f"class:{jobs.__name__}:Invoice").first.click()
    expect(page).to_have_url(re.compile("/classes/.*Invoice"))
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Find").fill(str(shop.failed.id))
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(str(shop.failed.id)))
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Find").fill("run again")
    expect(page.get_by_role("option").first).to_contain_text("action on this page")
