"""Take the pictures of the dashboard: ``python docs/images/draw_dashboard.py`` writes dashboard*.png beside this file.

It needs Debian's chromium, and playwright from the extra ``test``. A node of its own runs the shop's jobs; the figures
of the hours before are made up, since nobody wants to wait for three days.
"""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import shop
import uvicorn
from draw import HERE, LIMIT, command, has_told, until
from playwright.sync_api import sync_playwright

from taskqueue import Scheduler, workflows
from taskqueue.model.history import part_text
from taskqueue.web import app

PORT = 8731
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
                take_pictures(scheduler, failed)
        finally:
            node.terminate()
            node.wait(LIMIT)


def make_up_history(scheduler: Scheduler, url: str) -> None:
    """Keep figures of the last three days, which have no jobs any more."""
    scheduler.stats()  # makes the store
    chance, now = random.Random(7), int(time.time() * 1000)
    rows = []
    for step, length, number, most in (("minute", MINUTE, 60, 24), ("hour", HOUR, 72, 1500)):
        for ago in range(1, number):
            done = int(most * (0.5 + chance.random() / 2))
            part = {("mail", "shop:MailJob"): {"added": done, "started": done, "done": done}}
            failed = max(0, int(chance.gauss(0, most / 400)))
            if failed:
                part["invoices", "shop:InvoiceJob"] = {"started": failed, "failed": failed, "e:KeyError": failed}
            rows.append((step, now // length * length - ago * length, part_text(part)))
    with closing(sqlite3.connect(url)) as connection, connection:
        connection.executemany("INSERT OR REPLACE INTO history (step, at, figures) VALUES (?, ?, ?)", rows)


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
    """Serve the dashboard, and take a picture of the overview in light and dark, and of a failed job."""
    config = uvicorn.Config(app(scheduler, local=True), port=PORT, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    pictures = (
        ("dashboard", "/", "light"),
        ("dashboard-dark", "/", "dark"),
        ("dashboard-job", f"/jobs/{failed}", "light"),
    )
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            for name, path, scheme in pictures:
                page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
                page.goto(f"http://127.0.0.1:{PORT}{path}")
                page.wait_for_selector("#content section")
                page.screenshot(path=str(HERE / f"{name}.png"))
                page.close()
            browser.close()
    finally:
        server.should_exit = True
        thread.join(LIMIT)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
