"""Jobs that are changed while they wait, run at once in the caller, or run once more after their end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, cast

import pytest

from taskqueue import Job, Limit, Scheduler, Status
from taskqueue.errors import DataTooLarge, InvalidOption, InvalidQuery, JobFailed, JobNotFound, KeyTaken, WrongStatus
from taskqueue.model.lifecycle.outcomes import Failed
from taskqueue.model.query import parse
from taskqueue.model.record import Cause, Record
from taskqueue.scheduler import changes
from taskqueue.store import Store
from taskqueue.store.open import open_store
from tests.scheduler.jobs import Broken, Collecting, Dividing, Echo, Giving, Lucky, Sleepy, Working
from tests.scheduler.playing import begin, end, take
from tests.store.records import BROKEN, a_record, settlement

UNKNOWN = "65f0" * 6


# update_job


def test_a_waiting_job_is_changed_in_one_step(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo, {"to": "a"}, tags="old")

    after = scheduler.update_job(process.id, priority=-3, queue="fast", tags=["b", "a"], data={"to": "b"}, at="+1 hour")

    assert after == process
    assert process.refresh().data == {"to": "b"}
    assert (process.priority, process.queue, process.tags) == (-3, "fast", ("a", "b"))
    assert (process.status, process.cause) == (Status.POSTPONED, Cause.SCHEDULED)
    assert process.options["at"] == "+1 hour"


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_the_meta_of_a_waiting_job_are_replaced(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo, 1, meta={"tenant": "acme", "added_by": "ann"})

    scheduler.update_job(process.id, meta={**process.meta, "tenant": "beta"})
    assert process.refresh().meta == {"tenant": "beta", "added_by": "ann"}
    assert scheduler.find_jobs({"meta.tenant": "beta"}) == [process]
    with pytest.raises(InvalidOption, match="update_job: meta"):
        scheduler.update_job(process.id, meta={"a b": "c"})

    scheduler.update_job(process.id, meta={})
    assert process.refresh().meta == {}
    assert scheduler.recover_job(scheduler.run_pending()[0].id).meta == {}


def test_what_is_not_named_stays(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo, 1, queue="mail", priority=2, at="+1 hour")

    after = scheduler.update_job(process.id, tags="new")

    assert (after.queue, after.priority, after.data, after.ready_at) == ("mail", 2, 1, process.ready_at)


@pytest.mark.parametrize("now", ["now", None])
def test_a_postponed_job_can_be_let_go(scheduler: Scheduler, now: str | None) -> None:
    process = scheduler.add_job(Echo, 1, at="+1 hour")

    scheduler.update_job(process.id, at=now)

    assert [done.result for done in scheduler.run_pending(ignore_time=False)] == [1]


def test_a_job_that_pauses_after_a_failure_can_be_brought_forward(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Lucky, 2, retry=1, retry_interval="1h")
    scheduler.run_pending(once=True)

    scheduler.update_job(process.id, at="now")
    scheduler.run_pending(ignore_time=False)

    assert process.refresh().result == 2


def test_a_job_that_is_retried_in_vain_is_given_up(scheduler: Scheduler) -> None:
    several = [scheduler.run_job(Broken, retry=2, retry_interval="1h", tags=f"n:{number}") for number in range(3)]
    untried = scheduler.add_job(Echo)

    ended = scheduler.give_up_job(several[0].id, "no such shop")

    assert (ended.status, ended.cause, ended.is_final) == (Status.FAILED, Cause.GIVEN_UP, True)
    error = several[1].error
    assert error is not None
    assert ended.error == replace(error, message=f"{error.message} (no such shop)")
    assert "it was given up while it waited to run again" in ended.why()
    with pytest.raises(WrongStatus, match="is WAITING: a job can be given up while it waits to run again"):
        scheduler.give_up_job(untried.id)
    with pytest.raises(JobNotFound):
        scheduler.give_up_job(UNKNOWN)
    assert scheduler.give_up_jobs({"tags": "n:1"}) == 1
    assert scheduler.give_up_jobs({}) == 1
    assert {process.refresh().status for process in several} == {Status.FAILED}
    assert untried.refresh().status is Status.WAITING
    assert scheduler.recover_job(ended.id).status is Status.WAITING


def test_add_job_once_sees_the_change(scheduler: Scheduler) -> None:  # PTS-12
    process = scheduler.add_job_once(Echo, 1, queue="a", unique="key")
    scheduler.update_job(process.id, queue="b", data=2)

    assert scheduler.add_job_once(Echo, 2, queue="b", unique="key") == process
    assert scheduler.add_job_once(Echo, 2, queue="a", unique="key") != process


def test_a_job_that_is_known_by_its_data_keeps_them(scheduler: Scheduler) -> None:
    process = scheduler.add_job_once(Echo, {"to": "a"})

    with pytest.raises(InvalidOption, match="identifies it by its data: cancel it and add another"):
        scheduler.update_job(process.id, data={"to": "b"})
    assert scheduler.update_job(process.id, data={"to": "a"}, priority=1).priority == 1


def test_a_job_that_runs_or_has_ended_is_not_changed(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    begin(store, *take(store))
    with pytest.raises(WrongStatus, match="is PROCESSING: a job can be updated while it is WAITING or POSTPONED"):
        scheduler.update_job(process.id, priority=1)

    done = scheduler.run_job(Echo)
    with pytest.raises(WrongStatus, match="is DONE"):
        scheduler.update_job(done.id, priority=1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "nothing to change: pass priority, at, queue, tags, meta or data"),
        ({"retry": 3}, "retry cannot be changed: only priority, at"),
        ({"priority": 21}, "priority=21: pass a whole number"),
        ({"at": "soon"}, "is not a time"),
        ({"at": "+3 hours"}, "is not before the job expires"),
    ],
)
def test_a_change_that_cannot_be_is_refused(scheduler: Scheduler, changes: dict[str, Any], words: str) -> None:
    process = scheduler.add_job(Echo, expires=datetime.now(timezone.utc) + timedelta(hours=2))

    with pytest.raises(InvalidOption, match=words):
        scheduler.update_job(process.id, **changes)
    assert process.refresh().ready_at == process.created_at


def test_a_job_that_is_put_off_expires_as_much_later(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo, expires="+2 hours")
    after = scheduler.update_job(process.id, at="+3 hours")

    assert after.ready_at is not None
    assert after.expires_at == after.ready_at + timedelta(hours=2)


def test_data_that_cannot_be_kept_are_refused(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo)

    with pytest.raises(DataTooLarge):
        scheduler.update_job(process.id, data="x" * 2**21)
    with pytest.raises(JobNotFound):
        scheduler.update_job(UNKNOWN, data=1)


# recover_job


def test_an_ended_job_runs_once_more_as_a_copy(scheduler: Scheduler) -> None:  # REC-33
    failed = scheduler.run_job(Broken, {"to": "a"}, queue="mail", priority=2, tags="t", retry=0, timeout=60)

    copy = scheduler.recover_job(failed.id)

    assert copy != failed
    assert copy.recovered_from == failed.id
    assert (copy.status, copy.attempts, copy.error, copy.attempt) == (Status.WAITING, (), None, 1)
    assert (copy.job, copy.data, copy.queue, copy.priority, copy.tags) == (failed.job, {"to": "a"}, "mail", 2, ("t",))
    assert {**copy.options} == {**failed.options}
    assert failed.refresh().is_failed
    assert failed.recovered_from is None


def test_a_copy_can_be_planned(scheduler: Scheduler) -> None:
    copy = scheduler.recover_job(scheduler.run_job(Echo, 1).id, at="+1 hour")

    assert copy.is_postponed
    assert [done.result for done in scheduler.run_pending()] == [1]


def test_a_copy_can_have_other_data(scheduler: Scheduler) -> None:
    failed = scheduler.run_job(Broken, {"to": "a"}, priority=2)

    copy = scheduler.recover_job(failed.id, data={"to": "b"})

    assert (copy.refresh().data, copy.priority, copy.recovered_from) == ({"to": "b"}, 2, failed.id)
    assert failed.refresh().data == {"to": "a"}
    with pytest.raises(DataTooLarge):
        scheduler.recover_job(failed.id, data="x" * 2**21)


class Paying(Job):
    """Fails until its data name no error, and tells its key."""

    def start(self) -> None:
        raise ValueError(self.key)


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_the_copy_of_a_job_without_success_has_its_key(scheduler: Scheduler) -> None:
    failed = scheduler.run_job(Paying, {"order": 1, "cents": 5})
    copy = scheduler.recover_job(failed.id, data={"cents": 5, "order": 1})
    scheduler.run_pending()
    [again] = scheduler.recover_jobs({"id": str(copy.id)})
    scheduler.run_pending()

    errors = [process.refresh().error for process in (failed, copy, again)]
    assert [error and error.message for error in errors] == [str(failed.id)] * 3


def test_a_copy_with_other_data_or_of_a_job_that_is_done_has_a_key_of_its_own(scheduler: Scheduler) -> None:
    failed = scheduler.recover_job(scheduler.run_job(Paying, {"order": 1}).id)
    scheduler.run_pending()
    other = scheduler.recover_job(failed.id, data={"order": 2})
    done = scheduler.recover_job(scheduler.run_job(Working).id)
    scheduler.run_pending()

    error = other.refresh().error
    assert error is not None
    assert error.message == str(other.id)
    assert done.refresh().result["key"] == str(done.id)


def test_a_copy_has_no_checkpoint_of_the_old_job(scheduler: Scheduler) -> None:
    slept = scheduler.add_job(Sleepy)
    scheduler.run_pending()
    assert slept.refresh().is_done

    copy = scheduler.recover_job(slept.id)

    assert copy.snapshot.state is None


def test_a_copy_expires_as_long_after_the_time_at_which_it_may_run(scheduler: Scheduler) -> None:
    copy = scheduler.recover_job(scheduler.run_job(Echo, expires="+2 hours").id)
    late = scheduler.recover_job(scheduler.run_job(Echo, expires="+2 hours").id, at="+3 hours")

    assert copy.expires_at is not None
    assert (copy.expires_at - copy.created_at).total_seconds() == 7200
    assert late.expires_at is not None
    assert late.ready_at is not None
    assert (late.expires_at - late.ready_at).total_seconds() == 7200


def test_a_copy_finds_what_the_job_depended_on_and_waits_for_none_of_it(scheduler: Scheduler, store: Store) -> None:
    fine, broken = scheduler.add_job(Echo, 5), scheduler.add_job(Broken)
    report = scheduler.add_job(Collecting, depends_on={fine: "cancel", broken: "cancel"})
    scheduler.run_pending()
    assert report.refresh().cause is Cause.DEPENDENCY

    copy = scheduler.recover_job(report.id)
    store.prune(dict.fromkeys(Status, store.now() + timedelta(hours=1)), store.now(), 10)
    scheduler.run_pending()

    assert (copy.depends_on, copy.waiting_for) == (report.depends_on, ())
    assert copy.refresh().result == [5, None]


def test_what_has_not_ended_is_not_recovered(scheduler: Scheduler) -> None:
    with pytest.raises(WrongStatus, match="is WAITING: a job can be recovered once it has ended"):
        scheduler.recover_job(scheduler.add_job(Echo).id)
    with pytest.raises(JobNotFound):
        scheduler.recover_job(UNKNOWN)


def test_all_that_match_and_have_ended_are_recovered(scheduler: Scheduler) -> None:  # row 103
    failed = [scheduler.run_job(Giving, queue="mail") for _ in range(3)]
    scheduler.run_job(Echo, queue="mail")
    scheduler.add_job(Giving, queue="mail")

    copies = scheduler.recover_jobs({"queue": "mail", "status": "FAILED"})

    assert [copy.recovered_from for copy in copies] == [process.id for process in failed]
    assert [copy.status for copy in scheduler.recover_jobs({"queue": "mail"})] == [Status.WAITING]  # of the DONE one
    assert scheduler.recover_jobs({"queue": "other"}) == []
    with pytest.raises(InvalidQuery):
        scheduler.recover_jobs({"colour": "red"})


@pytest.mark.parametrize("id", ["ffffffffffffffffffffffff", "f48657000000000000000000"])
def test_whatever_its_id_what_matches_is_recovered(scheduler: Scheduler, id: str) -> None:
    first, last = scheduler.run_job(Giving), scheduler.run_job(Giving, id=id)

    copies = scheduler.recover_jobs({"status": "FAILED"})

    assert [copy.recovered_from for copy in copies] == [first.id, last.id]


def test_what_was_recovered_is_not_recovered_again_by_a_query(scheduler: Scheduler) -> None:
    first, second = scheduler.run_job(Giving), scheduler.run_job(Giving)
    [named] = [scheduler.recover_job(first.id)]
    scheduler.cancel_job(named.id)

    [copy] = scheduler.recover_jobs({"status": "FAILED"})

    assert copy.recovered_from == second.id
    assert second.refresh().recovered_as == copy.id
    assert first.refresh().recovered_as == named.id
    assert scheduler.recover_jobs({"status": "FAILED"}) == []
    scheduler.run_pending()  # the copy fails, too
    assert [copy_of.recovered_from for copy_of in scheduler.recover_jobs({"status": "FAILED"})] == [copy.id]


def test_what_was_recovered_can_be_recovered_again_by_its_id(scheduler: Scheduler) -> None:
    failed = scheduler.run_job(Giving)
    scheduler.recover_job(failed.id)

    again = scheduler.recover_job(failed.id)

    assert again.recovered_from == failed.id
    assert failed.refresh().recovered_as == again.id
    assert again.recovered_as is None


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_a_job_whose_unique_key_another_has_is_not_recovered(scheduler: Scheduler) -> None:
    failed = scheduler.run_job(Giving, unique="key")
    holder = scheduler.add_job(Giving, unique="key")

    assert scheduler.recover_jobs({"status": "FAILED"}) == []
    for given in ({}, {"data": 2}):
        with pytest.raises(KeyTaken, match=f"job {holder.id} .* recover job {failed.id} once that one has ended") as it:
            scheduler.recover_job(failed.id, **given)
        assert it.value.id == holder.id

    assert failed.refresh().recovered_as is None
    assert scheduler.stats()["statuses"]["WAITING"] == 1


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_one_of_several_jobs_with_one_unique_key_is_recovered(scheduler: Scheduler, store: Store) -> None:
    first, _ = [scheduler.run_job(Giving, unique="key") for _ in range(2)]

    copies, left_out, taken = changes.recover_all(store, parse({"status": "FAILED"}), None)

    assert [copy.id for copy in copies] == [first.refresh().recovered_as]
    assert (left_out, taken) == (0, 1)  # nothing was recovered before


class Wrapped:
    """A store to whose parts a test adds something."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Hasty(Wrapped):
    """A store whose nodes have run a job before the next one is added."""

    def add(self, records: Sequence[Record]) -> list[Record]:
        """Add the records, and have each fail."""
        kept = self._store.add(records)
        while runs := take(self._store, most=1000):
            self._store.settle([settlement(run, Failed(failure=BROKEN)) for run in runs], self._store.now())
        return kept


def test_no_copy_is_copied_although_it_ends_under_way(store: Store) -> None:
    many = changes.BATCH + 1
    hasty = Hasty(store)
    hasty.add([a_record() for _ in range(many)])

    copies, _, _ = changes.recover_all(cast(Store, hasty), parse({"status": "FAILED"}), None)

    assert len({copy.id for copy in copies}) == many
    assert store.tally() == {("default", Status.FAILED): 2 * many}


class Overtaken(Wrapped):
    """A store in which another process recovers the same jobs before the copies of this one are added."""

    def __init__(self, scheduler: Scheduler, store: Store) -> None:
        super().__init__(store)
        self._scheduler = scheduler

    def add(self, records: Sequence[Record]) -> list[Record]:
        """Recover all a moment later, and add the records."""
        while self._store.now() == records[0].created_at:
            pass
        self._scheduler.recover_jobs({"status": "FAILED"})
        return self._store.add(records)


@pytest.mark.parametrize("number", [1, 3])
def test_what_two_processes_recover_at_once_is_copied_once(scheduler: Scheduler, store: Store, number: int) -> None:
    failed = [scheduler.run_job(Giving) for _ in range(number)]

    copies, left_out, _ = changes.recover_all(
        cast(Store, Overtaken(scheduler, store)), parse({"status": "FAILED"}), None
    )

    assert (copies, left_out) == ([], number)
    assert all(process.refresh().recovered_as for process in failed)
    assert scheduler.stats()["statuses"]["WAITING"] == number


class Hurried(Wrapped):
    """A store in which another process changes the same job a moment before."""

    def __init__(self, store: Store, first: Callable[[], object]) -> None:
        super().__init__(store)
        self._first: list[Callable[[], object]] = [first]

    def update(self, before: Record, after: Record, now: datetime) -> bool:
        """Let the other process be first, once."""
        while self._first:
            self._first.pop()()
        return self._store.update(before, after, now)


def test_keys_of_meta_that_two_set_at_once_are_both_kept(scheduler: Scheduler, store: Store) -> None:
    job = scheduler.add_job(Echo, meta={"tenant": "acme", "batch": "1"})
    hurried = Hurried(store, lambda: changes.update(store, job.id, {}, {"batch": "2", "theirs": "yes"}))

    after = changes.update(cast(Store, hurried), job.id, {"priority": 3}, {"mine": "yes"})

    assert after.meta == {"tenant": "acme", "batch": "2", "theirs": "yes", "mine": "yes"}
    assert job.refresh().meta == after.meta
    with pytest.raises(InvalidOption, match="up to 16"):
        changes.update(store, job.id, {}, {f"key{number}": "" for number in range(13)})


# run_job


def test_a_job_runs_at_once_in_the_caller_and_is_recorded(scheduler: Scheduler) -> None:  # REC-4, X-37
    process = scheduler.run_job(Echo, {"a": 1}, queue="mail")

    assert (process.status, process.cause, process.result) == (Status.DONE, Cause.RETURNED, {"a": 1})
    [attempt] = process.attempts
    assert (attempt.pid, attempt.outcome) == (os.getpid(), "Done")
    assert scheduler.get_job(process.id).queue == "mail"
    assert scheduler.run_pending() == []


def test_no_other_job_runs_in_the_caller(scheduler: Scheduler) -> None:  # JW-13
    sooner = scheduler.add_job(Echo, 1, priority=-20)
    late = scheduler.add_job(Echo, 2, at="2020-01-01T00:00:00Z")
    running = scheduler.run_job(Echo, 3, priority=20, limits=Limit(1))
    other = scheduler.add_job(Echo, 4, depends_on=running)

    assert (running.status, running.result) == (Status.DONE, 3)
    assert [(job.refresh().status, job.attempts) for job in (sooner, late, other)] == [(Status.WAITING, ())] * 3


def test_what_the_job_raises_stays_with_the_job(scheduler: Scheduler) -> None:  # REC-6
    process = scheduler.run_job(Broken)

    assert (process.status, process.cause) == (Status.FAILED, Cause.FAILED)
    assert process.error is not None
    assert process.error.type == "ValueError"


def test_what_the_job_raises_can_be_raised(scheduler: Scheduler) -> None:
    with pytest.raises(ValueError, match="no such address, attempt 1"):
        scheduler.run_job(Broken, reraise=True)

    assert scheduler.stats()["statuses"]["FAILED"] == 1


def test_a_job_that_goes_on_later_raises_nothing(scheduler: Scheduler) -> None:
    process = scheduler.run_job(Sleepy, reraise=True)
    waiting = scheduler.run_job(Dividing, {"parts": [1]}, reraise=True)

    assert (process.status, process.cause) == (Status.POSTPONED, Cause.SNOOZED)
    assert waiting.status is Status.POSTPONED


def test_a_job_that_cannot_be_loaded_is_a_job_that_failed(scheduler: Scheduler) -> None:
    with pytest.raises(JobFailed, match="has no Nobody") as raised:
        scheduler.run_job("tests.scheduler.jobs:Nobody", reraise=True)

    assert scheduler.get_job(str(raised.value.id)).status is Status.FAILED
    scheduler.add_job("tests.scheduler.jobs:Nobody")
    with pytest.raises(JobFailed, match="has no Nobody"):
        scheduler.run_pending(reraise=True)


def test_only_the_retries_are_left_to_others(scheduler: Scheduler) -> None:  # REC-6
    process = scheduler.run_job(Lucky, 2, retry=1)

    assert (process.status, process.cause, len(process.attempts)) == (Status.POSTPONED, Cause.RETRY, 1)
    assert scheduler.run_pending() == [process]
    assert process.refresh().result == 2


def test_a_job_whose_key_is_taken_does_not_run(scheduler: Scheduler) -> None:
    pending = scheduler.add_job(Echo, 1, unique="key")

    assert scheduler.run_job(Echo, 2, unique="key") == pending
    assert pending.refresh().is_waiting


def test_a_job_whose_limit_is_full_is_left_to_the_nodes(scheduler: Scheduler, store: Store) -> None:
    license_ = Limit(1, name="license")
    scheduler.add_job(Echo, 1, limits=license_)
    [running] = take(store)

    waiting = scheduler.run_job(Echo, 2, limits=license_)
    assert (waiting.status, waiting.attempts) == (Status.WAITING, ())

    end(store, begin(store, running))
    assert scheduler.run_job(Echo, 3, limits=license_).result == 3
    assert [record.id for record in take(store)] == [waiting.id]


class Claiming(Job):
    """Tells how many jobs a node could claim meanwhile."""

    def start(self) -> int:
        with closing(open_store(self.data)) as store:
            return len(take(store))


def test_a_job_that_runs_here_takes_its_place_under_a_limit(scheduler: Scheduler, store: Store, url: str) -> None:
    other = scheduler.add_job(Echo, 1, limits=Limit(1, name="license"))

    process = scheduler.run_job(Claiming, url, limits=Limit(1, name="license"))

    assert process.result == 0
    assert [record.id for record in take(store)] == [other.id]


def test_a_job_with_a_known_id_does_not_run_again(scheduler: Scheduler) -> None:
    first = scheduler.run_job(Echo, 1, id=UNKNOWN)

    second = scheduler.run_job(Echo, 1, id=UNKNOWN)

    assert second == first
    assert len(second.attempts) == 1


def test_a_job_that_is_to_run_later_cannot_run_now(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidOption, match="run_job runs the job now: leave out at"):
        scheduler.run_job(Echo, at="+1 hour")
    assert scheduler.stats()["total"] == 0


def test_a_job_that_cannot_be_loaded_fails_at_once(scheduler: Scheduler) -> None:
    process = scheduler.run_job("tests.nowhere:Job")

    assert (process.status, process.cause) == (Status.FAILED, Cause.UNLOADABLE)


# cancel_jobs


def test_all_that_match_and_are_pending_are_canceled(scheduler: Scheduler, store: Store) -> None:
    scheduler.add_job(Echo, 0, queue="mail")
    [running] = take(store)
    begin(store, running)
    done = scheduler.run_job(Echo, 1, queue="mail")
    added = scheduler.add_jobs([(Echo, number, {"queue": "mail"}) for number in range(3)])
    other = scheduler.add_job(Echo)

    assert scheduler.cancel_jobs({"queue": "mail"}, "relay down") == 4

    assert {one.refresh().status for one in added} == {Status.CANCELED}
    assert added[0].error is not None
    assert added[0].error.message == "relay down"
    assert (done.refresh().status, other.refresh().status) == (Status.DONE, Status.WAITING)
    kept = scheduler.get_job(running.id).snapshot
    assert (kept.status, kept.cancel is not None) == (Status.PROCESSING, True)
    with pytest.raises(InvalidQuery):
        scheduler.cancel_jobs({"quue": "mail"})


def test_a_job_that_somebody_else_has_canceled_meanwhile_is_not_counted(scheduler: Scheduler, store: Store) -> None:
    first, second = (scheduler.add_job(Echo) for _ in range(2))
    scheduler.cancel_job(first.id)
    canceled_at = scheduler.get_job(first.id).snapshot.ended_at
    while store.now() == canceled_at:
        pass

    assert changes.cancel_each(store, [first.id, second.id], "all") == (1, 0)


class Busy(Wrapped):
    """A store that notes when jobs are read and canceled, and to which somebody adds a job before each read."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.calls: list[str] = []

    def find(self, *args: Any, **kwargs: Any) -> list[Record]:
        """Add a job, and find others."""
        self.calls.append("find")
        self._store.add([a_record(created_at=self._store.now() + timedelta(seconds=1))])
        return self._store.find(*args, **kwargs)

    def cancel_many(self, *args: Any) -> list[Record]:
        """Cancel, and note it."""
        self.calls.append("cancel")
        return self._store.cancel_many(*args)


@pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)
def test_jobs_are_read_and_canceled_a_batch_at_a_time_and_later_ones_stay(store: Store) -> None:
    store.add([a_record() for _ in range(changes.BATCH + 1)])
    busy = Busy(store)

    assert changes.cancel_all(cast(Store, busy), parse({}), "all") == (changes.BATCH + 1, 0)

    assert busy.calls == ["find", "cancel", "find", "cancel"]
    assert store.tally() == {("default", Status.CANCELED): changes.BATCH + 1, ("default", Status.WAITING): 2}
