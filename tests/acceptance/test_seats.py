"""Who works where: one node for a name, the next one in line, the lead, and how nodes leave when they must."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest

from taskqueue import Scheduler, Status
from taskqueue.exit_codes import Exit
from taskqueue.model.record import Cause
from taskqueue.store.open import open_store
from tests.acceptance.conftest import JobFiles
from tests.acceptance.work import Echo, Gate, Undying, Uninterruptible
from tests.chaos.process_fault import is_gone, stop_between_writes
from tests.nodes import LIMIT, eventually, node

RUN_JOB = """
import sys
from taskqueue import Scheduler
from tests.acceptance.work import Gate
Scheduler(sys.argv[1]).run_job(Gate, {"file": sys.argv[2], "gate": sys.argv[3]}, on_crash=sys.argv[4])
"""

RUN_PENDING = """
import sys
from taskqueue import Scheduler
from tests.acceptance.work import Gate
scheduler = Scheduler(sys.argv[1])
for _ in range(3):
    scheduler.add_job(Gate, {"file": sys.argv[2], "gate": sys.argv[3]}, on_crash=sys.argv[4])
scheduler.run_pending()
"""


@contextmanager
def caller(script: str, url: str, files: JobFiles, on_crash: str = "retry") -> Iterator[subprocess.Popen[bytes]]:
    """Run the script in a process of its own until its job has begun, and end it."""
    with subprocess.Popen([sys.executable, "-c", script, url, files.file, files.gate(), on_crash]) as process:
        try:
            files.heed(1)
            yield process
        finally:
            process.kill()


def leaders(url: str) -> list[str]:
    """Return the seat that holds the cluster lead, if one does."""
    store = open_store(url)
    try:
        return [lease.holder.seat for lease in store.leases() if lease.name == "lead" and lease.until > store.now()]
    finally:
        store.close()


def test_a_second_node_of_the_same_name_stands_by_and_takes_over(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--lease", "600") as first:
        first.heed("works")
        with node(url, tmp_path, "--lease", "600", ready="stands by") as second:
            assert f"pid {first.pid}" in second.heed("stands by")
            first.process.send_signal(signal.SIGKILL)
            second.heed("works")
            [ended] = scheduler.wait_for([scheduler.add_job(Echo, 1)], timeout=LIMIT)

    assert ended.status is Status.DONE


def test_a_standby_takes_over_at_once_when_the_holder_leaves(url: str, tmp_path: Path) -> None:
    with node(url, tmp_path, "--lease", "600") as first:
        first.heed("works")
        with node(url, tmp_path, "--lease", "600", ready="stands by") as second:
            assert first.stop() == Exit.OK
            second.heed("works")


def test_a_second_node_stands_by_whatever_options_its_address_has(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--lease", "600") as first:
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        option = {"mongodb": "appName=other", "postgresql": "application_name=other"}.get(
            url.partition(":")[0], "timeout=6"
        )
        address = f"{url}{'&' if '?' in url else '?'}{option}"
        with node(address, tmp_path, "--lease", "600", ready="stands by") as second:
            files.open()
            scheduler.wait_for([process], timeout=LIMIT)
            first.process.send_signal(signal.SIGKILL)
            second.heed("works")

    assert [(attempt.outcome, attempt.number) for attempt in process.attempts] == [("Done", 1)]
    assert sum(line.startswith("started") for line in files.lines()) == 1


def test_a_standby_leaves_when_it_is_asked_to(url: str, tmp_path: Path) -> None:
    with node(url, tmp_path) as first:
        first.heed("works")
        with node(url, tmp_path, ready="stands by") as second:
            assert second.stop() == Exit.OK


def test_nodes_of_two_names_share_the_work_and_one_of_them_leads(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    one_job = ("--pm", "static", "--min-children", "1")
    with node(url, tmp_path, "--name", "a", *one_job) as a, node(url, tmp_path, "--name", "b", *one_job) as b:
        a.heed("works")
        b.heed("works")
        jobs = [scheduler.add_job(Gate, {"file": files.file, "gate": files.gate(f"g{n}")}) for n in range(2)]
        files.heed(2)
        assert len(leaders(url)) == 1
        for n in range(2):
            files.open(f"g{n}")
        scheduler.wait_for(jobs, timeout=LIMIT)

    assert {job.attempts[0].node for job in jobs} == {"a", "b"}


def test_the_lead_passes_on_when_the_leader_dies(url: str, tmp_path: Path) -> None:
    with node(url, tmp_path, "--name", "a", "--lease", "600") as a:
        eventually(lambda: leaders(url) == ["a"])
        with node(url, tmp_path, "--name", "b", "--lease", "6"):
            a.process.send_signal(signal.SIGKILL)
            eventually(lambda: leaders(url) == ["b"])


def test_a_node_that_is_started_again_takes_its_own_lead_back_at_once(url: str, tmp_path: Path) -> None:
    def leading() -> set[str]:
        with closing(open_store(url)) as store:
            return {lease.holder.incarnation for lease in store.leases() if lease.name == "lead"}

    with node(url, tmp_path, "--lease", "600") as first:
        before = eventually(leading)
        first.kill()
    with node(url, tmp_path, "--lease", "600"):
        eventually(lambda: leading() - before)


def test_a_job_outlasts_the_shortest_lease_with_any_grace(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    def end_of_seat() -> datetime:
        return max(lease.until for lease in store.leases() if lease.name.startswith("seat:"))

    def has_outlasted_three() -> bool:  # one attempt has: a machine that stands still for a lease interrupts it rightly
        started_at = scheduler.get_job(process.id).started_at
        return started_at is not None and end_of_seat() > started_at + timedelta(seconds=8)

    with closing(open_store(url)) as store, node(url, tmp_path, "--lease", "2", "--grace", "60"):
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        eventually(has_outlasted_three)
        files.open()
        scheduler.wait_for([process], timeout=LIMIT)

    assert process.attempts[-1].outcome == "Done"


def test_a_node_stopped_beyond_its_lease_loses_its_jobs_and_goes_on_afterwards(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    options = ("--lease", "6", "--grace", "0.2", "--pm", "static", "--min-children", "1")
    with node(url, tmp_path, "--name", "a", *options) as a:
        a.heed("works")
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        a.process.send_signal(signal.SIGSTOP)
        with node(url, tmp_path, "--name", "b", *options):
            files.heed(2)
            eventually(lambda: "the lease of 6 s (--lease) was not extended in time" in a.log.read_text())
            assert files.lines()[1].split()[1] == str(process.id)
            a.process.send_signal(signal.SIGCONT)
            files.open()
            scheduler.wait_for([process], timeout=LIMIT)
        [again] = scheduler.wait_for([scheduler.add_job(Echo, 7)], timeout=LIMIT)

    assert process.status is Status.DONE
    assert process.attempts[-1].node == "b"
    assert (again.result, again.attempts[0].node) == (7, "a")


def test_a_stopped_node_that_is_alone_is_continued_by_its_manager_and_works_on(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    options = ("--lease", "2", "--grace", "0.2", "--pm", "static", "--min-children", "1")
    with node(url, tmp_path, *options) as running:
        interrupted = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        stop_between_writes(psutil.Process(running.pid))
        later = scheduler.add_job(Echo, 7)

        files.heed(2)
        files.open()
        scheduler.wait_for([interrupted, later], timeout=LIMIT)

        assert "stopped (SIGSTOP) for longer than its lease" in running.log.read_text()
        assert (interrupted.status, later.status) == (Status.DONE, Status.DONE)
        assert running.stop() == Exit.OK


def test_a_node_leaves_when_its_manager_dies_and_its_jobs_go_on_elsewhere(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--lease", "600") as first:
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        first.manager().kill()
        assert first.wait() == Exit.LOST
    with node(url, tmp_path, "--lease", "600"):
        files.heed(2)
        files.open()
        scheduler.wait_for([process], timeout=LIMIT)

    assert [attempt.outcome for attempt in process.attempts] == ["Crashed", "Done"]


@pytest.mark.parametrize(("is_killed", "code"), [(True, Exit.LOST), (False, Exit.OK)])
def test_a_node_leaves_with_its_manager_although_a_preloaded_module_has_forked_a_process(
    is_killed: bool, code: Exit, url: str, tmp_path: Path
) -> None:
    (tmp_path / "forking.py").write_text("import os, time\nif not os.fork():\n    time.sleep(600)\n    os._exit(0)\n")
    with node(url, tmp_path, "--preload", "forking", "--lease", "600") as running:
        manager = running.manager()
        if is_killed:
            manager.kill()
            assert running.wait() == code
        else:
            assert running.stop() == code


@pytest.mark.parametrize("killed", ["manager", "node"])
def test_a_job_and_its_children_end_with_manager_and_node_whatever_the_job_asked_of_the_kernel(
    killed: str, url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--lease", "600") as running:
        scheduler.add_job(Undying, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        processes = [running.manager(), *(psutil.Process(int(pid)) for pid in files.lines()[0].split())]
        (running.process if killed == "node" else running.manager()).kill()
        eventually(lambda: all(is_gone(process) for process in processes))

    assert "SIGTERM that its node did not send" not in running.log.read_text()


def test_a_stopped_manager_is_ended_and_its_node_leaves(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--lease", "2") as running:
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        running.manager().suspend()
        assert running.wait() == Exit.LOST

    assert scheduler.get_job(process.id).status in (Status.WAITING, Status.POSTPONED)


def test_sigterm_ends_a_node_whose_manager_is_stopped(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--lease", "2") as running:
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        running.manager().suspend()
        assert running.stop() == Exit.LOST

    assert scheduler.get_job(process.id).is_pending
    assert not scheduler.get_job(process.id).is_processing


def test_sigterm_during_a_reload_stops_the_node(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    (tmp_path / "preloaded.py").write_text("")
    with node(url, tmp_path, "--preload", "preloaded", "--finish", "0") as running:
        process = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        running.process.send_signal(signal.SIGHUP)
        running.heed("RELOADING=1")
        assert running.stop() == Exit.OK

    assert scheduler.get_job(process.id).is_waiting


def test_a_reload_at_any_moment_of_another_one_does_not_end_the_node(url: str, tmp_path: Path) -> None:
    (tmp_path / "preloaded.py").write_text("")
    with node(url, tmp_path, "--preload", "preloaded") as running:

        def is_back() -> bool:
            assert running.process.poll() is None
            running.process.send_signal(signal.SIGHUP)
            return running.log.read_text().count("has taken its seat") > 1

        eventually(is_back)


def test_a_bootstrap_file_that_cannot_run_ends_the_node_with_its_own_code(url: str, tmp_path: Path) -> None:
    (tmp_path / "bootstrap.py").write_text("raise RuntimeError('no settings')\n")
    with node(url, tmp_path, "--bootstrap", "bootstrap.py") as running:
        assert running.wait() == Exit.BOOTSTRAP
    assert "no settings" in running.log.read_text()


def test_a_module_that_cannot_be_preloaded_ends_the_node_with_its_own_code(url: str, tmp_path: Path) -> None:
    with node(url, tmp_path, "--preload", "no_such_module_anywhere") as running:
        assert running.wait() == Exit.BOOTSTRAP
    assert "no_such_module_anywhere" in running.log.read_text()


def test_workers_that_cannot_start_end_the_node_with_their_own_code(url: str, tmp_path: Path) -> None:
    (tmp_path / "bootstrap.py").write_text("import os\nos._exit(9)\n")
    with node(url, tmp_path, "--bootstrap", "bootstrap.py") as running:
        assert running.wait() == Exit.CHILDREN


def test_a_stop_that_has_to_kill_ends_the_node_with_its_own_code(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--finish", "0.1", "--grace", "0.2") as running:
        process = scheduler.add_job(Uninterruptible, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        assert running.stop() == Exit.KILLED

    assert scheduler.get_job(process.id).status is Status.WAITING
    assert "its worker was killed by SIGKILL" in scheduler.why(process.id)


@pytest.mark.parametrize("script", [RUN_JOB, RUN_PENDING], ids=["run_job", "run_pending"])
def test_jobs_of_a_killed_caller_run_again_on_its_host(
    script: str, url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with caller(script, url, files) as process:
        jobs = list(scheduler.get_jobs())
        with node(url, tmp_path, "--lease", "600", "--pm", "static", "--min-children", "1"):
            scheduler.wait_for([scheduler.add_job(Echo, 1)], timeout=LIMIT)
            assert len(files.lines()) == 1
            process.kill()
            process.wait()
            for number in range(len(jobs)):
                files.heed(2 + 2 * number)
                files.open()
            scheduler.wait_for(jobs, timeout=LIMIT)

    assert [job.status for job in jobs] == [Status.DONE] * len(jobs)
    outcomes = sorted([attempt.outcome for attempt in job.attempts] for job in jobs)
    assert outcomes == [["Crashed", "Done"], *[["Done"]] * (len(jobs) - 1)]


def test_a_node_that_starts_after_the_death_of_a_caller_finds_its_job(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with caller(RUN_JOB, url, files, "fail") as process:
        [job] = scheduler.get_jobs()
        assert "its process has ended" not in scheduler.why(job.id)
        process.kill()
        process.wait()
        assert "its process has ended" in scheduler.why(job.id)
        with node(url, tmp_path, "--lease", "600"):
            job.wait(timeout=LIMIT)

    assert (job.status, job.cause) == (Status.FAILED, Cause.CRASHED)
    assert len(files.lines()) == 1
