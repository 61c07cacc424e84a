"""A shell completes commands, options, and the names that a store holds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest

from taskqueue.store import Lease, Store
from tests.cli import records
from tests.cli.conftest import Answer
from tests.cli.records import NOW
from tests.nodes import LIMIT

Taskqueue = Callable[..., Answer]


def completed(url: str, line: str) -> list[str]:
    """Return what bash offers at the end of the line."""
    words = line.split(" ")
    done = subprocess.run(
        [sys.executable, "-m", "taskqueue"],
        env={
            **os.environ,
            "TASKQUEUE_URL": url,
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "_TASKQUEUE_COMPLETE": "bash_complete",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [each.partition(",")[2] for each in done.stdout.splitlines() if each]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_written(taskqueue: Taskqueue, shell: str) -> None:
    answer = taskqueue("completion", shell)

    assert answer.code == 0
    assert f"_TASKQUEUE_COMPLETE={shell}_complete" in answer.out


def test_names_of_the_store_are_completed(url: str, store: Store, taskqueue: Taskqueue) -> None:
    [job] = store.add([records.record(queue="mail", tags=("customer:initech",))])
    taskqueue("schedule", "add", "nightly", "shop:Report", "--every", "1d")
    holder = records.in_every_status()["running"].holder
    assert holder is not None
    now = store.now()
    store.acquire(Lease(name="seat:web-1", holder=holder, since=NOW, until=now + timedelta(minutes=1)), now)

    assert completed(url, f"taskqueue show {str(job.id)[:4]}") == [str(job.id)]
    assert completed(url, "taskqueue pause m") == ["mail"]
    assert completed(f"{url}.absent", f"taskqueue pause --url {url} m") == ["mail"]
    assert completed(url, "taskqueue schedule show n") == ["nightly"]
    assert completed(url, "taskqueue drain w") == ["web-1"]
    assert completed(url, "taskqueue list --job shop") == ["shop.mail:MailJob"]
    assert completed(url, "taskqueue list cl") == ["class:", "class:shop.mail:MailJob"]
    assert completed(url, "taskqueue list customer:") == ["customer:initech"]
    assert completed(url, "taskqueue list status:fa") == ["status:failed"]


def test_without_a_store_commands_are_completed_and_nothing_else(url: str) -> None:
    nowhere = f"{url}.absent"

    assert completed(nowhere, "taskqueue comp") == ["completion"]
    assert completed(nowhere, "taskqueue rec") == ["recover"]
    assert completed(nowhere, "taskqueue show 6") == []
