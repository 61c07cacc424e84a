"""On a terminal tables fit its width, people are asked, and waiting shows a bar."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from taskqueue import Scheduler
from taskqueue.cli import ids
from taskqueue.exit_codes import Exit
from taskqueue.model.query import EVERYTHING
from taskqueue.model.record import Record
from taskqueue.store import Store
from tests.cli import records
from tests.nodes import LIMIT

COLOUR = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A command with a terminal of so many columns, as a person has it."""

    def __init__(self, url: str, columns: int, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "taskqueue.cli.main", "--url", url, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TERM": "xterm-256color"},
        )
        os.close(slave)
        self.shown = ""

    def heed(self, wanted: str) -> None:
        """Read until the terminal has shown it."""
        ends_at = time.monotonic() + LIMIT
        while wanted not in self.shown:
            is_late = not self._read() or time.monotonic() > ends_at
            assert not is_late, f"{wanted!r} never came, but {self.shown!r}"

    def heed_more(self) -> None:
        """Read until the terminal has shown anything more."""
        assert self._read(), f"nothing more came after {self.shown!r}"

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Read to the end and return the exit code."""
        while self._read():
            pass
        return self.process.wait(LIMIT)

    def resize(self, columns: int) -> None:
        """Give the terminal another width, as a person drags its window."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)  # the kernel tells only those whose controlling terminal it is

    @property
    def reads_lines(self) -> bool:
        """Return whether the terminal hands over what is typed line by line, and shows it: as a shell left it."""
        flags: int = termios.tcgetattr(self._master)[3]
        return bool(flags & termios.ICANON) and bool(flags & termios.ECHO)

    @property
    def lines(self) -> list[str]:
        """What was shown, without colours."""
        return COLOUR.sub("", self.shown).splitlines()

    def close(self) -> None:
        """End the command."""
        self.process.kill()
        self.process.wait(LIMIT)
        os.close(self._master)

    def _read(self) -> bool:
        assert select.select([self._master], [], [], LIMIT)[0], f"it shows nothing more than {self.shown!r}"
        try:
            part = os.read(self._master, 65536)
        except OSError:  # what a terminal says when nobody has it open any more
            return False
        self.shown += part.decode()
        return bool(part)


@contextmanager
def terminal(url: str, columns: int, *arguments: str) -> Iterator[Terminal]:
    """Run a command on a terminal."""
    opened = Terminal(url, columns, *arguments)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def jobs(store: Store) -> dict[str, Record]:
    """Store a job in every state, one of them with long words."""
    added = dict(records.in_every_status())
    added["waiting"] = replace(added["waiting"], job="shop.customers.letters.monthly:NewsletterJob", queue="q" * 30)
    store.add(list(added.values()))
    return added


def test_what_is_in_force_is_wrapped_between_words(url: str) -> None:
    reason = "a migration of the database that the reports are read from, " * 3
    with Scheduler(url) as scheduler:
        scheduler.pause("reports", reason.strip(), by="ann")
    with terminal(url, 80, "stats") as shown:
        assert shown.end() == 0

    begin = next(number for number, line in enumerate(shown.lines) if line.startswith("queue reports is paused"))
    assert all(len(line) <= 80 for line in shown.lines)
    assert reason.strip() in " ".join(line.strip() for line in shown.lines[begin:])


@pytest.mark.parametrize("columns", [80, 120])
def test_a_list_fits_the_terminal(url: str, jobs: dict[str, Record], columns: int) -> None:
    with terminal(url, columns, "list") as shown:
        assert shown.end() == 0

    line = next(line for line in shown.lines if ids.short(jobs["waiting"].id) in line)
    assert all(len(line) <= columns for line in shown.lines)
    assert len(shown.lines) == 1 + len(jobs)
    assert re.search(r" …\S*letterJob +WAITING +q+… ", line)


def test_on_a_narrow_terminal_a_list_does_without_some_columns(url: str, jobs: dict[str, Record]) -> None:
    with terminal(url, 50, "list") as shown:
        assert shown.end() == 0

    assert all(len(line) <= 50 for line in shown.lines)
    assert shown.lines[0].split() == ["id", "job", "status", "done", "cause"]


def test_in_a_pipe_nothing_is_cut_and_there_are_no_colours(url: str, jobs: dict[str, Record]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "taskqueue.cli.main", "--url", url, "list"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )

    assert "shop.customers.letters.monthly:NewsletterJob" in done.stdout
    assert "q" * 30 in done.stdout
    assert "\x1b" not in done.stdout


def test_colours_tell_statuses_apart(url: str, jobs: dict[str, Record]) -> None:
    with terminal(url, 80, "list") as shown:
        shown.end()

    assert re.search(r"\x1b\[32mDONE", shown.shown)
    assert re.search(r"\x1b\[1;31mFAILED", shown.shown)


@pytest.mark.parametrize("name", ["running", "failed"])
def test_show_fits_the_terminal(url: str, jobs: dict[str, Record], name: str) -> None:
    with terminal(url, 80, "show", str(jobs[name].id)) as shown:
        assert shown.end() == 0

    assert all(len(line) <= 80 for line in shown.lines)


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", Exit.OK, 0), ("\n", Exit.ERROR, 1)])
def test_flush_asks(url: str, store: Store, answer: str, code: Exit, left: int) -> None:
    store.add([records.record()])
    with terminal(url, 200, "flush") as shown:
        shown.heed(f"remove 1 job from {store.url}? [y/N]: ")
        shown.type(answer)
        assert shown.end() == code

    assert store.count(EVERYTHING) == left


def test_waiting_shows_how_far_the_job_is(url: str, store: Store, jobs: dict[str, Record]) -> None:
    running, waiting = jobs["running"], jobs["waiting"]
    with terminal(url, 120, "wait", str(running.id), str(waiting.id)) as shown:
        shown.heed("45% page 9")
        shown.heed("0/2")
        store.cancel(waiting.id, "", store.now())
        shown.heed("1/2")
        store.flush()
        assert shown.end() == Exit.NOT_FOUND

    assert f"there is no job {running.id}" in shown.lines[-1]


def test_waiting_ends_with_the_job(url: str, store: Store) -> None:
    [job] = store.add([records.record()])
    with terminal(url, 120, "wait", str(job.id), "--timeout", "1m") as shown:
        shown.heed("0/1")
        store.cancel(job.id, "enough", store.now())
        assert shown.end() == Exit.UNSUCCESSFUL

    assert shown.lines[-1].endswith(f"{ids.short(job.id)} CANCELED Canceled: enough")


def test_waiting_on_a_terminal_gives_up_too(url: str, store: Store) -> None:
    [job] = store.add([records.record()])
    with terminal(url, 120, "wait", str(job.id), "--timeout", "0.7") as shown:
        assert shown.end() == Exit.UNFINISHED

    assert f"still open after 0.7 s: {job.id}" in shown.shown
