"""The quickstart as a user starts it: it tells what it promises, twice and two at once, and leaves nothing running."""

from __future__ import annotations

import csv
import fcntl
import hashlib
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.nodes import LIMIT, eventually

QUICKSTART = Path(__file__).parents[2] / "bin" / "quickstart"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Quickstart:
    """One run of ``bin/quickstart``, with everything it prints in a file."""

    def __init__(self, state: Path, output: Path, terminal: int | None = None) -> None:
        self._output = output
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}  # costly
        environment |= {"XDG_STATE_HOME": str(state), "HOME": str(state), "TERM": "xterm-256color"}
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [QUICKSTART],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file if terminal is None else terminal,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        """Return what has been printed until now."""
        return self._output.read_text()

    def heed(self, words: str) -> None:
        """Wait until the words have been printed."""
        eventually(lambda: words in self.text() or self.process.poll() is not None, limit=2 * LIMIT)
        assert words in self.text(), self.text()

    def wait(self) -> int:
        """Wait for its end and return the exit code."""
        return self.process.wait(2 * LIMIT)

    def left_behind(self) -> list[int]:
        """Return the processes in its sessions and in those of the nodes that it has started."""
        sessions = {self.process.pid, *map(int, re.findall(r"(?:node|again), process (\d+)", self.text()))}
        found = []
        for pid in psutil.pids():
            with suppress(ProcessLookupError):
                if os.getsid(pid) in sessions:
                    found.append(pid)
        return found

    def close(self) -> None:
        """End whatever is left of it."""
        for pid in self.left_behind():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(LIMIT)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for the state of all runs of this file."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def two_at_once(state: Path) -> Iterator[list[Quickstart]]:
    """Run the quickstart twice at the same time, to the end."""
    runs = [Quickstart(state, state / f"output-{number}") for number in (1, 2)]
    try:
        for run in runs:
            run.wait()
        yield runs
    finally:
        for run in runs:
            run.close()


def folder_of(run: Quickstart) -> Path:
    """Return where a run keeps its jobs, as its last lines tell."""
    [place] = re.findall(r"--url ~/(\S+)/jobs\.db list", run.text())
    return run._output.parent / str(place)


def test_two_at_once_end_well_and_each_has_a_folder_of_its_own(two_at_once: list[Quickstart]) -> None:
    assert [run.process.returncode for run in two_at_once] == [0, 0], [run.text() for run in two_at_once]
    assert len({folder_of(run) for run in two_at_once}) == 2


def test_nothing_is_left_running(two_at_once: list[Quickstart]) -> None:
    assert [run.left_behind() for run in two_at_once] == [[], []]


def test_the_index_is_true(two_at_once: list[Quickstart]) -> None:
    python = Path(__file__).parents[2] / ".venv/bin/python"  # bin/quickstart runs this one, whichever runs the tests
    asked = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    library = Path(subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip())
    [run, _] = two_at_once
    with (folder_of(run) / "index" / "files.csv").open(newline="", encoding="utf-8") as file:
        rows = {f"{row['folder']}/{row['file']}": row for row in csv.DictReader(file)}

    content = (library / "json" / "decoder.py").read_bytes()
    found = rows["json/decoder.py"]
    assert int(found["bytes"]) == len(content)
    assert found["sha256"] == hashlib.sha256(content).hexdigest()
    assert int(found["lines"]) == content.count(b"\n")
    assert (found["encoding"], found["problem"]) == ("utf-8", "")
    [total] = re.findall(r"^all +([\d,]+) ", run.text(), re.MULTILINE)
    assert int(total.replace(",", "")) == len(rows)


def test_it_explains_the_three_jobs_that_it_disturbed(two_at_once: list[Quickstart]) -> None:
    [run, _] = two_at_once
    _, killed, interrupted, failed = run.text().split("\n$ taskqueue why ")

    assert all("is DONE." in answer for answer in (killed, interrupted, failed))
    assert "Crashed" in killed
    assert "SIGKILL" in killed
    assert "Interrupted" in interrupted
    for kept in (killed, interrupted):
        [files] = re.findall(r"(\d+) of \d+ files were done before the last attempt began", kept)
        assert int(files) > 0
    assert "FileNotFoundError" in failed
    assert "attempt 2" in failed


def test_it_tells_the_progress_in_plain_lines_without_a_terminal(two_at_once: list[Quickstart]) -> None:
    [run, _] = two_at_once
    assert re.search(r"^ +[\d.]+ s  [\d,]+ of [\d,]+ files; \d+ jobs wait or run$", run.text(), re.MULTILINE)
    assert "\x1b" not in run.text()


def test_it_can_be_run_again_and_fits_a_terminal_of_80_columns(
    two_at_once: list[Quickstart], state: Path, tmp_path: Path
) -> None:
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    run = Quickstart(state, tmp_path / "output", terminal=its)
    os.close(its)
    try:
        shown = read_all(ours)
        assert run.wait() == 0, shown[-2000:]
    finally:
        os.close(ours)
        run.close()

    assert "━" in shown
    lines = [line.split("\r")[-1] for line in ESCAPES.sub("", shown).split("\r\n")]
    assert [line for line in lines if len(line) > 80 and not line.startswith(("bin/", "less "))] == []
    assert shown.count("$ taskqueue why ") == 3


def read_all(terminal: int) -> str:
    """Return what is written to a terminal until nobody has it open any more."""
    parts = []
    with suppress(OSError):  # EIO is the end
        while part := os.read(terminal, 65536):
            parts.append(part)
    return b"".join(parts).decode()


@pytest.mark.parametrize(
    ("signum", "words"),
    [
        (signal.SIGHUP, "started a node"),
        (signal.SIGINT, "added"),
        (signal.SIGQUIT, "SIGKILL to worker"),
        (signal.SIGTERM, "started it again"),
    ],
)
def test_a_signal_in_the_middle_ends_it_and_its_node(
    signum: signal.Signals, words: str, state: Path, tmp_path: Path
) -> None:
    run = Quickstart(state, tmp_path / "output")
    try:
        run.heed(words)
        run.process.send_signal(signum)

        assert run.wait() == 128 + signum
        assert run.left_behind() == []
        assert f"stopped by {signum.name}; nothing is left running" in run.text()
    finally:
        run.close()


def test_it_ends_without_a_complaint_when_nobody_reads_on(state: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    run = Quickstart(state, tmp_path / "output", terminal=writer)
    os.close(writer)
    first = os.read(reader, 100)
    os.close(reader)
    try:
        assert b"An index" in first
        assert run.wait() == 128 + signal.SIGPIPE
    finally:
        run.close()


def test_arguments_are_refused(tmp_path: Path) -> None:
    done = subprocess.run([QUICKSTART, "now"], capture_output=True, text=True)

    assert done.returncode == 2
    assert done.stderr == "bin/quickstart: it takes no arguments\n"
