"""Jobs that are added together, one behind the other or side by side, and their one handle."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import pytest

from taskqueue import Job, Scheduler, Status
from taskqueue import workflows as words
from taskqueue.errors import InvalidJob, InvalidOption, InvalidQuery, JobFailed, JobNotFound
from taskqueue.model.query import parse
from taskqueue.scheduler.changes import recover_workflow
from taskqueue.store import Store
from tests.scheduler.awaited import called

LATER = {"at": "+1 hour"}


class Number(Job):
    """Returns its data, a number."""

    def start(self) -> Any:
        return self.data


class Sum(Job):
    """Returns the sum of the results that it depends on, and of its data."""

    options: ClassVar = {"tags": ["sum"]}

    def start(self) -> int:
        return sum(result or 0 for result in self.dependencies.values()) + (self.data or 0)


class Batch(Job):
    """Returns the sum of the items of its data."""

    def start(self) -> int:
        return sum(self.data)


class Single(Job):
    """Declares that one of its class can be pending."""

    options: ClassVar = {"unique": "one"}


class Fragile(Number):
    """Fails until it is mended."""

    is_broken: ClassVar = True

    def start(self) -> Any:
        if self.is_broken:
            raise ValueError("broken")
        return self.data


class Broken(Job):
    """Fails."""

    def start(self) -> None:
        raise ValueError("broken")


class Words:
    """The words of workflows, which mean the same for a client of asyncio, awaited."""

    def __getattr__(self, name: str) -> Any:
        return partial(called, getattr(words, name))


workflows = Words()


def names(ran: list[Any]) -> list[str]:
    """Return the names of the classes in the order they ran."""
    return [process.job.rpartition(":")[2] for process in ran]


def test_a_chain_passes_each_result_to_the_next_job(scheduler: Scheduler) -> None:
    flow = workflows.chain(scheduler, (Number, 1), (Sum, 10), (Sum, 100, {"queue": "sums"}), tags="month")

    assert [process.is_postponed for process in flow.processes] == [False, True, True]
    assert names(scheduler.run_pending()) == ["Number", "Sum", "Sum"]
    assert flow.wait(timeout=1).results == [1, 11, 111]
    assert (flow.result, flow.progress, flow.is_done) == (111, 100, True)
    assert {process.queue for process in flow.processes} == {"default", "sums"}
    assert [process.tags[0] for process in flow.processes] == ["month"] * 3
    assert workflows.chain(scheduler, Sum).processes[0].tags[0] == "sum"


def test_a_list_in_a_chain_is_jobs_side_by_side(scheduler: Scheduler) -> None:
    flow = workflows.chain(scheduler, (Number, 1), [Sum, (Sum, 5)], Sum)

    scheduler.run_pending()

    assert flow.refresh().results == [1, 1, 6, 7]


def test_a_group_hands_its_results_to_one_job(scheduler: Scheduler) -> None:
    flow = workflows.group(scheduler, [(Number, 1), (Number, 2)], then=Sum)

    scheduler.run_pending()

    assert flow.refresh().result == 3
    assert workflows.group(scheduler, [(Number, 1)]).processes[0].waiting_for == ()


def test_a_job_is_added_for_each_item_or_each_batch(scheduler: Scheduler) -> None:
    each = workflows.map(scheduler, Number, range(3), then=Sum)
    batches = workflows.map(scheduler, Batch, range(5), batch=2, then=[Sum, Sum])

    scheduler.run_pending()

    assert each.refresh().results == [0, 1, 2, 3]
    assert batches.refresh().results == [1, 5, 4, 10, 10]
    assert workflows.map(scheduler, Batch, range(5), batch=2**64).processes[0].data == [0, 1, 2, 3, 4]


def test_a_failure_cancels_those_behind_it_or_is_ignored(scheduler: Scheduler) -> None:
    canceled = workflows.group(scheduler, [Broken, (Number, 2)], then=Sum)
    ignored = workflows.group(scheduler, [Broken, (Number, 2)], then=Sum, on_failure="ignore")

    scheduler.run_pending()

    assert [process.status.name for process in canceled.refresh().processes] == ["FAILED", "DONE", "CANCELED"]
    assert (canceled.is_final, canceled.is_done) == (True, False)
    assert ignored.refresh().results == [None, 2, 2]
    with pytest.raises(JobFailed):
        canceled.wait(timeout=1, raise_on_error=True)


def test_members_wait_for_the_copy_of_one_that_failed(scheduler: Scheduler) -> None:
    Fragile.is_broken = True
    flow = workflows.chain(scheduler, (Fragile, 7), Sum, on_failure="wait")
    scheduler.run_pending()
    assert flow.refresh().processes[1].is_postponed
    assert f"Job {flow.id} has ended as FAILED, and on_dependency_failure='wait'" in flow.processes[1].why()

    Fragile.is_broken = False
    copy = scheduler.recover_job(flow.id)
    scheduler.run_pending()

    assert copy.refresh().result == 7
    assert flow.refresh().processes[1].is_done


def test_the_failed_part_runs_again_and_takes_the_place_of_its_members(scheduler: Scheduler) -> None:
    Fragile.is_broken = True
    flow = workflows.chain(scheduler, (Number, 1), [(Fragile, 7), (Number, 2)], Sum, (Number, words.RESULT))
    scheduler.run_pending()
    before = [process.id for process in flow.refresh().processes]
    assert [process.status.name for process in flow.processes] == ["DONE", "FAILED", "DONE", "CANCELED", "CANCELED"]

    flow.recover()
    assert [process.status.name for process in flow.processes] == ["DONE", "WAITING", "DONE", "POSTPONED", "POSTPONED"]
    scheduler.run_pending()  # fails once more
    assert [process.status.name for process in flow.refresh().processes][1::2] == ["FAILED", "CANCELED"]
    Fragile.is_broken = False
    copies = scheduler.recover_workflow(before[3])
    scheduler.run_pending()

    assert flow.refresh().is_done
    assert (flow.results, flow.id, flow.pruned) == ([1, 7, 2, 9, 9], before[0], [])
    assert {process.id for process in copies} < {process.id for process in flow.processes}
    found = workflows.find(scheduler, copies[0].id)
    assert [process.id for process in found.processes] == [process.id for process in flow.processes]
    assert found.drawing().splitlines()[-1].startswith("      └─ ")
    assert scheduler.recover_workflow(flow.id) == []


def test_members_that_a_person_canceled_and_members_after_them_stay(scheduler: Scheduler) -> None:
    Fragile.is_broken = True
    flow = workflows.group(scheduler, [(Fragile, 1), (Number, 2, LATER)], then=[Sum])
    flow.processes[1].cancel("not needed")
    scheduler.run_pending(ignore_time=False)
    ignored = workflows.chain(scheduler, (Fragile, 1), (Fragile, 2), Sum, on_failure="ignore")
    scheduler.run_pending()

    [copy] = scheduler.recover_workflow(flow.id)
    assert (copy.recovered_from, copy.is_waiting) == (flow.processes[0].id, True)
    first, second = scheduler.recover_workflow(ignored.id)
    assert [first.recovered_from, second.recovered_from] == [process.id for process in ignored.processes[:2]]
    assert (second.depends_on, second.is_postponed) == ((first.id,), True)
    with pytest.raises(JobNotFound, match="not a member of a workflow"):
        scheduler.recover_workflow(scheduler.add_job(Number).id)
    with pytest.raises(JobNotFound, match="never added"):
        scheduler.recover_workflow("65f0" * 6)


def test_the_failed_part_is_added_once_by_two_who_run_it_again(scheduler: Scheduler, store: Store) -> None:
    Fragile.is_broken = True
    flow = workflows.chain(scheduler, (Fragile, 1), Sum)
    scheduler.run_pending()
    barrier, added = threading.Barrier(2), list[int]()

    def recover() -> None:
        barrier.wait(30)
        added.append(len(recover_workflow(store, flow.id)))

    threads = [threading.Thread(target=recover) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (sorted(added), store.count(parse({}))) == ([0, 2], 4)


def test_progress_is_that_of_all_members(scheduler: Scheduler) -> None:
    flow = workflows.chain(scheduler, (Number, 1), (Number, 2, LATER))
    assert flow.progress == 0

    scheduler.run_pending(ignore_time=False)

    assert flow.refresh().progress == 50
    assert not flow.is_final
    assert repr(flow) == f"<Workflow {flow.id} 50 % of 2 jobs>"


def test_all_pending_members_are_canceled_at_once(scheduler: Scheduler) -> None:
    flow = workflows.chain(scheduler, (Number, 1), (Number, 2, LATER), (Number, 3))
    scheduler.run_pending(ignore_time=False)

    flow.cancel("not needed")

    assert [process.status.name for process in flow.processes] == ["DONE", "CANCELED", "CANCELED"]
    assert "not needed" in flow.processes[1].why()


def test_a_member_that_was_pruned_is_not_canceled(scheduler: Scheduler, store: Store) -> None:
    flow = workflows.group(scheduler, [(Number, 1), (Number, 2, LATER)])
    scheduler.run_pending(ignore_time=False)
    later = store.now() + timedelta(hours=1)
    store.prune({Status.DONE: later}, later, 10)

    flow.cancel()

    assert flow.processes[1].is_canceled


def prune(store: Store) -> None:
    """Remove all that have ended."""
    later = store.now() + timedelta(hours=1)
    store.prune(dict.fromkeys((Status.DONE, Status.FAILED), later), later, 10)


def test_a_member_that_was_pruned_has_ended(scheduler: Scheduler, store: Store) -> None:
    flow = workflows.group(scheduler, [(Number, 1), (Broken, 2), (Number, 3, LATER)])
    scheduler.run_pending(ignore_time=False)
    prune(store)
    scheduler.run_pending()

    flow.wait(timeout=30, raise_on_error=True)

    assert (flow.is_final, flow.is_done, flow.progress, flow.results) == (True, False, 100, [None, None, 3])
    assert flow.pruned == [process.id for process in flow.processes[:2]]
    assert flow.drawing().splitlines()[-1] == "pruned: 2"


def test_a_wait_ends_when_all_members_are_pruned(scheduler: Scheduler, store: Store) -> None:
    flow = workflows.chain(scheduler, (Number, 1), Sum)
    scheduler.run_pending()
    flow.refresh()
    prune(store)

    assert flow.refresh().wait(timeout=30).results == [1, 1]
    assert flow.pruned == [process.id for process in flow.processes]
    assert flow.is_done


def test_a_workflow_is_found_without_its_pruned_members(scheduler: Scheduler, store: Store) -> None:
    flow = workflows.chain(scheduler, (Number, 1), (Number, 2), (Number, 3))
    scheduler.run_pending()
    first, second, third = flow.refresh().processes
    prune_one(store, first.id)

    found = workflows.find(scheduler, third.id)

    assert (found.id, found.pruned) == (flow.id, [first.id])
    assert [process.id for process in found.processes] == [second.id, third.id]
    assert (found.is_final, found.is_done, found.progress) == (True, False, 100)
    assert repr(found) == f"<Workflow {flow.id} 100 % of 3 jobs>"
    assert workflows.find(scheduler, second.id).refresh().cancel().is_final


def test_a_workflow_is_found_and_runs_again_after_its_first_member_was_pruned(
    scheduler: Scheduler, store: Store
) -> None:
    flow = workflows.chain(scheduler, (Number, 1), (Sum, 1, LATER))
    scheduler.run_pending(ignore_time=False)
    store.cancel(flow.processes[1].id, "", store.now())
    prune_one(store, flow.id)

    assert [process.id for process in workflows.find(scheduler, flow.id).processes] == [flow.processes[1].id]
    [recent] = workflows.recent(scheduler)
    assert (recent.id, recent.number, recent.state) == (flow.id, 1, "canceled")
    assert scheduler.recover_workflow(flow.id) == []


def test_recent_workflows_are_read_page_by_page(scheduler: Scheduler) -> None:
    flows = [workflows.chain(scheduler, (Number, 1), Sum) for _ in range(3)]

    assert [recent.id for recent in workflows.recent(scheduler, 2)] == [flows[2].id, flows[1].id]
    assert [recent.id for recent in workflows.recent(scheduler, after=flows[1].id)] == [flows[0].id]
    with pytest.raises(InvalidQuery, match="limit=0"):
        workflows.recent(scheduler, 0)
    with pytest.raises(InvalidQuery, match="after='none'"):
        workflows.recent(scheduler, after="none")


def prune_one(store: Store, id: Any) -> None:
    """Remove the job that ended first."""
    later = store.now() + timedelta(hours=1)
    store.prune({Status.DONE: later}, later, 1)
    assert store.count(parse({"id": id})) == 0


def test_a_member_names_what_it_waits_for(scheduler: Scheduler) -> None:
    flow = workflows.chain(scheduler, (Number, 1), Sum)

    assert str(flow.processes[0].id) in flow.processes[1].why()


def test_a_workflow_is_found_by_any_member(scheduler: Scheduler) -> None:
    flow = workflows.chain(scheduler, (Number, 1), Sum)
    other = scheduler.add_job(Number)

    for id in (flow.id, flow.processes[1].id):
        assert workflows.find(scheduler, id).processes == flow.processes
    with pytest.raises(JobNotFound, match="not a member of a workflow"):
        workflows.find(scheduler, other.id)


def test_a_workflow_is_drawn_by_its_levels(scheduler: Scheduler) -> None:
    flow = workflows.chain(scheduler, (Number, 1), [(Sum, 1, LATER), (Sum, 2, LATER), (Batch, [], LATER)], Sum)
    scheduler.run_pending(ignore_time=False)
    module = __name__

    first, _, _, batch, last = list(flow.refresh().processes)

    assert flow.drawing().splitlines() == [
        f"{module}:Number DONE {first.id}",
        f"└─ 2 × {module}:Sum 2 POSTPONED",
        f"└─ {module}:Batch POSTPONED {batch.id}",
        f"   └─ {module}:Sum POSTPONED {last.id}",
    ]


def test_a_workflow_without_jobs_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidJob, match="a level without jobs"):
        workflows.chain(scheduler)
    with pytest.raises(InvalidJob, match="a level without jobs"):
        workflows.map(scheduler, Number, [], then=Sum)


def test_what_a_workflow_sets_itself_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidOption, match="a workflow sets it itself"):
        workflows.chain(scheduler, (Number, 1, {"depends_on": []}))
    with pytest.raises(InvalidOption, match="batch=0: pass a number"):
        workflows.map(scheduler, Number, [1], batch=0)
    with pytest.raises(InvalidJob, match="a member of a workflow is"):
        workflows.chain(scheduler, (Number, 1, {}, 4))
    with pytest.raises(InvalidJob, match=r"1,001 jobs would run side by side before another.*batch=100"):
        workflows.map(scheduler, Number, range(1001), then=Sum)


def test_a_member_that_another_job_could_stand_for_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidOption, match="unique='a': if a job with this key is pending, later members would wait"):
        workflows.chain(scheduler, (Number, 1, {"unique": "a"}), Sum)
    with pytest.raises(InvalidOption, match="unique='one': if a job with this key is pending"):
        workflows.group(scheduler, [Single], then=Sum)
    with pytest.raises(InvalidOption, match="unique='a': if a job with this key is pending"):
        workflows.chain(scheduler, Number, Sum, unique="a")


def test_nothing_is_added_if_one_member_is_invalid(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidJob):
        workflows.chain(scheduler, (Number, 1), (Number, object()))

    assert list(scheduler.get_jobs({})) == []


def test_what_is_no_scheduler_and_no_list_is_refused_in_words(scheduler: Scheduler) -> None:
    with pytest.raises(TypeError, match="Number'> is not a scheduler: pass a Scheduler or an AsyncScheduler before"):
        words.chain(Number, Sum)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match=r"members=5: pass a list of members, each job, \(job, data\)"):
        workflows.group(scheduler, 5)
    with pytest.raises(InvalidJob, match="members='a:B': pass a list of members"):
        workflows.group(scheduler, "a:B")
    with pytest.raises(InvalidJob, match=r"members=\(.*\) is one member: pass a list of members"):
        workflows.group(scheduler, (Number, {"to": "ann"}))
    with pytest.raises(InvalidJob, match="items=5: pass a list, or another iterable"):
        workflows.map(scheduler, Number, 5)
    with pytest.raises(InvalidOption, match="on_dependency_failure='stop': pass 'cancel', 'ignore' or 'wait'"):
        workflows.chain(scheduler, Number, Sum, on_failure="stop")


@pytest.mark.parametrize(
    ("member", "options", "words"),
    [
        (("a:B", 1, 2), {}, "pass job, \\(job, data\\) or \\(job, data, options\\)"),
        (("a:B", 1, ["tags"]), {}, "pass job, \\(job, data\\) or \\(job, data, options\\)"),
        ("a:B", {"tags": 5}, "tags=5"),
        ("a:B", {"id": "0" * 24}, "id='0+': a workflow sets it itself"),
    ],
)
def test_absurd_members_and_options_are_refused_in_words(
    scheduler: Scheduler, member: Any, options: Any, words: str
) -> None:
    with pytest.raises((InvalidJob, InvalidOption), match=words):
        workflows.chain(scheduler, member, **options)
