"""Failures by class and error: each leads to its own jobs, and only these run again; jobs by text of their error."""

from __future__ import annotations

import html
import re
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from taskqueue import Job, Scheduler
from taskqueue.errors import TooManyRuns
from taskqueue.model.lifecycle.outcomes import Done
from taskqueue.store.open import open_store
from tests.insight.test_failure_groups import run_all
from tests.nodes import eventually
from tests.store.records import a_record
from tests.store.test_failure_states import ID, fail
from tests.store.test_releases import keep
from tests.web import jobs
from tests.web.conftest import MakeBrowser, log_in

FICKLE = "tests.web.test_failures:Fickle"
both = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)


class Fickle(Job):
    """Fails by the error that its data name."""

    def start(self, data: Any = None) -> Any:
        """Raise it."""
        raise {"key": KeyError, "value": ValueError}[data["by"]](f"no price for {data['of']} (.*)")


def links(page: str, row: str) -> list[str]:
    """Return the addresses in the row of an error."""
    [found] = [part for part in page.split("<tr>") if f">{row}</a></span>" in part]
    return [html.unescape(address) for address in re.findall(r'href="([^"]*)"', found)]


def listed(client: TestClient, address: str) -> int:
    """Return how many jobs a page lists."""
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    return answer.text.count('<tr id="job-')


@both
def test_a_group_leads_to_its_jobs_which_alone_run_again(scheduler: Scheduler, browser: MakeBrowser) -> None:
    for by, of in (("key", 1), ("key", 2), ("value", 3)):
        scheduler.run_job(Fickle, {"by": by, "of": of})
    scheduler.run_job(jobs.Invoice)  # a KeyError of another class
    client = browser()
    log_in(client)
    page = client.get("/failures?since=1h&job=tests.web.test_failures:Fickle").text
    _, shown, again = links(page, "KeyError")

    assert listed(client, shown) == 2
    asked = client.get(again).text
    assert "Run 2 jobs again" in asked
    assert asked.count('<tr id="job-') == 2
    assert listed(client, links(page, "ValueError")[1]) == 1
    counts = {one["error"]: one["query"] for one in client.get("/api/v1/failures").json()["failures"]}
    assert scheduler.count_jobs(counts["ValueError"]) == 1


@both
def test_a_new_error_is_judged_and_leads_to_its_jobs_that_are_retried(
    scheduler: Scheduler, browser: MakeBrowser, url: str
) -> None:
    with closing(open_store(url)) as store:
        before = store.now() - timedelta(days=1)
        run_all(store, [a_record(job=FICKLE, created_at=before, ready_at=before) for _ in range(60)], Done(), before)
    scheduler.add_jobs([(Fickle, {"by": "key", "of": number}, {"retry": 5}) for number in range(7)])
    for by in ("key", "value"):
        scheduler.run_job(Fickle, {"by": by, "of": 8})
    scheduler.run_pending(once=True)
    client = browser()
    log_in(client)

    def new() -> list[dict[str, Any]]:
        judged = client.get("/api/v1/failures").json()["judged"]
        return [group for group in judged if group["trend"] == "new"]

    [group] = eventually(new)
    assert (group["job"], group["failed"], group["attempts"], group["usual"]) == (FICKLE, 8, 9, 0)
    assert group["fingerprint"].startswith("KeyError: … (raise {")
    assert scheduler.count_jobs(group["query"]) == 8
    page = client.get(f"/failures?job={FICKLE}").text
    row = page.partition('<span class="status failed">new</span>')[0].rpartition("<tr>")[2]
    assert listed(client, html.unescape(re.findall(r'href="([^"]*)"', row)[1])) == 8
    assert "No attempt failed in the last hour." in client.get("/failures?job=another:Class").text


@both
def test_an_error_is_muted_with_undo_and_folded_away_until_it_is_opened_again(
    scheduler: Scheduler, browser: MakeBrowser, url: str
) -> None:
    with closing(open_store(url)) as store:
        fail(store)
    client = browser()
    csrf = log_in(client)

    def judged() -> list[dict[str, Any]]:
        return list(client.get("/api/v1/failures").json()["judged"])

    assert [group["id"] for group in eventually(judged)] == [ID]
    page = client.get("/failures").text
    assert "Mute KeyError of MakeInvoice?" in page
    assert "fails with a new error" in client.get("/").text

    form = {"csrf": csrf, "failure": ID, "until": "2h", "reason": "tax service"}
    muted = client.get(client.post("/failures/mute", data=form).headers["location"]).text

    assert "Done: the failure is muted." in muted
    assert ">Undo<" in muted
    shown, _, folded = muted.partition('<details class="body" id="decided">')
    assert "Nothing else failed in the last hour." in shown
    assert "1 muted or resolved" in folded
    assert "KeyError: &#39;vat&#39;" in folded
    assert "fails with a new error" not in client.get("/").text
    assert '<span class="status">muted</span>' in client.get("/classes/shop:MakeInvoice").text
    client.post("/failures/reopen", data={"csrf": csrf, "failure": ID})
    assert judged()[0]["state"] == "open"
    assert [(entry.action, entry.about["error"]) for entry in scheduler.audit()] == [
        ("reopen", "KeyError: 'vat'"),
        ("mute", "KeyError: 'vat'"),
    ]


def test_a_release_is_marked_over_http_and_shown_on_charts_and_with_what_is_new_since(
    scheduler: Scheduler, browser: MakeBrowser, url: str
) -> None:
    with closing(open_store(url)) as store:
        fail(store)
        keep(store, "v42", timedelta(minutes=1))
    client = browser()
    csrf = log_in(client)
    eventually(lambda: client.get("/api/v1/failures").json()["judged"])

    assert client.get("/api/v1/failures").json()["judged"][0]["release"] == "v42"
    assert "with a new error since release v42, first at" in client.get("/").text
    for page in ("/", "/classes/shop:MakeInvoice", "/queues/default"):
        [said, *_] = re.findall(r'aria-label="[^"]*(; release v42, [^"]*)"', client.get(page).text)
        assert re.fullmatch("; release v42, ... ..:.. UTC", said), page
        assert '<line class="release"' in client.get(page).text
    failures = client.get("/failures").text
    assert ">since v42</span>" in failures
    assert "Unmark release v42?" in failures

    headers = {"x-csrf-token": csrf}
    form = {"csrf": csrf, "release": " v41 ", "at": "2h"}
    answer = client.post("/releases/mark", data=form).headers["location"]
    assert "Done: the release is marked." in client.get(answer).text
    assert [release.name for release in scheduler.releases()] == ["v41", "v42"]
    assert scheduler.unmark_release("v41")
    marked = client.post("/api/v1/releases/v43/mark", json={}, headers=headers)
    assert marked.json() == {"operation": "release", "target": "v43"}
    assert [release["name"] for release in client.get("/api/v1/releases").json()["releases"]] == ["v42", "v43"]
    unmarked = client.post("/releases/unmark", data={"csrf": csrf, "release": "v43"}).headers["location"]
    assert "Done: the release is no longer marked." in client.get(unmarked).text
    assert "No release" not in client.get("/failures").text
    assert [release.name for release in scheduler.releases()] == ["v42"]


@both
def test_an_error_is_resolved_over_http_by_operators_of_all_queues(
    scheduler: Scheduler, browser: MakeBrowser, url: str
) -> None:
    with closing(open_store(url)) as store:
        fail(store)
    client = browser()
    csrf = {"x-csrf-token": log_in(client)}
    eventually(lambda: client.get("/api/v1/failures").json()["judged"])

    answer = client.post(f"/api/v1/failures/{ID}/resolve", json={"reason": "v2"}, headers=csrf)
    assert answer.json() == {"operation": "resolve", "target": ID}
    [decision] = client.get("/api/v1/failures").json()["decisions"]
    assert (decision["state"], decision["reason"], decision["job"]) == ("resolved", "v2", "shop:MakeInvoice")
    assert client.post("/api/v1/failures/nothing/mute", json={}, headers=csrf).status_code == 404
    late = client.post(f"/api/v1/failures/{ID}/mute", json={"until": "2020-01-01T00:00Z"}, headers=csrf)
    assert (late.status_code, "is not after now" in late.json()["detail"]) == (422, True)


@both
def test_jobs_are_found_by_text_of_their_error(scheduler: Scheduler, browser: MakeBrowser) -> None:
    for by, of in (("key", "apples"), ("value", "pears")):
        scheduler.run_job(Fickle, {"by": by, "of": of})
    scheduler.run_job(jobs.Mail)
    client = browser()
    log_in(client)

    found = {text: listed(client, f"/jobs?error={text}") for text in ("price", "pears", "Value", "(.*)", "Pears", "x*")}
    assert found == {"price": 2, "pears": 1, "Value": 1, "(.*)": 2, "Pears": 0, "x*": 0}
    assert "jobs whose error contains pears" in client.get("/jobs/matching?action=again&error=pears").text
    assert client.get("/api/v1/jobs/count?error=pears&status=final").json() == {"count": 1}


@both
def test_jobs_that_are_retried_in_vain_are_one_click_from_the_overview(
    scheduler: Scheduler, browser: MakeBrowser
) -> None:
    added = scheduler.add_jobs([(Fickle, {"by": "key", "of": number}, {"retry": -1}) for number in range(10)])
    with pytest.raises(TooManyRuns):
        scheduler.run_pending(max_runs=60)
    client = browser()
    log_in(client)

    page = eventually(lambda: found if "tried again and again" in (found := client.get("/").text) else "")

    [need] = [part for part in page.split("<li ") if "tried again and again" in part]
    link = html.unescape(re.findall(r'href="([^"]*)"', need)[0])
    assert listed(client, link) == len(added)


def test_only_actions_that_apply_are_offered(scheduler: Scheduler, browser: MakeBrowser) -> None:
    scheduler.run_job(jobs.Mail)
    scheduler.add_job(jobs.Mail)
    client = browser()
    log_in(client)
    offered = {
        status: ["Cancel all" in page, "Run all again" in page, "cannot be canceled" in page, "Only ended" in page]
        for status in ("", "done", "waiting")
        for page in [client.get(f"/jobs?status={status}").text]
    }

    assert offered == {
        "": [True, True, False, False],
        "done": [False, True, True, False],
        "waiting": [True, False, False, True],
    }
