"""How runs are ended from outside, whatever the job does: timeout, cancel, a stop of node or worker, a lost lease."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskqueue.daemon.manager.scaling import PoolMode
from taskqueue.daemon.protocol.messages import (
    Ended,
    LeaseExtended,
    PoolStatus,
    Progressed,
    Run,
    RunsHandedBack,
    Shutdown,
    Started,
    Stop,
)
from taskqueue.daemon.runtime import child_process
from tests.daemon.foreman import MODES, Fifo, Foreman, becomes_true, children_of, fifos, is_gone

HOSTILE = ["Looping", "InC", "Matching", "WithChildren"]


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Callable[[str], Fifo]]:
    yield from fifos(tmp_path)


def stop(run: Run, reason: str = "cancel") -> Stop:
    return Stop(id=run.id, claims=run.claims, reason=reason)


def descendants(foreman: Foreman) -> list[int]:
    workers = foreman.workers()
    return [*workers, *(child for worker in workers for child in children_of(worker))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("job", HOSTILE)
def test_a_timeout_ends_any_job(job: str, mode: PoolMode, fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman(pm=mode, max_children=1) as foreman:
        run = foreman.run(job, {"runs": runs.path}, timeout=3.0 if job == "WithChildren" else 0.6)
        runs.hear()
        victims = descendants(foreman)

        ended = foreman.expect(Ended, run)

        assert ended.outcome == "TimedOut"
        assert ended.fields["failure"]["message"]
        foreman.result(foreman.run("Echo"))  # the slot is free
        assert becomes_true(lambda: all(is_gone(pid) for pid in victims))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("job", HOSTILE)
def test_a_cancel_ends_any_job(job: str, mode: PoolMode, fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman(pm=mode, max_children=1) as foreman:
        run = foreman.run(job, {"runs": runs.path})
        runs.hear()
        victims = descendants(foreman)
        assert len(victims) == (3 if job == "WithChildren" else 1)

        foreman.tell(stop(run))

        ended = foreman.expect(Ended, run)
        assert ended.outcome == "Canceled"
        assert job != "Looping" or ended.exit == "killed by SIGKILL"
        foreman.result(foreman.run("Echo"))
        assert becomes_true(lambda: all(is_gone(pid) for pid in victims))


@pytest.mark.parametrize("job", HOSTILE)
def test_sigterm_to_one_worker_ends_any_job(job: str, fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman(max_children=1) as foreman:
        run = foreman.run(job, {"runs": runs.path})
        runs.hear()
        [worker] = foreman.workers()

        os.kill(worker, signal.SIGTERM)

        ended = foreman.expect(Ended, run)
        assert ended.outcome == "Interrupted"
        told = f"worker {worker} was asked to leave by a SIGTERM that neither its node nor its manager sent"
        assert ended.fields["failure"]["message"] == told
        assert foreman.result(foreman.run("Echo"))["pid"] != worker


@pytest.mark.parametrize("job", HOSTILE)
def test_a_stop_ends_any_job(job: str, fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman() as foreman:
        run = foreman.run(job, {"runs": runs.path})
        runs.hear()
        victims = descendants(foreman)

        assert foreman.drain("finish").code == 0

        ended = foreman.expect(Ended, run)
        assert (ended.outcome, ended.fields) == ("Interrupted", {})
        assert all(is_gone(pid) for pid in victims)


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
    with Foreman(grace=20) as foreman:
        run = foreman.run("Patient", {"runs": runs.path})
        runs.hear()

        foreman.tell(stop(run, reason))

        assert foreman.expect(Ended, run).outcome == outcome
        [noted] = foreman.all_of(Progressed, run)
        assert noted.state == f'{{"seen":"{reason}","kind":"{kind}"}}'


def test_on_shutdown_a_normal_return_is_done(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman(grace=20) as foreman:
        run = foreman.run("Swallowing", {"runs": runs.path})
        runs.hear()
        foreman.drain("quick")

        assert foreman.result(run) == "done all the same"


@pytest.mark.parametrize(("reason", "outcome"), [("cancel", "Canceled"), ("timeout", "TimedOut")])
@pytest.mark.parametrize("job", ["Swallowing", "Converting"])
def test_once_it_has_begun_cancel_or_timeout_is_the_outcome(
    job: str, reason: str, outcome: str, fifo: Callable[[str], Fifo]
) -> None:
    runs = fifo("runs")
    with Foreman(grace=20) as foreman:
        run = foreman.run(job, {"runs": runs.path})
        runs.hear()

        foreman.tell(stop(run, reason))

        assert foreman.expect(Ended, run).outcome == outcome


def test_a_stopping_node_lets_jobs_end_by_themselves(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman(finish=20, grace=20) as foreman:
        run = foreman.run("Watching", {"runs": runs.path})
        runs.hear()
        foreman.drain("finish")

        assert foreman.result(run) == "ended by itself"


def test_an_interruption_that_vanished_is_repeated(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman(grace=20) as foreman:
        run = foreman.run("Deaf", {"runs": runs.path})
        runs.hear()
        foreman.drain("quick")

        assert foreman.expect(Ended, run).outcome == "Interrupted"
        assert foreman.expect(Ended, run).exit == ""  # it was not killed


def test_a_second_quick_stop_skips_the_grace(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman(grace=1000) as foreman:
        run = foreman.run("Looping", {"runs": runs.path})
        runs.hear()
        foreman.tell(Shutdown(mode="quick"))
        foreman.drain("quick")

        ended = foreman.expect(Ended, run)
        assert (ended.outcome, ended.exit) == ("Interrupted", "killed by SIGKILL")


def test_a_quick_stop_shortens_a_patient_one(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman() as foreman:
        run = foreman.run("Looping", {"runs": runs.path})
        runs.hear()
        foreman.tell(Shutdown(mode="patient"))
        foreman.drain("quick")

        assert foreman.expect(Ended, run).outcome == "Interrupted"


def test_a_patient_stop_waits_for_the_end_of_a_job(fifo: Callable[[str], Fifo]) -> None:
    runs, go = fifo("runs"), fifo("go")
    with Foreman() as foreman:
        run = foreman.run("Blocking", {"runs": runs.path, "go": go.path})
        runs.hear()
        foreman.tell(Shutdown(mode="patient"))
        refused = foreman.run("Empty")
        foreman.expect(RunsHandedBack, refused)
        go.tell("well done")
        foreman.leave()

        assert foreman.result(run) == "well done"
        assert foreman.exit is not None
        assert foreman.exit.code == 0


def test_a_stop_hands_back_what_has_not_begun(fifo: Callable[[str], Fifo]) -> None:
    runs, go = fifo("runs"), fifo("go")
    with Foreman(max_children=1) as foreman:
        foreman.run("Blocking", {"runs": runs.path, "go": go.path})
        runs.hear()
        waiting = foreman.run("Empty")
        foreman.drain("finish")

        foreman.expect(RunsHandedBack, waiting)
        assert not foreman.all_of(Started, waiting)


def test_a_run_that_waits_is_handed_back_when_it_is_canceled(fifo: Callable[[str], Fifo]) -> None:
    runs, go = fifo("runs"), fifo("go")
    with Foreman(max_children=1) as foreman:
        foreman.run("Blocking", {"runs": runs.path, "go": go.path})
        runs.hear()
        waiting = foreman.run("Empty")
        foreman.tell(stop(waiting))

        foreman.expect(RunsHandedBack, waiting)
        go.tell()


def test_a_stop_for_a_run_that_has_ended_ends_nothing_else() -> None:
    with Foreman(max_children=1) as foreman:
        first = foreman.run("Echo")
        worker = foreman.result(first)["pid"]
        foreman.tell(stop(first))

        assert foreman.result(foreman.run("Echo"))["pid"] == worker


def test_sigterm_to_an_idle_worker_replaces_it() -> None:
    with Foreman(max_children=1) as foreman:
        first = foreman.result(foreman.run("Echo"))["pid"]
        os.kill(first, signal.SIGTERM)

        assert becomes_true(lambda: foreman.workers() not in ([], [first]))
        assert foreman.result(foreman.run("Echo"))["pid"] != first


def test_a_dead_node_is_followed_by_its_manager_and_all_that_runs(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman(grace=1000) as foreman:
        foreman.run("WithChildren", {"runs": runs.path})
        children = [int(pid) for pid in runs.hear().split()]
        victims = [*foreman.workers(), *children]

        foreman.channel.close()

        foreman.exit = foreman.manager.reap()
        assert foreman.exit.code == 0
        assert all(is_gone(pid) for pid in victims)


def test_a_dead_manager_takes_its_workers_along(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman() as foreman:
        foreman.run("Looping", {"runs": runs.path})
        runs.hear()
        workers = foreman.workers()

        foreman.manager.signal(signal.SIGKILL)

        foreman.leave()
        assert workers
        assert becomes_true(lambda: all(is_gone(pid) for pid in workers))


def test_sigterm_to_the_manager_ends_and_reports_everything(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman(max_children=1) as foreman:
        run = foreman.run("Patient", {"runs": runs.path})
        runs.hear()
        waiting = foreman.run("Empty")
        foreman.expect(Started, run)

        foreman.manager.signal(signal.SIGTERM)

        assert foreman.leave().code == 0
        assert foreman.expect(Ended, run).outcome == "Interrupted"
        foreman.expect(RunsHandedBack, waiting)


def test_an_unarmed_manager_leaves_with_its_node() -> None:
    foreman = Foreman()
    foreman.channel.close()

    foreman.exit = foreman.manager.reap()
    foreman.manager.close()
    assert foreman.exit.code == 0


# The lease


def test_without_news_of_the_lease_all_runs_end_in_time(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman() as foreman:
        run = foreman.run("Looping", {"runs": runs.path})
        runs.hear()
        until = child_process.boottime() + 1.5
        foreman.tell(LeaseExtended(until=until))

        ended = foreman.expect(Ended, run)

        assert (ended.outcome, ended.exit) == ("Interrupted", "killed by SIGKILL")
        refused = foreman.run("Empty")
        foreman.expect(RunsHandedBack, refused)


def test_after_new_trust_runs_begin_again(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman() as foreman:
        run = foreman.run("Patient", {"runs": runs.path})
        runs.hear()
        foreman.tell(LeaseExtended(until=child_process.boottime()))
        foreman.expect(Ended, run)

        foreman.tell(LeaseExtended(until=child_process.boottime() + 1000))

        foreman.result(foreman.run("Echo"))


def test_every_word_of_trust_is_answered() -> None:
    with Foreman() as foreman:
        foreman.result(foreman.run("Echo"))
        foreman.expect(PoolStatus, busy=0)
        foreman.heard.clear()

        foreman.tell(LeaseExtended(until=child_process.boottime() + 1000))

        foreman.expect(PoolStatus)
