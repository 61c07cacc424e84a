"""ShellJob: what a command said, how it ended, and that it ends when the job does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from taskqueue import CommandFailed, Interrupted, Process, Scheduler, ShellJob, Status
from tests.chaos.process_fault import is_gone
from tests.nodes import eventually
from tests.scheduler.playing import LIMIT


def run(scheduler: Scheduler, **data: Any) -> Process:
    """Run one command."""
    process = scheduler.add_job(ShellJob, data)
    scheduler.run_pending()
    return process.refresh()


def test_a_command_is_run_and_its_output_kept(scheduler: Scheduler) -> None:
    process = run(scheduler, argv=["sh", "-c", "echo out; echo err >&2"])

    assert process.result == {"exit_code": 0, "stdout": "out\n", "stderr": "err\n"}


def test_a_list_is_not_read_by_a_shell(scheduler: Scheduler) -> None:
    assert run(scheduler, argv=["echo", "$HOME; ls"]).result["stdout"] == "$HOME; ls\n"


def test_a_shell_is_used_where_asked_for(scheduler: Scheduler, tmp_path: Path) -> None:
    process = run(scheduler, argv="pwd; echo $A $PATH | wc -w; cat", shell=True, cwd=str(tmp_path), env={"A": "1"})

    assert process.result["stdout"].split() == [str(tmp_path), "2"]


def test_another_exit_code_is_a_failure_that_says_it(scheduler: Scheduler) -> None:
    process = run(scheduler, argv="echo nothing; echo wrong >&2; exit 3", shell=True)

    assert process.status is Status.FAILED
    assert process.error is not None
    assert process.error.type == "taskqueue.CommandFailed"
    assert process.error.message == "exit code 3 of echo nothing; echo wrong >&2; exit 3: wrong"
    silent = run(scheduler, argv=["sh", "-c", "kill -9 $$"])
    assert silent.error is not None
    assert silent.error.message == "exit code -9 of sh -c kill -9 $$"


@pytest.mark.parametrize("kind", [CommandFailed, "taskqueue.CommandFailed"])
def test_only_another_exit_code_can_be_retried(scheduler: Scheduler, kind: Any) -> None:
    failed = scheduler.add_job(ShellJob, {"argv": ["false"]}, retry=1, retry_interval=0, retry_on=[kind])
    missing = scheduler.add_job(ShellJob, {"argv": ["no-such-command"]}, retry=1, retry_interval=0, retry_on=[kind])
    scheduler.run_pending()

    assert [len(process.refresh().attempts) for process in (failed, missing)] == [2, 1]


@pytest.mark.parametrize("missing", ["/no/such/command", "no-such-command", "./setup.cfg"])
def test_a_missing_command_is_a_failure(scheduler: Scheduler, tmp_path: Path, missing: str) -> None:
    process = run(scheduler, argv=[missing], cwd=str(tmp_path))

    assert process.error is not None
    assert process.error.type == "FileNotFoundError"


def test_a_program_is_found_from_the_folder_of_the_command(scheduler: Scheduler, tmp_path: Path) -> None:
    (tmp_path / "say").symlink_to("/bin/echo")

    assert run(scheduler, argv=["./say", "here"], cwd=str(tmp_path)).result["stdout"] == "here\n"


def test_data_that_are_no_command_fail_for_good(scheduler: Scheduler) -> None:
    process = scheduler.add_job("taskqueue.execution.shell_job:ShellJob", {"argv": "ls"}, retry=3)
    scheduler.run_pending()

    assert process.refresh().error is not None
    assert len(process.attempts) == 1


def test_only_the_end_of_much_output_is_kept(scheduler: Scheduler) -> None:
    program = "import sys; sys.stdout.write('a' * 1_000_000 + 'b' * 65_536); sys.stderr.write('c' * 300_000 + 'end')"
    process = run(scheduler, argv=[sys.executable, "-c", program])

    assert process.result["stdout"] == "b" * 65_536
    assert process.result["stderr"] == "c" * 65_533 + "end"


def test_output_that_is_no_text_is_kept_readable(scheduler: Scheduler) -> None:
    assert run(scheduler, argv=["printf", r"\377ok"]).result["stdout"] == "\N{REPLACEMENT CHARACTER}ok"


def test_what_a_command_leaves_running_is_not_waited_for(scheduler: Scheduler, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    process = run(scheduler, argv=f"sleep 600 & echo $! > {file}; echo started", shell=True)

    assert process.result["stdout"] == "started\n"
    os.kill(int(file.read_text()), signal.SIGKILL)


def test_a_command_closing_its_output_is_waited_for(scheduler: Scheduler) -> None:
    assert run(scheduler, argv="exec >&- 2>&-; sleep 0.05; exit 4", shell=True).error is not None


@contextmanager
def interrupted_when(file: Path, error: BaseException) -> Iterator[None]:
    """Raise the error in the main thread, as a worker does, when the file is there and the output is awaited."""

    def interrupt(*_: object) -> None:
        raise error

    def send() -> None:
        eventually(lambda: file.exists() and file.read_text().strip() and _main_thread_is_in("select"), LIMIT)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join(LIMIT)
        signal.signal(signal.SIGUSR1, before)


def _main_thread_is_in(function: str) -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame is not None and frame.f_code.co_name == function


def test_an_interrupted_job_ends_its_command(scheduler: Scheduler, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with interrupted_when(file, Interrupted("cancel")):
        process = run(scheduler, argv=f"echo $$ > {file}; exec sleep 600", shell=True)

    assert process.is_failed  # nobody asked it to end
    assert not Path(f"/proc/{file.read_text().strip()}").exists()


def test_an_interrupted_job_ends_all_of_its_command(scheduler: Scheduler, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with interrupted_when(file, Interrupted("cancel")):
        run(scheduler, argv=f"sleep 600 & echo $! $$ > {file}.new; mv {file}.new {file}; wait", shell=True)

    assert eventually(lambda: all(map(has_ended, file.read_text().split())))


def has_ended(pid: str) -> bool:
    """Return whether the process has ended; a zombie has, and this process may have adopted it without reaping it."""
    try:
        return psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_command_that_signals_its_process_group_signals_itself_alone(scheduler: Scheduler) -> None:
    assert run(scheduler, argv="trap 'trap \"\" TERM; kill 0' EXIT; exit 0", shell=True).result["exit_code"] == 0

    process = run(scheduler, argv="trap 'kill 0' EXIT; exit 0", shell=True)
    assert process.error is not None
    assert process.error.message.startswith("exit code -15 of")


def test_a_command_ends_with_whatever_ends_its_job(scheduler: Scheduler, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with interrupted_when(file, OSError("out of files")):
        process = run(scheduler, argv=f"echo $$ > {file}; exec sleep 600", shell=True)

    assert process.is_failed
    assert not Path(f"/proc/{file.read_text().strip()}").exists()


def test_an_endless_writer_that_a_command_leaves_does_not_hold_its_job(scheduler: Scheduler, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    wrote_enough = "grep -qE '^wchar: [0-9]{6}' /proc/$!/io"  # bytes: more than is kept and a pipe holds
    process = run(scheduler, argv=f"yes & echo $! > {file}; until {wrote_enough}; do sleep 0.01; done", shell=True)

    os.kill(int(file.read_text()), signal.SIGKILL)
    assert len(process.result["stdout"]) == 65_536


def test_a_command_that_will_not_end_is_killed(scheduler: Scheduler, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with interrupted_when(file, Interrupted("cancel")):
        process = run(scheduler, argv=f"trap '' TERM; echo $$ > {file}; while :; do sleep 1; done", shell=True)

    assert process.is_failed  # nobody asked it to end
    assert not Path(f"/proc/{file.read_text().strip()}").exists()


def test_a_command_dies_with_the_process_that_runs_it(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    command = f"echo $$ > {told}.new; mv {told}.new {told}; exec sleep 1000"
    program = f"""
from taskqueue import Scheduler, ShellJob

scheduler = Scheduler({str(tmp_path / "jobs.db")!r})
scheduler.add_job(ShellJob, {{"argv": {command!r}, "shell": True}})
scheduler.run_pending()
"""
    with subprocess.Popen([sys.executable, "-c", program]) as runner:
        eventually(told.exists)
        running = psutil.Process(int(told.read_text()))
        runner.kill()

    assert eventually(lambda: is_gone(running))


def test_a_command_is_run_beside_other_threads(scheduler: Scheduler) -> None:
    go = threading.Event()
    other = threading.Thread(target=go.wait)
    other.start()

    assert run(scheduler, argv=["echo", "beside"]).result["stdout"] == "beside\n"
    go.set()
    other.join()
