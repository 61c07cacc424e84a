"""Every page on both stores, to be shown whole and as the part that is updated."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from taskqueue import Scheduler, workflows
from taskqueue.web import app
from tests.web import jobs


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_each_page_is_shown_whole_and_in_part(scheduler: Scheduler) -> None:
    failed = scheduler.run_job(jobs.Invoice, {"customer": 7})
    chain = workflows.chain(scheduler, jobs.Mail, jobs.Mail, tags=["news"])
    scheduler.schedule("nightly", jobs.Mail, cron="0 2 * * *")
    scheduler.pause("mail", "moves", by="ana")
    listed = ("/jobs?order=rank&status=waiting", "/jobs?tag=news", f"/jobs?status=failed&after={failed.id}")
    named = (f"/jobs/{failed.id}", f"/jobs/{chain.id}", "/schedules/nightly", "/jobs/batch?action=again")
    client = ("127.0.0.1", 5000)
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=client) as browser:
        for path in ("/", "/jobs", "/queues", "/schedules", "/nodes", "/failures", "/audit", *listed, *named):
            whole = browser.get(path)
            assert (whole.status_code, "</html>" in whole.text) == (200, True), path
            part = browser.get(path, headers={"hx-request": "true"})
            assert part.status_code == 200, path
        assert "KeyError" in browser.get("/failures?since=1h").text
        assert "paused by ana" in browser.get("/queues").text
