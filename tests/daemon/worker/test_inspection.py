"""What jobs leave behind in their worker: it is set back, borne, or the end of that worker, and the job is named."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Scheduler, Status
from taskqueue.daemon.protocol.messages import Ended, Message, RunsHandedBack, WorkerChanged
from taskqueue.daemon.runtime.child_process import CHILDREN_FOR
from taskqueue.daemon.worker import process_attributes
from taskqueue.daemon.worker.inspection import DESCRIPTORS, THREADS, LeftProcesses, _demand, _Use
from taskqueue.execution.run import Run
from taskqueue.store.open import open_store
from tests.daemon.fake_node import FakeNode
from tests.nodes import LIMIT, eventually, node
from tests.store.records import a_record


def leave(fake_node: FakeNode, what: dict[str, Any]) -> tuple[Run, Ended]:
    """Have a job leave something behind."""
    run = fake_node.run("Leaving", what)
    return run, fake_node.expect(Ended, run)


def test_a_worker_in_which_a_job_left_many_descriptors_is_replaced_and_the_job_named() -> None:
    with FakeNode(max_children=1) as fake_node:
        run, ended = leave(fake_node, {"descriptors": DESCRIPTORS + 1})
        others = [fake_node.result(fake_node.run("Echo")) for _ in range(3)]

        told = fake_node.expect(WorkerChanged, pid=ended.pid, exit="exited with status 0")
        assert (told.reason, told.job) == (f"{DESCRIPTORS + 1} descriptors were left open", run.id)
        assert ended.exit == f"was replaced: {told.reason}"
        assert ended.outcome == "Done"
        assert all(other["pid"] != ended.pid for other in others)


def test_descriptors_that_jobs_leave_one_by_one_add_up() -> None:
    with FakeNode(max_children=1) as fake_node:
        pids = [leave(fake_node, {"descriptors": DESCRIPTORS // 4})[1].pid for _ in range(6)]

    assert len(set(pids[:5])) == 1
    assert pids[5] != pids[0]


def _ended_or_handed_back(run: Run, message: Message) -> bool:
    """Return whether the run has come to an end, or waits for its node again."""
    if isinstance(message, RunsHandedBack):
        return run.id in [id for id, _ in message.runs]
    return isinstance(message, Ended) and message.id == run.id


def test_runs_that_were_given_ahead_do_not_begin_in_a_worker_that_is_to_be_replaced() -> None:
    with FakeNode(max_children=1) as fake_node:
        for _ in range(20):
            leave(fake_node, {})
        runs = [
            fake_node.run("Leaving", {"descriptors": DESCRIPTORS + 1}),
            *(fake_node.run("Leaving") for _ in range(5)),
        ]

        first, *others = [fake_node.hear(partial(_ended_or_handed_back, run)) for run in runs]
        assert isinstance(first, Ended)
        assert first.pid not in [one.pid for one in others if isinstance(one, Ended)]


def test_what_a_library_keeps_for_good_replaces_no_worker() -> None:
    with FakeNode(max_children=1) as fake_node:
        _, ended = leave(fake_node, {"descriptors": 20, "threads": 10})

        assert {fake_node.result(fake_node.run("Echo"))["pid"] for _ in range(5)} == {ended.pid}


def test_a_worker_in_which_jobs_left_many_threads_is_replaced() -> None:
    with FakeNode(max_children=1) as fake_node:
        run, ended = leave(fake_node, {"threads": THREADS + 1})

        told = fake_node.expect(WorkerChanged, pid=ended.pid, exit="exited with status 0")
        assert (told.reason, told.job) == (f"{THREADS + 1} threads were left behind", run.id)


def test_a_worker_in_which_a_thread_keeps_a_processor_busy_is_replaced_and_the_thread_named() -> None:
    with FakeNode(max_children=1) as fake_node:
        _, ended = leave(fake_node, {"spins": True})
        time.sleep(CHILDREN_FOR + 1)
        assert fake_node.result(fake_node.run("Echo"))["pid"] != ended.pid

        told = fake_node.expect(WorkerChanged, pid=ended.pid, exit="exited with status 0")
        assert told.reason == "a thread that was left behind keeps a processor busy: spins"


def test_a_dump_of_tracebacks_that_a_job_has_armed_ends_no_later_job(tmp_path: Path) -> None:
    (tmp_path / "dumping.py").write_text(
        "import faulthandler, os, time\nfrom taskqueue import Job\n"
        "class Arms(Job):\n    def start(self):\n        faulthandler.dump_traceback_later(1, exit=True)\n"
        "class Lasts(Job):\n    def start(self):\n        time.sleep(2)\n        return self.attempt\n"
    )
    url = f"sqlite:///{tmp_path}/jobs.db"
    with node(url, tmp_path, "--max-children", "1"), Scheduler(url) as scheduler:
        jobs = [scheduler.add_job("dumping:Arms"), scheduler.add_job("dumping:Lasts")]
        scheduler.wait_for(jobs, timeout=LIMIT)

        assert (jobs[0].status, jobs[1].result) == (Status.DONE, 1)


def test_a_dump_of_tracebacks_in_a_worker_of_many_runs_is_canceled_or_replaces_it(tmp_path: Path) -> None:
    (tmp_path / "arming.py").write_text(
        "import asyncio, faulthandler, pathlib\nfrom taskqueue import Job\n"
        "class Arms(Job):\n    options = {'concurrency': 2}\n    async def start(self):\n"
        "        if not self.data:\n            faulthandler.dump_traceback_later(3600, exit=True)\n"
        "        while self.data and not pathlib.Path(self.data).exists():\n            await asyncio.sleep(0.01)\n"
    )
    url, go = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "go"
    with node(url, tmp_path, "--max-children", "1") as started, Scheduler(url) as scheduler:
        alone = scheduler.add_job("arming:Arms")
        eventually(lambda: f"armed dump of tracebacks: {alone.id}" in started.log.read_text())

        scheduler.add_job("arming:Arms", str(go))
        scheduler.add_job("arming:Arms")
        eventually(lambda: "a job changed its armed dump of tracebacks while these jobs" in started.log.read_text())
        go.touch()


def test_a_dump_of_tracebacks_that_its_job_cancels_is_no_change(tmp_path: Path) -> None:
    (tmp_path / "canceling.py").write_text(
        "import faulthandler\nfrom taskqueue import Job\n"
        "class Cancels(Job):\n    def start(self):\n        faulthandler.dump_traceback_later(3600)\n"
        "        if self.data:\n            faulthandler.cancel_dump_traceback_later()\n"
    )
    url = f"sqlite:///{tmp_path}/jobs.db"
    with node(url, tmp_path, "--max-children", "1") as started, Scheduler(url) as scheduler:
        jobs = [scheduler.add_job("canceling:Cancels", cancels) for cancels in (True, False)]
        scheduler.wait_for(jobs, timeout=LIMIT)
        eventually(lambda: f"armed dump of tracebacks: {jobs[1].id}" in started.log.read_text())

        assert f"armed dump of tracebacks: {jobs[0].id}" not in started.log.read_text()


def test_a_thread_that_waits_for_a_processor_uses_it_only_if_it_is_busy() -> None:
    before = {"busy": _Use(10**9, 0, 9), "polls": _Use(10**9, 0, 9)}
    busy, polls = _Use(10**9 + 19_000_000, 5_300_000_000, 17), _Use(10**9 + 7_000_000, 2_100_000_000, 312)

    assert _demand(before, {"busy": busy, "polls": before["polls"]}) == 5.319
    assert _demand(before, {"busy": before["busy"], "polls": polls}) == 0.007
    assert _demand({}, {"new": _Use(4_000_000_000, 1_000_000_000, 900)}) == 5.0


def test_a_timer_that_a_module_sets_when_it_is_imported_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timed.py").write_text(
        "import os\nfrom taskqueue import Job\nfrom tests.daemon.jobs import arm_timer\narm_timer(3600)\n"
        "class Timed(Job):\n    def start(self):\n        return os.getpid()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with FakeNode(max_children=1) as fake_node:
        assert len({fake_node.result(fake_node.run("timed:Timed")) for _ in range(3)}) == 1


def test_a_process_that_outlives_its_job_for_long_ends_with_its_worker() -> None:
    with FakeNode(max_children=1) as fake_node:
        _, ended = leave(fake_node, {"command": ["sleep", "1000"]})
        assert fake_node.result(fake_node.run("Echo"))["pid"] == ended.pid  # which may be sending a mail

        told = fake_node.expect(WorkerChanged, pid=ended.pid, exit="exited with status 0")
        assert told.reason.startswith(
            f"a process outlived the job that had started it by {CHILDREN_FOR:g} s: sleep, pid"
        )


def test_each_process_may_outlive_its_job_for_as_long_as_those_before() -> None:
    left = LeftProcesses()

    assert left.outlived({1: "mail"}, 10.0) == ""
    assert left.outlived({1: "mail", 2: "copy"}, 10.0 + CHILDREN_FOR - 1) == ""
    assert left.outlived({2: "copy", 3: "more"}, 10.0 + CHILDREN_FOR) == ""
    assert left.outlived({2: "copy", 3: "more"}, 9.0 + 2 * CHILDREN_FOR) == "copy"
    assert left.outlived({}, 9.0 + 2 * CHILDREN_FOR) == ""


def test_folder_mask_timers_and_signals_are_set_back(tmp_path: Path) -> None:
    with FakeNode(max_children=1) as fake_node:
        before = fake_node.result(fake_node.run("Leaving", {"folder": str(tmp_path)}))

        assert fake_node.result(fake_node.run("Leaving")) == before


def test_limits_that_a_job_lowers_are_set_back_before_the_next_one() -> None:
    with FakeNode(max_children=1) as fake_node:
        before = fake_node.result(fake_node.run("Leaving", {"limits": {"RLIMIT_NOFILE": 0}}))
        assert fake_node.result(fake_node.run("Leaving", {"limits": {"RLIMIT_FSIZE": 1 << 40}})) == before

        assert fake_node.result(fake_node.run("Leaving")) == before


def test_a_worker_whose_limits_cannot_be_set_back_is_replaced() -> None:
    with FakeNode(max_children=1) as fake_node:
        run, ended = leave(fake_node, {"limits": {"RLIMIT_STACK": 1 << 20}, "for_good": True})

        told = fake_node.expect(WorkerChanged, pid=ended.pid, exit="exited with status 0")
        assert (told.reason, told.job) == ("RLIMIT_STACK was changed for good", run.id)


def test_a_folder_that_was_removed_is_left(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    with FakeNode(max_children=1) as fake_node:
        before = fake_node.result(fake_node.run("Leaving", {"folder": str(tmp_path / "gone")}))
        (tmp_path / "gone").rmdir()

        assert fake_node.result(fake_node.run("Leaving")) == before


@pytest.mark.parametrize(
    "what",
    [
        *("processors", "limits", "handlers", "timers", "oom_score_adj", "scheduler", "io priority", "settings"),
        *("start method", "path", "root logger", "filters of warnings", "parent's death", "loggers", "hooks", "mask"),
        *("replaced streams", "closed streams", "detached streams", "closed descriptors", "other files"),
        *("descriptors that do not block", "encodings"),
    ],
)
def test_all_that_the_next_job_inherits_is_set_back(what: str) -> None:
    with FakeNode(max_children=1) as fake_node:
        before = fake_node.result(fake_node.run("Surroundings"))
        fake_node.result(fake_node.run("Surroundings", what))

        assert fake_node.result(fake_node.run("Surroundings")) == before


def test_a_mask_is_set_back_on_a_system_that_does_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(process_attributes._SEEN, "Umask")  # it is not taken from /proc/self/status then
    with FakeNode(max_children=1) as fake_node:
        before = fake_node.result(fake_node.run("Surroundings", "mask"))

        assert fake_node.result(fake_node.run("Surroundings")) == before


def test_a_log_file_that_a_job_has_closed_takes_the_lines_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reconfiguring.py").write_text(
        "import logging\nfrom taskqueue import Job\n"
        f"logging.basicConfig(level='INFO', filename={str(tmp_path / 'log')!r}, filemode='w', force=True)\n"
        "class Reconfigures(Job):\n"
        "    def start(self):\n"
        "        logging.info('ran %s', self.data)\n"
        "        logging.basicConfig(force=True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with FakeNode(max_children=1) as fake_node:
        for number in range(3):
            fake_node.result(fake_node.run("reconfiguring:Reconfigures", number))

    assert [f"ran {number}" in (tmp_path / "log").read_text() for number in range(3)] == [True] * 3


def test_no_run_finds_the_context_variables_of_another_though_both_were_given_at_once() -> None:
    with FakeNode(max_children=1) as fake_node:
        runs = [fake_node.run("Surroundings", what) for what in (None, "context", None)]

        before, changing, after = [fake_node.result(run) for run in runs]

        assert before == changing == after


def test_what_the_module_of_a_job_sets_when_it_is_imported_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "precise_jobs.py").write_text(
        "import contextvars, decimal, io, sys\n"
        "from taskqueue import Job\n"
        "decimal.getcontext().prec = 5\n"
        "sys.setrecursionlimit(4321)\n"
        "sys.stdout = io.TextIOWrapper(sys.stdout.detach(), 'latin-1')\n"
        "tenant = contextvars.ContextVar('tenant')\n"
        "tenant.set('all')\n"
        "class Third(Job):\n"
        "    def start(self):\n"
        "        print('printed', flush=True)\n"
        "        found = [str(decimal.Decimal(1) / 3), sys.getrecursionlimit(), tenant.get(), sys.stdout.encoding]\n"
        "        decimal.getcontext().prec = 2\n"
        "        sys.setrecursionlimit(321)\n"
        "        tenant.set('one')\n"
        "        sys.stdout = io.TextIOWrapper(sys.stdout.buffer, 'ascii')\n"
        "        return found\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with FakeNode(max_children=1) as fake_node:
        for _ in range(3):
            assert fake_node.result(fake_node.run("precise_jobs:Third")) == ["0.33333", 4321, "all", "latin-1"]


def test_what_a_module_sets_stays_even_if_it_is_imported_during_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is imported only once, so nothing would set it again."""
    (tmp_path / "setting_up.py").write_text(
        "import logging, logging.handlers, sys, warnings\n"
        "sys.path.append('/of/plugins')\n"
        "logging.root.addHandler(logging.handlers.BufferingHandler(9))\n"
        "warnings.filterwarnings('ignore', message='of plugins')\n"
    )
    (tmp_path / "late_imports.py").write_text(
        "import logging, sys, warnings\n"
        "from taskqueue import Job\n"
        "class Late(Job):\n"
        "    def start(self):\n"
        "        import setting_up\n"
        "        found = [sys.path.count('/of/plugins'), sys.path.count('/of/a/run')]\n"
        "        found += [len(logging.root.handlers), logging.root.level, len(warnings.filters)]\n"
        "        if self.data:\n"
        "            sys.path.append('/of/a/run')\n"
        "            logging.root.addHandler(logging.NullHandler())\n"
        "            logging.root.setLevel(99)\n"
        "            warnings.simplefilter('error')\n"
        "        return found\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with FakeNode(max_children=1) as fake_node:
        first, *others = [fake_node.result(fake_node.run("late_imports:Late", what)) for what in (0, 1, 1, 0)]

    assert first[:2] == [1, 0]
    assert others == [first] * 3


def test_capturing_what_structlog_prints_is_no_change_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "structured.py").write_text(
        "import logging\nimport structlog\nfrom taskqueue import Job\n"
        f"logging.basicConfig(level='INFO', filename={str(tmp_path / 'log')!r}, force=True)\n"
        "class Structured(Job):\n"
        "    def start(self):\n"
        "        logging.info('ran')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with FakeNode(max_children=1) as fake_node:
        for _ in range(3):
            fake_node.result(fake_node.run("structured:Structured"))

    log = (tmp_path / "log").read_text()
    assert log.count("ran") == 3
    assert "restored" not in log


@pytest.mark.parametrize("line", ["os.close(0)", "os.set_blocking(1, False)"])
def test_a_module_that_changes_descriptors_when_it_is_imported_harms_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    name = f"descriptors_{'closed' if 'close' in line else 'set'}"
    (tmp_path / f"{name}.py").write_text(
        f"import os\nfrom taskqueue import Job\n{line}\n"
        "class Blocks(Job):\n"
        "    def start(self):\n"
        "        return os.get_blocking(0), os.get_blocking(1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with FakeNode(max_children=1) as fake_node:
        fake_node.expect(Ended, fake_node.run(f"{name}:Blocks"))
        for _ in range(2):
            assert fake_node.result(fake_node.run(f"{name}:Blocks")) == [True, "close" in line]
            fake_node.result(fake_node.run("Surroundings", "replaced streams"))


@pytest.mark.parametrize(
    "what",
    ["user", "effective user", "effective group", "root folder", "process group", "new privileges", "timers"],
)
def test_a_worker_is_replaced_if_a_job_changed_its_rights_or_its_root(what: str) -> None:
    with FakeNode(max_children=1) as fake_node:
        run = fake_node.run("Changing", what)
        ended = fake_node.expect(Ended, run)

        told = fake_node.expect(WorkerChanged, pid=ended.pid, exit="exited with status 0")
        assert ended.outcome == "Done"
        assert told.reason.endswith("was changed")
        assert told.job == run.id
        assert fake_node.result(fake_node.run("Echo"))["pid"] != ended.pid


def test_a_worker_in_another_namespace_is_replaced_once_a_run_fails_in_it() -> None:
    with FakeNode(max_children=1) as fake_node:
        changing = fake_node.expect(Ended, fake_node.run("Changing", "namespace"))
        failing = fake_node.run("Changing", "to fail")

        told = fake_node.expect(WorkerChanged, pid=changing.pid, exit="exited with status 0")
        assert told.reason in ("its UTS namespace was changed", "its user namespace was changed")
        assert told.job == failing.id


def test_no_other_job_runs_as_the_user_that_a_job_became() -> None:
    with FakeNode(max_children=1) as fake_node:
        for _ in range(20):
            leave(fake_node, {})
        changing = fake_node.run("Changing", "effective user")
        others = [fake_node.run("Echo") for _ in range(5)]  # given to the same worker ahead

        pid = fake_node.expect(Ended, changing).pid
        assert pid not in [fake_node.result(run)["pid"] for run in others]


@pytest.mark.parametrize("what", ["run", "policy", "close", "running"])
def test_a_plain_job_finds_an_event_loop_whatever_one_before_did(what: str) -> None:
    with FakeNode(max_children=1) as fake_node:
        first = [fake_node.run("Looped", what), fake_node.run("Looped")]
        assert [fake_node.result(run) for run in first] == [True, True]

        fake_node.result(fake_node.run("Stopping"))
        assert [fake_node.result(fake_node.run("Looped", name)) for name in (what, None)] == [True, True]


@pytest.mark.parametrize("what", ["now", "soon", "later", "exits later"])
def test_a_job_that_stops_its_event_loop_ends_no_other_job(what: str) -> None:
    with FakeNode(max_children=1) as fake_node:
        first = fake_node.result(fake_node.run("Stopping", what))

        assert fake_node.result(fake_node.run("Stopping")) == first
        assert fake_node.result(fake_node.run("Looped", "stop"))
        assert fake_node.result(fake_node.run("Stopping")) == first


@pytest.mark.parametrize("fails", [{}, {"fails": True}])
def test_a_transaction_that_a_job_left_open_on_the_file_of_the_store_ends_with_its_worker(
    tmp_path: Path, fails: dict[str, Any]
) -> None:
    path = tmp_path / "jobs.db"
    with closing(open_store(str(path))) as store, FakeNode(url=f"sqlite://{path}", max_children=1) as fake_node:
        run, ended = leave(fake_node, {"database": str(path), **fails})

        told = fake_node.expect(WorkerChanged, pid=ended.pid, exit="exited with status 0")
        assert (told.reason, told.job) == ("a write transaction was left open on the file of the store", run.id)
        assert ended.exit == f"was replaced: {told.reason}"
        store.add([a_record()])


def test_a_connection_that_goes_with_the_error_of_its_run_is_no_reason(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with closing(open_store(str(path))) as store, FakeNode(url=f"sqlite://{path}", max_children=1) as fake_node:
        _, ended = leave(fake_node, {"database": str(path), "keeps": False, "fails": True})

        assert ended.exit == ""
        assert fake_node.result(fake_node.run("Echo"))["pid"] == ended.pid
        store.add([a_record()])
