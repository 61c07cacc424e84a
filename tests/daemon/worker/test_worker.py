"""What a worker makes of the jobs it is given, told by its manager."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskqueue.daemon.manager.run_slot import QueuedRun
from taskqueue.daemon.manager.workers import Workers
from taskqueue.daemon.protocol.messages import Ended, Message, Progressed, Run, Shutdown, Started, decode, encode
from taskqueue.daemon.protocol.shared_memory import StartLog
from taskqueue.daemon.settings import Settings
from taskqueue.model.ids import JobId
from taskqueue.model.record import Status
from taskqueue.scheduler import Scheduler
from tests.daemon.foreman import JOBS, MOST, Fifo, Foreman, becomes_true, fifos


@pytest.fixture(scope="module")
def foreman() -> Iterator[Foreman]:
    with Foreman() as foreman:
        yield foreman


@pytest.fixture(scope="module")
def mortal() -> Iterator[Foreman]:
    """Yield a foreman for jobs that end their workers: these cannot say what of them was covered."""
    with Foreman() as foreman:
        yield foreman


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Callable[[str], Fifo]]:
    yield from fifos(tmp_path)


def test_a_job_finds_what_it_was_given(foreman: Foreman) -> None:
    run = foreman.run("Echo", {"to": "a@example.org"}, state='{"done":3}', attempt=4, is_last=False)

    found = foreman.result(run)

    assert found["data"] == {"to": "a@example.org"}
    assert found["state"] == {"done": 3}
    assert (found["id"], found["key"], found["run_key"]) == (run.id, run.id, f"{run.id}:{run.claims}")
    assert (found["attempt"], found["is_last"], found["stopping"]) == (4, False, False)
    ended = foreman.expect(Ended, run)
    assert ended.pid == found["pid"]
    assert ended.started_at is not None
    assert ended.took is not None
    assert ended.took >= 0


def test_a_copy_finds_the_key_of_the_job_that_it_is_a_copy_of(foreman: Foreman) -> None:
    run = foreman.run("Echo", key="6650f0c2")

    found = foreman.result(run)

    assert (found["id"], found["key"], found["run_key"]) == (run.id, "6650f0c2", f"{run.id}:{run.claims}")


def test_the_context_of_a_run_has_fewer_attributes_than_python_keeps_in_line(foreman: Foreman) -> None:
    # With 30 of its own Python 3.11 moves them into a mapping, and to make the context takes twice the time.
    assert foreman.result(foreman.run("OwnContext")) < 30


def test_a_run_that_comes_ahead_of_its_time_begins_then_and_not_before(foreman: Foreman) -> None:
    foreman.result(foreman.run("Echo"))
    asked_at = time.time()

    run = foreman.run("Echo", not_before=time.monotonic() + 0.2)

    began_at = foreman.expect(Ended, run).started_at
    assert began_at is not None
    assert began_at - asked_at > 0.199


def test_a_worker_that_is_to_leave_does_not_wait_for_the_time_of_its_run() -> None:
    with Foreman() as foreman:
        foreman.result(foreman.run("Echo"))
        [worker] = foreman.workers()
        run = foreman.run("Echo", not_before=time.monotonic() + 3600)
        becomes_true(lambda: run.id in Path(f"/proc/{worker}/cmdline").read_text())

        os.kill(worker, signal.SIGTERM)

        assert foreman.expect(Ended, run).outcome == "Interrupted"


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
def test_what_a_job_raises_is_its_failure(foreman: Foreman, raised: str, outcome: str, type: str, message: str) -> None:
    ended = foreman.expect(Ended, foreman.run("Raising", {"raise": raised}))

    assert ended.outcome == outcome
    failure = ended.fields["failure"]
    assert (failure["type"], failure["message"]) == (type, message)
    assert "in start" in failure["traceback"]
    assert "BaseException" in failure["bases"]
    assert ended.fields.get("delay") == (7.0 if raised == "retry" else None)


def test_a_job_may_ask_to_run_later(foreman: Foreman) -> None:
    ended = foreman.expect(Ended, foreman.run("Raising", {"raise": "snooze"}))

    assert (ended.outcome, ended.fields) == ("Snoozed", {"seconds": 9.0})


@pytest.mark.parametrize(("job", "type"), [("Huge", "DataTooLarge"), ("Strange", "InvalidJob")])
def test_a_result_that_cannot_be_kept_is_a_failure(foreman: Foreman, job: str, type: str) -> None:
    ended = foreman.expect(Ended, foreman.run(job))

    assert ended.outcome == "GivenUp"
    assert ended.fields["failure"]["type"].endswith(type)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("no_such_module:Job", "No module named"),
        ("tests.daemon.jobs:Nothing", "has no Nothing"),
        ("tests.daemon.jobs:not_a_job", "neither a class nor a function"),
        ("tests.daemon.jobs:Service", "no subclass of Job"),
        ("tests.daemon.jobs:Service.subtract", "no method subtract"),
    ],
)
def test_a_path_that_leads_to_no_job_is_unloadable(foreman: Foreman, path: str, says: str) -> None:
    ended = foreman.expect(Ended, foreman.run(path))

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
def test_methods_and_functions_are_jobs_too(foreman: Foreman, path: str, data: object, result: object) -> None:
    assert foreman.result(foreman.run(path, data)) == result


def test_what_cannot_be_told_or_kept_is_refused_in_the_job(foreman: Foreman) -> None:
    assert foreman.result(foreman.run("Refused")) == [
        "CheckpointRefused",
        "ValueError",
        "ValueError",
        "ValueError",
        "ValueError",
    ]


def test_the_last_progress_is_never_lost_when_the_job_ends(foreman: Foreman) -> None:  # PTS-21
    run = foreman.run("Progressing")
    foreman.result(run)

    told = [(noted.progress, noted.message) for noted in foreman.all_of(Progressed, run)]

    assert told[0] == (0.0, "step 0")
    assert told[-1] == (50.0, "step 50")
    assert len(told) < 10


def test_progress_is_told_every_half_second_at_most(foreman: Foreman) -> None:  # PTS-21
    run = foreman.run("Chattering")
    took = foreman.result(run)

    told = [noted.at for noted in foreman.all_of(Progressed, run)]

    assert 2 <= len(told) <= took / 0.5 + 2  # the first at once, and the last


def test_the_last_progress_comes_although_the_job_says_nothing_more(
    foreman: Foreman, fifo: Callable[[str], Fifo]
) -> None:
    runs, go = fifo("runs"), fifo("go")
    run = foreman.run("Progressing", {"runs": runs.path, "go": go.path})
    runs.hear()

    foreman.expect(Progressed, run, progress=50.0, message="step 50")
    assert not foreman.all_of(Ended, run)

    go.tell()
    foreman.result(run)


def test_the_last_position_comes_although_the_loop_does_not_go_on(
    foreman: Foreman, fifo: Callable[[str], Fifo]
) -> None:
    go = fifo("go")
    # the third is told at once, and seen to be told when the manager looks; the fourth comes too soon to be told
    run = foreman.run("Striding", {"pauses": [0, 0.1, 0.2, 0.22], "go": go.path})

    foreman.expect(Progressed, run, position='{"":4}')
    assert not foreman.all_of(Ended, run)

    go.tell()
    foreman.result(run)


def test_a_dead_workers_last_progress_is_in_the_evidence(mortal: Foreman) -> None:
    run = mortal.run("Dying", {"signal": signal.SIGSEGV})

    ended = mortal.expect(Ended, run)

    assert ended.outcome == "Crashed"
    assert ended.exit == "killed by SIGSEGV"
    assert "last progress 40 % (nearly there)" in ended.fields["failure"]["message"]
    assert ended.peak_memory is not None
    assert ended.peak_memory > 1024 * 1024


def test_a_job_that_leaves_by_itself_has_crashed(mortal: Foreman) -> None:
    ended = mortal.expect(Ended, mortal.run("Dying", {"exit": 3}))

    assert (ended.outcome, ended.exit) == ("Crashed", "exited with status 3")


@pytest.mark.parametrize("padding", [0, 1_000_000])
def test_a_checkpoint_survives_the_worker(mortal: Foreman, padding: int) -> None:
    run = mortal.run("Saving", {"padding": padding})

    assert mortal.expect(Ended, run).outcome == "Crashed"
    [noted] = mortal.all_of(Progressed, run)
    assert noted.progress is None
    assert noted.state is not None
    assert len(noted.state) > padding


def test_a_class_that_asks_by_itself_is_told_to_be_checked_once_it_is_loaded() -> None:  # so the check has its limit
    workers = Workers(Settings(), url="sqlite:///dev/null/nowhere", keep=(), start_log=StartLog())
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


def test_a_child_that_comes_back_from_start_is_not_a_second_worker(foreman: Foreman) -> None:
    run = foreman.run("Forking")

    assert foreman.result(run) > 0
    foreman.result(foreman.run("Echo"))
    assert len(foreman.all_of(Ended, run)) == 1


def test_what_a_job_forks_has_signals_of_its_own(foreman: Foreman) -> None:
    before = foreman.result(foreman.run("Echo"))["pid"]

    assert foreman.result(foreman.run("Terminating")) == signal.SIGTERM
    assert foreman.result(foreman.run("Echo"))["pid"] == before


def test_lines_that_a_job_logs_name_it(tmp_path: Path) -> None:
    form = "%(message)s|%(job_id)s|%(job)s|%(queue)s|%(attempt)d"
    preloaded = f"import logging\nlines = logging.FileHandler('log')\nlines.setFormatter(logging.Formatter({form!r}))\n"
    preloaded += f"logging.getLogger({JOBS!r}).addHandler(lines)\n"
    (tmp_path / "office_logs.py").write_text(preloaded)
    with Foreman(chdir=tmp_path, preload=["office_logs"]) as foreman:
        run = foreman.run("Logging", attempt=2, queue="mail")
        foreman.expect(Ended, run)

    assert (tmp_path / "log").read_text() == f"it is so|{run.id}|{JOBS}:Logging|mail|2\n"


def test_lines_of_threads_and_libraries_have_the_fields_of_their_run(tmp_path: Path) -> None:
    form = "%(message)s|%(job_id)s|%(job)s|%(queue)s"
    preloaded = f"import logging\nlines = logging.FileHandler('log')\nlines.setFormatter(logging.Formatter({form!r}))\n"
    (tmp_path / "office_logs.py").write_text(f"{preloaded}logging.getLogger('library').addHandler(lines)\n")
    with Foreman(chdir=tmp_path, preload=["office_logs"], min_children=1, max_children=1) as foreman:
        runs = [foreman.run("LoggingInThreads"), foreman.run("LoggingInThreads")]
        for run in runs:
            foreman.expect(Ended, run)

    assert (tmp_path / "log").read_text().splitlines() == [
        f"{word}|{run.id}|{JOBS}:LoggingInThreads|of the caller"
        for run in runs
        for word in ("thread", "pool", "library")
    ]


# Hooks


def hooked(foreman: Foreman, data: dict[str, object], status: Status, **given: object) -> Ended:
    """Run a job with hooks and confirm its outcome."""
    ended = foreman.expect(Ended, foreman.run("Hooked", data, **given))
    assert ended.confirm
    foreman.confirm(ended, status)
    return ended


def test_hooks_run_when_the_outcome_was_accepted(foreman: Foreman, tmp_path: Path, fifo: Callable[[str], Fifo]) -> None:
    file, told = tmp_path / "hooks", fifo("told")

    ended = hooked(foreman, {"file": str(file), "told": told.path}, Status.DONE)

    told.hear()
    assert file.read_text() == f"success\nfinalize {ended.id}\n"


def test_no_hook_runs_when_the_outcome_was_refused(foreman: Foreman, tmp_path: Path) -> None:
    file = tmp_path / "hooks"
    ended = foreman.expect(Ended, foreman.run("Hooked", {"file": str(file)}))

    foreman.confirm(ended, Status.DONE, accepted=False)

    foreman.result(foreman.run("Echo"))
    foreman.result(foreman.run("Echo"))
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
    with Foreman(max_children=1) as foreman:
        hooked(foreman, {"file": str(file), "fail": True}, status)
        foreman.result(foreman.run("Echo"))  # there is one worker: its hooks are over

    called = file.read_text().splitlines()
    assert [line.removesuffix(line.partition("finalize")[2]) for line in called] == hooks


def test_an_error_of_a_hook_changes_nothing(foreman: Foreman, tmp_path: Path, fifo: Callable[[str], Fifo]) -> None:
    file, told = tmp_path / "hooks", fifo("told")

    hooked(foreman, {"file": str(file), "hook": "raises", "told": told.path}, Status.DONE)

    told.hear()
    assert file.read_text().startswith("success\nfinalize")


def test_hooks_are_lost_with_their_worker_but_the_outcome_stays(tmp_path: Path) -> None:
    file = tmp_path / "hooks"
    with Foreman(max_children=1) as foreman:
        ended = hooked(foreman, {"file": str(file), "hook": "dies"}, Status.DONE)
        worker = foreman.result(foreman.run("Echo"))["pid"]

        assert worker != ended.pid
        assert [
            message.outcome for message in foreman.heard if isinstance(message, Ended) and message.id == ended.id
        ] == ["Done"]
    assert file.read_text() == "success\n"


def test_a_timeout_is_told_to_the_hooks(tmp_path: Path, fifo: Callable[[str], Fifo]) -> None:
    """Within the time the class is also imported: a job that does not exist yet has no hooks."""
    file, runs, told = tmp_path / "hooks", fifo("runs"), fifo("told")
    with Foreman(max_children=1) as foreman:
        run = foreman.run("Hooked", {"file": str(file), "runs": runs.path, "told": told.path}, timeout=2.0)
        ended = foreman.expect(Ended, run)
        foreman.confirm(ended, Status.TIMEOUT)
        told.hear()

        assert ended.outcome == "TimedOut"
        assert file.read_text() == f"failure TimeoutError\nlast failure TimeoutError\nfinalize {run.id}\n"
        assert ended.pid is not None
        assert becomes_true(lambda: ended.pid not in foreman.workers())  # what the job left behind goes with it


def test_hooks_that_do_not_end_are_interrupted_with_their_worker(
    foreman: Foreman, tmp_path: Path, fifo: Callable[[str], Fifo]
) -> None:
    file, told = tmp_path / "hooks", fifo("told")
    ended = hooked(foreman, {"file": str(file), "hook": "hangs", "told": told.path}, Status.DONE)
    told.hear()
    assert ended.pid is not None
    os.kill(ended.pid, signal.SIGTERM)

    assert becomes_true(lambda: ended.pid not in foreman.workers())
    assert file.read_text() == "success\n"


def test_a_stop_while_the_outcome_is_confirmed_skips_the_hooks(tmp_path: Path) -> None:
    file = tmp_path / "hooks"
    with Foreman(grace=20) as foreman:
        ended = foreman.expect(Ended, foreman.run("Hooked", {"file": str(file)}))
        foreman.tell(Shutdown(mode="quick"))
        foreman.confirm(ended, Status.DONE)

        assert foreman.leave().code == 0
    assert not file.exists()


# Interruptions


def test_a_timeout_is_told_with_its_number(fifo: Callable[[str], Fifo]) -> None:
    with Foreman() as foreman:
        ended = foreman.expect(Ended, foreman.run("Patient", {"runs": fifo("runs").path}, timeout=0.2))

        assert ended.fields["failure"]["message"] == "the attempt took longer than its timeout of 0.2 s"


def test_an_error_after_a_timeout_is_told_with_both(fifo: Callable[[str], Fifo]) -> None:
    with Foreman() as foreman:
        ended = foreman.expect(Ended, foreman.run("Converting", {"runs": fifo("runs").path}, timeout=0.2))

        assert ended.outcome == "TimedOut"
        told = "could not clean up (the attempt took longer than its timeout of 0.2 s)"
        assert ended.fields["failure"]["message"] == told


def test_a_slow_import_counts_against_the_timeout(tmp_path: Path) -> None:
    (tmp_path / "slow_office.py").write_text("import signal\nsignal.pause()\n")
    with Foreman(chdir=tmp_path, grace=20) as foreman:
        ended = foreman.expect(Ended, foreman.run("slow_office:Job", timeout=0.2))

    assert ended.outcome == "TimedOut"
    assert ended.fields["failure"]["type"] == "taskqueue.JobTimeout"


def test_a_job_cannot_make_its_worker_deaf_for_ever(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman(max_children=1, grace=20) as foreman:
        pid = foreman.result(foreman.run("Deafening"))
        run = foreman.run("Patient", {"runs": runs.path}, timeout=1.0)
        assert int(runs.hear()) == pid

        assert foreman.expect(Ended, run).outcome == "TimedOut"


def test_a_job_is_interrupted_after_our_own_code_never_within(fifo: Callable[[str], Fifo]) -> None:
    runs = fifo("runs")
    with Foreman(max_children=1, grace=20) as foreman:
        run = foreman.run("Telling", {"runs": runs.path}, timeout=0.5)
        ended = foreman.expect(Ended, run)

        assert ended.outcome == "TimedOut"
        assert ended.exit == ""
        assert all(noted.progress == 50.0 for noted in foreman.all_of(Progressed, run) if noted.progress is not None)


def test_a_job_that_raises_interrupted_itself_is_not_done(foreman: Foreman) -> None:
    ended = foreman.expect(Ended, foreman.run("Raising", {"raise": "interrupted"}))

    assert ended.outcome != "Done"


def test_a_thread_that_a_job_left_behind_is_refused(
    foreman: Foreman, tmp_path: Path, fifo: Callable[[str], Fifo]
) -> None:
    go = fifo("go")
    file = tmp_path / "refused"
    foreman.result(foreman.run("Threading", {"go": go.path, "file": str(file)}))
    go.tell()

    assert becomes_true(file.exists)
    assert "has ended" in file.read_text()


def test_a_child_of_a_job_may_not_speak_for_it(foreman: Foreman) -> None:
    assert foreman.result(foreman.run("Speaking")) == 17


# The store


def test_a_job_has_a_scheduler_on_its_own_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    with Foreman(url=url) as foreman:
        added = foreman.result(foreman.run("Adding"))

    with Scheduler(url) as scheduler:
        assert str(scheduler.get_job(added).id) == added


# Bootstrap


def test_the_bootstrap_file_runs_before_the_first_job(tmp_path: Path) -> None:
    bootstrap = tmp_path / "prepare.py"
    bootstrap.write_text("import tests.daemon.jobs as jobs\njobs.Service.nothing = lambda self: __name__\n")
    with Foreman(bootstrap=bootstrap) as foreman:
        assert foreman.result(foreman.run("Service.nothing")) == "taskqueue_bootstrap_prepare"


def test_the_chosen_folder_is_importable_and_the_working_one(tmp_path: Path) -> None:
    office = "import os\nfrom taskqueue import task\n\n@task\ndef where():\n    return os.getcwd()\n"
    (tmp_path / "office.py").write_text(office)
    with Foreman(chdir=tmp_path) as foreman:
        assert foreman.result(foreman.run("office:where")) == str(tmp_path)
