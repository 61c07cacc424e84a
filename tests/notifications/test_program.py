"""A command gets a message at its standard input, and takes it with exit code 0."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import psutil
import pytest

from taskqueue.errors import ConfigError
from taskqueue.notifications import program, receiver_of
from taskqueue.notifications.program import Program
from taskqueue.notifications.receiver import NotDelivered
from tests.nodes import eventually
from tests.notifications.receivers import MESSAGE, command


def test_a_command_gets_the_message_and_its_id(tmp_path: Path) -> None:
    receiver_of(command(tmp_path)).send(MESSAGE, os.environ)

    assert json.loads((tmp_path / "msg_1.json").read_text()) == MESSAGE.document()


def test_a_command_does_not_get_the_secrets_of_others(tmp_path: Path) -> None:
    secrets = dict.fromkeys(("TASKQUEUE_URL", "TASKQUEUE_NOTIFY", "TASKQUEUE_NOTIFY_KEY"), "s3cret")
    receiver_of(command(tmp_path, 'env > "$OUT/env"')).send(MESSAGE, {**os.environ, **secrets})

    assert "s3cret" not in (tmp_path / "env").read_text()


def test_a_command_that_fails_has_not_taken_the_message_and_is_quoted(tmp_path: Path) -> None:
    failing = command(tmp_path, "echo no route to the pager >&2; exit 3")

    with pytest.raises(NotDelivered, match=r"^ended with exit code 3: no route to the pager$"):
        receiver_of(failing).send(MESSAGE, os.environ)


def test_a_command_that_reads_nothing_has_taken_the_message(tmp_path: Path) -> None:
    receiver_of(command(tmp_path, "exit 0")).send(MESSAGE, os.environ)


def test_what_a_command_leaves_running_ends_with_it(tmp_path: Path) -> None:
    leaving = command(tmp_path, 'sleep 600 2>/dev/null & echo $! > "$OUT/pid"')
    receiver_of(leaving).send(MESSAGE, os.environ)

    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_command_has_taken_a_message_when_it_ends_whatever_it_leaves_running(tmp_path: Path) -> None:
    leaving = command(tmp_path, "sleep 600 & echo done >&2; exit 3")

    with pytest.raises(NotDelivered, match=r"^ended with exit code 3: done$"):
        receiver_of(leaving).send(MESSAGE, os.environ)


def test_a_command_that_does_not_end_is_killed_and_only_the_end_of_its_words_is_kept(tmp_path: Path) -> None:
    endless = Program(command(tmp_path, "exec yes a very long complaint >&2"), within=2.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(NotDelivered, match=r"^did not end within 2 s$"):
        endless.send(MESSAGE, os.environ)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


def test_a_message_needs_no_place_on_a_disk(tmp_path: Path) -> None:
    receiver_of(command(tmp_path, 'readlink /proc/self/fd/0 > "$OUT/stdin"')).send(MESSAGE, os.environ)

    assert (tmp_path / "stdin").read_text().startswith("/memfd:")


def test_a_command_that_cannot_be_executed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no-format"
    path.write_bytes(b"\x7fELF nothing")
    path.chmod(0o755)

    with pytest.raises(NotDelivered, match=r"^cannot be started: Exec format error$"):
        receiver_of(str(path)).send(MESSAGE, os.environ)


@pytest.mark.parametrize("text", ["page --team ops", "", "ftp://example.org/x", "a\nb"])
def test_what_is_no_receiver_at_all_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a receiver: pass a URL"):
        program.program_of(text)


def test_a_program_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--notify /nowhere/page is not a program that this user can run"):
        receiver_of("/nowhere/page").check(os.environ)
