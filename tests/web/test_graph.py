"""The graph of a job: those before it, those that wait for it, its workflow, and what is left out."""

from __future__ import annotations

import pytest

from taskqueue import Scheduler, workflows
from taskqueue.scheduler.process import Process
from taskqueue.web.graph import MOST, MOST_MEMBERS, Graph, graph_of
from tests.web import jobs
from tests.web.conftest import MakeBrowser, log_in

both = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)


def graph(scheduler: Scheduler, process: Process) -> Graph:
    """Return the graph of a job that has one."""
    found = graph_of(scheduler, process)
    assert found is not None
    return found


@both
def test_jobs_that_wait_for_a_job_are_drawn_behind_it(scheduler: Scheduler) -> None:
    first = scheduler.add_job(jobs.Mail)
    second = scheduler.add_job(jobs.Mail, depends_on=[first])
    third = scheduler.add_job(jobs.Mail, depends_on=[second])
    scheduler.add_job(jobs.Mail)

    assert graph(scheduler, first).says == "0 before, 1 after"
    middle = graph(scheduler, second.refresh())
    assert middle.says == "1 before, 1 after"
    assert {box.id for box in middle.boxes} == {str(one.id) for one in (first, second, third)}
    assert len(middle.lines) == 2
    assert graph_of(scheduler, scheduler.add_job(jobs.Mail)) is None


@both
def test_the_members_of_a_workflow_are_drawn_when_they_have_ended_too(scheduler: Scheduler) -> None:
    chain = workflows.chain(scheduler, jobs.Mail, [jobs.Mail, jobs.Mail], jobs.Mail)
    scheduler.run_pending()

    first = chain.processes[0].refresh()
    assert first.is_final
    assert (graph(scheduler, first).says, graph(scheduler, first).left_out) == ("0 before, 3 after", 0)


@both
def test_members_that_ran_again_are_drawn_as_their_copies(scheduler: Scheduler, browser: MakeBrowser) -> None:
    chain = workflows.chain(scheduler, jobs.Mail, jobs.Invoice, jobs.Mail)
    scheduler.run_pending()
    first = chain.refresh().processes[0]
    client = browser()
    log_in(client)
    page = client.get(f"/jobs/{first.id}").text
    assert "Run the failed part again…" in page
    form = {"csrf": page.partition('name="csrf" value="')[2].partition('"')[0]}

    done = client.post(f"/jobs/{first.id}/failed-part", data=form)

    assert done.headers["location"].endswith("?done=matching&of=2")
    assert [box.kind for box in graph(scheduler, first).boxes] == ["done", "waiting", "later"]
    assert len(graph(scheduler, first).lines) == 2
    assert not graph(scheduler, first).has_failed
    assert "Run the failed part again" not in client.get(f"/jobs/{first.id}").text


def test_of_a_large_workflow_some_are_read_and_the_others_said(scheduler: Scheduler) -> None:
    large = workflows.group(scheduler, [jobs.Mail] * (MOST_MEMBERS + 50), then=jobs.Mail)

    found = graph(scheduler, large.processes[-1])
    assert (len(found.boxes), found.is_more, found.left_out > MOST) == (MOST, True, True)
    assert found.says == f"{MOST - 1} before, 0 after"
