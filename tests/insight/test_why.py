"""What `why` says for every state and cause."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskqueue import JobOptions, Process, Scheduler, retry
from taskqueue.insight import control_socket, host
from taskqueue.insight.why import MOST_FOLLOWED
from taskqueue.model.lifecycle import outcomes, settle
from taskqueue.model.record import Cause, Failure, Holder, Record
from taskqueue.model.wording import count, percent, some, span, times
from taskqueue.store import ClaimRequest, Lease, Settlement, Store
from tests.nodes import eventually
from tests.scheduler.jobs import Broken, Echo, Giving, Lucky, Mail, Sleepy, Unkept
from tests.scheduler.playing import LEASE, WEB_1, begin, end, play, seat, take
from tests.store.records import claim

FAILURE = Failure(type="ValueError", message="no such address")
CRASH = Failure(type="WorkerDied", message="the worker was killed by signal 9")


def said(process: Process, *words: str) -> str:
    """Return what why says, and check that it says all the words."""
    text = process.why()
    assert text.startswith(f"Job {process.id} ({process.job}) is {process.refresh().status.name}.\n")
    missing = [word for word in words if word not in text]
    assert not missing, f"{missing} not in:\n{text}"
    return text


def test_a_waiting_job_says_since_when_which_place_and_that_no_node_runs(scheduler: Scheduler) -> None:
    scheduler.add_jobs([(Echo, 1), (Echo, 2), (Mail, {"to": "a"})])
    process = scheduler.add_job(Echo, priority=3, expires="+2 hours")

    said(
        process,
        "It has been waiting since 2",
        " ago): it was added to run at once.",
        "In queue default, with priority 3, 2 stand before it.",
        "No node is running on this store: start one with `taskqueue-node`.",
        "It is canceled unless it starts before ",
        "(in 2 h)",
    )


def test_the_first_of_a_queue_says_so(scheduler: Scheduler) -> None:
    first = scheduler.add_job(Echo)
    second = scheduler.add_job(Echo)

    said(first, "it is the next.")
    said(second, "1 stands before it.")


def test_nodes_whose_store_is_away_are_said_to_take_none(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    seat(store, "web-1", degraded="disk I/O error")
    seat(store, "web-2", lease=4 * LEASE.total_seconds())  # its last renewal was three leases of these tests ago

    said(
        process,
        "it is the next.",
        "No node takes jobs of this queue just now: web-1 (degraded: disk I/O error, ",
        "web-2 (not heard from for ",
        "; see the log of the node.",
    )
    seat(store, "web-3", lease=LEASE.total_seconds())
    said(process, "Nodes that take jobs of this queue: web-1 (degraded", "web-3 (works, ")


def test_nodes_that_take_the_queue_are_named(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Mail, {"to": "a"})
    seat(store, "web-1", queues={"reports": 2})
    said(process, "No node takes jobs of queue mail (web-1 takes reports)", "taskqueue-node --work-on mail")

    seat(store, "web-2", queues={}, phase="works", busy=3, idle=0)
    seat(store, "web-3", queues={"mail": None})
    said(process, "Nodes that take jobs of this queue: web-2 (works, 3 busy, 0 idle), web-3 (works, ? busy, ? idle).")


def test_queues_that_share_the_runs_of_the_nodes_are_named_with_their_weights(
    scheduler: Scheduler, store: Store
) -> None:
    process = scheduler.add_job(Mail, {"to": "a"}, queue="mail", priority=3)
    seat(store, "web-1", queues={})
    assert "in turn" not in said(process, "Nodes that take jobs of this queue: web-1")

    scheduler.add_job(Echo, queue="invoice", priority=-3)
    said(
        process,
        "Node web-1 takes jobs of other queues in turn with this one, whose weight is 0.512: invoice (weight 1.95).",
    )

    seat(store, "web-2", queues={"mail": None})
    for number in range(6):
        scheduler.add_job(Echo, queue=f"paused-{number}")
    said(process, "Nodes web-1, web-2 take jobs of other queues in turn with this one", " and 2 more.")
    scheduler.pause("invoice", by="ann")
    assert "invoice" not in said(process, "paused-0 (weight 1), ", " and 1 more.")


def test_a_node_with_queues_of_its_own_shares_its_runs_among_those(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Mail, {"to": "a"}, queue="mail")
    scheduler.add_job(Echo, queue="invoice")
    seat(store, "web-1", queues={"mail": None, "reports": 2})

    assert "in turn" not in said(process, "Nodes that take jobs of this queue: web-1")


def test_a_strict_node_is_said_to_be_one(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Mail, {"to": "a"}, queue="mail")
    scheduler.add_job(Echo, queue="invoice")
    seat(store, "web-1", order="strict")

    strict = "Node web-1 takes first the job with the lowest rank of all queues (--order strict): "
    said(process, f"{strict}no job of another queue stands before it.")


def test_older_jobs_of_other_queues_stand_before_it_on_a_strict_node(scheduler: Scheduler, store: Store) -> None:
    for queue in ("mail", "mail", "reports", "paused", "elsewhere"):
        scheduler.add_job(Echo, queue=queue)
    process = scheduler.add_job(Echo, queue="invoice")
    scheduler.add_job(Echo, queue="mail")
    scheduler.pause("paused")
    seat(store, "web-1", order="strict", queues={"mail": None, "reports": None, "paused": None, "invoice": None})

    answer = said(process, "In queue invoice, with priority 0, it is the next.")

    assert "of all queues (--order strict): 3 jobs of other queues stand before it." in answer


def test_a_bound_that_is_used_up_is_named(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo, queue="reports", priority=1)
    holder = seat(store, "web-1", queues={"reports": 1}).holder
    assert "used up" not in said(process, "Nodes that take jobs of this queue: web-1")

    scheduler.add_job(Echo, queue="reports")
    claim(store, holder=holder, now=store.now())

    said(process, "Node web-1 has a bound that is used up: --work-on reports=1.")


def test_a_seat_that_is_over_is_no_node(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    seat_that_is_over(store, "web-1")

    said(process, "No node is running")


def seat_that_is_over(store: Store, name: str) -> Lease:
    """Have a node of this name that was last heard of long ago."""
    now = store.now() - 2 * LEASE
    lease = replace(seat(store, name), since=now, until=now + LEASE)
    store.resign(lease.name, lease.holder)
    return store.acquire(lease, now)


def test_a_job_for_later_says_when(scheduler: Scheduler) -> None:
    said(scheduler.add_job(Echo, at="+2 hours"), "It can run from 2", "(in 2 h): that is the time it was added for.")


def test_a_job_between_attempts_says_what_failed_and_what_is_left(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Broken, retry=retry.exponential(3, 60))
    play(store, outcomes.Failed(failure=FAILURE))

    said(
        process,
        "attempt 1 failed, and its policy is: retry 3 times, after 60 s and then 2 times longer",
        "Its last error: ValueError: no such address",
        "Runs that have ended:\n  2",
        "UTC, attempt 1 on node web-1 (pid 4711), Failed after ",
        "its worker was killed by SIGKILL, 12 MiB at most: ValueError: no such address",
    )


def test_a_snoozed_job_says_so(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Sleepy)
    scheduler.run_pending(ignore_time=False)

    said(process, "it asked to run later (Snooze), which counts as no attempt")


def test_a_job_whose_run_vanished_says_how_often(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    play(store, outcomes.Crashed(failure=CRASH))
    said(process, "It has been waiting since", "its last run was lost with its worker or node")
    play(store, outcomes.Crashed(failure=CRASH))
    said(
        process, "its run vanished twice, up to 3 times it runs again", "WorkerDied: the worker was killed by signal 9"
    )


def test_a_job_that_cannot_be_loaded_says_since_when(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job("shop.jobs:Mail")
    missing = Failure(type="ModuleNotFoundError", message="No module named 'shop'")
    play(store, outcomes.Unloadable(failure=missing, retry_for=timedelta(hours=1)))

    said(process, "it could not be loaded since ", "is tried again with growing pauses", "No module named 'shop'")


def test_a_job_behind_another_names_it(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job_once(Echo, 1)
    take(store)
    second = scheduler.add_job_once(Echo, 1, retry=1)

    said(second, f"It waits until these have ended: {first.id} (tests.scheduler.jobs:Echo, PROCESSING).")


def test_a_chain_too_long_to_be_followed_is_not_said_to_need_a_person(scheduler: Scheduler) -> None:
    process = first = scheduler.add_job(Echo, 1, at="+1 hour")
    for _ in range(MOST_FOLLOWED):
        process = scheduler.add_job(Echo, 2, depends_on=[process])
    last = scheduler.add_job(Echo, 3, depends_on=[process])

    said(process, f"In the end it waits for job {first.id} (", "which can run from ")
    said(last, "It is in a long chain of jobs that wait for one another: see `taskqueue why ")
    assert "person" not in last.why()


def test_dependencies_are_followed_to_the_one_that_keeps_all_waiting(scheduler: Scheduler, store: Store) -> None:
    first = scheduler.add_job(Echo, 1, at="+1 hour")
    second = scheduler.add_job(Echo, 2, depends_on=[first])
    third = scheduler.add_job(Echo, 3, depends_on=[second])
    end = f"In the end it waits for job {first.id} (tests.scheduler.jobs:Echo), which "

    said(third, f"It waits until these have ended: {second.id} (", f"{end}can run from ", "it was added for.")

    scheduler.update_job(first.id, at=None, queue="mail")
    said(third, f"{end}has been waiting since ", " ago). No node is running on this store: start one with `taskqueue-")
    seat(store, "web-1")
    said(third, f"{end}has been waiting since ", f"See `taskqueue why {first.id}`.")
    scheduler.pause("mail", "while it is down")
    said(third, "while it is down", "`taskqueue resume mail` lets its jobs start.")
    scheduler.resume("mail")
    [claimed] = take(store)
    said(second, f"{end}has not started on its node yet.")
    begin(store, claimed)
    said(third, f"{end}has been running since ")


def test_a_claimed_job_that_has_not_begun_says_who_has_it(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    take(store)

    said(
        process,
        "Node web-1 has it, with claim 1; it has no seat now.",
        "unless it renews",
        "It has not started there yet.",
    )


def test_a_running_job_says_where_since_when_and_how_far(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Mail, {"to": "a"})
    seat(store, "web-1", pid=17, host="web-1.example.org")
    [record] = take(store)
    begin(store, record, progress=40.0, progress_message="page 4", progress_at=store.now())

    said(
        process,
        "pid 17 on host web-1.example.org, alive, its seat holds until ",
        "Attempt 1 has been running since ",
        f"Where it is now: `taskqueue stack {process.id}`",
        "; its timeout is 60 s.",
        "Its progress is 40 % (page 4), reported ",
    )


def test_a_long_run_is_compared_with_those_of_its_class(scheduler: Scheduler, store: Store) -> None:
    alone, patient = scheduler.add_job(Broken), scheduler.add_job(Echo, timeout="1 hour")
    began_at = store.now() - timedelta(minutes=1)
    for record in take(store):
        begin(store, record, started_at=began_at)
    said(
        alone,
        "No other jobs of its class have run in the last day, so how long it takes is not known.",
        f"It has no timeout: if it hangs, nothing ends it but `taskqueue cancel {alone.id}`.",
        "It has reported no progress yet.",
        "In short: it is running.",
    )

    for number in range(3):
        scheduler.add_job(Echo, number)
        play(store)
    longer = "In short: it is running, longer than any of its class in the last day."
    answer = said(patient, "In the last day 3 jobs of its class ran for ", " on average, for ", longer)
    assert "It has no timeout" not in answer


def test_a_node_that_does_not_answer_is_said_to_be_silent(
    scheduler: Scheduler, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(folder))
    process = scheduler.add_job(Echo)
    seat(store, "web-1", machine=host.machine())
    take(store)

    path = control_socket.path_of(folder, "web-1", "a1")
    with socket.socket(socket.AF_UNIX) as listener, control_socket.short(path) as address:
        listener.bind(address)
        listener.listen()
        said(process, "The node takes no jobs: it did not answer within 1 s: its host may be overloaded.")


def test_a_running_job_whose_node_was_killed_does_not_say_that_it_runs(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    [[pid, born]] = host.named({"node": os.getpid()}).values()
    seat(store, "web-1", machine=host.machine(), processes={"node": [pid, born + 1]})
    [record] = take(store)
    begin(store, record)

    told = process.why()
    assert ", dead: its processes have ended." in told
    assert ", then any node takes it back; one on the host of web-1 does so at once." in told
    assert " and died with its node." in told
    assert "running since" not in told
    assert "taskqueue stack" not in told


def test_a_running_job_that_is_to_end_says_so(scheduler: Scheduler, store: Store) -> None:
    reasoned, plain = scheduler.add_jobs([(Echo, 1), (Echo, 2)])
    take(store)
    reasoned.cancel("too late")
    plain.cancel()

    said(reasoned, "Its end was requested (too late) 2")
    said(plain, "Its end was requested 2")


def test_a_claim_that_is_over_says_so(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    seat(store, "web-0")
    over = seat_that_is_over(store, "web-1")
    store.claim(WEB_1, ClaimRequest(pooled=1), over.since, over.until)

    said(process, "not heard from, its seat ended 2", "which has passed, so another node takes it back")


@pytest.mark.parametrize(
    ("outcome", "options", "words"),
    [
        (outcomes.Done(), {}, "start() returned"),
        (outcomes.Failed(failure=FAILURE), {}, "its attempt failed, and it has no retry"),
        (outcomes.GivenUp(failure=FAILURE), {"retry": 3}, "it failed for good"),
        (outcomes.TimedOut(failure=FAILURE), {"timeout": 5}, "took longer than 5 s, and it has no retry"),
        (outcomes.Crashed(failure=CRASH), {"crash_retries": 0}, "its run vanished once, and crash_retries is 0"),
        (outcomes.Crashed(failure=CRASH), {"on_crash": "fail"}, "on_crash='fail' forbids another"),
        (outcomes.Interrupted(), {"on_crash": "fail"}, "its run was interrupted, and on_crash='fail'"),
        (
            outcomes.Interrupted(),
            {},
            "its last run was interrupted, which is not an attempt: node web-1 was stopped, or loaded new code",
        ),
        (outcomes.HandedBack(), {}, "a node had claimed it and gave it back before it started"),
        (
            outcomes.Unloadable(failure=FAILURE, retry_for=timedelta(0)),
            {},
            "its node could not load it, and tries that once only (taskqueue run, --unroutable-after 0)",
        ),
    ],
)
def test_every_outcome_is_explained(
    scheduler: Scheduler, store: Store, outcome: outcomes.Outcome, options: JobOptions, words: str
) -> None:
    process = scheduler.add_job(Echo, **options)
    play(store, outcome)

    said(process, words)


def test_a_job_that_was_tried_again_says_that_it_could_not_be_loaded(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    play(store, outcomes.Unloadable(failure=FAILURE, retry_for=timedelta(seconds=0.001)))
    eventually(lambda: play(store, outcomes.Unloadable(failure=FAILURE, retry_for=timedelta(0))))

    said(process, "for as long as its node tries (--unroutable-after)")


def test_a_recovered_job_and_its_copy_name_one_another(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Broken)
    scheduler.run_pending()
    copy = scheduler.recover_job(process.id)

    said(process, f"It was recovered: job {copy.id} is its copy.")
    said(copy, f"It was added to recover job {process.id}.")


def test_a_job_without_attempts_left_names_the_last(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Broken, retry=1, retry_interval=1)
    scheduler.run_pending()

    text = said(process, "attempt 2 failed too, and its policy is: retry once, after 1 s")
    assert text.count("Failed after") == 2


def test_jobs_that_end_without_running_say_why(scheduler: Scheduler, store: Store) -> None:
    reasoned, plain = scheduler.add_job(Echo).cancel("not needed"), scheduler.add_job(Echo).cancel()
    replaced = scheduler.add_job_once(Echo, 1)
    scheduler.add_job_once(Echo, 1, retry=3)
    late = scheduler.add_job(Echo, expires="+1 hour")
    then = store.now() + timedelta(hours=2)
    store.claim(WEB_1, ClaimRequest(pooled=0), then, then)

    said(reasoned, "it was canceled (not needed).")
    said(plain, "it was canceled.")
    said(replaced, "a changed job was added in its place (add_job_once)")
    said(late, "it was not started before ")


def test_a_job_that_was_added_by_its_path_says_what_its_class_made_of_it(scheduler: Scheduler, store: Store) -> None:
    holder, second = scheduler.add_job("shop:Mail"), scheduler.add_job("shop:Mail")
    wrong = scheduler.add_job("shop:Report")
    [first, again, third] = take(store)
    now = store.now()

    def declares(record: Record, **options: Any) -> Settlement:
        after = settle.ended(record, outcomes.Declared(options=options), outcomes.Run(node="web-1"), now)
        assert record.holder is not None
        return Settlement(claims=record.claims, holder=record.holder, after=after, defined=record)

    store.settle([declares(first, unique="key")], now)
    store.settle([declares(again, unique="key"), declares(third, retry="often")], now)

    text = said(
        second, "it was added by its path, and the unique key of its class, 'key', belongs to job", str(holder.id)
    )
    assert "add_job_once" not in text
    assert "Its last error" not in text
    said(wrong, "the options that its class declares cannot be", "Its last error: taskqueue.InvalidOption: ", "often")


def test_a_canceled_run_says_so_once(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    [record] = take(store)
    end(store, begin(store, record), outcomes.Canceled())

    assert "last error" not in said(process, "it was canceled.")


def test_what_fails_for_good_says_its_error(scheduler: Scheduler) -> None:
    for job, words in ((Giving, "Fail: the address is wrong"), (Unkept, "InvalidJob: result is builtins.object")):
        process = scheduler.add_job(job, retry=3)
        scheduler.run_pending()
        said(process, "it failed for good", words)


def test_waiting_again_says_what_came_before(scheduler: Scheduler, store: Store) -> None:
    retried, snoozed = scheduler.add_job(Lucky, 3, retry=3, retry_interval=1), scheduler.add_job(Sleepy)
    later = scheduler.add_job(Echo, at="+1 hour")
    scheduler.run_pending(ignore_time=False)
    then = store.now() + timedelta(hours=2)
    store.claim(WEB_1, ClaimRequest(pooled=0), then, then)

    said(retried, "its pause after a failed attempt has ended", "Its last error: OSError: attempt 1")
    said(snoozed, "it asked to run later, and that time has come")
    said(later, "the time it was planned for has come")


def test_a_released_job_says_what_it_waited_for_has_ended(scheduler: Scheduler, store: Store) -> None:
    scheduler.add_job_once(Echo, 1)
    [record] = take(store)
    second = scheduler.add_job_once(Echo, 1, retry=3)
    end(store, begin(store, record))

    assert second.refresh().cause in (Cause.ADDED, Cause.BEHIND)
    said(second, "It has been waiting since")


def test_a_job_whose_node_was_lost_says_so(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    [record] = take(store, Holder(seat="gone", incarnation="g1"))
    after = settle.lost(record, store.now())
    assert record.holder is not None
    store.settle([Settlement(claims=record.claims, holder=record.holder, after=after)], store.now())
    said(process, "the node that had claimed it is gone, or was silent until its lease expired; it had not started")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-0.0003, "0 ms"),
        (0.25, "250 ms"),
        (1.5, "1.5 s"),
        (89, "89 s"),
        (240, "4 min"),
        (7200, "2 h"),
        (172_800, "2 d"),
    ],
)
def test_spans_are_told_in_their_unit(seconds: float, words: str) -> None:
    assert span(seconds) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0, "0 %"),
        (1e-9, "0.0001 %"),
        (0.004, "0.4 %"),
        (0.0996, "10 %"),
        (0.5, "50 %"),
        (0.989, "99 %"),
        (0.991, "99.1 %"),
        (0.996, "99.6 %"),
        (0.99996, "99.996 %"),
        (1 - 1e-9, "99.9999 %"),
        (1, "100 %"),
    ],
)
def test_only_a_whole_share_is_all_or_nothing(share: float, words: str) -> None:
    assert percent(share) == words


def test_nouns_have_their_plural() -> None:
    counted = [count(1, "copy"), count(2, "copy"), count(1200, "job"), count(2, "key")]

    assert counted == ["1 copy", "2 copies", "1,200 jobs", "2 keys"]


def test_lists_are_cut_and_numbers_are_words() -> None:
    assert some(["a", "b", "c"], most=2) == "a, b and 1 more"
    assert [times(number) for number in (1, 2, 3)] == ["once", "twice", "3 times"]


def test_a_job_that_a_pause_holds_back_says_since_when_by_whom_and_the_way_out(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Mail, {"to": "a"})
    scheduler.pause("mail", "the relay is down", by="ann@web")
    said(
        process, "Queue mail is paused since 2", "by ann@web (the relay is down): `taskqueue resume mail` lets its jobs"
    )

    scheduler.pause(by="bob@web")
    said(process, "Every queue is paused since 2", " by bob@web: `taskqueue resume --all` lets its jobs start.")


def test_drained_nodes_are_no_takers(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    seat(store, "web-1")
    seat(store, "web-2")
    scheduler.drain("web-1", by="ann")
    assert "web-1" not in said(process, "Nodes that take jobs of this queue: web-2 (")

    scheduler.drain("web-2", by="ann")
    said(process, "Every node that takes jobs of this queue is drained: web-1 since 2", "; `taskqueue undrain NODE`")


def test_a_job_that_was_ended_says_where_it_was(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    [record] = take(store)
    stack = 'Main thread (most recent call first):\n  File "/app/shop.py", line 12 in charge'
    run = outcomes.Run(node="web-1", stack=stack)
    after = settle.ended(record, outcomes.TimedOut(failure=FAILURE), run, store.now())
    assert store.settle([Settlement(claims=record.claims, holder=WEB_1, after=after)], store.now())

    said(
        process,
        "Where the last of them was when it was ended: /app/shop.py, line 12, in charge",
        f"The stack it had then: `taskqueue show {process.id}`",
    )
