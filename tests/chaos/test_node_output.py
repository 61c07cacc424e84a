"""Whoever reads the output of a node may end or stand still: jobs, leases and signals do not wait for it."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from taskqueue import Job, Scheduler, Status
from taskqueue.insight.nodes import LEAD
from taskqueue.store import Lease
from taskqueue.store.open import open_store
from tests.nodes import LIMIT, eventually, node, node_with_output

LEASE = 2.0
LINES = 20_000
"""Lines of 200 characters: more than a pipe and the memory of the manager keep."""

OPTIONS = ("--pm", "static", "--min-children", "1", "--lease", f"{LEASE:g}", "--finish", "0")


class Printer(Job):
    """Prints in each way that there is: Python, C, a process of its own."""

    def start(self) -> str:
        print("from print", flush=True)
        sys.stderr.write("from stderr\n")
        os.write(1, b"from write\n")
        subprocess.run(["/bin/sh", "-c", "echo from a shell && echo from a shell >&2"], check=True)
        self.log.warning("from the log")
        return "printed"


class Chatterbox(Job):
    """Prints ``data`` lines."""

    def start(self) -> str:
        for number in range(self.data):
            print(f"{number:0200}", flush=True)
        return "printed"


@dataclass(frozen=True)
class Reader:
    """The reader of a node's output, which is played by the test."""

    writer: int
    """What the node gets."""
    reader: int

    def read_until(self, wanted: bytes) -> bytes:
        """Read until the text comes, and return all that came."""
        text, ends_at = b"", time.monotonic() + LIMIT
        while wanted not in text:
            assert select.select([self.reader], [], [], ends_at - time.monotonic())[0], text[-2000:]
            text += os.read(self.reader, 65536)
        return text


def pipe() -> tuple[int, int]:
    return os.pipe()


def journal() -> tuple[int, int]:
    """Return the ends of what journald gives to a service."""
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return reader.detach(), writer.detach()


def terminal() -> tuple[int, int]:
    reader, writer = os.openpty()
    settings = termios.tcgetattr(writer)
    settings[1] &= ~termios.OPOST  # it leaves the ends of lines alone
    termios.tcsetattr(writer, termios.TCSANOW, settings)
    return reader, writer


@pytest.fixture(params=[pipe, journal, pytest.param(terminal, marks=pytest.mark.long)])
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    """Return the reader of an output of each kind."""
    end, writer = request.param()
    with ExitStack() as stack:
        stack.callback(os.close, writer)
        stack.callback(_close_if_open, end)
        yield Reader(writer, end)


def _close_if_open(descriptor: int) -> None:
    with suppress(OSError):
        os.close(descriptor)


def _run(scheduler: Scheduler, job: type[Job], data: object = None) -> Status:
    process = scheduler.add_job(job, data)
    scheduler.wait_for([process], timeout=LIMIT)
    return process.status


def _seat(url: str) -> Lease:
    with closing(open_store(url)) as store:
        [seat] = [lease for lease in store.leases() if lease.name != LEAD]
        return seat


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of an empty store."""
    return f"sqlite://{tmp_path}/jobs.db"


def test_what_jobs_print_comes_out_of_the_node_in_order(url: str, tmp_path: Path, reader: Reader) -> None:
    with Scheduler(url) as scheduler, node_with_output(reader.writer, url, tmp_path, *OPTIONS):
        assert _run(scheduler, Printer) is Status.DONE

        text = reader.read_until(b"Printer is done")

    lines = [b"from print", b"from stderr", b"from write", b"from a shell", b"from a shell", b"from the log"]
    places = [text.index(line) for line in lines]
    assert places == sorted(places)


def test_jobs_that_print_are_done_when_the_reader_has_gone(url: str, tmp_path: Path, reader: Reader) -> None:
    with Scheduler(url) as scheduler, node_with_output(reader.writer, url, tmp_path, *OPTIONS) as started:
        assert _run(scheduler, Printer) is Status.DONE
        os.close(reader.reader)

        ended = [_run(scheduler, Printer) for _ in range(3)] + [_run(scheduler, Chatterbox, LINES)]

        assert ended == [Status.DONE] * 4
        assert started.stop() == 0


def test_a_reader_that_stands_still_holds_up_neither_jobs_nor_the_lease_nor_signals(
    url: str, tmp_path: Path, reader: Reader
) -> None:
    with Scheduler(url) as scheduler, node_with_output(reader.writer, url, tmp_path, *OPTIONS) as started:
        assert _run(scheduler, Chatterbox, LINES) is Status.DONE
        seat = _seat(url)

        eventually(lambda: _seat(url).until > seat.until + timedelta(seconds=LEASE))

        assert _seat(url).holder == seat.holder
        assert _run(scheduler, Printer) is Status.DONE
        assert started.stop() == 0


def test_lines_that_were_dropped_are_counted_when_the_reader_is_back(url: str, tmp_path: Path, reader: Reader) -> None:
    with Scheduler(url) as scheduler, node_with_output(reader.writer, url, tmp_path, *OPTIONS):
        assert _run(scheduler, Chatterbox, LINES) is Status.DONE

        text = reader.read_until(b"lines of output were dropped")

        numbers = [int(line) for line in text.splitlines() if line.isdigit() and len(line) == 200]
        assert numbers == sorted(numbers)
        assert 0 < len(numbers) < LINES
        assert _run(scheduler, Printer) is Status.DONE
        assert b"from a shell" in reader.read_until(b"Printer is done")


@pytest.mark.parametrize("reader", [pipe, journal], indirect=True)
def test_a_reader_that_reads_gets_every_line(url: str, tmp_path: Path, reader: Reader) -> None:
    with Scheduler(url) as scheduler, node_with_output(reader.writer, url, tmp_path, *OPTIONS):
        process = scheduler.add_job(Chatterbox, LINES)

        text = reader.read_until(b"%0200d\n" % (LINES - 1))

        scheduler.wait_for([process], timeout=LIMIT)
    assert [int(line) for line in text.splitlines() if line.isdigit() and len(line) == 200] == list(range(LINES))


@pytest.mark.parametrize("make", [lambda: os.open("/dev/full", os.O_WRONLY), lambda: os.open("/dev/null", os.O_RDONLY)])
def test_jobs_that_print_are_done_though_the_output_takes_nothing(
    url: str, tmp_path: Path, make: Callable[[], int]
) -> None:
    output = make()
    with Scheduler(url) as scheduler, node_with_output(output, url, tmp_path, *OPTIONS) as started:
        os.close(output)

        assert _run(scheduler, Printer) is Status.DONE
        assert _run(scheduler, Chatterbox, LINES) is Status.DONE
        assert started.stop() == 0


def test_a_pipe_of_a_log_config_that_nobody_reads_holds_up_nothing(url: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    (tmp_path / "log.toml").write_text(
        "[handlers.fifo]\n"
        'class = "logging.FileHandler"\n'
        f'filename = "{tmp_path}/fifo"\n'
        "[root]\n"
        'level = "DEBUG"\n'
        'handlers = ["fifo"]\n'
    )
    config = str(tmp_path / "log.toml")
    with Scheduler(url) as scheduler, node(url, tmp_path, *OPTIONS, "--log-config", config) as started:
        for _ in range(100):
            assert _run(scheduler, Printer) is Status.DONE
        assert started.stop() == 0
    os.close(reader)


def test_a_log_file_that_cannot_be_opened_again_ends_neither_node_nor_job(url: str, tmp_path: Path) -> None:
    (folder := tmp_path / "logs").mkdir()
    config = str(tmp_path / "logging.json")
    handlers = f'{{"file": {{"class": "logging.handlers.WatchedFileHandler", "filename": "{folder}/node.log"}}}}'
    Path(config).write_text(f'{{"handlers": {handlers}, "root": {{"level": "INFO", "handlers": ["file"]}}}}')
    with Scheduler(url) as scheduler, node(url, tmp_path, *OPTIONS, "--log-config", config) as started:
        assert _run(scheduler, Printer) is Status.DONE
        shutil.rmtree(folder)  # as logrotate that leaves no file which the node may open
        assert _run(scheduler, Printer) is Status.DONE
        eventually(lambda: "WatchedFileHandler cannot write: [Errno 2]" in (log := started.log.read_text())
                   and "from the log" in log)  # fmt: skip

        folder.mkdir()
        assert _run(scheduler, Printer) is Status.DONE
        eventually(lambda: "from the log" in (folder / "node.log").read_text())
        assert started.stop() == 0


class Progressing(Job):
    """Prints a line that it does not end, in each process that it has, and logs between."""

    def start(self) -> None:
        for percent in range(0, 100, 10):
            print(f"\r{percent} %", end="", file=sys.stderr, flush=True)
            self.log.warning("at %d", percent)
            subprocess.run(["/bin/sh", "-c", "printf unended"], check=True)
            self.log.warning("past %d", percent)
        if self.data:
            time.sleep(self.data)


def test_lines_of_the_log_are_whole_whatever_jobs_print_without_ending_it(url: str, tmp_path: Path) -> None:
    with Scheduler(url) as scheduler, node(url, tmp_path, *OPTIONS, "--log-format", "json") as started:
        for seconds in (0, 1, 0):
            assert _run(scheduler, Progressing, seconds) is Status.DONE
        assert started.stop() == 0

    lines = started.log.read_bytes().decode().split("\n")
    logged = [line for line in lines if '"message"' in line]
    assert sum("at 50" in json.loads(line)["message"] for line in logged) == 3
    assert {"\r50 %", "unended"} <= {*lines}


class Asking(Job):
    """Returns what happens when it asks the people at the terminal, in each way that there is."""

    def start(self) -> list[str]:
        return [self._error_of(ask) for ask in (input, lambda: open("/dev/tty"))]

    def _error_of(self, ask: Callable[[], object]) -> str:
        try:
            return repr(ask())
        except (EOFError, OSError) as error:
            return str(error)


ON_A_TERMINAL = (
    "import fcntl, os, sys, termios\n"
    "os.setsid()\n"
    "fcntl.ioctl(1, termios.TIOCSCTTY, 0)\n"
    "os.dup2(1, 0)\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Makes its output its controlling terminal and its input, and executes a command."""


@pytest.mark.parametrize("reader", [terminal], indirect=True)
def test_a_node_leaves_when_its_terminal_is_closed(url: str, tmp_path: Path, reader: Reader) -> None:
    on_a_terminal = (sys.executable, "-c", ON_A_TERMINAL)
    with (
        Scheduler(url) as scheduler,
        node_with_output(reader.writer, url, tmp_path, *OPTIONS, wrapper=on_a_terminal) as started,
    ):
        started.process.send_signal(signal.SIGHUP)
        started.heed("RELOADING=1")
        assert _run(scheduler, Printer) is Status.DONE
        os.close(reader.reader)

        assert started.wait() == 0


@pytest.mark.parametrize("reader", [terminal], indirect=True)
def test_a_reload_of_a_node_whose_output_is_a_terminal_of_others_is_one(
    url: str, tmp_path: Path, reader: Reader
) -> None:
    with Scheduler(url) as scheduler, node_with_output(reader.writer, url, tmp_path, *OPTIONS) as started:
        os.close(reader.reader)
        started.process.send_signal(signal.SIGHUP)
        started.heed("RELOADING=1")
        assert _run(scheduler, Printer) is Status.DONE
        assert started.stop() == 0


@pytest.mark.parametrize("reader", [terminal], indirect=True)
def test_a_job_that_asks_the_terminal_of_its_node_is_refused_and_not_stopped(
    url: str, tmp_path: Path, reader: Reader
) -> None:
    wrapper = (sys.executable, "-c", ON_A_TERMINAL)
    with Scheduler(url) as scheduler, node_with_output(reader.writer, url, tmp_path, *OPTIONS, wrapper=wrapper):
        process = scheduler.add_job(Asking)
        process.wait(timeout=LIMIT)

        assert process.result[0] == "EOF when reading a line"
        assert "No such device or address: '/dev/tty'" in process.result[1]
