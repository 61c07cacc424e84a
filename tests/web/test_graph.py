"""The graph of a job: those before it, those that wait for it, its workflow, and what is left out."""

from __future__ import annotations

import pytest

from taskqueue import Scheduler, workflows
from taskqueue.scheduler.process import Process
from taskqueue.web.graph import MOST, MOST_MEMBERS, Graph, graph_of, graph_of_workflow
from tests.web import jobs

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
    assert [box.ids for box in middle.boxes] == [[str(one.id)] for one in (first, second, third)]
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
def test_members_that_ran_again_are_drawn_as_their_copies(scheduler: Scheduler) -> None:
    chain = workflows.chain(scheduler, jobs.Mail, jobs.Invoice, jobs.Mail)
    scheduler.run_pending()
    first = chain.refresh().processes[0]

    chain.recover()

    assert [box.kind for box in graph(scheduler, first).boxes] == ["done", "waiting", "later"]
    assert len(graph(scheduler, first).lines) == 2


@both
def test_members_that_are_alike_share_a_box(scheduler: Scheduler) -> None:
    flow = workflows.chain(scheduler, jobs.Mail, [*[jobs.Mail] * 4, jobs.Invoice], jobs.Mail)
    scheduler.run_pending()

    whole = graph_of_workflow(scheduler, flow.id)
    [first, four, invoice, last] = whole.boxes
    assert (first.text, four.text, four.kind) == ("Mail", "Mail × 4", "done")
    assert four.facts.startswith("4 done, ")
    assert sorted(four.ids) == [str(process.id) for process in flow.processes[1:5]]
    assert (invoice.facts.partition(",")[0], last.facts) == ("failed", "canceled")
    assert (len(whole.lines), whole.says, whole.left_out) == (4, "7 jobs", 0)

    of_member = graph(scheduler, flow.processes[2].refresh())
    assert [len(box.ids) for box in of_member.boxes] == [1, 3, 1, 1, 1]
    assert [box.is_self for box in of_member.boxes].count(True) == 1


def test_what_does_not_fit_into_a_box_is_said_beside_it(scheduler: Scheduler) -> None:
    group = workflows.group(scheduler, [(jobs.Mail, number) for number in range(12)], then=jobs.Mail)
    for process in group.processes[:2]:
        process.cancel()

    first, *_ = graph_of_workflow(scheduler, group.id).boxes

    assert (first.facts, first.says.partition(": ")[2]) == ("10 waiting", "10 waiting, 2 canceled")


def test_of_a_large_workflow_some_are_read_and_the_others_said(scheduler: Scheduler) -> None:
    large = workflows.group(scheduler, [jobs.Mail] * (MOST_MEMBERS + 50), then=jobs.Mail)

    found = graph(scheduler, large.processes[-1])
    assert ([len(box.ids) for box in found.boxes], found.is_more) == ([MOST_MEMBERS, 1], True)
    assert found.says == f"{MOST_MEMBERS} before, 0 after"


def test_of_many_classes_the_nearest_ones_are_drawn(scheduler: Scheduler) -> None:
    wide = workflows.group(scheduler, [f"shop:Step{number}" for number in range(MOST + 20)], then=jobs.Mail)

    found = graph(scheduler, wide.processes[-1])
    assert (len(found.boxes), found.left_out) == (MOST, 21)
    assert any(box.is_self for box in found.boxes)
