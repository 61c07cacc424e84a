"""The reference says what the code does: its tables and its diagram are the code's."""

from __future__ import annotations

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.model.events import EVENTS
from taskqueue.model.record import Cause, Status
from tests.docs import tables


@pytest.mark.parametrize("path", tables.PARTS)
def test_the_page_says_what_the_code_says(path: str) -> None:
    assert tables.page(path) == tables.renewed(path), "run: python -m tests.docs.tables"


def test_every_way_to_write_an_option_is_in_the_reference() -> None:
    assert "`--retry-on-timeout / --no-retry-on-timeout`" in tables.page("reference/job-commands.md")
    assert "`-n, --count " in tables.page("reference/schedule-commands.md")


@pytest.mark.parametrize("word", [*(status.name for status in Status), *(cause.value for cause in Cause)])
def test_every_status_and_cause_is_explained(word: str) -> None:
    assert f"| `{word}` |" in tables.page("reference/states.md")


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_is_explained(name: str) -> None:
    page = tables.page("how-to/applications/events.md")
    told = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert any(f"`{name}`" in names for names in told)


def test_every_exit_code_has_a_meaning() -> None:
    assert all(code.meaning for code in Exit)
