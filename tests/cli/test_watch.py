"""``--watch`` shows lists and figures again and again, and leaves the terminal as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.store import Store
from tests.cli import records
from tests.cli.conftest import Answer
from tests.cli.test_terminal import terminal
from tests.nodes import LIMIT

Taskqueue = Callable[..., Answer]
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
FOOT = "q ends"


def test_a_list_is_redrawn_in_place_until_q_is_pressed(url: str, store: Store) -> None:
    with terminal(url, 80, "list", "--watch", "1") as shown:
        shown.heed(FOOT)
        assert not shown.reads_lines
        store.add([records.record(queue="mail")])
        shown.heed("shop.mail:MailJob")
        shown.type("xq")

        assert shown.end() == 0
        assert shown.reads_lines
    assert shown.shown.count(ENTER) == 1
    assert shown.shown.rstrip().endswith(LEAVE)
    assert "\x1b[2J" not in shown.shown  # a cleared screen flickers
    assert "\x1b[K\r\n" not in shown.shown  # a full line would lose its last character


def test_the_screen_follows_the_size_of_the_terminal(url: str, store: Store) -> None:
    store.add([replace(records.record(), job=f"shop.{'customers.' * 9}:MailJob")])
    with terminal(url, 80, "list", "--watch", "1h") as shown:
        shown.heed(FOOT)
        assert ".customers.:MailJob" in shown.shown
        shown.resize(200)
        shown.heed(f"shop.{'customers.' * 9}:MailJob")
        shown.type("q")
        assert shown.end() == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_whoever_interrupts_it_gets_the_terminal_back(url: str, signum: signal.Signals) -> None:
    with terminal(url, 80, "stats", "--watch") as shown:
        shown.heed(FOOT)
        shown.process.send_signal(signum)

        assert shown.end() == Exit.INTERRUPTED
        assert shown.reads_lines
    assert LEAVE in shown.shown


def test_the_terminal_is_given_back_while_the_command_is_stopped(url: str) -> None:
    with terminal(url, 80, "nodes", "--watch") as shown:
        shown.heed(FOOT)
        shown.process.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(shown.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        shown.heed(LEAVE)
        assert shown.reads_lines

        before = len(shown.shown)
        shown.process.send_signal(signal.SIGCONT)
        while FOOT not in shown.shown[before:]:
            shown.heed_more()
        shown.type("q")
        assert shown.end() == 0


def test_more_than_a_screen_is_cut_and_counted(url: str, store: Store) -> None:
    store.add([records.record() for _ in range(30)])
    with terminal(url, 80, "list", "--limit", "0", "--watch") as shown:
        shown.heed("… 8 more lines")
        shown.heed(FOOT)
        shown.type("q")
        assert shown.end() == 0


def test_an_outage_is_shown_and_outlived(url: str, tmp_path: Path, store: Store) -> None:
    store.add([records.record(queue="mail")])
    database = tmp_path / "jobs.db"
    with terminal(url, 300, "stats", "--watch", "1") as shown:  # wide enough for the path in one line
        shown.heed(FOOT)
        os.rename(database, away := tmp_path / "away.db")
        shown.heed("jobs.db")
        os.rename(away, database)
        before = shown.shown.count(FOOT)
        while shown.shown.count(FOOT) == before:
            shown.heed_more()
        shown.type("q")
        assert shown.end() == 0


def test_in_a_pipe_each_look_is_printed_below_its_time(url: str, store: Store) -> None:
    store.add([records.record(queue="mail")])
    with subprocess.Popen(
        [sys.executable, "-m", "taskqueue", "--url", url, "stats", "--watch", "1"], stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        first, second = ([watching.stdout.readline() for _ in range(4)] for _ in range(2))
        watching.send_signal(signal.SIGINT)
        assert watching.wait(LIMIT) == Exit.INTERRUPTED

    assert first[0] < second[0]
    assert first[1:3] == second[1:3]
    assert first[2].split()[0] == "mail"
    assert "\x1b" not in "".join(first + second)


@pytest.mark.parametrize("name", ["list", "nodes", "stats"])
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--watch", "--json"), Exit.USAGE, "--watch is for people"),
        (("--watch", "0.5"), Exit.CONFIG, "write 1 second or more"),
        (("--watch", "often"), Exit.CONFIG, "'often' is not a duration"),
    ],
)
def test_a_watch_that_cannot_be_is_refused(
    taskqueue: Taskqueue, name: str, arguments: tuple[str, ...], code: Exit, words: str
) -> None:
    answer = taskqueue(name, *arguments)

    assert (answer.code, answer.out) == (code, "")
    assert words in answer.complaint


def test_a_store_that_is_not_there_is_said_as_without_a_watch(taskqueue: Taskqueue, tmp_path: Path) -> None:
    answer = taskqueue("--url", f"sqlite://{tmp_path}/absent.db", "stats", "--watch")

    assert (answer.code, answer.out) == (Exit.STORE, "")
    assert "there is no such store" in answer.complaint
