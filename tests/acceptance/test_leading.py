"""The cluster lead: what it lets a node do, who gets it next, and the hooks that each change of it calls once."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from taskqueue import Scheduler, Status
from taskqueue.daemon.node.node_hooks import NodeHooks
from taskqueue.daemon.protocol.messages import Ended, RunHook, RunsHandedBack
from taskqueue.exit_codes import Exit
from taskqueue.store.open import open_store
from tests.acceptance.conftest import JobFiles
from tests.acceptance.work import Echo, Gate, Trace
from tests.nodes import LIMIT, eventually, node

HOT = ("--lead", "cluster")
HOOKS = """
import os

def tell(what, scheduler):
    with open({file!r}, "a") as file:
        file.write(f"{{what}} with {{scheduler.stats()['total']}} jobs in {{os.getpid()}}\\n")

def became_leader(scheduler):
    tell("became", scheduler)

def stepped_down(scheduler):
    tell("stepped", scheduler)
"""


def hooks(files: JobFiles, folder: Path, text: str = HOOKS) -> str:
    """Write a bootstrap file whose hooks write into the file of the files, and return its path."""
    path = folder / "bootstrap.py"
    path.write_text(text.format(file=files.file))
    return str(path)


def resign(url: str) -> str:
    """Take the lead from who has it, as ``taskqueue nodes --leader --resign`` does, and return its seat."""
    store = open_store(url)
    try:
        [lead] = [lease for lease in store.leases() if lease.name == "lead"]
        store.resign("lead", lead.holder)
        return lead.holder.seat
    finally:
        store.close()


def first_words(files: JobFiles) -> list[str]:
    return [line.split()[0] for line in files.lines()]


def test_a_hot_standby_claims_nothing_until_it_leads(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--name", "a", "--lease", "600", *HOT) as a:
        a.heed("works; ")
        with node(url, tmp_path, "--name", "b", "--lease", "6", *HOT) as b:
            b.heed("waits for the lead")
            jobs = [scheduler.add_job(Trace, {"file": files.file}) for _ in range(20)]
            scheduler.wait_for(jobs, timeout=LIMIT)
            a.process.send_signal(signal.SIGKILL)
            b.heed("leads the cluster")
            [after] = scheduler.wait_for([scheduler.add_job(Echo, 1)], timeout=LIMIT)

    assert {job.attempts[0].node for job in jobs} == {"a"}
    assert after.attempts[0].node == "b"


def test_a_node_that_loses_the_lead_ends_what_runs_and_leaves_the_rest_to_the_next(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    options = ("--lease", "20", "--pm", "static", "--min-children", "1", *HOT)
    with node(url, tmp_path, "--name", "a", *options) as a:
        running = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
        files.heed(1)
        with node(url, tmp_path, "--name", "b", *options) as b:
            b.heed("waits for the lead")
            waiting = scheduler.add_job(Echo, 1)
            assert resign(url) == "a"
            b.heed("leads the cluster")
            a.heed("waits for the lead")
            scheduler.wait_for([waiting], timeout=LIMIT)
            files.open()
            scheduler.wait_for([running], timeout=LIMIT)

    assert (waiting.attempts[-1].node, running.attempts[0].node) == ("b", "a")


def test_a_node_that_loses_the_lead_keeps_no_job_that_may_run_only_once(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    options = ("--lease", "20", "--pm", "static", "--min-children", "1", *HOT)
    with node(url, tmp_path, "--name", "a", *options), node(url, tmp_path, "--name", "b", *options) as b:
        b.heed("waits for the lead")
        jobs = scheduler.add_jobs([(Trace, {"file": files.file}, {"on_crash": "fail"})] * 300)
        files.heed(20)
        assert resign(url) == "a"
        scheduler.wait_for(jobs, timeout=3 * LIMIT)  # many, one by one, with a change of the lead

    assert {job.status for job in jobs} == {Status.DONE}
    assert len(files.lines()) == 300


def test_a_lone_node_takes_up_again_a_lead_that_was_taken_from_it(url: str, tmp_path: Path) -> None:
    with node(url, tmp_path, "--lease", "2", *HOT) as alone:
        alone.heed("works; ")
        resign(url)
        alone.heed("waits for the lead")
        alone.statuses.clear()
        alone.heed("leads the cluster")


def test_each_change_of_the_lead_calls_its_hook_once_in_a_worker(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:  # GZ-5
    options = ("--lease", "20", "--finish", f"{LIMIT}", "--bootstrap", hooks(files, tmp_path))
    with node(url, tmp_path, "--name", "a", *options) as a:
        [became] = files.heed(1)
        with node(url, tmp_path, "--name", "b", *options) as b:
            b.heed("works")
            scheduler.wait_for([scheduler.add_job(Echo, n) for n in range(5)], timeout=LIMIT)
            resign(url)
            files.heed(3)
            b.heed("leads the cluster")
            assert b.stop() == Exit.OK
            eventually(lambda: len(files.lines()) >= 5)  # b steps down and a leads again
            assert a.stop() == Exit.OK

    assert became.startswith("became with 0 jobs")
    assert int(became.split()[-1]) not in (a.pid, b.pid)
    assert not psutil.pid_exists(int(became.split()[-1]))
    assert sorted(first_words(files)) == ["became"] * 3 + ["stepped"] * 3
    assert first_words(files)[-1] == "stepped"


def test_each_node_calls_its_hooks_when_it_starts_and_stops(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    text = HOOKS.replace("became_leader", "node_started").replace("stepped_down", "node_stopping")
    options = ("--bootstrap", hooks(files, tmp_path, text), "--finish", f"{LIMIT}")
    with node(url, tmp_path, "--name", "a", *options) as a:
        [started] = files.heed(1)
        with node(url, tmp_path, "--name", "b", *options) as b:
            files.heed(2)
            scheduler.wait_for([scheduler.add_job(Echo, 1)], timeout=LIMIT)
            assert b.stop() == Exit.OK
            assert first_words(files) == ["became", "became", "stepped"]
            assert a.stop() == Exit.OK

    assert first_words(files) == ["became", "became", "stepped", "stepped"]
    assert int(started.split()[-1]) not in (a.pid, b.pid)


def test_a_node_waits_for_the_start_of_its_last_hook_as_long_as_for_its_jobs(files: JobFiles, tmp_path: Path) -> None:
    gate = files.gate()
    text = f"""
import os

if os.path.exists({str(tmp_path / "slow")!r}):
    open({gate!r}).read()

def node_stopping(scheduler):
    with open({files.file!r}, "a") as file:
        file.write("stopping\\n")
"""
    (tmp_path / "bootstrap.py").write_text(text)
    options = ("--bootstrap", str(tmp_path / "bootstrap.py"), "--finish", f"{LIMIT}")
    with node(f"sqlite:///{tmp_path}/jobs.db", tmp_path, *options) as running:
        running.heed("works")
        (tmp_path / "slow").touch()
        running.process.send_signal(signal.SIGTERM)
        running.heed("is stopping")
        time.sleep(6)  # nobody can see that the node waits
        files.open()

        assert running.wait() == Exit.OK

    assert files.lines() == ["stopping"]


def test_a_leader_that_stops_calls_both_of_its_hooks(url: str, files: JobFiles, tmp_path: Path) -> None:
    text = HOOKS + "\ndef node_stopping(scheduler):\n    tell('stopping', scheduler)\n"
    with node(url, tmp_path, "--bootstrap", hooks(files, tmp_path, text), "--finish", f"{LIMIT}") as leader:
        files.heed(1)
        assert leader.stop() == Exit.OK

    assert first_words(files) == ["became", "stepped", "stopping"]


def test_a_node_that_never_led_calls_no_hook(url: str, files: JobFiles, tmp_path: Path) -> None:  # GZ-5
    with node(url, tmp_path, "--name", "a") as a:
        a.heed("leads the cluster")
        with node(url, tmp_path, "--name", "b", "--bootstrap", hooks(files, tmp_path)) as b:
            b.heed("works")
            assert b.stop() == Exit.OK

    assert files.lines() == []


def test_a_hook_that_fails_is_logged_and_the_node_works_on(url: str, scheduler: Scheduler, tmp_path: Path) -> None:
    bootstrap = tmp_path / "bootstrap.py"
    bootstrap.write_text("def became_leader(scheduler):\n    raise LookupError('no such rack')\n")
    with node(url, tmp_path, "--bootstrap", str(bootstrap)) as running:
        eventually(lambda: "the hook became_leader failed: LookupError: no such rack" in running.log.read_text())
        [ended] = scheduler.wait_for([scheduler.add_job(Echo, 1)], timeout=LIMIT)
        assert running.stop() == Exit.OK  # stepped_down is not in the file, which is fine

    assert ended.status is Status.DONE


def test_hooks_follow_one_another(tmp_path: Path) -> None:
    sent: list[RunHook] = []
    leadership = NodeHooks(sent.append, a_bootstrap(tmp_path, "from hooks import *"), lambda: None)

    leadership.leadership_changed(leads=True)
    leadership.leadership_changed(leads=True)
    leadership.leadership_changed(leads=False)

    assert [hook.name for hook in sent] == ["became_leader"]
    assert leadership.is_pending


@pytest.mark.parametrize("text", ["print('booting')", "def stepped_down(scheduler): ..."])
def test_no_worker_is_started_for_a_hook_that_the_file_does_not_name(tmp_path: Path, text: str) -> None:
    sent: list[RunHook] = []
    leadership = NodeHooks(sent.append, a_bootstrap(tmp_path, text), lambda: None)

    leadership.leadership_changed(leads=True)

    assert not sent
    assert not leadership.is_pending


def test_a_worker_tells_what_is_wrong_with_a_bootstrap_file_that_cannot_be_read(tmp_path: Path) -> None:
    sent: list[RunHook] = []
    NodeHooks(sent.append, tmp_path / "none.py", lambda: None).leadership_changed(leads=True)

    assert [hook.name for hook in sent] == ["became_leader"]


def a_bootstrap(folder: Path, text: str) -> Path:
    path = folder / "bootstrap.py"
    path.write_text(text)
    return path


def test_each_failure_doubles_the_pause_until_schedules_are_applied_again(tmp_path: Path) -> None:
    sent: list[RunHook] = []
    pauses: list[float] = []
    hooks_of_node = NodeHooks(sent.append, None, lambda: None, "shop", pauses.append)
    for outcome in ("Failed", "Crashed", "Done", "TimedOut", *["Failed"] * 9):
        hooks_of_node.apply_schedules()
        hooks_of_node.on_report(Ended(id=sent[-1].id, claims=0, outcome=outcome, fields={}, pid=None, started_at=None))

    assert pauses == [1, 2, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300]


def test_an_outbox_is_checked_again_with_new_code_and_by_its_relay_while_the_node_leads() -> None:
    sent: list[RunHook] = []
    hooks_of_node = NodeHooks(sent.append, None, lambda: None, outboxes=["shop:outbx"])
    found: list[list[str]] = []
    for outcome in ("Failed", "Failed", "Done", "Failed"):
        hooks_of_node.load_new_code()
        hooks_of_node.on_report(Ended(id=sent[-1].id, claims=0, outcome=outcome, fields={}, pid=None, started_at=None))
        found.append(hooks_of_node.problems())
    hooks_of_node.leadership_changed(leads=True)
    hooks_of_node.load_new_code()

    problem = "the outbox shop:outbx could not be relayed: Failed: "
    assert found == [[problem], [problem], [], [problem]]
    assert not hooks_of_node.problems()
    assert {(hook.name, hook.source) for hook in sent} == {("check_outbox", "shop:outbx")}
    assert len(sent) == 4


def test_a_hook_that_workers_no_longer_take_is_given_up(tmp_path: Path) -> None:
    sent: list[RunHook] = []
    leadership = NodeHooks(sent.append, a_bootstrap(tmp_path, "def became_leader(scheduler): ..."), lambda: None)
    leadership.leadership_changed(leads=True)

    leadership.on_handed_back(RunsHandedBack(runs=[["another", 1], [sent[0].id, 0]]))

    assert not leadership.is_pending
