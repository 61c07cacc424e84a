"""Each of 40 situations in which an operator asks why: the answer is right, and its last line has what matters most."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from taskqueue import Limit, Process, Rate, Scheduler
from taskqueue.store import Store
from tests.nodes import LIMIT, Node, eventually, node
from tests.scheduler.jobs import Broken, Dividing, Echo, Mail, Patient, Sleepy
from tests.scheduler.playing import begin, seat, take

SHOP = '''
import os
import signal
import time
from pathlib import Path

from taskqueue import Interrupted, Job, StepwiseJob


class Gate(Job):
    """Runs until its gate is there."""

    def start(self):
        while not Path(self.data["gate"]).exists():
            time.sleep(0.02)


class Deaf(Job):
    """Hears nothing."""

    def start(self):
        while True:
            try:
                time.sleep(60)
            except Interrupted:
                pass


class Large(Job):
    def start(self):
        return "x" * 20_000_000


class Odd(Job):
    def start(self):
        return object()


class Leaving(Job):
    def start(self):
        os._exit(3)


class Crashing(Job):
    def start(self):
        os.kill(os.getpid(), signal.SIGSEGV)


class Untidy(StepwiseJob):
    def iterate(self):
        raise ValueError("no such address")

    def clean_up(self, failure):
        raise OSError("cleanup broken")
'''

NEW = """

class Hang(Job):
    def start(self):
        return "here"
"""


@pytest.fixture
def scheduler(blocking: Scheduler) -> Scheduler:
    """Return a blocking client alone: the questions are the same in asyncio."""
    return blocking


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with code and the sockets of its nodes."""
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@contextmanager
def web_1(url: str, folder: Path, *options: str) -> Iterator[Node]:
    """Have a real node with one worker, which loads the code of the folder."""
    with node(url, folder, "--name", "web-1", "--max-children", "1", *options) as started:
        yield started


def answered(process: Process, *words: str, in_short: str = "") -> str:
    """Wait until why says all these words and ends with this, and return the answer."""
    answers: list[str] = []

    def is_right() -> bool:
        answers.append(process.why())
        is_last = answers[-1].split("\n")[-1].startswith(f"In short: {in_short}")
        return all(word in answers[-1] for word in words) and (is_last or not in_short)

    try:
        eventually(is_right)
    except AssertionError:
        raise AssertionError(f"{words} and {in_short!r} not in:\n{answers[-1]}") from None
    return answers[-1]


def begun(scheduler: Scheduler, folder: Path, job: str = "shop:Gate", **options: Any) -> Process:
    """Add a job that runs until its gate opens, and wait until the store knows that it runs."""
    process = scheduler.add_job(job, {"gate": str(folder / "gate")}, **options)
    eventually(lambda: process.refresh().started_at)
    return process


def ended(scheduler: Scheduler, job: str, **options: Any) -> Process:
    """Add the job and wait for its end."""
    [process] = scheduler.wait_for([scheduler.add_job(job, **options)], timeout=LIMIT)
    return process


def test_1_its_queue_is_paused(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Mail, {"to": "a"})
    scheduler.pause("mail", "a release", by="ann")

    way_out = " by ann (a release): `taskqueue resume mail` lets its jobs start."
    answered(process, "Queue mail is paused since ", way_out, in_short="queue mail is paused.")


def test_2_everything_is_paused(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Mail, {"to": "a"})
    scheduler.pause(by="ann")

    way_out = " by ann: `taskqueue resume --all` lets its jobs start."
    answered(process, "Every queue is paused since ", way_out, in_short="every queue is paused.")


def test_3_its_only_node_is_drained(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder):
        scheduler.drain("web-1", by="ann")
        words = (
            "Every node that takes jobs of this queue is drained: web-1 since ",
            " by ann; `taskqueue undrain NODE`",
        )
        answered(scheduler.add_job(Echo), *words, in_short="no node takes jobs of queue default.")


def test_4_no_node_takes_its_queue(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder, "--work-on", "reports"):
        words = (
            "No node takes jobs of queue mail (web-1 takes reports): start one with `taskqueue-node --work-on mail`."
        )
        answered(scheduler.add_job(Mail, {"to": "a"}), words, in_short="no node takes jobs of queue mail.")


def test_5_there_is_no_node_at_all(scheduler: Scheduler) -> None:
    words = "No node is running on this store: start one with `taskqueue-node`."
    answered(scheduler.add_job(Echo), words, in_short="no node takes jobs of queue default.")


def test_6_a_limit_is_full_and_its_holder_is_named(scheduler: Scheduler, url: str, folder: Path) -> None:
    limit = Limit(1, by="gate")
    with web_1(url, folder, "--max-children", "3"):
        holder = begun(scheduler, folder, limits=limit)
        process = scheduler.add_job("shop:Gate", holder.data, limits=limit)

        words = (
            "at most 1 at once of shop:Gate by=gate",
            f"Jobs that hold the limit: {holder.id} (shop:Gate, runs for ",
        )
        end = f"a limit that it needs is used up, held by job {holder.id}."
        answered(process, *words, "frees its place.", in_short=end)


def test_7_a_rate_is_used_up_and_its_next_start_is_known(scheduler: Scheduler, store: Store) -> None:
    seat(store, "web-1")
    for number in range(2):
        scheduler.add_job(Echo, number, limits=Rate(2, per=60))
    for record in take(store):
        begin(store, record, loaded_at=store.now())
    process = scheduler.add_job(Echo, 3, limits=Rate(2, per=60))

    words = ("at most 2 in 60 s of tests.scheduler.jobs:Echo.", "The rate allows the next start 2")
    answer = answered(process, *words, in_short="the rate that it needs allows the next start 2")
    assert " (in " in answer.split("\n")[-1]


def test_8_all_workers_are_busy_with_named_jobs(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder):
        holder = begun(scheduler, folder)
        words = f"Node web-1 has no free worker among its 1 worker: {holder.id} (shop:Gate, runs for "
        answered(scheduler.add_job(Echo), words, in_short="every worker is busy, and it is next in its queue.")


def test_9_a_job_of_lower_priority_has_others_before_it(scheduler: Scheduler, store: Store) -> None:
    seat(store, "web-1")
    process = scheduler.add_job(Echo, priority=5)
    scheduler.add_job(Echo)

    words = "In queue default, with priority 5, 1 stands before it."
    answered(process, words, in_short="1 job of queue default comes first.")


def test_10_the_backlog_of_another_queue_is_older(scheduler: Scheduler, store: Store) -> None:
    scheduler.add_job(Mail, {"to": "a"})
    process = scheduler.add_job(Echo)
    seat(store, "web-1", order="strict")
    words = "of all queues (--order strict): 1 job of other queues stands before it."
    answered(process, words, in_short="1 job of other queues comes first.")

    seat(store, "web-2")
    answered(process, "Node web-2 takes jobs of other queues in turn with this one", "mail (weight 1)")


def test_11_the_bound_of_its_node_is_used_up(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder, "--work-on", "lim=1", "--max-children", "3"):
        begun(scheduler, folder, queue="lim")
        words = "Node web-1 has a bound that is used up: --work-on lim=1."
        answered(scheduler.add_job(Echo, queue="lim"), words, in_short="as many jobs of queue lim run as the nodes ")


def test_12_it_was_added_for_later_and_expires(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo, at="+1 hour", expires="+3 hours")

    words = ("It can run from 2", "It is canceled unless it starts before 2")
    answered(process, *words, in_short="its time comes 2")


def test_13_it_has_expired(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo, expires="+1 ms")
    time.sleep(0.01)  # it may start within its millisecond
    scheduler.run_pending()

    answered(process, " is CANCELED.", "it was not started before 2", in_short="it does not run again by itself")


def test_14_it_pauses_before_a_retry(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Broken, retry=3, retry_interval=3600)
    scheduler.run_pending(ignore_time=False)

    words = ("attempt 1 failed, and its policy is: retry 3 times, every 3600 s", "ValueError: no such address")
    answered(process, *words, in_short="its time comes 2")


def test_15_it_has_snoozed(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Sleepy)
    scheduler.run_pending(ignore_time=False)

    answered(process, "it asked to run later (Snooze), which counts as no attempt", in_short="its time comes 2")


def test_16_it_was_asked_and_is_not_ready(scheduler: Scheduler, folder: Path) -> None:
    process = scheduler.add_job(Patient, {"file": str(folder / "missing")})
    scheduler.run_pending(ignore_time=False)

    answered(
        process, "it was not ready, for ", "asked once, and again with growing pauses", in_short="its time comes 2"
    )


def test_17_no_node_may_run_its_module(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder, "--allow", "tests"):
        process = scheduler.add_job("shop:Gate", {})
        answered(process, "this node runs jobs of tests only: start one with --allow shop", in_short="its time comes 2")


def test_18_its_module_cannot_be_imported(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder):
        process = scheduler.add_job("nowhere:Job", {})
        words = ("it could not be loaded since ", "No module named 'nowhere'")
        answered(process, *words, in_short="its time comes 2")


def test_19_its_class_is_newer_than_the_code_of_the_workers(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder, "--preload", "shop"):
        (folder / "shop.py").write_text(SHOP + NEW)
        words = ("module shop has no Hang, but its file ", "shop.py, changed 2", "loaded it before, so reload the node")
        answered(scheduler.add_job("shop:Hang", {}), *words)


def test_20_it_depends_on_a_job_for_later(scheduler: Scheduler) -> None:
    first = scheduler.add_job(Echo, at="+1 hour")
    process = scheduler.add_job(Echo, depends_on=[first])

    words = f"In the end it waits for job {first.id} (tests.scheduler.jobs:Echo), which can run from 2"
    end = f"it waits for the end of 1 job, in the end for job {first.id}: its time comes 2"
    answered(process, words, "(in 60 min): that is the time it was added for.", in_short=end)


def test_21_a_dependency_has_failed_and_it_waits(scheduler: Scheduler) -> None:
    failed = scheduler.add_job(Broken)
    process = scheduler.add_job(Echo, depends_on=[failed], on_dependency_failure="wait")
    scheduler.run_pending()

    words = f"Job {failed.id} has ended as FAILED, and on_dependency_failure='wait' keeps this one waiting"
    answered(process, words, in_short="what it waits for did not end as DONE, so only a person can end this wait.")


def test_22_a_dependency_has_failed_and_it_was_canceled(scheduler: Scheduler) -> None:
    failed = scheduler.add_job(Broken)
    process = scheduler.add_job(Echo, depends_on=[failed])
    scheduler.run_pending()

    answered(process, "it was canceled: ", str(failed.id), in_short="it does not run again by itself")


def test_23_it_waits_for_its_child_whose_queue_has_no_node(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Dividing, {"parts": [1]})
    scheduler.run_pending(once=True)
    [child] = process.children
    scheduler.update_job(child.id, queue="nobody")

    words = (f"It waits until its children have ended: {child.id} (", "No node is running on this store")
    end = f"it waits for the end of 1 child job, in the end for job {child.id}: no node takes jobs of queue nobody."
    answered(process, *words, in_short=end)


def test_24_it_took_longer_than_its_timeout(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder):
        process = scheduler.add_job("shop:Gate", {"gate": str(folder / "gate")}, timeout=0.5)
        answered(process, "took longer than 500 ms", "when it was ended: ", "shop.py, line ", "in Gate.start")


def test_25_its_result_is_too_big(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder):
        process = ended(scheduler, "shop:Large")
        answered(process, "it failed for good", "DataTooLarge", "bytes", in_short="it does not run again by itself")


def test_26_its_result_cannot_be_stored(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder):
        process = ended(scheduler, "shop:Odd")
        answered(process, "it failed for good", "result is builtins.object", in_short="it does not run again by itself")


def test_27_it_has_ended_its_own_worker(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder):
        process = ended(scheduler, "shop:Leaving", crash_retries=0)
        answered(process, "its run vanished once, and crash_retries is 0", "has exited with status 3 while the job ran")


def test_28_it_has_crashed_its_worker(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder):
        process = ended(scheduler, "shop:Crashing", crash_retries=0)
        answered(process, "its run vanished once, and crash_retries is 0", "was killed by SIGSEGV while the job ran")


def test_29_its_clean_up_fails(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder):
        process = scheduler.add_job("shop:Untidy", {})
        broken = "The last error of its clean-up: OSError: cleanup broken"
        before = "The error before its clean-up: ValueError: no such address"
        answered(process, "clean_up() failed and is tried again", broken, before, in_short="its time comes 2")


def test_30_it_is_an_occurrence_of_a_series(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo, interval="1 hour")
    scheduler.run_pending()

    answered(process, "It is occurrence 1 of series ", "The next occurrence is job ")


def test_31_it_was_canceled_and_did_not_listen(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder, "--grace", "0.5"):
        process = begun(scheduler, folder, "shop:Deaf")
        process.cancel("a test")
        answered(process, "it was canceled (a test)", "its worker was killed by SIGKILL", "shop.py, line ")


def test_32_a_person_has_canceled_it(scheduler: Scheduler) -> None:
    process = scheduler.add_job(Echo).cancel("not needed, says ann")

    answered(process, "it was canceled (not needed, says ann).", in_short="it does not run again by itself")


def test_33_a_node_has_claimed_it_ahead(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Echo)
    seat(store, "web-1")
    take(store)

    answered(process, "It has not started there yet.", in_short="a node has claimed it, and it has not started.")


def test_34_a_signal_has_stopped_its_node(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder) as running:
        process = begun(scheduler, folder)
        os.kill(running.pid, signal.SIGSTOP)

        way_out = f"`kill -CONT {running.pid}` lets it continue"
        end = f"its node is stopped by a signal, {way_out}."
        answered(process, f", stopped by a signal: {way_out}.", in_short=end)


def test_35_its_stopped_node_has_lost_the_claim_and_there_is_no_other(
    scheduler: Scheduler, url: str, folder: Path
) -> None:
    with web_1(url, folder, "--lease", "2") as running:
        process = begun(scheduler, folder)
        os.kill(running.pid, signal.SIGSTOP)

        words = (f"stopped by a signal: `kill -CONT {running.pid}`", "No other node is running that could take it back")
        answered(process, *words, in_short="its node is silent, and no other node is running to take the job back")


def test_36_its_node_was_stopped_and_works_again(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder, "--lease", "2") as running:
        process = begun(scheduler, folder)
        [worker] = running.workers()
        os.kill(running.pid, signal.SIGSTOP)
        eventually(lambda: not worker.is_running())  # its manager ends the run with the lease
        os.kill(running.pid, signal.SIGCONT)

        answered(process, "Interrupted", "interrupted: node web-1 did not renew its claim in time, as if a signal ")


def test_37_its_node_was_asked_to_stop(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder, "--finish", "0") as running:
        process = begun(scheduler, folder)
        running.stop()

        words = "its last run was interrupted, which is not an attempt: node web-1 was stopped, or loaded new code."
        answered(process, words, in_short="no node takes jobs of queue default.")


def test_38_its_node_was_killed(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder) as running:
        process = begun(scheduler, folder)
        running.kill()

        words = ("dead: its processes have ended", "Attempt 1 started ", " and died with its node.")
        answered(process, *words, in_short="its node has died, and no other node is running to take the job back")


def test_39_the_disk_is_full_and_it_has_ended_in_its_node(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(url, folder) as running:
        process = begun(scheduler, folder)
        gate, following = folder / "gate", scheduler.add_job(Echo)
        for member in running.family():
            member.rlimit(psutil.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        gate.touch()

        words = (
            "The node takes no jobs: its store does not answer: ",
            "Its run has ended there 2",
            "as DONE",
        )
        answered(process, *words, in_short="it has ended as DONE, which its node could not write yet: ")
        end = "it is next in its queue, and node web-1 takes none: its store does not answer: "
        answered(following, "Node web-1 takes no jobs: its store does not answer: ", in_short=end)
        for member in running.family():
            member.rlimit(psutil.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        answered(process, " is DONE.")


def test_40_the_store_is_locked_and_it_has_ended_in_its_node(scheduler: Scheduler, url: str, folder: Path) -> None:
    with web_1(f"{url}&timeout=0.5", folder):
        process = begun(scheduler, folder)
        with closing(sqlite3.connect(folder / "jobs.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            (folder / "gate").touch()
            answered(
                process, "Its run has ended there 2", in_short="it has ended as DONE, which its node could not write"
            )
            other.execute("ROLLBACK")
        answered(process, " is DONE.")


def test_none_of_the_situations_is_left_out() -> None:
    numbers = [name.split("_")[1] for name in globals() if name.startswith("test_") and name[5].isdigit()]

    assert numbers == [str(number) for number in range(1, 41)]
