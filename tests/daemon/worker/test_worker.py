"""What a worker makes of the jobs it is given, told by its manager."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from taskqueue.daemon.manager.runs import QueuedRun
from taskqueue.daemon.manager.worker_output import WorkerOutput
from taskqueue.daemon.manager.workers import Workers
from taskqueue.daemon.protocol.codec import decode, encode
from taskqueue.daemon.protocol.messages import Ended, Message, Progressed, Shutdown, Started, Stop
from taskqueue.daemon.protocol.shared_memory import StartLog
from taskqueue.daemon.runtime.child_process import boottime
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.settings import Settings
from taskqueue.execution.run import Run
from taskqueue.model.ids import JobId
from taskqueue.model.record import Status
from taskqueue.scheduler import Scheduler
from tests.daemon.fake_node import JOBS, MOST, FakeNode, Fifo, becomes_true, fifos


@pytest.fixture(scope="module")
def fake_node() -> Iterator[FakeNode]:
    """Yield a fake_node with one worker: with two, a run goes to the other one where the first is slow to begin it."""
    with FakeNode(max_children=1) as fake_node:
        yield fake_node


@pytest.fixture(scope="module")
def mortal() -> Iterator[FakeNode]:
    """Yield a fake_node for jobs that end their workers: these cannot say what of them was covered."""
    with FakeNode() as fake_node:
        yield fake_node


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Callable[[str], Fifo]]:
    yield from fifos(tmp_path)


def test_a_job_finds_what_it_was_given(fake_node: FakeNode) -> None:
    run = fake_node.run("Echo", {"to": "a@example.org"}, state='{"done":3}', attempt=4, is_last=False)

    found = fake_node.result(run)

    assert found["data"] == {"to": "a@example.org"}
    assert found["state"] == {"done": 3}
    assert (found["id"], found["key"], found["run_key"]) == (run.id, run.id, f"{run.id}:{run.claims}")
    assert (found["attempt"], found["is_last"], found["stopping"]) == (4, False, False)
    ended = fake_node.expect(Ended, run)
    assert ended.pid == found["pid"]
    assert ended.started_at is not None
    assert ended.took is not None
    assert ended.took >= 0


def test_a_copy_finds_the_key_of_the_job_that_it_is_a_copy_of(fake_node: FakeNode) -> None:
    run = fake_node.run("Echo", key="6650f0c2")

    found = fake_node.result(run)

    assert (found["id"], found["key"], found["run_key"]) == (run.id, "6650f0c2", f"{run.id}:{run.claims}")


def test_the_context_of_a_run_has_fewer_attributes_than_python_keeps_in_line(fake_node: FakeNode) -> None:
    # With 30 of its own Python 3.11 moves them into a mapping, and to make the context takes twice the time.
    assert fake_node.result(fake_node.run("OwnContext")) < 30


def test_a_run_that_comes_ahead_of_its_time_begins_then_where_select_has_no_descriptor_left() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while taken[-1] < 1024:  # as in a manager with some two hundred workers
            taken.append(os.dup(taken[0]))
        with FakeNode(max_children=1) as fake_node:
            at = time.monotonic() + 0.05
            fake_node.result(fake_node.run("Echo", not_before=at))
            assert time.monotonic() >= at
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_run_that_comes_ahead_of_its_time_begins_then_and_not_before(fake_node: FakeNode) -> None:
    fake_node.result(fake_node.run("Echo"))
    asked_at = boottime()

    run = fake_node.run("Echo", not_before=time.monotonic() + 0.2)

    began_at = fake_node.expect(Ended, run).started_at
    assert began_at is not None
    assert began_at - asked_at > 0.199


def test_the_end_of_a_run_is_reported_before_the_time_of_the_next_one() -> None:
    with FakeNode(max_children=1) as fake_node:
        for _ in range(20):
            worker = fake_node.result(fake_node.run("Echo"))["pid"]
        ending = [fake_node.run("Echo") for _ in range(5)]  # short runs, so that the next one is given ahead
        fake_node.run("Echo", not_before=time.monotonic() + 3600)

        try:
            assert {fake_node.result(run)["pid"] for run in ending} == {worker}
        finally:
            os.kill(worker, signal.SIGTERM)


def test_a_worker_that_is_to_leave_does_not_wait_for_the_time_of_its_run() -> None:
    with FakeNode(max_children=1) as fake_node:
        worker = fake_node.result(fake_node.run("Echo"))["pid"]
        run = fake_node.run("Echo", not_before=time.monotonic() + 3600)
        assert becomes_true(lambda: run.id in Path(f"/proc/{worker}/cmdline").read_text())

        os.kill(worker, signal.SIGTERM)

        assert fake_node.expect(Ended, run).outcome == "Interrupted"


@pytest.mark.parametrize(
    ("raised", "outcome", "type", "message"),
    [
        ("value", "Failed", "ValueError", "no such value"),
        ("exit", "Failed", "SystemExit", "3"),
        ("keyboard", "Failed", "KeyboardInterrupt", ""),
        ("retry", "Failed", "taskqueue.Retry", "busy"),
        ("fail", "GivenUp", "taskqueue.Fail", "hopeless"),
    ],
)
def test_what_a_job_raises_is_its_failure(
    fake_node: FakeNode, raised: str, outcome: str, type: str, message: str
) -> None:
    ended = fake_node.expect(Ended, fake_node.run("Raising", {"raise": raised}))

    assert ended.outcome == outcome
    failure = ended.fields["failure"]
    assert (failure["type"], failure["message"]) == (type, message)
    assert "in start" in failure["traceback"]
    assert "BaseException" in failure["bases"]
    assert ended.fields.get("delay") == (7.0 if raised == "retry" else None)


def test_a_job_may_ask_to_run_later(fake_node: FakeNode) -> None:
    ended = fake_node.expect(Ended, fake_node.run("Raising", {"raise": "snooze"}))

    assert (ended.outcome, ended.fields) == ("Snoozed", {"seconds": 9.0})


@pytest.mark.parametrize(("job", "type"), [("Huge", "DataTooLarge"), ("Strange", "InvalidJob")])
def test_a_result_that_cannot_be_kept_is_a_failure(fake_node: FakeNode, job: str, type: str) -> None:
    ended = fake_node.expect(Ended, fake_node.run(job))

    assert ended.outcome == "GivenUp"
    assert ended.fields["failure"]["type"].endswith(type)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (
            "no_such_module:Job",
            f"is neither in {Path.cwd()} nor installed: name its folder with --chdir, or install it",
        ),
        ("tests.daemon.no_such_module:Job", "nor installed: name its folder with --chdir"),
        ("tests.daemon.jobs:Nothing", "has no Nothing"),
        ("tests.daemon.jobs:not_a_job", "neither a class nor a function"),
        ("tests.daemon.jobs:Service", "not a subclass of Job"),
        ("tests.daemon.jobs:Service.subtract", "no method subtract"),
    ],
)
def test_a_path_that_leads_to_no_job_is_unloadable(fake_node: FakeNode, path: str, says: str) -> None:
    ended = fake_node.expect(Ended, fake_node.run(path))

    assert ended.outcome == "Unloadable"
    assert says in ended.fields["failure"]["message"]


@pytest.mark.parametrize(  # LZQ-3
    ("path", "data", "result"),
    [
        ("Service.add", {"left": 2, "right": 3}, 5),
        ("Service.double", 4, 8),
        ("Service.nothing", None, "nothing"),
        ("multiply", {"left": 6, "right": 7}, 42),
    ],
)
def test_methods_and_functions_are_jobs_too(fake_node: FakeNode, path: str, data: object, result: object) -> None:
    assert fake_node.result(fake_node.run(path, data)) == result


def test_what_cannot_be_told_or_kept_is_refused_in_the_job(fake_node: FakeNode) -> None:
    assert fake_node.result(fake_node.run("Refused")) == [
        "CheckpointRefused",
        "ValueError",
        "ValueError",
        "ValueError",
        "ValueError",
    ]


def test_the_last_progress_is_never_lost_when_the_job_ends(fake_node: FakeNode) -> None:  # PTS-21
    run = fake_node.run("Progressing")
    fake_node.result(run)

    told = [(noted.progress, noted.message) for noted in fake_node.all_of(Progressed, run)]

    assert told[0] == (0.0, "step 0")
    assert told[-1] == (50.0, "step 50")
    assert len(told) < 10


def test_progress_is_told_every_half_second_at_most(fake_node: FakeNode) -> None:  # PTS-21
    run = fake_node.run("Chattering")
    took = fake_node.result(run)

    told = [noted.at for noted in fake_node.all_of(Progressed, run)]

    assert 2 <= len(told) <= took / 0.5 + 2  # the first at once, and the last


def test_progress_of_a_worker_that_is_held_up_is_told_as_seldom(fake_node: FakeNode) -> None:
    """The manager reads its page, and the worker has something to tell at once when it goes on."""
    run = fake_node.run("HeldUp")
    worker = psutil.Process(fake_node.expect(Started, run).pid)
    for last in (19, 29, 39):
        fake_node.expect(Progressed, run, progress=last)
        assert becomes_true(lambda: worker.status() == psutil.STATUS_STOPPED)
        worker.resume()
    took = fake_node.result(run)

    told = fake_node.all_of(Progressed, run)
    assert len(told) <= took / 0.5 + 2
    assert told[-1].progress == 100


def test_the_last_progress_comes_although_the_job_says_nothing_more(
    fake_node: FakeNode, fifo: Callable[[str], Fifo]
) -> None:
    runs, go = fifo("runs"), fifo("go")
    run = fake_node.run("Progressing", {"runs": runs.path, "go": go.path})
    runs.hear()

    fake_node.expect(Progressed, run, progress=50.0, message="step 50")
    assert not fake_node.all_of(Ended, run)

    go.tell()
    fake_node.result(run)


def test_the_last_position_comes_although_the_loop_does_not_go_on(
    fake_node: FakeNode, fifo: Callable[[str], Fifo]
) -> None:
    go = fifo("go")
    # the third is told at once, and seen to be told when the manager looks; the fourth comes too soon to be told
    run = fake_node.run("Striding", {"pauses": [0, 0.1, 0.2, 0.22], "go": go.path})

    fake_node.expect(Progressed, run, position='{"":4}')
    assert not fake_node.all_of(Ended, run)

    go.tell()
    fake_node.result(run)


def test_a_dead_workers_last_progress_is_in_the_evidence(mortal: FakeNode) -> None:
    run = mortal.run("Dying", {"signal": signal.SIGSEGV})

    ended = mortal.expect(Ended, run)

    assert ended.outcome == "Crashed"
    assert ended.exit == "killed by SIGSEGV"
    assert "last progress 40 % (nearly there)" in ended.fields["failure"]["message"]
    assert ended.peak_memory is not None
    assert ended.peak_memory > 1024 * 1024


def test_a_job_that_leaves_by_itself_has_crashed(mortal: FakeNode) -> None:
    ended = mortal.expect(Ended, mortal.run("Dying", {"exit": 3}))

    assert (ended.outcome, ended.exit) == ("Crashed", "exited with status 3")


@pytest.mark.parametrize("padding", [0, 1_000_000])
def test_a_checkpoint_survives_the_worker(mortal: FakeNode, padding: int) -> None:
    run = mortal.run("Saving", {"padding": padding})

    assert mortal.expect(Ended, run).outcome == "Crashed"
    [noted] = mortal.all_of(Progressed, run)
    assert noted.progress is None
    assert noted.state is not None
    assert len(noted.state) > padding


@pytest.mark.usefixtures("marked_as_manager")
def test_a_class_that_asks_by_itself_is_told_to_be_checked_once_it_is_loaded() -> None:  # so the check has its limit
    output = WorkerOutput(Loop())
    workers = Workers(Settings(), url="sqlite:///dev/null/nowhere", keep=(), start_log=StartLog(), output=output)
    worker = workers.spawn(now=0.0, max_runs=1, is_forced=False)
    run = Run(
        id=str(JobId()), claims=1, job=f"{JOBS}:Asked", data="null", state=None, attempt=1, is_last=True,
        timeout=None, force_spawn=False,
    )  # fmt: skip
    worker.give(QueuedRun(run, encode(run), 0.0, 0))
    worker.flush()

    heard: list[Message] = []
    while not heard or not isinstance(heard[-1], Ended):
        payload = worker.channel.wait(MOST)
        assert payload is not None
        heard.append(decode(payload))

    assert [message.checking for message in heard if isinstance(message, Started)] == [True, False]
    worker.channel.close()
    assert worker.child.reap().code == 0
    workers.close(worker)


def test_a_child_that_comes_back_from_start_is_not_a_second_worker(fake_node: FakeNode) -> None:
    run = fake_node.run("Forking")

    assert fake_node.result(run) > 0
    fake_node.result(fake_node.run("Echo"))
    assert len(fake_node.all_of(Ended, run)) == 1


def test_what_a_job_forks_has_signals_of_its_own(fake_node: FakeNode) -> None:
    before = fake_node.result(fake_node.run("Echo"))["pid"]

    assert fake_node.result(fake_node.run("Terminating")) == signal.SIGTERM
    assert fake_node.result(fake_node.run("Echo"))["pid"] == before


def test_lines_that_a_job_logs_name_it(tmp_path: Path) -> None:
    form = "%(message)s|%(job_id)s|%(job)s|%(queue)s|%(attempt)d"
    preloaded = f"import logging\nlines = logging.FileHandler('log')\nlines.setFormatter(logging.Formatter({form!r}))\n"
    preloaded += f"logging.getLogger({JOBS!r}).addHandler(lines)\n"
    (tmp_path / "office_logs.py").write_text(preloaded)
    with FakeNode(chdir=tmp_path, preload=["office_logs"]) as fake_node:
        run = fake_node.run("Logging", attempt=2, queue="mail")
        fake_node.expect(Ended, run)

    assert (tmp_path / "log").read_text() == f"it is so|{run.id}|{JOBS}:Logging|mail|2\n"


def test_lines_of_threads_and_libraries_have_the_fields_of_their_run(tmp_path: Path) -> None:
    form = "%(message)s|%(job_id)s|%(job)s|%(queue)s"
    preloaded = f"import logging\nlines = logging.FileHandler('log')\nlines.setFormatter(logging.Formatter({form!r}))\n"
    (tmp_path / "office_logs.py").write_text(f"{preloaded}logging.getLogger('library').addHandler(lines)\n")
    with FakeNode(chdir=tmp_path, preload=["office_logs"], min_children=1, max_children=1) as fake_node:
        runs = []
        for _ in range(2):  # one by one: behind the first, where that takes long, the second would come back
            runs.append(fake_node.run("LoggingInThreads"))
            fake_node.expect(Ended, runs[-1])

    assert (tmp_path / "log").read_text().splitlines() == [
        f"{word}|{run.id}|{JOBS}:LoggingInThreads|of the caller"
        for run in runs
        for word in ("thread", "pool", "library")
    ]


# Hooks


def hooked(fake_node: FakeNode, data: dict[str, object], status: Status, **given: object) -> Ended:
    """Run a job with hooks and confirm its outcome."""
    ended = fake_node.expect(Ended, fake_node.run("Hooked", data, **given))
    assert ended.confirm
    fake_node.confirm(ended, status)
    return ended


def test_hooks_run_when_the_outcome_was_accepted(
    fake_node: FakeNode, tmp_path: Path, fifo: Callable[[str], Fifo]
) -> None:
    file, told = tmp_path / "hooks", fifo("told")

    ended = hooked(fake_node, {"file": str(file), "told": told.path}, Status.DONE)

    told.hear()
    assert file.read_text() == f"success\nfinalize {ended.id}\n"


def test_no_hook_runs_when_the_outcome_was_refused(fake_node: FakeNode, tmp_path: Path) -> None:
    file = tmp_path / "hooks"
    ended = fake_node.expect(Ended, fake_node.run("Hooked", {"file": str(file)}))

    fake_node.confirm(ended, Status.DONE, accepted=False)

    fake_node.result(fake_node.run("Echo"))  # there is one worker: it would have called its hooks
    assert not file.exists()


@pytest.mark.parametrize(
    ("status", "hooks"),
    [
        (Status.POSTPONED, ["failure ValueError"]),
        (Status.FAILED, ["failure ValueError", "last failure ValueError", "finalize"]),
    ],
)
def test_hooks_of_a_failure_depend_on_what_follows(tmp_path: Path, status: Status, hooks: list[str]) -> None:
    file = tmp_path / "hooks"
    with FakeNode(max_children=1) as fake_node:
        hooked(fake_node, {"file": str(file), "fail": True}, status)
        fake_node.result(fake_node.run("Echo"))  # there is one worker: its hooks are over

    called = file.read_text().splitlines()
    assert [line.removesuffix(line.partition("finalize")[2]) for line in called] == hooks


def test_an_error_of_a_hook_changes_nothing(fake_node: FakeNode, tmp_path: Path, fifo: Callable[[str], Fifo]) -> None:
    file, told = tmp_path / "hooks", fifo("told")

    hooked(fake_node, {"file": str(file), "hook": "raises", "told": told.path}, Status.DONE)

    told.hear()
    assert file.read_text().startswith("success\nfinalize")


def test_hooks_are_lost_with_their_worker_but_the_outcome_stays(tmp_path: Path) -> None:
    file = tmp_path / "hooks"
    with FakeNode(max_children=1) as fake_node:
        ended = hooked(fake_node, {"file": str(file), "hook": "dies"}, Status.DONE)
        worker = fake_node.result(fake_node.run("Echo"))["pid"]

        assert worker != ended.pid
        assert [
            message.outcome for message in fake_node.heard if isinstance(message, Ended) and message.id == ended.id
        ] == ["Done"]
    assert file.read_text() == "success\n"


def test_a_timeout_is_told_to_the_hooks(tmp_path: Path, fifo: Callable[[str], Fifo]) -> None:
    """Within the time the class is also imported: a job that does not exist yet has no hooks."""
    file, runs, told = tmp_path / "hooks", fifo("runs"), fifo("told")
    with FakeNode(max_children=1) as fake_node:
        run, ended = fake_node.exceed(runs, "Hooked", {"file": str(file), "told": told.path})
        fake_node.confirm(ended, Status.TIMEOUT)
        told.hear()

        assert ended.outcome == "TimedOut"
        assert file.read_text() == f"failure TimeoutError\nlast failure TimeoutError\nfinalize {run.id}\n"
        assert ended.pid is not None
        assert becomes_true(lambda: ended.pid not in fake_node.workers())  # what the job left behind goes with it


def test_hooks_that_do_not_end_are_interrupted_with_their_worker(
    fake_node: FakeNode, tmp_path: Path, fifo: Callable[[str], Fifo]
) -> None:
    file, told = tmp_path / "hooks", fifo("told")
    ended = hooked(fake_node, {"file": str(file), "hook": "hangs", "told": told.path}, Status.DONE)
    told.hear()
    assert ended.pid is not None
    os.kill(ended.pid, signal.SIGTERM)

    assert becomes_true(lambda: ended.pid not in fake_node.workers())
    assert file.read_text() == "success\n"


def test_a_stop_while_the_outcome_is_confirmed_skips_the_hooks(tmp_path: Path) -> None:
    file = tmp_path / "hooks"
    with FakeNode(grace=20) as fake_node:
        ended = fake_node.expect(Ended, fake_node.run("Hooked", {"file": str(file)}))
        fake_node.tell(Shutdown(mode="quick"))
        fake_node.confirm(ended, Status.DONE)

        assert fake_node.leave().code == 0
    assert not file.exists()


# Interruptions


def test_a_timeout_is_told_with_its_number(fifo: Callable[[str], Fifo]) -> None:
    with FakeNode() as fake_node:
        ended = fake_node.expect(Ended, fake_node.run("Patient", {"runs": fifo("runs").path}, timeout=0.2))

        assert ended.fields["failure"]["message"] == "the attempt took longer than its timeout of 0.2 s"


def test_an_error_after_a_timeout_is_told_with_both(fifo: Callable[[str], Fifo]) -> None:
    with FakeNode() as fake_node:
        run, ended = fake_node.exceed(fifo("runs"), "Converting")

        assert ended.outcome == "TimedOut"
        told = f"could not clean up (the attempt took longer than its timeout of {run.timeout:g} s)"
        assert ended.fields["failure"]["message"] == told


def test_a_slow_import_counts_against_the_timeout(tmp_path: Path) -> None:
    (tmp_path / "slow_office.py").write_text("import signal\nsignal.pause()\n")
    with FakeNode(chdir=tmp_path, grace=20) as fake_node:
        ended = fake_node.expect(Ended, fake_node.run("slow_office:Job", timeout=0.2))

    assert ended.outcome == "TimedOut"
    assert ended.fields["failure"]["type"] == "taskqueue.JobTimeout"


def test_a_job_cannot_make_its_worker_deaf_for_ever(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(max_children=1) as fake_node:
        pid = fake_node.result(fake_node.run("Deafening"))
        run = fake_node.run("Patient", {"runs": runs.path})
        assert int(runs.hear()) == pid
        fake_node.tell(Stop(id=run.id, claims=run.claims, reason="timeout"))

        assert fake_node.expect(Ended, run).outcome == "TimedOut"


def test_a_job_is_interrupted_after_our_own_code_never_within(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with FakeNode(max_children=1, grace=20) as fake_node:
        run = fake_node.run("Telling", {"runs": runs.path}, timeout=0.5)
        ended = fake_node.expect(Ended, run)

        assert ended.outcome == "TimedOut"
        assert ended.exit == ""
        assert all(noted.progress == 50.0 for noted in fake_node.all_of(Progressed, run) if noted.progress is not None)


def test_a_job_that_raises_interrupted_itself_is_not_done(fake_node: FakeNode) -> None:
    ended = fake_node.expect(Ended, fake_node.run("Raising", {"raise": "interrupted"}))

    assert ended.outcome != "Done"


def test_a_thread_that_a_job_left_behind_is_refused(
    fake_node: FakeNode, tmp_path: Path, fifo: Callable[[str], Fifo]
) -> None:
    go = fifo("go")
    file = tmp_path / "refused"
    fake_node.result(fake_node.run("Threading", {"go": go.path, "file": str(file)}))
    go.tell()

    assert becomes_true(file.exists)
    assert "has ended" in file.read_text()


def test_a_child_of_a_job_may_not_speak_for_it(fake_node: FakeNode) -> None:
    assert fake_node.result(fake_node.run("Speaking")) == 17


# The store


def test_a_job_has_a_scheduler_on_its_own_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    with FakeNode(url=url) as fake_node:
        added = fake_node.result(fake_node.run("Adding"))

    with Scheduler(url) as scheduler:
        assert str(scheduler.get_job(added).id) == added


# Bootstrap


def test_the_bootstrap_file_runs_before_the_first_job(tmp_path: Path) -> None:
    bootstrap = tmp_path / "prepare.py"
    bootstrap.write_text("import tests.daemon.jobs as jobs\njobs.Service.nothing = lambda self: __name__\n")
    with FakeNode(bootstrap=bootstrap) as fake_node:
        assert fake_node.result(fake_node.run("Service.nothing")) == "taskqueue_bootstrap_prepare"


def test_the_chosen_folder_is_importable_and_the_working_one(tmp_path: Path) -> None:
    office = "import os\nfrom taskqueue import task\n\n@task\ndef where():\n    return os.getcwd()\n"
    (tmp_path / "office.py").write_text(office)
    with FakeNode(chdir=tmp_path) as fake_node:
        assert fake_node.result(fake_node.run("office:where")) == str(tmp_path)
