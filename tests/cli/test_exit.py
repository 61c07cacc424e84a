"""Each reason to leave has an exit code of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.model.record import Cause, Status
from taskqueue.store import Store
from tests.cli import records
from tests.cli.conftest import Answer

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
