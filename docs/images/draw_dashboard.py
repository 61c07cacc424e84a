"""Take the pictures of the dashboard: ``python docs/images/draw_dashboard.py`` writes dashboard*.png beside this file.

With the name of a folder it writes there what to look at after a change of pages: each page, with much and with nothing
on it, the login, a dialog, and a store that is away, 1280, 768 and 360 pixels wide, in light and dark.

It needs Debian's chromium-headless-shell, and playwright from the extra ``test``. A node of its own runs the shop's
jobs; the figures of the hours before are made up, since nobody wants to wait for three days.
"""

import itertools
import os
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import shop
import uvicorn
from draw import HERE, LIMIT, command, has_told, until
from playwright.sync_api import Browser, Page, sync_playwright

from taskqueue import Scheduler, workflows
from taskqueue.insight.releases import Release
from taskqueue.model.history import part_text
from taskqueue.model.record import Holder
from taskqueue.scheduler import bulk_actions
from taskqueue.scheduler.failure_states import KEPT_BY
from taskqueue.store import Lease
from taskqueue.store.open import open_store
from taskqueue.web import app
from taskqueue.web.pages import PAGES
from taskqueue.web.users import Role, User, UsersFile, account

WORDS = "correct horse battery"
MINUTE, HOUR = 60_000, 3_600_000
"""Milliseconds."""


def main() -> None:
    """Run the shop's jobs with a node, and take the pictures."""
    with tempfile.TemporaryDirectory(prefix="shop-") as folder:
        url = f"{folder}/jobs.db"
        shutil.copy(HERE / "shop.py", folder)
        settings = {"TASKQUEUE_RUNTIME_DIR": folder, "XDG_RUNTIME_DIR": folder}
        node = subprocess.Popen(
            command("taskqueue.cli.node", "--url", url, "--name", "web-1", "--chdir", folder, "--max-children", "8"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **settings},
        )
        try:
            with Scheduler(url) as scheduler:
                make_up_history(scheduler, url)
                failed = bring_about(scheduler)
                if len(sys.argv) > 1:
                    take_all(scheduler, failed, Path(folder), Path(sys.argv[1]))
                else:
                    take_pictures(scheduler, failed)
                    take_bulk_action(f"{folder}/stages.db")
                    take_release(f"{folder}/release.db")
        finally:
            node.terminate()
            node.wait(LIMIT)


def make_up_history(scheduler: Scheduler, url: str) -> None:
    """Keep figures of the last three days, which have no jobs any more."""
    scheduler.stats()  # makes the store
    chance, now = random.Random(7), int(time.time() * 1000)
    rows = []
    minutes = (*range(1, 60), *range(1440, 1500))  # the last hour, and the same hour yesterday
    for step, length, parts, most in (("minute", MINUTE, minutes, 24), ("hour", HOUR, range(1, 72), 1500)):
        for ago in parts:
            done = int(most * (0.5 + chance.random() / 2))
            mails = {"added": done, "started": done, "done": done, **spread("r", done, 5.5), **spread("w", done, 7.0)}
            part = {("mail", "shop:MailJob"): mails}
            failed = max(0, int(chance.gauss(0, most / 400)))
            invoices = {"added": done // 20 + failed, "started": done // 20 + failed, "done": done // 20}
            part["invoices", "shop:InvoiceJob"] = invoices | (
                {"failed": failed, "e:KeyError": failed} if failed else {}
            )
            rows.append((step, now // length * length - ago * length, part_text(part)))
    with closing(sqlite3.connect(url)) as connection, connection:
        connection.executemany("INSERT OR REPLACE INTO history (step, at, figures) VALUES (?, ?, ?)", rows)


def spread(kind: str, jobs: int, middle: float) -> dict[str, int]:
    """Return in which buckets of the history the run times, or waiting times, of jobs are."""
    chance = random.Random(jobs)
    buckets = Counter(f"{kind}{round(chance.gauss(middle, 1.2))}" for _ in range(jobs))
    return {("longest_run" if kind == "r" else "longest_wait"): 2000, **buckets}


def bring_about(scheduler: Scheduler) -> str:
    """Add jobs, wait until each is where it shall be, and return the id of one that failed."""
    scheduler.wait_for(scheduler.add_jobs([(shop.MailJob, {"to": "ann@example.org"}) for _ in range(40)]), LIMIT)
    invoices = [(shop.InvoiceJob, {"customer": number, "token": "s3cret", "lines": [{}]}) for number in range(4)]
    failed = scheduler.add_jobs(invoices)
    scheduler.wait_for(failed, LIMIT)
    for percent, page in ((85, 17), (45, 9), (20, 4)):
        running = scheduler.add_job(shop.ReportJob, {"percent": percent, "page": page})
        until(lambda running=running: has_told(running))
    scheduler.pause("mail", "the server moves", by="ana")
    scheduler.add_jobs([(shop.MailJob, {"to": "bob@example.org"}) for _ in range(37)])
    workflows.chain(scheduler, shop.BackupJob, [shop.BackupJob, shop.BackupJob], shop.BackupJob)
    scheduler.schedule("nightly-backup", shop.BackupJob, cron="0 2 * * *", tz="Europe/Berlin")
    time.sleep(5)  # the waits and runs of the picture
    return str(failed[0].id)


def take_pictures(scheduler: Scheduler, failed: str) -> None:
    """Take a picture of the overview in light and dark, and of a failed job."""
    pictures = (
        ("dashboard", "/", "light"),
        ("dashboard-dark", "/", "dark"),
        ("dashboard-job", f"/jobs/{failed}", "light"),
        ("dashboard-class", "/classes/shop:MailJob", "light"),
    )
    with served(app(scheduler, local=True)) as address, chromium() as browser:
        for name, path, scheme in pictures:
            page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
            page.goto(f"{address}{path}")
            page.wait_for_selector("#content section")
            page.screenshot(path=str(HERE / f"{name}.png"))
            page.close()


def take_bulk_action(url: str) -> None:
    """Take a picture of 900 jobs that run again as five, and then 50 a minute."""
    with Scheduler(url) as scheduler:
        scheduler.add_jobs((shop.MailJob, {"to": "ann@example.org"}) for _ in range(900))
        scheduler.cancel_jobs({"job": "shop:MailJob"})
        match = {"status": "CANCELED", "job": "shop:MailJob"}
        bulk_actions.begin(scheduler, "mail-outage", match, bulk_actions.plan_of(scheduler, {"first": 5}), "ana")
        scheduler.run_pending()
        rest = {"rate": "50/m", "queue": "backfill"}
        bulk_actions.add_rest(scheduler, "mail-outage", bulk_actions.plan_of(scheduler, rest), "ana")
        with served(app(scheduler, local=True)) as address, chromium() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 480}, color_scheme="light")
            page.goto(f"{address}/bulk/mail-outage")
            page.wait_for_selector("#content section")
            page.screenshot(path=str(HERE / "dashboard-bulk.png"))
            bulk_actions.stop(scheduler, "mail-outage", "the mail server is down again")
            page.reload()
            page.wait_for_selector("#content section")
            page.screenshot(path=str(HERE / "dashboard-stopped.png"))
            page.close()


def take_release(url: str) -> None:
    """Take pictures of a release after which invoices of one customer fail: the overview, and whose they are."""
    with Scheduler(url) as scheduler, closing(open_store(url)) as store:
        make_up_history(scheduler, url)
        now = store.now()
        for name, minutes in (("v41", 40), ("v42", 3)):
            mark = Release(name=name, at=now - timedelta(minutes=minutes), by="deployment")
            store.acquire(Lease(name=mark.key, holder=KEPT_BY, since=mark.at, until=now, about=mark.about), now)
        about = {"host": "web", "pid": 4711, "pm": "dynamic", "max_children": 8, "busy": 2, "version": "0.1.0"}
        seat, later = Holder(seat="web-1", incarnation="a1b2"), now + timedelta(hours=1)
        for lease in ("seat:web-1", "lead"):
            store.acquire(Lease(name=lease, holder=seat, since=now, until=later, about=about), now)
        for number in range(60):
            customer = ("initech", "acme", "initech", "globex")[number % 4]
            lines = [{}] if customer == "initech" else [{"price": 4}]
            data = {"customer": customer, "lines": lines}
            scheduler.run_job(shop.InvoiceJob, data, tags=[f"customer:{customer}"], retry=0)
        pictures = (("release", "/", 400), ("customer", "/jobs?class=InvoiceJob&by=customer", 420))
        with served(app(scheduler, local=True)) as address, chromium() as browser:
            for name, path, height in pictures:
                page = browser.new_page(viewport={"width": 1280, "height": height}, color_scheme="light")
                page.goto(f"{address}{path}")
                page.wait_for_selector("#content section")
                page.screenshot(path=str(HERE / f"dashboard-{name}.png"))
                page.close()


def take_all(scheduler: Scheduler, failed: str, folder: Path, to: Path) -> None:
    """Take a picture of each page in each width and scheme."""
    to.mkdir(exist_ok=True)
    users = folder / "users.json"
    ana = account(User(name="ana", role=Role.OPERATOR, unmask=True), WORDS)
    UsersFile(users).change({"ana": ana})
    add_long_names(scheduler)
    add_customers(scheduler)
    waiting = scheduler.find_jobs({"status": "WAITING"}, limit=1)[0].id
    running = scheduler.find_jobs({"status": "PROCESSING"}, limit=1)[0].id
    chain = workflows.recent(scheduler, 1)[0].id
    named = {
        "job-failed": f"/jobs/{failed}",
        "job-waiting": f"/jobs/{waiting}",
        "job-running": f"/jobs/{running}",
        "job-workflow": f"/jobs/{chain}",
        "stack": f"/jobs/{running}/stack",
        "workflow": f"/workflows/{chain}",
        "customer": "/jobs?class=InvoiceJob&by=customer",
        "bulk": "/bulk/invoices-of-november",
        "job-change": f"/jobs/{waiting}/change",
        "job-edit": f"/jobs/{failed}/edit",
        "schedule": "/schedules/nightly-backup",
        "batch": "/jobs/matching?action=cancel",
        "not-found": f"/jobs/{'0' * 24}",
        "wrong-query": "/jobs?q={",
        "class": "/classes/shop:InvoiceJob?over=1h",
        "queue": "/queues/mail",
        "done": "/queues?done=pause&of=mail",
    }
    listed = {page.title.lower(): page.path for page in PAGES if page.title}
    away = folder / "away"
    away.mkdir()
    with (
        Scheduler(folder / "empty.db") as empty,
        Scheduler(away / "jobs.db") as leaving,
        served(app(scheduler, users=users, hosts=["127.0.0.1"], addable=[scheduler.get_job(failed).job])) as full,
        served(app(empty, local=True)) as bare,
        served(app(leaving, local=True)) as unwell,
        chromium() as browser,
    ):
        leaving.stats()
        away.rename(folder / "elsewhere")
        for width, scheme in itertools.product((1280, 768, 360), ("light", "dark")):

            def take(name: str, page: Page, width: int = width, scheme: str = scheme, **more: Any) -> None:
                page.screenshot(path=str(to / f"{name}-{width}-{scheme}.png"), **{"full_page": True, **more})

            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            page.goto(full)
            take("login", page)
            log_in(page)
            for name, path in (listed | named).items():
                page.goto(f"{full}{path}")
                take(name, page)
            page.goto(f"{full}/jobs/{waiting}")
            page.get_by_role("button", name="Cancel…", exact=True).click()
            take("dialog", page, full_page=False)
            for key, name in (("?", "keys"), ("Control+k", "palette")):
                page.goto(f"{full}/queues")
                page.keyboard.press(key)
                take(name, page, full_page=False)
            for name, path in listed.items():
                page.goto(f"{bare}{path}")
                take(f"empty-{name}", page)
            page.goto(f"{unwell}/queues")
            take("away", page)
            page.close()


def add_long_names(scheduler: Scheduler) -> None:
    """Add names that are too long for any column, and entries of the audit."""
    job = "shop.accounting.invoices:GenerateMonthlyInvoicesForAllCustomersOfTheRegion"
    queue = "a-very-long-queue-name-that-nobody-would-choose-but-somebody-did-in-production"
    added = scheduler.add_job(job, queue=queue, at="+1 hour")
    scheduler.schedule("a-schedule-for-the-monthly-invoices-of-all-regions-and-shops", job, every="1h", queue=queue)
    scheduler.drain("a-node-with-a-very-long-name.eu-central-1.compute.internal", "new disks", by="ana")
    for by, source in (("ana", "203.0.113.9"), ("a.very.long.name.of.a.user@example.org", "command line of web-1")):
        about = {"job": job, "reason": "the customer has asked for it by telephone"}
        scheduler.record_action("cancel", str(added.id), by=by, source=source, about=about)


def add_customers(scheduler: Scheduler) -> None:
    """Add invoices of some customers, of which one fails, and run the failed ones again in stages."""
    for number in range(12):
        customer = ("initech", "acme", "globex")[number % 3]
        lines = [{}] if customer == "initech" else [{"price": 4}]
        data, tags = {"customer": customer, "lines": lines}, [f"customer:{customer}", "region:north"]
        scheduler.wait_for(scheduler.add_job(shop.InvoiceJob, data, tags=tags, retry=0), LIMIT)
    plan = bulk_actions.plan_of(scheduler, {"first": 2})
    bulk_actions.begin(scheduler, "invoices-of-november", {"tags": "customer:initech"}, plan, "ana")
    until(lambda: scheduler.count_jobs({"tags": "customer:initech"}) == 6)


def log_in(page: Page) -> None:
    """Log in as the only user."""
    page.get_by_label("Name").fill("ana")
    page.get_by_label("Password").fill(WORDS)
    page.keyboard.press("Enter")
    page.wait_for_selector("#content section")


@contextmanager
def served(application: Any) -> Iterator[str]:
    """Serve an application on a free port, and yield its address."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(application, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(LIMIT)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield Debian's browser, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium-headless-shell", args=["--no-sandbox"])
        yield browser
        browser.close()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
