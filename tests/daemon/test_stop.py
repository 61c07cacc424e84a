"""How runs are ended from outside, whatever the job does: timeout, cancel, a stop of node or worker, a lost lease."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskqueue.daemon.manager.manager import FLUSH_WITHIN
from taskqueue.daemon.protocol.messages import (
    Ended,
    LeaseExtended,
    PoolStatus,
    Progressed,
    RunsHandedBack,
    Shutdown,
    Started,
    Stop,
)
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.settings import PoolMode
from taskqueue.execution.run import Run
from tests.daemon.fake_node import MODES, FakeNode, Fifo, becomes_true, children_of, fifos, is_gone

HOSTILE = ["Looping", "InC", "Matching", "WithChildren"]


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Callable[[str], Fifo]]:
    yield from fifos(tmp_path)


def stop(run: Run, reason: str = "cancel") -> Stop:
    return Stop(id=run.id, claims=run.claims, reason=reason)


def descendants(fake_node: FakeNode) -> list[int]:
    workers = fake_node.workers()
    return [*workers, *(child for worker in workers for child in children_of(worker))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("job", HOSTILE)
def test_a_timeout_ends_any_job(job: str, mode: PoolMode, fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(pm=mode, max_children=1, grace=0.3) as fake_node:
        _, ended = fake_node.exceed(runs, job)

        assert ended.outcome == "TimedOut"
        assert ended.fields["failure"]["message"]
        assert ended.pid is not None
        victims = [ended.pid, *(map(int, runs.hear().split()) if job == "WithChildren" else ())]
        fake_node.result(fake_node.run("Echo"))  # the slot is free
        assert becomes_true(lambda: all(is_gone(pid) for pid in victims))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("job", HOSTILE)
def test_a_cancel_ends_any_job(job: str, mode: PoolMode, fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(pm=mode, max_children=1, grace=0.3) as fake_node:
        run = fake_node.run(job, {"runs": runs.path})
        runs.hear()
        victims = descendants(fake_node)
        assert len(victims) == (3 if job == "WithChildren" else 1)

        fake_node.tell(stop(run))

        ended = fake_node.expect(Ended, run)
        assert ended.outcome == "Canceled"
        assert job != "Looping" or ended.exit == "killed by SIGKILL"
        fake_node.result(fake_node.run("Echo"))
        assert becomes_true(lambda: all(is_gone(pid) for pid in victims))


def test_a_timeout_ends_a_job_that_has_left_the_process_group_of_its_worker(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(max_children=1, grace=0.3) as fake_node:
        _, ended = fake_node.exceed(runs, "Looping", {"group": os.getpgid(fake_node.manager.pid)})

        assert (ended.outcome, ended.exit) == ("TimedOut", "killed by SIGKILL")


@pytest.mark.parametrize("job", HOSTILE)
def test_sigterm_to_one_worker_ends_any_job(job: str, fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(max_children=1, grace=0.3) as fake_node:
        run = fake_node.run(job, {"runs": runs.path})
        runs.hear()
        [worker] = fake_node.workers()

        os.kill(worker, signal.SIGTERM)

        ended = fake_node.expect(Ended, run)
        assert ended.outcome == "Interrupted"
        told = f"worker {worker} was asked to exit by a SIGTERM that neither its node nor its manager sent"
        assert ended.fields["failure"]["message"] == told
        assert fake_node.result(fake_node.run("Echo"))["pid"] != worker


@pytest.mark.parametrize("job", HOSTILE)
def test_a_stop_ends_any_job(job: str, fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(grace=0.3) as fake_node:
        run = fake_node.run(job, {"runs": runs.path})
        runs.hear()
        victims = descendants(fake_node)

        assert fake_node.drain("finish").code == 0

        ended = fake_node.expect(Ended, run)
        assert (ended.outcome, ended.fields) == ("Interrupted", {})
        assert becomes_true(lambda: all(is_gone(pid) for pid in victims))


@pytest.mark.parametrize(
    ("reason", "kind", "outcome"),
    [
        ("cancel", "Interrupted", "Canceled"),
        ("lost", "Interrupted", "Interrupted"),
        ("timeout", "JobTimeout", "TimedOut"),
    ],
)
def test_a_job_is_told_why_and_can_checkpoint(
    reason: str, kind: str, outcome: str, fifo: Callable[[str], Fifo]
) -> None:
    runs = fifo("runs")
    with FakeNode(grace=20) as fake_node:
        run = fake_node.run("Patient", {"runs": runs.path})
        runs.hear()

        fake_node.tell(stop(run, reason))

        assert fake_node.expect(Ended, run).outcome == outcome
        [noted] = fake_node.all_of(Progressed, run)
        assert noted.state == f'{{"seen":"{reason}","kind":"{kind}"}}'


def test_on_shutdown_a_normal_return_is_done(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(grace=20) as fake_node:
        run = fake_node.run("Swallowing", {"runs": runs.path})
        runs.hear()
        fake_node.drain("quick")

        assert fake_node.result(run) == "done all the same"


@pytest.mark.parametrize(("reason", "outcome"), [("cancel", "Canceled"), ("timeout", "TimedOut")])
@pytest.mark.parametrize("job", ["Swallowing", "Converting"])
def test_once_it_has_begun_cancel_or_timeout_is_the_outcome(
    job: str, reason: str, outcome: str, fifo: Callable[[str], Fifo]
) -> None:
    runs = fifo("runs")
    with FakeNode(grace=20) as fake_node:
        run = fake_node.run(job, {"runs": runs.path})
        runs.hear()

        fake_node.tell(stop(run, reason))

        assert fake_node.expect(Ended, run).outcome == outcome


def test_a_stopping_node_lets_jobs_end_by_themselves(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(finish=20, grace=20) as fake_node:
        run = fake_node.run("Watching", {"runs": runs.path})
        runs.hear()
        fake_node.drain("finish")

        assert fake_node.result(run) == "ended by itself"


def test_an_interruption_that_vanished_is_repeated(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(grace=20) as fake_node:
        run = fake_node.run("Deaf", {"runs": runs.path})
        runs.hear()
        fake_node.drain("quick")

        assert fake_node.expect(Ended, run).outcome == "Interrupted"
        assert fake_node.expect(Ended, run).exit == ""  # it was not killed


def test_a_second_quick_stop_skips_the_grace(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(grace=1000) as fake_node:
        run = fake_node.run("Looping", {"runs": runs.path})
        runs.hear()
        fake_node.tell(Shutdown(mode="quick"))
        fake_node.drain("quick")

        ended = fake_node.expect(Ended, run)
        assert (ended.outcome, ended.exit) == ("Interrupted", "killed by SIGKILL")


def test_a_quick_stop_shortens_a_patient_one(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(grace=0.3) as fake_node:
        run = fake_node.run("Looping", {"runs": runs.path})
        runs.hear()
        fake_node.tell(Shutdown(mode="patient"))
        fake_node.drain("quick")

        assert fake_node.expect(Ended, run).outcome == "Interrupted"


def test_a_patient_stop_waits_for_the_end_of_a_job(fifo: Callable[[str], Fifo]) -> None:
    runs, go = fifo("runs"), fifo("go")
    with FakeNode() as fake_node:
        run = fake_node.run("Blocking", {"runs": runs.path, "go": go.path})
        runs.hear()
        fake_node.tell(Shutdown(mode="patient"))
        refused = fake_node.run("Empty")
        fake_node.expect(RunsHandedBack, refused)
        go.tell("well done")
        fake_node.leave()

        assert fake_node.result(run) == "well done"
        assert fake_node.exit is not None
        assert fake_node.exit.code == 0


def test_a_stop_hands_back_what_has_not_begun(fifo: Callable[[str], Fifo]) -> None:
    runs, go = fifo("runs"), fifo("go")
    with FakeNode(max_children=1) as fake_node:
        fake_node.run("Blocking", {"runs": runs.path, "go": go.path})
        runs.hear()
        waiting = fake_node.run("Empty")
        fake_node.drain("finish")

        fake_node.expect(RunsHandedBack, waiting)
        assert not fake_node.all_of(Started, waiting)


def test_a_run_that_waits_is_handed_back_when_it_is_canceled(fifo: Callable[[str], Fifo]) -> None:
    runs, go = fifo("runs"), fifo("go")
    with FakeNode(max_children=1) as fake_node:
        fake_node.run("Blocking", {"runs": runs.path, "go": go.path})
        runs.hear()
        waiting = fake_node.run("Empty")
        fake_node.tell(stop(waiting))

        fake_node.expect(RunsHandedBack, waiting)
        go.tell()


def test_a_stop_for_a_run_that_has_ended_ends_nothing_else() -> None:
    with FakeNode(max_children=1) as fake_node:
        first = fake_node.run("Echo")
        worker = fake_node.result(first)["pid"]
        fake_node.tell(stop(first))

        assert fake_node.result(fake_node.run("Echo"))["pid"] == worker


def test_sigterm_to_an_idle_worker_replaces_it() -> None:
    with FakeNode(max_children=1) as fake_node:
        first = fake_node.result(fake_node.run("Echo"))["pid"]
        os.kill(first, signal.SIGTERM)

        assert becomes_true(lambda: fake_node.workers() not in ([], [first]))
        assert fake_node.result(fake_node.run("Echo"))["pid"] != first


@pytest.mark.parametrize("how", ["cancel", "timeout", "crash"])
def test_a_command_ends_with_all_that_it_started(fifo: Callable[[str], Fifo], how: str) -> None:
    runs = fifo("runs")
    orphaned = f"sh -c 'sleep 1000 > /dev/null & echo $! > {runs.path}'"
    command = f"sleep 1000 & {orphaned}; echo $! $$ > {runs.path}; wait"
    with FakeNode(max_children=1) as fake_node:
        run = fake_node.run("taskqueue:ShellJob", {"argv": command, "shell": True})
        family = [int(pid) for pid in (*runs.hear().split(), *runs.hear().split())]
        worker = fake_node.expect(Started, run).pid

        if how == "crash":
            os.kill(worker, signal.SIGKILL)
        else:
            fake_node.tell(stop(run, how))

        outcome = {"cancel": "Canceled", "timeout": "TimedOut", "crash": "Crashed"}[how]
        assert fake_node.expect(Ended, run).outcome == outcome
        assert becomes_true(lambda: all(is_gone(pid) for pid in family))


def test_a_command_is_asked_to_end_even_if_its_start_is_interrupted(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    command = f"trap 'echo ended > {runs.path}; exit' TERM; echo started > {runs.path}; while :; do sleep 0.05; done"
    with FakeNode(max_children=1) as fake_node:
        run = fake_node.run("SlowStart", {"argv": command, "shell": True})
        assert runs.hear().strip() == "started"

        fake_node.tell(stop(run, "cancel"))

        assert runs.hear().strip() == "ended"
        assert fake_node.expect(Ended, run).outcome == "Canceled"


def test_a_command_that_takes_a_notification_is_asked_to_end_even_if_its_start_is_interrupted(
    fifo: Callable[[str], Fifo], tmp_path: Path
) -> None:
    runs = fifo("runs")
    program = tmp_path / "pager"
    program.write_text(
        f"#!/bin/sh\ntrap 'echo ended > {runs.path}; exit' TERM\necho started > {runs.path}\n"
        "while :; do sleep 0.05; done\n"
    )
    program.chmod(0o755)
    with FakeNode(max_children=1) as fake_node:
        run = fake_node.run("SlowDelivery", str(program))
        assert runs.hear().strip() == "started"

        fake_node.tell(stop(run, "cancel"))

        assert runs.hear().strip() == "ended"
        assert fake_node.expect(Ended, run).outcome == "Canceled"


def test_a_command_that_signals_its_process_group_spares_its_worker() -> None:
    with FakeNode(max_children=1) as fake_node:
        run = fake_node.run("taskqueue:ShellJob", {"argv": ["bash", "-c", "trap 'kill 0' EXIT; exit 0"]})

        ended = fake_node.expect(Ended, run)
        assert (ended.outcome, ended.fields["failure"]["type"]) == ("Failed", "taskqueue.CommandFailed")
        assert fake_node.result(fake_node.run("Echo"))["pid"] == ended.pid


def test_a_dead_node_is_followed_by_its_manager_and_all_that_runs(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(grace=1000) as fake_node:
        fake_node.run("WithChildren", {"runs": runs.path})
        children = [int(pid) for pid in runs.hear().split()]
        victims = [*fake_node.workers(), *children]

        fake_node.channel.close()

        fake_node.exit = fake_node.manager.reap()
        assert fake_node.exit.code == 0
        assert becomes_true(lambda: all(is_gone(pid) for pid in victims))


def test_a_dead_manager_takes_its_workers_along(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode() as fake_node:
        fake_node.run("Looping", {"runs": runs.path})
        runs.hear()
        workers = fake_node.workers()

        fake_node.manager.signal(signal.SIGKILL)

        fake_node.leave()
        assert workers
        assert becomes_true(lambda: all(is_gone(pid) for pid in workers))


def test_sigterm_to_the_manager_ends_and_reports_everything(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(max_children=1) as fake_node:
        run = fake_node.run("Patient", {"runs": runs.path})
        runs.hear()
        waiting = fake_node.run("Empty")
        fake_node.expect(Started, run)

        fake_node.manager.signal(signal.SIGTERM)

        assert fake_node.leave().code == 0
        ended = fake_node.expect(Ended, run)
        assert ended.outcome == "Interrupted"
        told = f"manager {fake_node.manager.pid} was asked to exit by a SIGTERM that its node did not send"
        assert ended.fields["failure"]["message"] == told
        fake_node.expect(RunsHandedBack, waiting)


def test_a_run_that_does_not_end_says_that_sigterm_to_the_manager_ended_it(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(max_children=1) as fake_node:
        run = fake_node.run("Deaf", {"runs": runs.path})
        runs.hear()

        fake_node.manager.signal(signal.SIGTERM)

        assert fake_node.leave().code == 0
        ended = fake_node.expect(Ended, run)
        assert (ended.outcome, ended.exit) == ("Interrupted", "killed by SIGKILL")
        assert "a SIGTERM that its node did not send" in ended.fields["failure"]["message"]


def test_runs_that_the_node_stops_give_no_other_reason_for_it(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(max_children=1, finish=1000) as fake_node:
        run = fake_node.run("Patient", {"runs": runs.path})
        runs.hear()
        fake_node.expect(Started, run)
        waiting = fake_node.run("Empty")

        fake_node.tell(Shutdown(mode="finish"))
        fake_node.expect(RunsHandedBack, waiting)
        fake_node.manager.signal(signal.SIGTERM)  # as a supervisor does that signals all processes

        assert fake_node.leave().code == 0
        assert fake_node.expect(Ended, run).fields.get("failure") is None


def test_the_last_outcomes_wait_for_a_node_that_waits_for_its_store(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(max_children=1, finish=1000) as fake_node:
        fake_node.tell(LeaseExtended(until=child_process.boottime() + 1000))
        run = fake_node.run("Watching", {"runs": runs.path, "times": 40_000})  # more than a socket holds
        runs.hear()

        fake_node.tell(Shutdown(mode="finish"))
        assert becomes_true(lambda: not fake_node.workers())
        time.sleep(1.5 * FLUSH_WITHIN)

        assert fake_node.leave().code == 0
        assert fake_node.expect(Ended, run).outcome == "Done"


def test_an_unarmed_manager_leaves_with_its_node() -> None:
    fake_node = FakeNode()
    fake_node.channel.close()

    fake_node.exit = fake_node.manager.reap()
    fake_node.manager.close()
    assert fake_node.exit.code == 0


# The lease


def test_without_news_of_the_lease_all_runs_end_in_time(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode() as fake_node:
        run = fake_node.run("Looping", {"runs": runs.path})
        runs.hear()
        until = child_process.boottime() + 1.5
        fake_node.tell(LeaseExtended(until=until))

        ended = fake_node.expect(Ended, run)

        assert (ended.outcome, ended.exit) == ("Interrupted", "killed by SIGKILL")
        refused = fake_node.run("Empty")
        fake_node.expect(RunsHandedBack, refused)


def test_after_new_trust_runs_begin_again(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode() as fake_node:
        run = fake_node.run("Patient", {"runs": runs.path})
        runs.hear()
        fake_node.tell(LeaseExtended(until=child_process.boottime()))
        fake_node.expect(Ended, run)

        fake_node.tell(LeaseExtended(until=child_process.boottime() + 1000))

        fake_node.result(fake_node.run("Echo"))


def test_every_word_of_trust_is_answered() -> None:
    with FakeNode() as fake_node:
        fake_node.result(fake_node.run("Echo"))
        fake_node.expect(PoolStatus, busy=0)
        fake_node.heard.clear()

        fake_node.tell(LeaseExtended(until=child_process.boottime() + 1000))

        fake_node.expect(PoolStatus)
