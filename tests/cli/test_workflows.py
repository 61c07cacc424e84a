"""``workflows`` lists them, and their failed parts run again by the id that it shows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from taskqueue import Scheduler, Status, workflows
from taskqueue.store import Store
from tests.cli.conftest import Answer
from tests.web import jobs

Taskqueue = Callable[..., Answer]


def test_workflows_are_listed_and_the_failed_part_runs_again(taskqueue: Taskqueue, url: str, store: Store) -> None:
    assert "no workflows" in taskqueue("workflows").out
    with Scheduler(url) as scheduler:
        done = workflows.chain(scheduler, jobs.Mail, jobs.Mail)
        failed = workflows.chain(scheduler, jobs.Mail, jobs.Invoice, jobs.Mail)
        scheduler.run_pending()

    head, first, second = (line.split() for line in taskqueue("workflows").out.splitlines())
    assert head == ["id", "name", "state", "ended", "failed", "took", "started"]
    assert (first[0], first[4:7]) == (str(failed.id), ["failed", "3/3", "1"])
    assert (second[0], second[2:5]) == (str(done.id), ["done", "2/2", "-"])
    page = taskqueue("workflows", "--limit", "1").out
    assert f"--after {failed.id}" in page
    [older] = taskqueue("workflows", "--after", str(failed.id), "--json").document
    assert (older["id"], older["state"], older["jobs"]) == (str(done.id), "done", 2)

    later = store.now() + timedelta(hours=1)
    store.prune({Status.DONE: later}, later, 100)
    again = taskqueue("recover", "--workflow", str(failed.id))
    assert len(again.out.split()) == 2
    assert [line.split()[4:6] for line in taskqueue("workflows").out.splitlines()[1:]] == [["waiting", "0/2"]]
