"""How a manager keeps its workers: who gets which run, how many there are, and where runs go that cannot begin."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskqueue.daemon.manager.crash_outcomes import MIB
from taskqueue.daemon.manager.workers import shortage
from taskqueue.daemon.protocol.messages import (
    Ended,
    EndKind,
    HandBack,
    LeaseExtended,
    Message,
    PoolStatus,
    Recycle,
    RunsHandedBack,
    Started,
    StartupFailed,
    Unlock,
    WorkerChanged,
)
from taskqueue.daemon.runtime import child_process
from taskqueue.daemon.runtime.child_process import ForkUnsafe
from taskqueue.daemon.settings import PoolMode
from taskqueue.execution.run import Run
from tests.daemon.fake_node import FakeNode, Fifo, becomes_true, children_of, fifos, is_gone
from tests.nodes import eventually


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Callable[[str], Fifo]]:
    yield from fifos(tmp_path)


class Blocked:
    """A run that has begun and goes on until it is told to end."""

    def __init__(self, fake_node: FakeNode, fifo: Callable[[str], Fifo], name: str = "", **given: object) -> None:
        self._fake_node = fake_node
        self._go = fifo(f"go{name}")
        runs = fifo(f"runs{name}")
        self.run = fake_node.run("Blocking", {"runs": runs.path, "go": self._go.path}, **given)
        self.pid = int(runs.hear())

    def end(self) -> None:
        """Let it end, and hear that it has."""
        self._go.tell()
        self._fake_node.result(self.run)


def test_a_manager_that_cannot_be_forked_leaves_nothing_open() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    before = os.listdir("/proc/self/fd")
    try:
        with pytest.raises(ForkUnsafe):
            FakeNode()
    finally:
        done.set()
        other.join()

    assert os.listdir("/proc/self/fd") == before


# How many there are


def test_a_static_pool_has_min_children_always(fifo: Callable[[str], Fifo]) -> None:  # PTS-28
    with FakeNode(pm=PoolMode.STATIC, min_children=2, max_children=4) as fake_node:
        fake_node.expect(PoolStatus, idle=2, busy=0)
        first, second = Blocked(fake_node, fifo, "1"), Blocked(fake_node, fifo, "2")

        assert {first.pid, second.pid} == set(fake_node.workers())
        third = fake_node.run("Empty")
        fake_node.expect(RunsHandedBack, third)
        assert len(fake_node.workers()) == 2


def test_a_dynamic_pool_grows_with_the_work_and_shrinks_without(fifo: Callable[[str], Fifo]) -> None:  # PTS-29, PTS-32
    with FakeNode(min_children=1, max_children=2, idle_timeout=0.1) as fake_node:
        fake_node.expect(PoolStatus, idle=1, busy=0)
        first, second = Blocked(fake_node, fifo, "1"), Blocked(fake_node, fifo, "2")
        assert len(fake_node.workers()) == 2

        first.end()
        second.end()

        assert becomes_true(lambda: len(fake_node.workers()) == 1)


def test_on_demand_nobody_idles_and_every_job_has_its_own_worker(fifo: Callable[[str], Fifo]) -> None:  # PW-12
    with FakeNode(pm=PoolMode.ONDEMAND, min_children=1, max_children=2) as fake_node:
        first, second = Blocked(fake_node, fifo, "1"), Blocked(fake_node, fifo, "2")
        assert {first.pid, second.pid} == set(fake_node.workers())
        third = fake_node.run("Echo")
        first.end()

        assert fake_node.result(third)["pid"] not in (first.pid, second.pid)
        second.end()
        assert becomes_true(lambda: fake_node.workers() == [])


def test_jobs_with_force_spawn_are_outside_of_the_budget(fifo: Callable[[str], Fifo]) -> None:
    with FakeNode(pm=PoolMode.STATIC, min_children=1, max_children=1) as fake_node:
        general = Blocked(fake_node, fifo, "1")
        forced = Blocked(fake_node, fifo, "2", force_spawn=True)

        fake_node.expect(PoolStatus, busy=1, forced=1, concurrent=0)
        forced.end()
        assert becomes_true(lambda: fake_node.workers() == [general.pid])
        general.end()


def test_a_worker_is_replaced_after_so_many_jobs() -> None:
    with FakeNode(max_children=1, max_jobs_per_child=2) as fake_node:
        pids = [fake_node.result(fake_node.run("Echo"))["pid"] for _ in range(4)]
        ended = fake_node.expect(WorkerChanged, pid=pids[0], exit="exited with status 0")
        assert (ended.kind, ended.reason) == (EndKind.MAX_JOBS, "it has run its 2 jobs")

    assert pids[0] == pids[1]
    assert pids[2] == pids[3]
    assert pids[0] != pids[2]


def test_a_worker_that_holds_too_much_memory_is_replaced_after_its_job() -> None:
    limit = child_process.memory_of(os.getpid()) // MIB * MIB + 300 * MIB  # a worker holds what this process held
    with FakeNode(max_children=1, max_memory=limit) as fake_node:
        lean = fake_node.result(fake_node.run("Hoarding", {"bytes": 1}))
        assert fake_node.result(fake_node.run("Hoarding", {"bytes": limit + 100 * MIB})) == lean

        assert fake_node.result(fake_node.run("Echo"))["pid"] != lean
        told = fake_node.expect(WorkerChanged, pid=lean, exit="exited with status 0")
        assert (told.kind, told.reason) == (EndKind.MAX_MEMORY, f"it holds more than {limit // MIB} MiB of memory")
        assert told.job


def test_all_workers_are_replaced_on_request_and_no_run_is_dropped(fifo: Callable[[str], Fifo]) -> None:
    with FakeNode(pm=PoolMode.STATIC, min_children=2, max_children=2) as fake_node:
        busy = Blocked(fake_node, fifo)
        before = fake_node.workers()

        fake_node.tell(Recycle())
        after = fake_node.result(fake_node.run("Echo"))["pid"]
        assert after not in before
        busy.end()

        assert becomes_true(lambda: len(fake_node.workers()) == 2 and not {*fake_node.workers()} & {*before})


# Who gets which run


def test_runs_begin_in_the_order_in_which_they_came() -> None:
    with FakeNode(max_children=1) as fake_node:
        learn_that_it_is_short(fake_node, "Empty")
        fake_node.heard.clear()
        runs = [fake_node.run("Empty") for _ in range(500)]
        for run in runs:
            fake_node.hear(over(run), "the end of a run, or its return")  # which happens on a busy machine

    ended = [message.id for message in fake_node.heard if isinstance(message, Ended)]
    assert ended == [run.id for run in runs if run.id in ended]
    assert ended


def test_what_waits_behind_a_long_run_is_handed_back(fifo: Callable[[str], Fifo]) -> None:
    with FakeNode(max_children=1) as fake_node:
        blocked = Blocked(fake_node, fifo)
        waiting = [fake_node.run("Empty") for _ in range(3)]

        for run in waiting:
            fake_node.expect(RunsHandedBack, run)
        blocked.end()
        assert not any(fake_node.all_of(Started, run) for run in waiting)


def learn_that_it_is_short(fake_node: FakeNode, job: str, data: object = None) -> None:
    """Have the manager give runs of this job ahead of time."""
    for _ in range(20):
        fake_node.expect(Ended, fake_node.run(job, data))


def test_what_was_given_ahead_is_taken_back_when_a_run_lasts(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(max_children=1) as fake_node:
        learn_that_it_is_short(fake_node, "Turning")
        slow = fake_node.run("Turning", {"runs": runs.path, "lasts": True})
        behind = [fake_node.run("Turning") for _ in range(5)]
        runs.hear()

        for run in behind:
            fake_node.expect(RunsHandedBack, run)
        assert not fake_node.all_of(Ended, slow)


def test_what_was_given_ahead_goes_to_another_worker_that_is_idle(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(pm=PoolMode.STATIC, min_children=2, max_children=2) as fake_node:
        learn_that_it_is_short(fake_node, "Turning")
        fake_node.run("Turning", {"runs": runs.path, "lasts": True})
        others = [fake_node.run("Turning") for _ in range(50)]
        runs.hear()

        for run in others:
            fake_node.hear(over(run), "the end of a run, or its return")
        assert fake_node.all_of(Ended, others[0])


def test_runs_ahead_of_a_worker_that_dies_are_not_lost() -> None:
    with FakeNode(max_children=1) as fake_node:
        learn_that_it_is_short(fake_node, "Turning")
        dying = fake_node.run("Turning", {"dies": True})
        behind = [fake_node.run("Turning") for _ in range(20)]

        assert fake_node.expect(Ended, dying).outcome == "Crashed"
        for run in behind:
            fake_node.hear(over(run), "the end of a run, or its return")
        crashed = [
            message for message in fake_node.heard if isinstance(message, Ended) and message.outcome == "Crashed"
        ]
        assert len(crashed) == 1


def over(run: Run) -> Callable[[Message], bool]:
    """Return what tells whether a message is about the end of the run, or hands it back."""

    def tells(message: Message) -> bool:
        if isinstance(message, RunsHandedBack):
            return [run.id, run.claims] in message.runs
        return isinstance(message, Ended) and message.id == run.id

    return tells


def test_a_stopped_worker_holds_no_run_back(fifo: Callable[[str], Fifo]) -> None:
    with FakeNode(pm=PoolMode.STATIC, min_children=2, max_children=2) as fake_node:
        fake_node.expect(PoolStatus, idle=2)
        stopped = fake_node.result(fake_node.run("Echo"))["pid"]
        os.kill(stopped, signal.SIGSTOP)
        runs = [fake_node.run("Echo") for _ in range(2)]

        told = [fake_node.hear(over(run), "the end of a run, or its return") for run in runs]
        pids = [message.pid for message in told if isinstance(message, Ended)]
        assert pids, "both came back"
        assert stopped not in pids

        os.kill(stopped, signal.SIGCONT)
        blocked = [Blocked(fake_node, fifo, "1"), Blocked(fake_node, fifo, "2")]
        assert stopped in [each.pid for each in blocked]
        for each in blocked:
            each.end()


def test_runs_are_returned_on_request_the_latest_first(fifo: Callable[[str], Fifo]) -> None:
    with FakeNode(max_children=1) as fake_node:
        blocked = Blocked(fake_node, fifo)
        fake_node.run("Empty")
        last = fake_node.run("Empty")
        fake_node.tell(HandBack(most=1))

        assert fake_node.expect(RunsHandedBack, last).runs[0] == [last.id, last.claims]
        blocked.end()


def test_a_run_whose_own_worker_still_starts_is_returned_too(fifo: Callable[[str], Fifo], tmp_path: Path) -> None:
    gate = fifo("gate")
    bootstrap = tmp_path / "prepare.py"
    bootstrap.write_text(f"with open({gate.path!r}) as gate:\n    gate.readline()\n")
    with FakeNode(bootstrap=bootstrap, min_children=0) as fake_node:
        run = fake_node.run("Empty", force_spawn=True)
        fake_node.expect(WorkerChanged)
        fake_node.tell(HandBack(most=1))

        fake_node.expect(RunsHandedBack, run)
        gate.tell()
        assert fake_node.drain("patient").code == 0
        assert fake_node.all_of(Started, run) == []
        assert fake_node.all_of(Ended, run) == []


# Deaths


def test_a_killed_workers_run_is_reported_and_the_worker_replaced(fifo: Callable[[str], Fifo]) -> None:
    with FakeNode(max_children=1) as fake_node:
        blocked = Blocked(fake_node, fifo)
        os.kill(blocked.pid, signal.SIGKILL)

        ended = fake_node.expect(Ended, blocked.run)
        assert (ended.outcome, ended.exit, ended.pid) == ("Crashed", "killed by SIGKILL", blocked.pid)
        assert "a process killed it" in ended.fields["failure"]["message"]
        told = fake_node.expect(WorkerChanged, pid=blocked.pid, exit="killed by SIGKILL")
        assert told.reason.startswith("a process killed it")
        assert told.job == blocked.run.id
        assert fake_node.result(fake_node.run("Echo"))["pid"] != blocked.pid


def test_what_a_dead_worker_leaves_behind_is_swept_up(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(max_children=1) as fake_node:
        run = fake_node.run("WithChildren", {"runs": runs.path})
        left = [int(pid) for pid in runs.hear().split()]
        os.kill(fake_node.workers()[0], signal.SIGKILL)

        fake_node.expect(Ended, run)
        assert becomes_true(lambda: all(is_gone(pid) for pid in left))  # killed by now; a slow machine takes its time


def test_a_worker_that_closes_its_channel_is_replaced() -> None:
    with FakeNode(max_children=1) as fake_node:
        ended = fake_node.expect(Ended, fake_node.run("Closing"))

        assert ended.outcome == "Crashed"
        fake_node.result(fake_node.run("Echo"))


@pytest.mark.parametrize("junk", ["progress: 50 %\n", "x", "\0" * 12, "\0\0\0\0\1\0\0\0"])
def test_a_job_that_writes_to_the_channel_of_its_worker_has_crashed(junk: str) -> None:
    with FakeNode(max_children=1) as fake_node:
        ended = fake_node.expect(Ended, fake_node.run("Scribbling", {"write": junk}))

        assert ended.outcome == "Crashed"
        assert "the channel received bytes that are not a message" in ended.fields["failure"]["message"]
        fake_node.result(fake_node.run("Echo"))


def test_a_job_that_writes_to_the_channel_and_goes_on_is_ended_at_once(fifo: Callable[[str], Fifo]) -> None:
    with FakeNode(max_children=1) as fake_node:
        run = fake_node.run("Scribbling", {"write": "junk", "runs": fifo("runs").path, "go": fifo("go").path})

        assert fake_node.expect(Ended, run).outcome == "Crashed"


def test_runs_behind_one_whose_end_cannot_be_read_are_reported_or_come_back() -> None:
    with FakeNode(max_children=1) as fake_node:
        learn_that_it_is_short(fake_node, "Scribbling", {})
        runs = [fake_node.run("Scribbling", data) for data in ({}, {"write": "junk"}, {}, {}, {})]

        for run in runs:
            fake_node.hear(over(run), "the end of a run, or its return")
        assert fake_node.expect(Ended, runs[1]).outcome == "Crashed"


@pytest.mark.parametrize("kind", ["S_IFSOCK", "S_IFIFO"])
def test_runs_that_a_job_has_read_in_place_of_its_worker_come_back(kind: str, fifo: Callable[[str], Fifo]) -> None:
    with FakeNode(max_children=1) as fake_node:
        learn_that_it_is_short(fake_node, "Scribbling", {})
        go = fifo("go")
        first = fake_node.run("Scribbling", {"runs": (runs := fifo("runs")).path, "go": go.path})
        pending = [fake_node.run("Scribbling", {"read": kind}), *(fake_node.run("Scribbling", {}) for _ in range(5))]
        runs.hear()
        go.tell()

        fake_node.result(first)
        for run in pending:
            fake_node.hear(over(run), "the end of a run, or its return")
        fake_node.result(fake_node.run("Echo"))


def test_a_worker_in_whose_place_a_run_was_read_leaves_and_the_run_goes_to_another(fifo: Callable[[str], Fifo]) -> None:
    with FakeNode(max_children=1) as fake_node:
        robbed = fake_node.result(fake_node.run("Robbing", (read := fifo("read")).path))
        os.kill(robbed, signal.SIGSTOP)
        run = fake_node.run("Echo")
        read.hear()
        os.kill(robbed, signal.SIGCONT)

        assert fake_node.result(run)["pid"] != robbed
        assert fake_node.expect(WorkerChanged, pid=robbed, exit="exited with status 70")


def test_a_worker_is_asked_again_where_the_question_was_read_too(fifo: Callable[[str], Fifo]) -> None:
    with FakeNode(max_children=1) as fake_node:
        robbed = fake_node.result(fake_node.run("Robbing", (read := fifo("read")).path))
        stopped = [robbed, *children_of(robbed)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        run = fake_node.run("Echo")
        fake_node.expect(RunsHandedBack, fake_node.run("Empty"))  # so the worker was asked for the one before it
        for pid in stopped[1:]:
            os.kill(pid, signal.SIGCONT)
        read.hear()
        os.kill(robbed, signal.SIGCONT)

        assert fake_node.result(run)["pid"] != robbed
        assert fake_node.expect(WorkerChanged, pid=robbed, exit="exited with status 70")


def test_a_manager_that_cannot_understand_its_node_ends_everything_and_leaves(fifo: Callable[[str], Fifo]) -> None:
    with FakeNode() as fake_node:
        blocked = Blocked(fake_node, fifo)

        os.write(fake_node.channel.fileno(), b"junk")

        assert fake_node.expect(Ended, blocked.run).outcome == "Interrupted"
        assert fake_node.leave().code == 0


def test_a_bootstrap_file_that_fails_is_tried_again_and_then_hopeless(tmp_path: Path) -> None:
    bootstrap = tmp_path / "prepare.py"
    bootstrap.write_text("raise LookupError('no such host')\n")
    with FakeNode(bootstrap=bootstrap, max_children=1) as fake_node:
        fake_node.hear(lambda message: isinstance(message, PoolStatus))
        bootstrap.write_text("")

        fake_node.result(fake_node.run("Echo"))  # in time


def test_children_that_die_before_their_first_job_are_hopeless(tmp_path: Path) -> None:
    bootstrap = tmp_path / "prepare.py"
    bootstrap.write_text("raise LookupError('no such host')\n")
    with FakeNode(bootstrap=bootstrap, pm=PoolMode.STATIC, min_children=1) as fake_node:
        failure = fake_node.expect(StartupFailed)

        assert failure.bootstrap
        assert failure.reason.endswith("LookupError: no such host")
        assert fake_node.drain("quick").code == 0


@pytest.mark.parametrize(
    ("number", "way_out"),
    [(errno.EAGAIN, "ulimit -u"), (errno.ENOMEM, "--max-children"), (errno.EMFILE, "ulimit -n"), (errno.EPERM, "log")],
)
def test_a_limit_beyond_which_no_worker_can_be_forked_is_named(number: int, way_out: str) -> None:
    reason = shortage(OSError(number, os.strerror(number)))

    assert reason.startswith(f"no worker can be started ({os.strerror(number)}): ")
    assert way_out in reason


def test_a_module_that_cannot_be_preloaded_is_hopeless() -> None:
    with FakeNode(preload=["no_such_module"]) as fake_node:
        failure = fake_node.expect(StartupFailed)

        assert failure.bootstrap
        assert "no_such_module" in failure.reason
        assert fake_node.drain("quick").code == 0


def test_a_preloaded_module_that_starts_threads_is_hopeless(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    with FakeNode(preload=["threaded"], chdir=tmp_path) as fake_node:
        failure = fake_node.expect(StartupFailed)

        assert failure.bootstrap
        assert "cannot fork" in failure.reason


# What can be seen


def test_titles_say_who_does_what(fifo: Callable[[str], Fifo]) -> None:
    with FakeNode(max_children=1) as fake_node:
        blocked = Blocked(fake_node, fifo)

        assert title_of(blocked.pid) == f"taskqueue: worker Blocking {blocked.run.id}"
        blocked.end()
        assert becomes_true(lambda: title_of(blocked.pid) == "taskqueue: worker idle")
        assert becomes_true(lambda: title_of(fake_node.manager.pid) == "taskqueue: manager 0 busy, 1 idle")


def title_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0 ")


# Who keeps the store locked


def test_an_idle_worker_that_keeps_the_store_locked_is_replaced_and_its_last_job_is_named() -> None:
    with FakeNode(max_children=1) as fake_node:
        run = fake_node.run("Echo")
        pid = fake_node.result(run)["pid"]

        fake_node.tell(Unlock(pid=pid))

        ended = fake_node.expect(WorkerChanged, pid=pid, exit="killed by SIGKILL")
        assert ended.job == run.id
        assert f"transaction that was left open: job {run.id} (tests.daemon.jobs:Echo)" in ended.reason
        assert fake_node.result(fake_node.run("Echo"))["pid"] != pid


def test_a_run_that_keeps_the_store_locked_is_ended_when_it_still_does(fifo: Callable[[str], Fifo]) -> None:
    with FakeNode(max_children=1) as fake_node:
        blocked = Blocked(fake_node, fifo)
        fake_node.tell(Unlock(pid=blocked.pid))
        fake_node.tell(LeaseExtended(until=child_process.boottime() + 60))
        fake_node.expect(PoolStatus)
        assert fake_node.workers() == [blocked.pid]

        fake_node.tell(Unlock(pid=blocked.pid))

        ended = fake_node.expect(Ended, blocked.run)
        assert ended.outcome == "Crashed"
        assert "kept other processes from writing to the store" in ended.fields["failure"]["message"]


def test_a_stranger_that_keeps_the_store_locked_is_left_alone() -> None:
    with FakeNode(max_children=1) as fake_node:
        pid = fake_node.result(fake_node.run("Echo"))["pid"]
        fake_node.tell(Unlock(pid=os.getpid()))
        fake_node.tell(Unlock(pid=0))

        assert fake_node.result(fake_node.run("Echo"))["pid"] == pid


def test_idle_workers_are_replaced_when_the_lease_is_in_doubt() -> None:
    with FakeNode(max_children=1) as fake_node:
        pid = fake_node.result(fake_node.run("Echo"))["pid"]

        fake_node.tell(LeaseExtended(until=child_process.boottime()))

        ended = fake_node.expect(WorkerChanged, pid=pid, exit="exited with status 0")
        assert (ended.kind, ended.reason) == (EndKind.OTHER, "the lease of its node was in doubt")


def release(folder: Path, number: int) -> Path:
    """Write a release of an application whose job returns its number, and have ``current`` lead there."""
    path = folder / f"release-{number}"
    path.mkdir()
    (path / "shop.py").write_text(
        "import os\n"
        "from taskqueue import Job\n"
        "class Sale(Job):\n"
        "    def start(self):\n"
        "        import prices\n"
        f"        return [{number}, prices.NUMBER, os.environ['RELEASE'], os.getcwd()]\n"
    )
    (path / "prices.py").write_text(f"NUMBER = {number}\n")
    (path / "boot.py").write_text(f"import os\nos.environ['RELEASE'] = '{number}'\n")
    link = folder / "new"
    link.symlink_to(path)
    link.replace(folder / "current")
    return path


def sold(number: int, path: Path) -> list[object]:
    return [number, number, str(number), str(path)]


def test_a_reload_follows_a_link_that_a_deployment_has_switched(tmp_path: Path) -> None:
    first = release(tmp_path, 1)
    current = tmp_path / "current"
    with FakeNode(chdir=current, bootstrap=current / "boot.py", max_children=1) as fake_node:
        assert fake_node.result(fake_node.run("shop:Sale")) == sold(1, first)
        [before] = fake_node.workers()
        second = release(tmp_path, 2)

        fake_node.tell(Recycle())

        eventually(lambda: before not in fake_node.workers())
        shutil.rmtree(first)
        assert fake_node.result(fake_node.run("shop:Sale")) == sold(2, second)


def test_a_worker_keeps_the_release_it_has_until_it_is_replaced(tmp_path: Path) -> None:
    first = release(tmp_path, 1)
    current = tmp_path / "current"
    with FakeNode(chdir=current, bootstrap=current / "boot.py", min_children=1, max_children=1) as fake_node:
        fake_node.hear(lambda message: isinstance(message, PoolStatus))
        release(tmp_path, 2)

        assert fake_node.result(fake_node.run("shop:Sale")) == sold(1, first)


def test_a_reload_while_the_link_leads_nowhere_keeps_the_old_code(tmp_path: Path) -> None:
    first = release(tmp_path, 1)
    current = tmp_path / "current"
    with FakeNode(chdir=current, max_children=1) as fake_node:
        fake_node.hear(lambda message: isinstance(message, PoolStatus))
        [before] = fake_node.workers()
        current.unlink()

        fake_node.tell(Recycle())

        eventually(lambda: before not in fake_node.workers())
        assert fake_node.result(fake_node.run("Leaving"))["folder"] == str(first)


def test_a_folder_that_is_not_there_is_hopeless(tmp_path: Path) -> None:
    with FakeNode(chdir=tmp_path / "gone") as fake_node:
        failure = fake_node.expect(StartupFailed)

        assert failure.bootstrap
        assert str(tmp_path / "gone") in failure.reason
        assert fake_node.drain("quick").code == 0


def test_workers_start_in_a_folder_that_was_removed(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with FakeNode(chdir=tmp_path / "old", max_children=1) as fake_node:
        fake_node.hear(lambda message: isinstance(message, PoolStatus))
        [before] = fake_node.workers()
        (tmp_path / "old").rmdir()

        os.kill(before, signal.SIGKILL)

        eventually(lambda: before not in fake_node.workers())
        assert fake_node.result(fake_node.run("Echo", 3))["data"] == 3
