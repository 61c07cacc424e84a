"""One node from end to end: what is added runs, ends once, and is explained."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from threading import Thread

import psutil
import pytest

from taskqueue import Process, Scheduler, Status
from taskqueue.errors import JobFailed
from taskqueue.exit_codes import Exit
from taskqueue.insight.claimed_job import claimed_job
from taskqueue.store.open import open_store
from tests.acceptance.conftest import JobFiles
from tests.acceptance.work import (
    Again,
    Chain,
    Echo,
    FailUntil,
    Gate,
    GiveUp,
    Keeper,
    KillOwnWorker,
    Leaver,
    ManagerLeaver,
    NodeLeaver,
    SnoozeOnce,
    Stepper,
    Trace,
)
from tests.chaos.process_fault import is_gone
from tests.nodes import LIMIT, Node, eventually, node


def test_a_job_runs_and_its_result_comes_back(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with node(url, tmp_path):
        process = scheduler.add_job(Echo, {"to": "a@example.org"})
        [ended] = scheduler.wait_for([process], timeout=LIMIT)

    assert ended.status is Status.DONE
    assert ended.result == {"to": "a@example.org"}
    assert ended.progress == 100
    [attempt] = ended.attempts
    assert (attempt.number, attempt.outcome) == (1, "Done")


def test_jobs_that_were_added_before_the_node_came_run_in_order_of_priority(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:  # LZQ-8
    late = scheduler.add_job(Trace, {"file": files.file}, priority=20)
    middle = scheduler.add_job(Trace, {"file": files.file})
    soon = scheduler.add_job(Trace, {"file": files.file}, priority=-20)

    with node(url, tmp_path, "--pm", "static", "--min-children", "1"):
        scheduler.wait_for([late, middle, soon], timeout=LIMIT)

    assert [line.split()[0] for line in files.lines()] == [str(job.id) for job in (soon, middle, late)]


def test_a_failing_job_is_tried_again_and_then_succeeds(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with node(url, tmp_path) as running:
        process = scheduler.add_job(FailUntil, {"until": 3}, retry=5, retry_interval=0)
        [ended] = scheduler.wait_for([process], timeout=LIMIT)

    assert (ended.status, ended.result) == (Status.DONE, 3)
    assert [attempt.outcome for attempt in ended.attempts] == ["Failed", "Failed", "Done"]
    line = (
        "tests.acceptance.work:FailUntil failed with ValueError: attempt 2 stumbled; it runs again at once (attempt 2, "
    )
    assert running.log.read_text().count(line) == 1


def test_a_job_without_attempts_left_fails_with_its_last_error(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with node(url, tmp_path):
        process = scheduler.add_job(FailUntil, {"until": 9}, retry=1, retry_interval=0.01)
        with pytest.raises(JobFailed, match="attempt 2 stumbled"):
            scheduler.wait_for([process], timeout=LIMIT, raise_on_error=True)

    assert "ValueError" in scheduler.why(process.id)


def test_jobs_say_themselves_how_they_end(url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path) -> None:
    with node(url, tmp_path):
        snoozing = scheduler.add_job(SnoozeOnce, {"file": files.file})
        given_up = scheduler.add_job(GiveUp, retry=5)
        again = scheduler.add_job(Again, retry=2)
        scheduler.wait_for([snoozing, given_up, again], timeout=LIMIT)

    assert (snoozing.status, snoozing.result, len(snoozing.attempts)) == (Status.DONE, "awake", 2)
    assert (given_up.status, len(given_up.attempts)) == (Status.FAILED, 1)
    assert (again.status, again.result) == (Status.DONE, 3)


def test_a_postponed_job_starts_when_its_time_has_come(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with node(url, tmp_path):
        due = datetime.now(timezone.utc) + timedelta(seconds=1)
        [ended] = scheduler.wait_for([scheduler.add_job(Echo, at=due)], timeout=LIMIT)

    [attempt] = ended.attempts
    assert attempt.started_at is not None
    assert attempt.started_at >= due.replace(microsecond=due.microsecond // 1000 * 1000)


def test_a_job_adds_jobs_through_its_own_scheduler(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    with node(url, tmp_path):
        [outer] = scheduler.wait_for([scheduler.add_job(Chain)], timeout=LIMIT)
        [inner] = scheduler.wait_for([outer.result], timeout=LIMIT)

    assert inner.result == {"from": str(outer.id)}


def test_a_killed_workers_job_runs_again(url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path) -> None:
    with node(url, tmp_path):
        process = scheduler.add_job(KillOwnWorker, {"file": files.file, "times": 1})
        [ended] = scheduler.wait_for([process], timeout=LIMIT)

    assert (ended.status, ended.result) == (Status.DONE, 2)
    assert [attempt.outcome for attempt in ended.attempts] == ["Crashed", "Done"]
    assert "SIGKILL" in ended.attempts[0].exit


def test_a_job_that_keeps_killing_its_worker_fails_with_the_evidence(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path):
        process = scheduler.add_job(KillOwnWorker, {"file": files.file, "times": 9}, crash_retries=1)
        [ended] = scheduler.wait_for([process], timeout=LIMIT)

    assert ended.status is Status.FAILED
    assert len(files.lines()) == 2
    assert "SIGKILL" in scheduler.why(process.id)


def test_an_at_most_once_job_never_runs_twice(url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path) -> None:
    with node(url, tmp_path):
        process = scheduler.add_job(KillOwnWorker, {"file": files.file, "times": 9}, on_crash="fail")
        [ended] = scheduler.wait_for([process], timeout=LIMIT)

    assert ended.status is Status.FAILED
    assert len(files.lines()) == 1


def test_a_checkpoint_survives_the_kill_of_its_worker(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--pm", "static", "--min-children", "1") as running:
        process = scheduler.add_job(Stepper, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        [worker] = running.workers()
        worker.kill()
        [ended] = scheduler.wait_for([process], timeout=LIMIT)

    assert ended.result == {"step": 1}


def test_a_checkpoint_and_progress_reach_the_store_while_the_job_runs(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path) as running:
        process = scheduler.add_job(Stepper, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        eventually(lambda: scheduler.get_job(process.id).progress == 40)
        running.process.kill()
        running.process.wait()
    with node(url, tmp_path):
        [ended] = scheduler.wait_for([process], timeout=LIMIT)

    assert ended.result == {"step": 1}
    assert [attempt.outcome for attempt in ended.attempts] == ["Crashed", "Done"]


def test_a_restarted_node_takes_over_what_its_dead_predecessor_held(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--lease", "600") as running:
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        running.process.kill()
        running.process.wait()
    with node(url, tmp_path, "--lease", "600"):
        files.heed(2)
        files.open()
        [ended] = scheduler.wait_for([process], timeout=LIMIT)

    assert ended.status is Status.DONE


def test_another_node_takes_over_when_the_lease_has_ended(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--name", "a", "--lease", "600") as first, closing(open_store(url)) as store:
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        holder = eventually(lambda: process.snapshot.holder if process.refresh().started_at else None)
        assert holder is not None
        with node(url, tmp_path, "--name", "b", "--lease", "6"):
            first.kill()
            store.renew(holder, store.now(), {})  # the lease of the dead node ends
            files.heed(2)
            files.open()
            [ended] = scheduler.wait_for([process], timeout=LIMIT)

    assert [attempt.node for attempt in ended.attempts] == ["a", "b"]


def test_sigterm_keeps_the_checkpoints_of_running_jobs_and_counts_no_attempt(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--finish", "0", "--max-children", "3") as running:
        jobs = [scheduler.add_job(Keeper, {"file": files.file, "gate": files.gate(f"g{n}")}) for n in range(3)]
        files.heed(3)
        family = running.family()
        assert running.stop() == 0
        assert all(map(is_gone, family))

    for job in jobs:
        job.refresh()
        assert job.status is Status.WAITING
        assert job.attempt == 1
    with node(url, tmp_path):
        scheduler.wait_for(jobs, timeout=LIMIT)
    assert [job.result for job in jobs] == [{"reason": "shutdown", "attempt": 1}] * 3


def test_jobs_that_end_within_finish_are_done_at_sigterm(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--finish", "60") as running:
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        running.process.send_signal(signal.SIGTERM)
        running.heed("STOPPING=1")
        files.open()
        assert running.wait() == 0

    assert scheduler.get_job(process.id).status is Status.DONE


def test_a_job_that_ends_its_worker_by_sigterm_again_and_again_fails(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path):
        process = scheduler.add_job(Leaver, {"file": files.file}, crash_retries=2)
        scheduler.wait_for([process], timeout=LIMIT)

    assert (process.status, len(process.attempts)) == (Status.FAILED, 4)
    assert files.lines() == ["left"] * 4
    why = process.why()
    assert "its run vanished, or was ended again by a SIGTERM that no node sent, 3 times, and crash_retries is 2" in why
    assert "asked to exit by a SIGTERM that neither its node nor its manager sent, as in the previous run" in why


def test_a_job_that_ends_its_manager_by_sigterm_again_and_again_fails(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    process = scheduler.add_job(ManagerLeaver, {"file": files.file, "gate": files.gate()}, crash_retries=1)
    for _ in range(3):  # as a supervisor starts a node again
        with node(url, tmp_path) as running:
            files.open()
            assert running.wait() == Exit.LOST

    assert (process.refresh().status, len(process.attempts)) == (Status.FAILED, 3)
    assert files.lines() == ["left"] * 3
    why = process.why()
    assert "its run vanished, or was ended again by a SIGTERM that no node sent, twice, and crash_retries is 1" in why
    assert "was asked to exit by a SIGTERM that its node did not send, as in the previous run" in why


@pytest.mark.parametrize(
    ("signum", "by"), [(signal.SIGTERM, "worker"), (signal.SIGTERM, "shell"), (signal.SIGQUIT, "worker")]
)
def test_a_job_that_sends_its_node_away_is_interrupted_and_fails_in_the_end_and_the_node_stays(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path, signum: int, by: str
) -> None:
    with node(url, tmp_path) as running:
        facts = {"file": files.file, "signal": int(signum), "by": by}
        process = scheduler.add_job(NodeLeaver, facts, crash_retries=1)
        scheduler.wait_for([process], timeout=LIMIT)
        other = scheduler.add_job(Echo, 1)
        scheduler.wait_for([other], timeout=LIMIT)
        assert other.status is Status.DONE
        assert running.stop() == 0

    assert (process.status, len(process.attempts)) == (Status.FAILED, 3)
    assert files.lines() == ["left"] * 3
    assert "its run vanished, or was ended again by a SIGTERM that no node sent, twice" in process.why()
    log = running.log.read_text()
    assert f"sent {signal.Signals(signum).name} to its node, which keeps running" in log
    assert "tests.acceptance.work:NodeLeaver" in log


def test_a_job_whose_short_command_stops_the_node_crashes_the_second_time_and_a_job_beside_it_does_not(
    files: JobFiles, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Scheduler(url) as scheduler:
        facts = {"file": files.file, "signal": int(signal.SIGTERM), "by": "command", "gate": files.gate("guilty")}
        process = scheduler.add_job(NodeLeaver, facts, crash_retries=0)
        other = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()}, crash_retries=0)
        for runs in (1, 2):  # as a supervisor starts a node again
            with node(url, tmp_path, "--finish", "0", "--pm", "static", "--min-children", "2") as running:
                files.heed(2 * runs - 1)
                files.open("guilty")
                assert running.wait() == 0

        assert (process.refresh().status, len(process.attempts)) == (Status.FAILED, 2)
        assert "which had ended when the node looked for it, sent SIGTERM to the node" in process.why()
        assert (other.refresh().status, other.attempt) == (Status.WAITING, 1)
        assert [(attempt.outcome, attempt.error) for attempt in other.attempts] == [("Interrupted", None)] * 2


def opens_locked_file(folder: Path, started: ExitStack) -> Node:
    """Start a node whose store is locked by this process, and wait until it has opened the file."""
    file = folder / "jobs.db"
    connection = started.enter_context(closing(sqlite3.connect(file, isolation_level=None)))
    connection.execute("BEGIN EXCLUSIVE")
    running = started.enter_context(closing(Node(f"sqlite:///{file}?timeout=600", folder, (), {})))

    def has_opened() -> bool:
        with suppress(psutil.Error):
            return str(file) in [opened.path for opened in psutil.Process(running.pid).open_files()]
        return False

    eventually(has_opened)
    return running


def reaches_silent_server(folder: Path, started: ExitStack) -> Node:
    """Start a node whose server takes connections and answers nothing, and wait until it has connected."""
    server = started.enter_context(socket.create_server(("127.0.0.1", 0)))
    server.settimeout(LIMIT)
    url = f"mongodb://127.0.0.1:{server.getsockname()[1]}/jobs?timeoutMS=600000&serverSelectionTimeoutMS=600000"
    running = started.enter_context(closing(Node(url, folder, (), {})))
    started.enter_context(server.accept()[0])
    return running


@pytest.mark.parametrize("opening", [opens_locked_file, reaches_silent_server])
def test_a_node_that_is_opening_its_store_leaves_at_once_when_it_is_stopped(
    opening: Callable[[Path, ExitStack], Node], tmp_path: Path
) -> None:
    with ExitStack() as started:
        running = opening(tmp_path, started)
        [manager] = psutil.Process(running.pid).children()
        assert running.stop() == Exit.OK
        eventually(lambda: is_gone(manager))


def test_sigquit_waits_for_running_jobs_and_begins_no_other(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--finish", "0", "--grace", "0", "--pm", "static") as running:
        first = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        running.process.send_signal(signal.SIGQUIT)
        running.heed("STOPPING=1")
        second = scheduler.add_job(Echo)
        files.open()
        assert running.wait() == 0

    assert scheduler.get_job(first.id).status is Status.DONE
    assert scheduler.get_job(second.id).status is Status.WAITING


def test_sighup_replaces_the_workers_and_drops_no_job(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--pm", "static", "--min-children", "1") as running:
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        [before] = running.workers()
        running.process.send_signal(signal.SIGHUP)
        running.heed("RELOADING=1")
        files.open()
        scheduler.wait_for([process], timeout=LIMIT)
        eventually(lambda: [worker.pid for worker in running.workers()] not in ([], [before.pid]))

    assert process.attempts[0].outcome == "Done"


def test_sighup_lets_a_node_with_preloaded_code_start_anew_under_its_pid(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    code = "import taskqueue\n@taskqueue.task\ndef version():\n    return {number}\n"
    (tmp_path / "reloaded.py").write_text(code.format(number=1))
    with node(url, tmp_path, "--preload", "reloaded", PYTHONDONTWRITEBYTECODE="1") as running:
        before = running.pid
        [first] = scheduler.wait_for([scheduler.add_job("reloaded:version")], timeout=LIMIT)
        blocking = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        (tmp_path / "reloaded.py").write_text(code.format(number=2))
        running.process.send_signal(signal.SIGHUP)
        running.heed("RELOADING=1")
        files.open()
        eventually(lambda: scheduler.get_job(blocking.id).is_done)
        [second] = scheduler.wait_for([scheduler.add_job("reloaded:version")], timeout=LIMIT)
        assert psutil.pid_exists(before)
        assert running.process.poll() is None

    assert (first.result, second.result, blocking.attempt) == (1, 2, 1)


def test_a_running_job_is_canceled(url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path) -> None:
    with node(url, tmp_path):
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()}, retry=3)
        files.heed(1)
        scheduler.cancel_job(process.id, "not needed")
        [ended] = scheduler.wait_for([process], timeout=LIMIT)

    assert ended.status is Status.CANCELED
    assert "not needed" in scheduler.why(process.id)


def test_why_names_the_process_that_runs_the_job(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path):
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        eventually(lambda: "has been running in its worker, pid " in process.why())
        eventually(lambda: process.refresh().snapshot.started_at is not None)
        with closing(open_store(url)) as store:
            read_before = replace(process.snapshot, started_at=None)
            why = "\n".join(claimed_job(store, read_before, store.now()))
        files.open()
        scheduler.wait_for([process], timeout=LIMIT)

    assert f"Attempt 1 has been running in its worker, pid {process.attempts[0].pid}, since " in why


def test_a_job_is_ended_by_its_timeout(url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path) -> None:
    with node(url, tmp_path):
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()}, timeout=0.2)
        [ended] = scheduler.wait_for([process], timeout=LIMIT)

    assert ended.status is Status.TIMEOUT


def test_forced_jobs_run_beside_a_full_pool(url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path) -> None:
    with node(url, tmp_path, "--pm", "static", "--min-children", "1"):  # PTS-29
        blocking = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        forced = scheduler.add_job(Echo, 1, force_spawn=True)
        scheduler.wait_for([forced], timeout=LIMIT)
        files.open()
        scheduler.wait_for([blocking], timeout=LIMIT)

    assert (forced.result, blocking.status) == (1, Status.DONE)


def test_a_node_works_on_its_queues_only_and_within_their_bounds(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--work-on", "mail", "--work-on", "reports=1", "--max-children", "4"):
        other = scheduler.add_job(Echo, queue="other")
        first = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate("a")}, queue="reports")
        second = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate("b")}, queue="reports")
        mail = scheduler.add_job(Echo, queue="mail")
        scheduler.wait_for([mail], timeout=LIMIT)
        files.heed(1)
        assert scheduler.get_job(second.id).status is Status.WAITING
        files.open("a")
        scheduler.wait_for([first], timeout=LIMIT)
        files.open("b")
        scheduler.wait_for([second], timeout=LIMIT)

    assert scheduler.get_job(other.id).status is Status.WAITING


def test_a_job_begins_when_it_is_added_and_not_when_a_node_looks(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:  # RW-17
    with node(url, tmp_path):
        scheduler.wait_for([scheduler.add_job(Trace, {"file": files.file})], timeout=LIMIT)
        waits = [waited_for(scheduler.add_job(Trace, {"file": files.file})) for _ in range(10)]

    assert min(waits) < 0.5  # a node that does not hear of jobs looks once a second


def waited_for(process: Process) -> float:
    """Return how long the job waited for a worker, in seconds."""
    [attempt] = process.wait(timeout=LIMIT).attempts
    assert attempt.started_at is not None
    return (attempt.started_at - process.snapshot.created_at).total_seconds()


def test_flushed_jobs_do_not_come_back_from_a_node_that_knows_them(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:  # PW-9
    def open_gate() -> None:
        with suppress(BrokenPipeError):  # the node may end the job at any moment
            files.open()

    scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()}, interval=0.1, retry=3)
    scheduler.add_jobs([(Trace, {"file": files.file})] * 5)
    scheduler.add_job(Trace, {"file": files.file}, at="+2 s", interval=0.1)
    with node(url, tmp_path, "--pm", "static", "--min-children", "1"):
        files.heed(1)
        scheduler.flush()
        opener = Thread(target=open_gate)  # waits for the job, which may be gone by now
        opener.start()
        later = scheduler.add_job(Echo, "later", at="+3 s").wait(timeout=LIMIT)
        reader = os.open(files.gate(), os.O_RDONLY | os.O_NONBLOCK)
        opener.join(LIMIT)
        os.close(reader)

    assert (later.result, [job.id for job in scheduler.get_jobs({})]) == ("later", [later.id])
    assert [line.split()[0] for line in files.lines()] in (["started"], ["started", "ended"])


def test_a_job_that_says_nothing_is_kept_by_its_node_for_longer_than_a_lease(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    lease = 8  # on a busy machine, a node may be late by a few seconds with a renewal
    with ExitStack() as nodes:
        for name in ("one", "two"):
            nodes.enter_context(node(url, tmp_path, "--name", name, "--lease", str(lease), "--grace", "0.5"))
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        first = lease_end(process)
        eventually(lambda: lease_end(process) > first + timedelta(seconds=lease))  # renewed after the first had ended
        files.open()
        process.wait(timeout=LIMIT)

    assert (process.result, process.attempt, len(files.lines())) == ("through", 1, 2)
    assert len(process.attempts) == 1


def lease_end(process: Process) -> datetime:
    """Return until when a node may hold the job that runs."""
    until = process.refresh().snapshot.ready_at
    assert until is not None
    return until


def test_each_process_in_a_seat_is_another_holder(url: str, scheduler: Scheduler, tmp_path: Path) -> None:  # RW-22
    holders = []
    for _ in range(3):
        with node(url, tmp_path, "--name", "web-1") as running:
            running.heed("STATUS=")
            [lease] = [lease for lease in scheduler._connections.store.leases() if lease.name == "seat:web-1"]
            holders.append(lease.holder)

    assert {holder.seat for holder in holders} == {"web-1"}
    assert len({holder.incarnation for holder in holders}) == 3
    assert all(len(holder.incarnation) >= 16 for holder in holders)


def test_a_class_that_cannot_be_loaded_is_tried_again_and_says_so(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    with node(url, tmp_path):
        process = scheduler.add_job("nowhere.to_be_found:Job")
        eventually(lambda: scheduler.get_job(process.id).status is Status.POSTPONED)

    assert "nowhere" in scheduler.why(process.id)


def test_a_class_that_cannot_be_loaded_fails_after_the_patience_of_the_node(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--unroutable-after", "0"):
        [ended] = scheduler.wait_for([scheduler.add_job("nowhere.to_be_found:Job")], timeout=LIMIT)

    assert ended.status is Status.FAILED
    assert "nowhere" in str(ended.error)


def test_a_node_that_cannot_understand_its_manager_leaves_to_be_started_anew(url: str, tmp_path: Path) -> None:
    module = """
import os, stat
for name in os.listdir("/proc/self/fd"):
    try:
        if int(name) > 2 and stat.S_ISSOCK(os.stat(int(name)).st_mode):
            os.write(int(name), b"junk")
    except OSError:
        pass
"""
    (tmp_path / "scribbling.py").write_text(module)
    with node(url, tmp_path, "--preload", "scribbling") as running:
        assert running.wait() == Exit.LOST
        assert "the channel from the manager is broken" in running.log.read_text()


@pytest.mark.parametrize("options", [(), ("--preload", "shop")])
def test_a_reload_runs_the_release_to_which_a_link_leads_now(
    url: str, scheduler: Scheduler, tmp_path: Path, options: Sequence[str]
) -> None:
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "shop.py").write_text(
            f"from taskqueue import Job\nclass Sale(Job):\n    def start(self):\n        return {number}\n"
        )
    (tmp_path / "current").symlink_to("1")
    with node(url, tmp_path, "--chdir", "current", *options) as started:
        [first] = scheduler.wait_for([scheduler.add_job("shop:Sale")], timeout=LIMIT)
        [before] = started.workers()
        (tmp_path / "new").symlink_to("2")
        (tmp_path / "new").replace(tmp_path / "current")

        started.process.send_signal(signal.SIGHUP)

        eventually(lambda: not before.is_running())
        [second] = scheduler.wait_for([scheduler.add_job("shop:Sale")], timeout=LIMIT)
    assert (first.result, second.result) == (1, 2)
