"""The report of why ends with what matters most of it, in one line."""

from __future__ import annotations

import os
from datetime import timedelta

from taskqueue import Limit, Process, Scheduler
from taskqueue.insight import host
from taskqueue.store import ClaimRequest, Store
from tests.scheduler.jobs import Broken, Echo, Mail
from tests.scheduler.playing import LEASE, WEB_1, begin, seat, take


def last(process: Process) -> str:
    """Return the last line of the report, which is the only one of its kind."""
    *lines, line = process.why().split("\n")
    assert not [other for other in lines if other.startswith("In short: ")]
    return line


def test_a_waiting_job_says_what_holds_it_back_first(scheduler: Scheduler, store: Store) -> None:
    other = scheduler.add_job(Mail, {"to": "a"}, limits=Limit(1, name="relay"))
    process = scheduler.add_job(Mail, {"to": "b"}, limits=Limit(1, name="relay"))
    scheduler.pause("mail", "a release")
    assert last(process) == "In short: queue mail is paused."

    scheduler.resume("mail")
    assert last(process) == "In short: no node takes jobs of queue mail."
    seat(store, "web-1", queues={"reports": None})
    assert last(process) == "In short: no node takes jobs of queue mail."

    web_2 = seat(store, "web-2", max_children=1).holder
    assert last(process) == "In short: 1 job of queue mail comes first."
    assert last(other) == "In short: it is next in its queue."
    busy = scheduler.add_job(Echo)
    now = store.now()
    assert store.claim_one(busy.id, web_2, now, now + LEASE)
    assert last(process) == "In short: every worker is busy, and 1 job of queue mail comes first."
    assert last(other) == "In short: every worker is busy, and it is next in its queue."

    take(store)
    assert last(process) == f"In short: a limit that it needs is used up, held by job {other.id}."


def test_a_postponed_job_says_what_it_waits_for(scheduler: Scheduler) -> None:
    later = scheduler.add_job(Echo, at="+1 hour")
    behind = scheduler.add_job(Echo, depends_on=[later])
    failed = scheduler.add_job(Broken)
    kept = scheduler.add_job(Echo, depends_on=[failed], on_dependency_failure="wait")
    assert last(later).startswith("In short: its time comes 2")
    end = f"In short: it waits for the end of 1 job, in the end for job {later.id}: its time comes 2"
    assert last(behind).startswith(end)
    end = (
        f"In short: it waits for the end of 1 job, in the end for job {failed.id}: no node takes jobs of queue default."
    )
    assert last(kept) == end

    scheduler.run_pending()
    assert last(kept) == "In short: what it waits for did not end as DONE, so only a person can end this wait."


def test_a_running_job_says_whether_it_really_runs(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    seat(store, "web-1")
    [record] = take(store)
    assert last(process) == "In short: a node has claimed it, and it has not started."
    begin(store, record)
    assert last(process) == "In short: it is running."
    process.cancel()
    assert last(process) == "In short: it was asked to end, and has not ended yet."
    [[pid, born]] = host.named({"node": os.getpid()}).values()
    seat(store, "web-1", machine=host.machine(), processes={"node": [pid, born + 1]})
    nobody = "In short: its node has died, and no other node is running to take the job back: start one with "
    nobody += "`taskqueue-node`."
    assert last(process) == nobody
    seat(store, "web-2")
    assert last(process) == "In short: its node has died, and another one takes the job back."


def test_a_job_of_a_silent_node_is_taken_back(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    now = store.now()
    store.claim(WEB_1, ClaimRequest(pooled=1), now, now - timedelta(seconds=1))

    nobody = "In short: its node is silent, and no other node is running to take the job back: start one with "
    nobody += "`taskqueue-node`."
    assert last(process) == nobody
    seat(store, "web-2")
    assert last(process) == "In short: its node is silent, and another one takes the job back."


def test_a_job_that_did_not_succeed_says_how_to_run_it_again(scheduler: Scheduler) -> None:
    failed, done, canceled = scheduler.add_job(Broken), scheduler.add_job(Echo), scheduler.add_job(Echo)
    canceled.cancel()
    scheduler.run_pending()

    assert last(failed) == f"In short: it does not run again by itself, `taskqueue recover {failed.id}` runs it again."
    assert last(canceled).endswith(f"`taskqueue recover {canceled.id}` runs it again.")
    assert "In short" not in done.why()
    copied = scheduler.recover_job(failed.id)
    assert last(failed) == f"In short: it was recovered as job {copied.id}."
