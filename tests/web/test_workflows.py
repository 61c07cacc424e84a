"""The pages of workflows: the list, how far one is, and its failed part, which runs again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskqueue import Scheduler, Status, workflows
from tests.web import jobs
from tests.web.conftest import MakeBrowser, log_in

both = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)


@both
def test_workflows_are_listed_with_their_state(scheduler: Scheduler, browser: MakeBrowser) -> None:
    done = workflows.chain(scheduler, jobs.Mail, jobs.Mail)
    failed = workflows.chain(scheduler, jobs.Mail, jobs.Invoice, jobs.Mail)
    scheduler.run_pending()
    client = browser()
    log_in(client)

    page = client.get("/workflows").text
    assert page.index(str(failed.id)) < page.index(str(done.id))
    assert "Mail → Invoice" in page
    assert '<span class="status failed">failed</span>' in page
    assert "2 of 2" in page
    api = client.get("/api/v1/workflows?limit=1").json()
    assert [(one["id"], one["state"]) for one in api["workflows"]] == [(str(failed.id), "failed")]
    assert api["workflows"][0]["statuses"] == {"DONE": 1, "FAILED": 1, "CANCELED": 1}
    more = client.get(f"/api/v1/workflows?limit=1&cursor={api['cursor']}").json()
    assert [(one["id"], one["state"]) for one in more["workflows"]] == [(str(done.id), "done")]
    assert client.get(f"/api/v1/workflows/{failed.id}").json() == api["workflows"][0]
    assert client.get("/api/v1/workflows?cursor=none").status_code == 422
    older = client.get(f"/workflows?after={done.id}").text
    assert "No older workflows" in older


@both
def test_the_failed_part_runs_again_though_the_first_member_was_removed(
    scheduler: Scheduler, browser: MakeBrowser
) -> None:
    flow = workflows.chain(scheduler, jobs.Mail, jobs.Invoice, jobs.Mail)
    scheduler.run_pending()
    remove_done(scheduler)
    client = browser()
    csrf = log_in(client)
    page = client.get(f"/workflows/{flow.id}").text
    assert "Run the failed part again…" in page
    assert client.get(f"/workflows/{flow.processes[1].id}").headers["location"].endswith(f"/workflows/{flow.id}")

    answer = client.post(f"/workflows/{flow.id}/failed-part", data={"csrf": csrf})

    assert answer.headers["location"].endswith(f"/workflows/{flow.id}?done=matching&of=2")
    page = client.get(f"/workflows/{flow.id}").text
    assert '<span class="status waiting">waiting</span>' in page
    assert "Run the failed part again" not in page
    again = client.post(f"/api/v1/workflows/{flow.id}/run-again", headers={"x-csrf-token": csrf})
    assert (again.status_code, again.json()) == (200, {"jobs": []})


def test_a_store_without_workflows_says_how_to_add_one(scheduler: Scheduler, browser: MakeBrowser) -> None:
    client = browser()
    log_in(client)

    assert "No workflows yet" in client.get("/workflows").text
    assert client.get("/workflows/none").status_code == 404
    assert client.get(f"/workflows/{scheduler.add_job(jobs.Mail).id}").status_code == 404


def remove_done(scheduler: Scheduler) -> None:
    """Remove the jobs that have ended with success, as retention does."""
    store = scheduler._connections.store
    later = store.now() + timedelta(hours=1)
    store.prune({Status.DONE: later}, later, 100)
