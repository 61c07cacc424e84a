"""Each action of the dashboard in a real browser, from the button to the store; who may not act is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from taskqueue import Process, Scheduler
from taskqueue.model.record import Holder
from taskqueue.store import Lease, Store
from taskqueue.store.open import open_store
from taskqueue.web import app
from tests.web import jobs
from tests.web.conftest import logged_in
from tests.web.servers import served

NODE = "web-1"
ABOUT = {"host": "web", "pid": 4711, "pm": "dynamic", "max_children": 8, "busy": 0, "version": "0.1.0"}

People = tuple[Path, dict[str, str]]
Open = Callable[..., Page]


class Shop:
    """A store with a node's lease, and a dashboard on it."""

    def __init__(self, scheduler: Scheduler, store: Store, address: str) -> None:
        self.scheduler = scheduler
        self.store = store
        self.address = address
        scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * 1-5", queue="letters")
        now = store.now()
        seat = Holder(seat=NODE, incarnation="a1b2c3d4e5f60718")
        store.acquire(
            Lease(name=f"seat:{NODE}", holder=seat, since=now, until=now + timedelta(hours=1), about=ABOUT), now
        )

    def last(self) -> tuple[str, str, str]:
        """Return who did what to what last."""
        [entry] = self.scheduler.audit(1)
        return entry.by, entry.action, entry.target

    def failed(self, queue: str, number: int) -> list[Process]:
        """Return so many jobs of a queue that have failed."""
        return [self.scheduler.run_job(jobs.Invoice, {"number": each}, queue=queue) for each in range(number)]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, people: People) -> Iterator[Shop]:
    """Return a dashboard for all tests of this file."""
    url = f"sqlite://{tmp_path_factory.mktemp('shop')}/jobs.db?synchronous=normal"
    with (
        Scheduler(url) as scheduler,
        served(app(scheduler, users=people[0], hosts=["127.0.0.1"], addable=jobs.ADDABLE)) as address,
    ):
        store = open_store(url)
        yield Shop(scheduler, store, address)
        store.close()


def done(page: Page, says: str) -> None:
    """Wait for the sentence that says what was done."""
    expect(page.locator(".flash")).to_contain_text(says)


def test_a_node_is_drained_with_a_reason_and_undrained(visit: Open, shop: Shop) -> None:
    page = visit("/nodes")
    card = page.get_by_role("region", name=NODE)
    card.get_by_role("button", name="Drain…").click()
    page.get_by_role("textbox", name="Reason").fill("new disk")
    page.get_by_role("button", name="Drain the node").click()
    done(page, "the node starts no more jobs")
    expect(card).to_contain_text("by olaf: new disk")
    assert [(control.name, control.by) for control in shop.scheduler.controls()] == [(NODE, "olaf")]

    card.get_by_role("button", name="Undrain").click()
    done(page, "the node starts jobs again")
    assert shop.scheduler.controls() == []
    assert shop.last() == ("olaf", "undrain", NODE)


def test_a_schedule_is_paused_resumed_and_triggered(visit: Open, shop: Shop) -> None:
    page = visit("/schedules/nightly")
    page.get_by_role("button", name="Pause…").click()
    page.get_by_role("textbox", name="Reason").fill("holiday")
    page.get_by_role("button", name="Pause the schedule").click()
    done(page, "the schedule starts no jobs until it is resumed")
    expect(page.locator("#content")).to_contain_text("holiday")
    assert shop.scheduler.get_schedule("nightly").stage == "paused"

    page.get_by_role("button", name="Resume").click()
    done(page, "the schedule starts jobs again")
    assert shop.scheduler.get_schedule("nightly").stage == "active"

    page.get_by_role("button", name="Start one now").click()
    done(page, "the schedule has started this job")
    started = shop.scheduler.get_job(page.url.rpartition("/")[2].partition("?")[0])
    assert (started.job, started.queue) == ("tests.web.jobs:Mail", "letters")
    assert shop.last() == ("olaf", "trigger", "nightly")


def test_a_schedule_is_defined_changed_and_removed_after_previews_of_its_next_times(visit: Open, shop: Shop) -> None:
    page = visit("/schedules")
    page.get_by_role("link", name="New schedule…").click()
    page.get_by_label("Name").fill("reports")
    page.get_by_label("Class").select_option("tests.web.jobs:Mail")
    page.get_by_label("Data").fill('{"to": "ann", "password": "hunter2"}')
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_contain_text("a schedule has one trigger")
    page.get_by_label("Cron:").fill("15 3 * * *")
    page.get_by_label("Time zone of cron").fill("Europe/Berlin")
    page.get_by_role("button", name="Preview").click()
    times = page.get_by_role("status").get_by_role("listitem")
    expect(times).to_have_count(5)
    expect(times.first).to_contain_text(re.compile(r"03:15:00 CES?T"))
    assert [schedule.name for schedule in shop.scheduler.get_schedules()] == ["nightly"]
    page.get_by_role("button", name="Define schedule reports").click()
    done(page, "the schedule is defined")
    assert shop.last() == ("olaf", "schedule", "reports")

    page.get_by_role("link", name="Change…").click()
    text = page.get_by_label("Data").input_value()
    assert "hunter2" not in text
    page.get_by_label("Data").fill(text.replace("ann", "bob"))
    page.get_by_label("Cron:").fill("30 4 * * *")
    page.get_by_role("button", name="Preview").click()
    rows = page.get_by_role("group", name="Difference").get_by_role("row")
    expect(rows.nth(1)).to_have_text("cron15 3 * * *30 4 * * *")
    expect(rows.nth(2)).to_have_text('data.to"ann""bob"')
    expect(times.first).to_contain_text("04:30:00")
    page.get_by_role("button", name="Change schedule reports").click()
    done(page, "the schedule is defined")
    schedule = shop.scheduler.get_schedule("reports").snapshot
    assert (str(schedule.trigger), schedule.template.data) == (
        "cron 30 4 * * * in Europe/Berlin", '{"to":"bob","password":"hunter2"}',
    )  # fmt: skip

    page.get_by_role("button", name="Remove…").click()
    page.get_by_role("button", name="Remove the schedule").click()
    done(page, "the schedule is removed")
    assert [schedule.name for schedule in shop.scheduler.get_schedules()] == ["nightly"]
    assert shop.last() == ("olaf", "remove schedule", "reports")


def test_a_job_of_a_paused_queue_says_so_in_the_list_and_its_queue_is_resumed_from_its_page(
    visit: Open, shop: Shop
) -> None:
    process = shop.scheduler.add_job(jobs.Mail, queue="letters", tags="held")
    page = visit(f"/jobs/{process.id}")
    expect(page.get_by_role("img", name="Timeline of waits and attempts")).to_have_count(0)  # it has not run
    expect(page.get_by_role("button", name="Resume queue letters")).to_have_count(0)
    shop.scheduler.pause("letters", by="ana")
    page.goto(f"{shop.address}/jobs?tag=held")
    expect(page.get_by_role("row").filter(has_text="queue is paused")).to_have_count(1)

    page.goto(f"{shop.address}/jobs/{process.id}")
    page.get_by_role("button", name="Resume queue letters").click()
    done(page, "the queue is resumed")
    assert shop.scheduler.paused() == []


def test_a_queue_is_paused_on_its_page_and_resumed_on_the_overview(visit: Open, shop: Shop) -> None:
    shop.scheduler.add_job(jobs.Mail, queue="letters")
    page = visit("/queues")
    row = page.get_by_role("row", name="letters")
    row.get_by_role("button", name="Pause…").click()
    page.get_by_role("button", name="Pause the queue").click()
    expect(row.get_by_role("button", name="Resume")).to_be_visible()
    row.get_by_role("button", name="Resume").click()
    done(page, "the queue is resumed")
    assert shop.scheduler.paused() == []

    shop.scheduler.pause("letters", "moves", by="ana")
    page.goto(f"{shop.address}/")
    need = page.get_by_label("Needs attention").get_by_role("listitem").filter(has_text="letters")
    while not need.count():
        page.reload()  # the overview was read once for all just before
    expect(need).to_contain_text("paused")
    need.get_by_role("button", name="Resume").click()
    done(page, "the queue is resumed")
    assert shop.scheduler.paused() == []


def test_every_queue_is_paused_and_resumed(visit: Open, shop: Shop) -> None:
    shop.scheduler.add_job(jobs.Mail, queue="letters")
    page = visit("/queues")
    page.get_by_role("button", name="Pause every queue…").click()
    page.get_by_role("button", name="Pause every queue", exact=True).click()
    expect(page.get_by_text("Every queue is paused", exact=True)).to_be_visible()
    assert [control.name for control in shop.scheduler.paused()] == [""]

    page.get_by_role("button", name="Resume every queue").click()
    expect(page.get_by_text("Every queue is paused", exact=True)).to_be_hidden()
    assert shop.scheduler.paused() == []


def test_a_limit_is_changed_after_a_preview_and_the_change_is_undone(visit: Open, shop: Shop) -> None:
    shop.scheduler.add_jobs((jobs.Mail, None, {"queue": "limited", "limits": "2 name=stripe"}) for _ in range(5))
    page = visit("/queues")
    page.get_by_role("region", name="Limits").last.get_by_role("link", name="Change limit stripe").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Limit stripe")
    page.get_by_label("At most").fill("two")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_contain_text("'two': pass a whole number from 1 to 10,000")
    page.get_by_label("At most").fill("4")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("status").last).to_have_text(
        "At most 4 instead of 2. It then has room for 4 of 5 waiting jobs."
    )
    assert shop.scheduler.controls() == []
    page.get_by_label("Reason").fill("they allow more")
    page.get_by_role("button", name="Change limit stripe to 4").click()
    done(page, "the limit is changed")
    [control] = shop.scheduler.controls()
    assert (control.name, control.count, control.by, control.reason) == (
        "limit:name=stripe", 4, "olaf", "they allow more",
    )  # fmt: skip
    assert shop.last() == ("olaf", "limit", "stripe")

    page.get_by_role("button", name="Undo: restore what the code declares").click()
    done(page, "the limit is changed")
    assert shop.scheduler.controls() == []
    page.get_by_role("button", name="Undo: back to 4").click()
    done(page, "the limit is changed")
    assert [control.count for control in shop.scheduler.controls()] == [4]
    shop.scheduler.set_limit("stripe", None)
    shop.scheduler.cancel_jobs({"queue": "limited"})


def test_all_failed_jobs_of_a_class_run_again_from_failures(visit: Open, shop: Shop) -> None:
    failed = shop.failed("invoices", 6)
    page = visit("/failures?since=1h")
    page.get_by_role("row", name="Invoice").get_by_role("link", name=re.compile("again")).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(re.compile(r"Run \d+ jobs again"))
    expect(page.get_by_role("row")).to_have_count(6)  # the head, and five of them
    page.get_by_role("button", name=re.compile(r"Run \d+ jobs again")).click()
    done(page, "Done: ")

    assert all(process.refresh().recovered_as for process in failed)


def test_ended_jobs_that_match_run_again_once(visit: Open, shop: Shop) -> None:
    shop.failed("twice", 2)
    pages = [visit("/jobs?queue=twice"), visit("/jobs?queue=twice")]
    for page in pages:
        page.get_by_role("link", name="Run all again…").click()
    first, second = pages
    first.get_by_role("button", name="Run 2 jobs again").click()
    done(first, "Done: 2 jobs.")
    shop.scheduler.run_pending()  # the copies fail, too
    second.get_by_role("button", name="Run 2 jobs again").click()
    done(second, "Nothing was left to do")

    assert shop.scheduler.count_jobs({"queue": "twice"}) == 4


def test_a_waiting_job_is_changed_after_a_preview_of_the_difference(visit: Open, shop: Shop) -> None:
    data = {"to": "ann", "password": "hunter2", "pages": [1, 2]}
    process = shop.scheduler.add_job(jobs.Mail, data, tags=["a", "b, c"])
    page = visit(f"/jobs/{process.id}")
    page.get_by_role("link", name="Change…").click()
    page.get_by_label("Time").fill("soonish")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_contain_text("soonish")
    page.get_by_label("Queue").fill("slow")
    page.get_by_label("Priority").fill("7")
    page.get_by_label("Tags").fill("b, c\nurgent")
    page.get_by_label("Time").fill("+1 hour")
    text = page.get_by_label("Data").input_value()
    assert "hunter2" not in text
    page.get_by_label("Data").fill(text.replace("ann", "bob"))
    page.get_by_role("button", name="Preview").click()
    difference = page.get_by_role("group", name="Difference")
    assert [cells.split("\t") for cells in difference.get_by_role("row").all_inner_texts()][1:4] == [
        ["queue", "mail", "slow"],
        ["priority", "0", "7"],
        ["tags", "a, b, c", "b, c, urgent"],
    ]
    expect(difference.get_by_role("row").last).to_have_text('data.to"ann""bob"')
    assert (process.refresh().queue, process.tags) == ("mail", ("a", "b, c"))
    page.get_by_role("button", name="Change the job").click()
    done(page, "the job is changed")

    expect(page.locator("#content .status").first).to_have_text("later")
    assert (process.refresh().queue, process.priority, process.status.name) == ("slow", 7, "POSTPONED")
    assert (process.tags, process.data) == (("b, c", "urgent"), {**data, "to": "bob"})
    entry = shop.scheduler.audit(1)[0]
    assert (*shop.last(), entry.about["changed"]) == (
        "olaf", "update", str(process.id), ["at", "data", "priority", "queue", "tags"],
    )  # fmt: skip


def test_a_job_runs_again_with_edited_data_that_keep_their_secrets(visit: Open, shop: Shop) -> None:
    ended = shop.scheduler.run_job(jobs.Mail, {"to": "ann", "password": "hunter2"})
    page = visit(f"/jobs/{ended.id}")
    page.get_by_role("link", name="Run again with other data…").click()
    data = page.get_by_label("Data, as JSON")
    assert "hunter2" not in data.input_value()
    data.fill(data.input_value().replace("ann", "bob"))
    page.get_by_role("button", name="Run again").click()
    done(page, "this copy runs again")

    [copy] = shop.scheduler.get_jobs({"id": str(ended.refresh().recovered_as)})
    assert copy.data == {"to": "bob", "password": "hunter2"}


def test_all_that_match_are_canceled_after_a_sample(visit: Open, shop: Shop) -> None:
    shop.scheduler.add_jobs([(jobs.Mail, {"number": number}, {"queue": "many"}) for number in range(7)])
    page = visit("/jobs?queue=many")
    page.get_by_role("link", name="Cancel all that match…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 7 jobs")
    expect(page.get_by_role("row")).to_have_count(6)
    shop.scheduler.add_job(jobs.Mail, queue="many")
    page.get_by_label("Reason").fill("wrong list")
    page.get_by_role("button", name="Cancel 7 jobs").click()
    done(page, "Done: 7 jobs.")

    assert shop.scheduler.count_jobs({"queue": "many", "status": "CANCELED"}) == 7
    assert shop.last() == ("olaf", "cancel", "jobs")
    expect(visit("/audit").get_by_role("row").nth(1)).to_contain_text("reason wrong list")


def test_a_look_at_secrets_is_in_the_audit(visit: Open, shop: Shop) -> None:
    process = shop.scheduler.add_job(jobs.Mail, {"password": "hunter2"})
    page = visit(f"/jobs/{process.id}")
    data = page.get_by_role("region", name="data", exact=True)
    expect(data).to_contain_text("•••")
    page.get_by_role("button", name="show secrets").click()
    expect(data).to_contain_text("hunter2")

    page.get_by_role("link", name="Audit").click()
    newest = page.get_by_role("row").nth(1)
    expect(newest).to_contain_text("unmask")
    expect(newest.get_by_role("link")).to_have_attribute("href", f"/jobs/{process.id}")
    assert visit(f"/jobs/{process.id}", "mia").get_by_role("button", name="show secrets").count() == 0


def test_who_logs_out_is_out(chromium: Browser, shop: Shop) -> None:
    context = chromium.new_context()
    page = context.new_page()
    logged_in(page, shop.address, "olaf")
    kept = context.cookies()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    assert context.cookies() == []

    page.goto(f"{shop.address}/jobs")
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    context.add_cookies([{"name": one["name"], "value": one["value"], "url": shop.address} for one in kept])
    page.goto(f"{shop.address}/jobs")
    expect(page.get_by_role("button", name="Log in")).to_be_visible()  # the session itself is over
    context.close()


def test_a_job_is_canceled_by_keyboard_alone(visit: Open, shop: Shop) -> None:
    process = shop.scheduler.add_job(jobs.Mail)
    page = visit(f"/jobs/{process.id}")
    button = page.get_by_role("button", name="Cancel…", exact=True)
    for _ in range(40):
        page.keyboard.press("Tab")
        if button.evaluate("one => one === document.activeElement"):
            break
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    reason = page.get_by_role("textbox", name="Reason")
    expect(reason).to_be_focused()
    page.keyboard.press("Escape")
    expect(reason).to_be_hidden()
    expect(button).to_be_focused()

    page.keyboard.press("Enter")
    page.keyboard.type("by hand")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Cancel the job")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("dialog").get_by_role("button", name="Back")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    done(page, "the job is canceled")
    assert process.refresh().error is not None
    assert process.error is not None
    assert process.error.message == "by hand (olaf)"


ACTIONS: tuple[tuple[str, dict[str, str]], ...] = (
    ("/jobs/{id}/cancel", {}),
    ("/jobs/{id}/again", {}),
    ("/jobs/{id}/change", {"queue": "x", "priority": "1", "confirm": "yes"}),
    ("/jobs/{id}/edit", {"data": "1"}),
    ("/jobs/{id}/unmask", {}),
    ("/jobs/matching", {"action": "cancel", "at": "4102444800000", "queue": "letters"}),
    ("/queues/pause", {"queue": "letters"}),
    ("/queues/resume", {"queue": "letters"}),
    ("/nodes/drain", {"node": NODE}),
    ("/nodes/undrain", {"node": NODE}),
    ("/define-schedule", {"was": "nightly", "every": "1h", "confirm": "yes"}),
    ("/schedules/nightly/remove", {}),
    ("/schedules/nightly/trigger", {}),
    ("/schedules/nightly/pause", {}),
    ("/schedules/nightly/resume", {}),
)


BUTTONS = ("Resume", "Resume queue letters", "Pause", "Pause…", "Pause every queue…", "Undrain", "Start one now")


@pytest.mark.parametrize("name", ["rita", "mia"])
def test_no_action_of_a_reader_or_of_another_queues_operator_is_done(visit: Open, shop: Shop, name: str) -> None:
    shop.scheduler.add_job(jobs.Mail, queue="mail")
    process = shop.scheduler.add_job(jobs.Mail, queue="letters")
    page = visit(f"/jobs/{process.id}", name)
    for word in ("Cancel…", "Change…", "Run again"):
        expect(page.locator("#content").get_by_text(word, exact=True)).to_have_count(0)
    shop.scheduler.pause("letters", by="ana")
    shop.scheduler.drain(NODE, by="ana")
    for path in ("/", "/queues", "/nodes", "/schedules/nightly", f"/jobs/{process.id}"):
        page.goto(f"{shop.address}{path}")
        for word in (
            "Resume",
            "Resume queue letters",
            "Pause",
            "Pause…",
            "Pause every queue…",
            "Undrain",
            "Start one now",
        ):
            is_own = (name, path, word) == ("mia", "/queues", "Pause…")  # of queue mail
            assert page.get_by_role("button", name=word, exact=True).count() == is_own, (path, word)
    shop.scheduler.resume("letters")
    shop.scheduler.undrain(NODE)
    csrf = page.locator("meta[name=csrf-token]").get_attribute("content")
    before = shop.scheduler.audit(1)
    for path, fields in ACTIONS:
        if name == "mia" and path == "/jobs/matching":
            continue  # which concerns the jobs of her queue alone
        answer = page.request.post(
            f"{shop.address}{path.format(id=process.id)}", form={**fields, "csrf": csrf or ""}, max_redirects=0
        )
        assert (answer.status, name in answer.text()) == (403, True), path

    assert (process.refresh().status.name, shop.scheduler.controls()) == ("WAITING", [])
    assert shop.scheduler.audit(1) == before


def test_an_operator_of_one_queue_cancels_of_all_that_match_its_own(visit: Open, shop: Shop) -> None:
    own, other = (shop.scheduler.add_job(jobs.Mail, queue=queue, tags="both") for queue in ("mail", "letters"))
    page = visit("/jobs?tag=both", "mia")
    page.get_by_role("link", name="Cancel all that match…").click()
    page.get_by_role("button", name="Cancel 1 job").click()
    done(page, "Done: 1 job.")

    assert (own.refresh().status.name, other.refresh().status.name) == ("CANCELED", "WAITING")


def test_a_dialog_opened_while_the_page_is_asked_for_again_stays_as_it_is(visit: Open, shop: Shop) -> None:
    process = shop.scheduler.add_job(jobs.Mail)
    page = visit(f"/jobs/{process.id}")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(f"{shop.address}/jobs/{process.id}", hold)
    with page.expect_request(f"{shop.address}/jobs/{process.id}"):
        shop.scheduler.update_job(process.id, queue="parcels")
    page.get_by_role("button", name="Cancel…", exact=True).click()
    with page.expect_response(f"{shop.address}/jobs/{process.id}"):
        held.pop().continue_()
    page.unroute_all()
    dialog = page.get_by_role("dialog")
    expect(page.locator("#content")).not_to_contain_text("parcels")

    dialog.get_by_role("button", name="Back").click()

    expect(page.locator("#content")).to_contain_text("parcels")


def test_a_refused_button_says_who_can(visit: Open, shop: Shop) -> None:
    """A page that was opened before the user lost the right still has its buttons."""
    process = shop.scheduler.add_job(jobs.Mail, queue="mail")
    page = visit(f"/jobs/{process.id}", "mia", is_refused=True)
    page.get_by_role("button", name="Cancel…", exact=True).click()
    shop.scheduler.update_job(process.id, queue="letters")  # the page keeps still while its dialog is open
    page.get_by_role("button", name="Cancel the job").click()

    expect(page.get_by_role("alert")).to_contain_text("user mia may act only on the queues mail")
    assert process.refresh().status.name == "WAITING"
