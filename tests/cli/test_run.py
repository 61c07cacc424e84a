"""``taskqueue run``: a line for each run, and changed code with ``--reload``, on a real terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from taskqueue import Scheduler
from taskqueue.cli.ids import short
from taskqueue.cli.run import RunLines, shown_frames, users_first
from taskqueue.daemon.node.run_log import log_run, runs
from taskqueue.exit_codes import Exit
from taskqueue.model.record import Cause, Status
from tests.cli.records import NOW, record
from tests.nodes import LIMIT, eventually

APPLICATION = """
import json
from taskqueue import Job

class Version(Job):
    def start(self):
        return "old"

class Reading(Job):
    def start(self):
        with open("gate") as gate:
            gate.read()
        return "old"

class Broken(Job):
    def start(self):
        return json.loads("{")
"""


class Terminal:
    """A command on a terminal of its own, and what it has written there."""

    def __init__(self, command: Sequence[str], folder: Path, **variables: str) -> None:
        self.text = ""
        self._taken = 0
        ours, theirs = pty.openpty()
        environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**environment, "TERM": "xterm-256color", **variables},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, args=[ours])
        self._reader.start()

    def wait_for(self, words: str) -> None:
        """Wait until these words were written behind the last ones that were waited for."""
        eventually(lambda: words in self.text[self._taken :] or self.process.poll() is not None)
        assert words in self.text[self._taken :], self.text
        self._taken = self.text.index(words, self._taken) + len(words)

    def stop(self, signum: int) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(signum)
        code = self.process.wait(LIMIT)
        self._reader.join()
        return code

    def _read(self, ours: int) -> None:
        while True:
            try:
                self.text += os.read(ours, 65536).decode()
            except OSError:  # the other end is closed
                os.close(ours)
                return


@contextmanager
def running(url: str, folder: Path, *options: str, **variables: str) -> Iterator[Terminal]:
    """Run the application on a terminal until the block is left."""
    (folder / "app.py").write_text(APPLICATION)
    command = [sys.executable, "-m", "taskqueue", "--url", url, "run", "app.py", *options]
    shown = Terminal(command, folder, PYTHONPATH=str(Path.cwd()), **variables)
    try:
        shown.wait_for("leads the cluster")
        yield shown
    finally:
        if shown.process.poll() is None:
            shown.stop(signal.SIGKILL)


def test_changed_code_runs_with_the_next_job_and_running_jobs_end_first(url: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with running(url, tmp_path, "--reload") as shown, Scheduler(url) as scheduler:
        begun = scheduler.add_job("app:Reading")
        assert scheduler.add_job("app:Version").wait(timeout=LIMIT).result == "old"
        shown.wait_for("app:Version")

        (tmp_path / "app.py").write_text(APPLICATION.replace('"old"', '"changed"'))
        shown.wait_for("reloading: app.py has changed")
        shown.wait_for("replacing every worker")
        changed = scheduler.add_job("app:Version").wait(timeout=LIMIT)
        assert changed.result == "changed"
        (tmp_path / "gate").write_text("open")
        assert begun.wait(timeout=LIMIT).result == "old"

        (tmp_path / "app.py").write_text("def")
        shown.wait_for("not reloading: app.py does not compile")

        assert shown.stop(signal.SIGINT) == Exit.OK


def test_a_run_is_a_coloured_line_on_a_terminal(url: str, tmp_path: Path) -> None:
    with running(url, tmp_path) as shown, Scheduler(url) as scheduler:
        done = scheduler.add_job("app:Version").wait(timeout=LIMIT)
        scheduler.add_job("app:Broken").wait(timeout=LIMIT)
        eventually(lambda: "raw_decode" in shown.text)

        assert shown.stop(signal.SIGTERM) == Exit.OK
    assert f"{short(done.id)} app:Version" in shown.text
    assert re.search(r"app:Version \x1b\[32mDONE\x1b\[0m in [\d.]+ m?s\r\n", shown.text)
    assert re.search(r"app:Broken \x1b\[1;31mFAILED\x1b\[0m in [\d.]+ m?s \(\w+\)\r\n", shown.text)
    assert "INFO" not in shown.text.partition("app:Version")[2].partition("raw_decode")[0]


def test_the_dashboard_is_served_as_long_as_the_node_runs(url: str, tmp_path: Path) -> None:
    with running(url, tmp_path, "--web", "--listen", "127.0.0.1:0") as shown:
        eventually(lambda: "every user of this host is an operator" in shown.text)
        [port] = re.findall(r"dashboard at http://127\.0\.0\.1:(\d+)/", shown.text)
        with closing(HTTPConnection("127.0.0.1", int(port), timeout=LIMIT)) as connection:
            connection.request("GET", "/api/v1/nodes")
            assert json.loads(connection.getresponse().read())["nodes"][0]["name"] == "development"

        assert shown.stop(signal.SIGTERM) == Exit.OK
    with pytest.raises(ConnectionRefusedError):
        HTTPConnection("127.0.0.1", int(port), timeout=LIMIT).connect()


def test_a_job_that_came_back_unbegun_has_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines, before = RunLines(), runs.level
    runs.addHandler(lines)
    runs.setLevel("DEBUG")
    try:
        log_run(record(cause=Cause.HANDED_BACK), NOW)
        log_run(record(cause=Cause.SNOOZED, status=Status.POSTPONED), NOW)
    finally:
        runs.setLevel(before)
        runs.removeHandler(lines)

    [line] = capsys.readouterr().out.splitlines()
    assert "POSTPONED (snoozed)" in line


def test_no_colour_is_printed_where_the_environment_says_so(url: str, tmp_path: Path) -> None:
    with running(url, tmp_path, NO_COLOR="1") as shown, Scheduler(url) as scheduler:
        scheduler.add_job("app:Version").wait(timeout=LIMIT)
        eventually(lambda: "DONE" in shown.text)

        assert shown.stop(signal.SIGTERM) == Exit.OK
    assert re.search(r"app:Version DONE in", shown.text)
    assert "shutting down: 0 jobs in flight, waiting up to " in shown.text


def test_a_node_stops_with_the_process_that_watches_its_files(url: str, tmp_path: Path) -> None:
    with running(url, tmp_path, "--reload") as shown:
        shown.process.kill()
        eventually(lambda: "no longer leads the cluster" in shown.text)  # the node says so after the death of the other


def test_the_package_that_watches_files_is_named_where_it_is_missing(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    program = "import sys; sys.modules['watchfiles'] = None; from taskqueue.cli.main import main; sys.exit(main())"

    done = subprocess.run(
        [sys.executable, "-c", program, "run", str(tmp_path / "app.py"), "--reload"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )

    assert done.returncode == Exit.CONFIG
    assert done.stderr == "taskqueue: --reload needs the package watchfiles: pip install 'taskqueue-jobs[dev]'\n"


def test_notifications_are_sent_as_by_a_node(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)

    done = subprocess.run(
        [sys.executable, "-m", "taskqueue", "run", str(tmp_path / "app.py"), "--notify", str(tmp_path / "missing")],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )

    assert done.returncode == Exit.CONFIG
    assert f"--notify {tmp_path}/missing is not a program that this user can run" in done.stderr


def test_the_user_s_frames_come_before_those_of_libraries() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/ann/app.py", line 3, in start',
        "    json.loads(text)",
        f'  File "{os.__file__}", line 4, in loads',
        "    decode()",
        "ValueError: no JSON",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "/home/ann/app.py", line 5, in start',
        "KeyError: 1",
    ]

    shown = list(users_first("\n".join(lines)))

    libraries = ["  below that, in libraries:", *lines[3:5]]
    assert [line for line, _ in shown] == [*lines[:3], lines[5], *libraries, *lines[6:]]
    assert [line for line, is_library in shown if is_library] == libraries


def test_a_run_that_taskqueue_ended_shows_no_frames_of_libraries() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/ann/app.py", line 3, in start',
        "    await sleep(5)",
        f'  File "{asyncio.__file__}", line 4, in sleep',
        "    return await future",
        "asyncio.exceptions.CancelledError: timeout",
    ]

    assert shown_frames("\n".join(lines), "TimedOut") == [(line, False) for line in (*lines[:3], lines[5])]
    assert len(shown_frames("\n".join(lines), "Failed")) == len(lines) + 1


@pytest.mark.parametrize("text", ["", "ValueError: no frames", '  File "/home/ann/app.py", line 3, in start'])
def test_other_text_is_left_as_it_is(text: str) -> None:
    assert [line for line, _ in users_first(text)] == text.splitlines()
