"""The JSON API on reports of classes and queues, on bulk actions, and on retries that start now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from taskqueue import Scheduler
from tests.scheduler.jobs import Broken
from tests.web import jobs
from tests.web.conftest import HOST, MakeBrowser

Api = Callable[[str], TestClient]


@pytest.fixture
def api(browser: MakeBrowser, people: tuple[Path, dict[str, str]]) -> Api:
    """Return what opens the API as a user, by a token."""

    def make(user: str) -> TestClient:
        client = browser(users=people[0], hosts=[HOST])
        client.headers["authorization"] = f"Bearer {people[1][user]}"
        client.base_url = client.base_url.join("/api/v1/")
        return client

    return make


def test_a_class_and_a_queue_are_reported(api: Api, scheduler: Scheduler) -> None:
    scheduler.run_job(Broken, retry=0, queue="mail", meta={"api_token": "s3cret", "customer": "initech"})
    client, name = api("rita"), f"{Broken.__module__}:Broken"

    report = client.get(f"classes/{name}?over=1h").json()

    assert (report["of"], report["name"], report["over"]) == ("class", name, "1h")
    assert report["work"]["1h"]["failed"] == 1
    assert report["errors"][0]["failed"] == 1
    assert "s3cret" not in str(report)
    assert client.get("queues/mail").json()["work"]["24h"]["failed"] == 1
    assert client.get("queues/mail?over=9h").status_code == 422


def test_failed_jobs_run_again_in_stages_and_are_stopped(api: Api, scheduler: Scheduler) -> None:
    for number in range(4):
        scheduler.run_job(Broken, retry=0, queue="mail", tags=f"n:{number}")
    client = api("olaf")
    wanted: dict[str, Any] = {"status": "FAILED", "queue": "mail"}

    begun = client.post("bulk", json={"name": "vat-fix", "query": wanted, "first": 1})
    assert begun.status_code == 201, begun.text
    scheduler.run_pending()
    action = client.get("bulk/vat-fix").json()
    assert (action["by"], action["found"], action["left"], len(action["stages"])) == ("olaf", 4, 3, 1)
    assert action["statuses"]["FAILED"] == 1

    rest = client.post("bulk/vat-fix/rest", json={"rate": "50/h", "queue": "backfill"})
    assert rest.status_code == 200, rest.text
    stopped = client.post("bulk/vat-fix/stop", json={"reason": "not fixed"}).json()
    assert len(stopped["stages"]) == 2
    assert scheduler.count_jobs({"queue": "backfill", "status": "WAITING"}) == 0

    assert client.get("bulk/none").status_code == 404
    assert client.post("bulk", json={"name": "vat-fix", "query": wanted}).status_code == 422
    assert api("rita").post("bulk", json={"name": "other", "query": wanted}).status_code == 403


def test_retries_are_given_up(api: Api, scheduler: Scheduler) -> None:
    first, second = (scheduler.run_job(Broken, retry=1, retry_interval="1h", queue="mail") for _ in range(2))
    client = api("olaf")

    ended = client.post(f"jobs/{first.id}/give-up", json={"reason": "closed"}).json()
    assert (ended["status"], ended["cause"]) == ("FAILED", "given_up")
    assert client.post(f"jobs/{first.id}/give-up").status_code == 409
    body = {"action": "give-up", "query": {}}
    assert client.post("jobs/matching", json=body).json()["found"] == 1
    assert client.post("jobs/matching", json={**body, "confirm": True}).json()["done"] == 1
    assert second.refresh().status.name == "FAILED"


def test_retries_that_match_start_now(api: Api, scheduler: Scheduler) -> None:
    later = scheduler.add_job(jobs.Mail, at="+1d")
    body = {"action": "start-now", "query": {"status": "POSTPONED"}}
    client = api("olaf")

    assert client.post("jobs/matching", json=body).json()["found"] == 1
    assert client.post("jobs/matching", json={**body, "confirm": True}).json()["done"] == 1
    assert later.refresh().status.name == "WAITING"
