"""Lists of jobs are broken down by class, queue, error, and by the keys of tags and meta."""

from __future__ import annotations

import html
import re

from taskqueue import Scheduler
from tests.web import jobs
from tests.web.conftest import MakeBrowser, log_in


def parts(page: str) -> list[tuple[str, ...]]:
    """Return the rows of the breakdown as text."""
    [table] = re.findall(r'aria-labelledby="breakdown-title"><table>(.*?)</table>', page, re.DOTALL)
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in table.split("<tr>")[2:]]
    return [tuple(html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row) for row in rows]


def test_a_list_is_broken_down_by_a_key_of_its_tags(scheduler: Scheduler, browser: MakeBrowser) -> None:
    for number, customer in enumerate(["initech"] * 3 + ["acme"] * 2):
        failing = jobs.Invoice if number < 2 else jobs.Mail
        scheduler.run_job(failing, {"customer": number}, tags=[f"customer:{customer}"])
    scheduler.add_job(jobs.Mail, meta={"plan": "gold", "api_token": "t-secret"})
    client = browser()
    log_in(client)

    page = client.get("/jobs?by=customer").text

    assert parts(page) == [("initech", "3", "2", "67 %"), ("acme", "2", "0", "0 %"), ("none", "1", "0", "–")]
    [link] = re.findall(r'href="(/jobs[^"]*)">initech<', page)
    assert client.get(html.unescape(link)).text.count('<tr id="job-') == 3
    assert parts(client.get("/jobs?by=plan&status=waiting").text) == [("gold", "1", "0", "–")]
    assert [row[:3] for row in parts(client.get("/jobs?by=error&status=failed").text)] == [("KeyError", "2", "2")]
    assert len(parts(client.get("/jobs?by=class").text)) == 2
    offered = re.findall(r'class="chip" href="[^"]*by=(\w+)"', page)
    assert set(offered) == {"class", "queue", "error", "customer", "plan"}


def test_the_breakdown_counts_the_jobs_of_the_list_in_every_order(scheduler: Scheduler, browser: MakeBrowser) -> None:
    scheduler.run_job(jobs.Mail, {"customer": 1})
    scheduler.add_jobs([(jobs.Mail, {"customer": 2}), (jobs.Mail, {"customer": 3}, {"at": "+1 hour"})])
    client = browser()
    log_in(client)

    for order, number in (("rank", "1"), ("id", "3")):
        page = client.get(f"/jobs?by=class&order={order}").text
        assert [row[1] for row in parts(page)] == [number]
        assert page.count('<tr id="job-') == int(number)


def test_a_secret_is_no_key_of_a_breakdown(scheduler: Scheduler, browser: MakeBrowser) -> None:
    scheduler.add_job(jobs.Mail, meta={"api_token": "t-secret"})
    client = browser()
    log_in(client)

    for path in ("/jobs", "/jobs?by=api_token", "/jobs?by=queue"):
        assert "t-secret" not in client.get(path).text
