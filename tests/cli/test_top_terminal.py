"""``taskqueue top`` on a real terminal: what a person sees at 80×24 and 120×40, and what is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from taskqueue.exit_codes import Exit
from taskqueue.model.query import parse
from taskqueue.model.record import Status
from taskqueue.store import Store
from tests.cli import records
from tests.nodes import LIMIT, eventually

COLOURED = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])[;m]")


class Terminal:
    """A terminal of tmux in which a shell runs the command, and then says how it ended."""

    def __init__(self, folder: str, url: str, size: tuple[int, int], *options: str, **environment: str) -> None:
        self._socket = f"{folder}/tmux"
        command = " ".join([sys.executable, "-m", "taskqueue", "--url", url, "top", *options])
        script = f"{command}; echo left with $?; stty -a | grep -ow -e -icanon -e icanon -e -echo -e echo; exec cat"
        wide, high = map(str, size)
        inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TMUX", "COLUMNS")}
        self._environment = {**inherited, "LANG": "C.UTF-8", **environment}
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", wide, "-y", high, "sh", "-c", script)

    def press(self, *keys: str) -> None:
        """Press these keys."""
        self._tmux("send-keys", *keys)

    def resize(self, wide: int, high: int) -> None:
        """Give the terminal another size."""
        self._tmux("resize-window", "-x", str(wide), "-y", str(high))

    def lines(self, *options: str) -> list[str]:
        """Return the lines on the terminal."""
        return self._tmux("capture-pane", "-p", *options).splitlines()

    def shows(self, *texts: str) -> list[str]:
        """Wait until the terminal shows the texts, and return its lines."""
        ends_at = time.monotonic() + LIMIT
        while not all(text in "\n".join(lines := self.lines()) for text in texts):
            assert time.monotonic() < ends_at, "\n".join([f"{texts} are not among:", *lines])
            time.sleep(0.02)
        return lines

    def pid(self) -> int:
        """Return the process id of the command."""
        shell = self._tmux("display-message", "-p", "#{pane_pid}").strip()
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", shell], capture_output=True, text=True)
        return int(found.stdout)

    def close(self) -> None:
        """End everything that runs in it.

        A traced thread of Python 3.11 spins if it gets the signal while the main thread waits for it: it is killed.
        """
        shell = int(self._tmux("display-message", "-p", "#{pane_pid}"))
        started = psutil.Process(shell).children(recursive=True)
        self._tmux("kill-server")
        _, alive = psutil.wait_procs(started, timeout=LIMIT)
        for process in alive:
            process.kill()

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env=self._environment,
            check=True,
        )
        return done.stdout


Opened = Callable[..., Terminal]


@contextmanager
def terminal(url: str, size: tuple[int, int], *options: str, **environment: str) -> Iterator[Terminal]:
    """Run the command on a terminal."""
    with tempfile.TemporaryDirectory(prefix="tq-") as folder:
        opened = Terminal(folder, url, size, *options, **environment)
        try:
            yield opened
        finally:
            opened.close()


@pytest.mark.parametrize(("size", "queues"), [((80, 24), 3), ((120, 40), 12)])
def test_the_panes_fit_the_terminal(url: str, store: Store, size: tuple[int, int], queues: int) -> None:
    store.add(list(records.in_every_status().values()))
    store.add([records.record(queue=f"queue-{number}-{'long' * 20}") for number in range(queues)])
    with terminal(url, size) as shown:
        shown.shows("Last hour (yesterday): 1 done (none), 67 % failed (–)")
        lines = shown.shows("needs attention", "queues", "running 2", "nodes 0", "web-1", "s stack f fails ?")
        assert len(lines) == size[1]
        assert all(len(line) <= size[0] for line in lines)
        assert lines[2] == "Later: 1 scheduled, 1 retrying, 1 blocked"
        assert sum("…" in line for line in lines if line.lstrip().startswith("queue-")) >= 2
        shown.press("Tab", "Tab")
        shown.shows("shop.mail:MailJob", "attempt 1, queue default: page 9")
        shown.resize(60, 20)
        eventually(lambda: max(map(len, shown.lines())) <= 60)
        shown.shows("attempt 1, queue", "running 2")
        shown.press("c")
        shown.shows("Cancel 1 job?", "PROCESSING", "enter: confirm   esc: go back")
        shown.press("Escape")
        eventually(lambda: "Cancel" not in "\n".join(shown.lines()))
        shown.press("q")
        shown.shows("left with 0", "icanon", "echo")
    assert store.find(parse({"status": int(Status.PROCESSING)}))[0].cancel is None


@pytest.mark.parametrize("end", ["C-c", "SIGTERM", "SIGHUP"])
def test_the_terminal_is_as_before_however_it_ends(url: str, store: Store, end: str) -> None:
    with terminal(url, (80, 24)) as shown:
        shown.shows("needs attention")
        if end == "C-c":
            shown.press(end)
        else:
            os.kill(shown.pid(), signal.Signals[end])
        lines = shown.shows(f"left with {int(Exit.INTERRUPTED)}", "echo")
        assert "needs attention" not in "\n".join(lines)
        assert [line for line in lines if line][-2:] == ["icanon", "echo"]


def test_an_outage_keeps_the_last_state_and_the_keys(url: str, store: Store, tmp_path: Path) -> None:
    store.add([records.record(queue="mail")])
    with terminal(url, (80, 24), "--read-only") as shown:
        shown.shows("mail", "live")
        os.rename(tmp_path / "jobs.db", tmp_path / "away.db")
        shown.shows("store unavailable since", "offline", "mail")
        shown.press("Tab", "c")
        shown.shows("read-only: start `taskqueue top` without --read-only to act")
        os.rename(tmp_path / "away.db", tmp_path / "jobs.db")
        shown.shows("live")
        shown.press("q")
        shown.shows("left with 0")


@pytest.mark.parametrize(("environment", "has_colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_those_of_states_or_none(
    url: str, store: Store, environment: dict[str, str], has_colours: bool
) -> None:
    store.add([records.record(queue="mail")])
    with terminal(url, (80, 24), **environment) as shown:
        shown.shows("error", "never")
        found = [line for line in shown.lines("-e") if COLOURED.search(line)]
        assert bool(found) is has_colours
        assert all("error" in line or "warning" in line or "never" in line for line in found)
        shown.press("q")
