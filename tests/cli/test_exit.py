"""Each reason to leave has an exit code of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.model.record import Cause, Status
from taskqueue.store import Store
from tests.cli import records
from tests.cli.conftest import Answer
from tests.nodes import LIMIT

Taskqueue = Callable[..., Answer]
WAITING, CANCELED, UNKNOWN = "65f0" * 6, "65f1" * 6, "65f2" * 6


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (0, ["show", WAITING]),
        (1, ["recover", WAITING]),
        (2, ["list", "--no-such-option"]),
        (3, ["list", "--limit", "many"]),
        (4, ["--url", "sqlite:////no/such/folder/jobs.db", "list"]),
        (9, ["show", UNKNOWN]),
        (10, ["wait", WAITING, "--timeout", "0"]),
        (11, ["wait", CANCELED]),
    ],
)
def test_each_reason_leads_to_a_code_of_its_own(
    taskqueue: Taskqueue, store: Store, code: int, arguments: list[str]
) -> None:
    canceled = records.record(id=CANCELED, status=Status.CANCELED, cause=Cause.CANCELED)
    store.add([records.record(id=WAITING), canceled])

    assert taskqueue(*arguments).code == code


def test_no_two_reasons_share_a_code() -> None:
    assert len(Exit.__members__) == len({int(code) for code in Exit}) == len({code.meaning for code in Exit})


SHORT_OF_MEMORY = """
import resource
import sys
from pathlib import Path

from taskqueue.cli.main import main

arguments = ["list", "--json", "--url", sys.argv[1]]
assert main(arguments) == 0
mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + 1_000_000,) * 2)
sys.exit(main(arguments))
"""


def test_a_lack_of_memory_is_named_in_one_line(store: Store) -> None:
    store.add([records.record(data=f'"{"x" * 900_000}"') for _ in range(40)])
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY, store.url], capture_output=True, text=True, timeout=LIMIT
    )

    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("taskqueue: out of memory: allow this process more")
