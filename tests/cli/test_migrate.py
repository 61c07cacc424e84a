"""``taskqueue migrate`` says what it would do, does it, and says so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.model.record import Holder
from taskqueue.store import SCHEMA_VERSION, Lease
from taskqueue.store.open import open_store
from tests.cli.conftest import Answer
from tests.store.next_version import NEXT, WHAT, install_next_version

Taskqueue = Callable[..., Answer]


@pytest.fixture
def older(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a store that the next version has to migrate."""
    open_store(url).close()
    install_next_version(monkeypatch)
    return url


def test_a_store_of_this_version_needs_nothing(taskqueue: Taskqueue) -> None:
    taskqueue("add", "shop:Job")

    words = f"the store has schema {SCHEMA_VERSION}, the schema of this version: nothing to do\n"
    assert taskqueue("migrate").out == words


@pytest.mark.usefixtures("older")
def test_commands_point_to_migrate_which_works_after_a_dry_run(taskqueue: Taskqueue) -> None:
    assert taskqueue("list").complaint.endswith(f"knows version {NEXT}: run `taskqueue migrate`")
    assert taskqueue("migrate", "--dry-run").out == f"would go to schema {NEXT}: {WHAT}\n"
    assert taskqueue("migrate").out == f"went to schema {NEXT}: {WHAT}\n"
    assert taskqueue("list").out == "no jobs\n"


@pytest.mark.usefixtures("older")
def test_programs_get_the_plan_as_json(taskqueue: Taskqueue) -> None:
    dry = taskqueue("migrate", "--dry-run", "--json").document
    assert (dry["found"], dry["known"]) == (SCHEMA_VERSION, NEXT)
    assert dry["steps"] == [{"schema": NEXT, "what": WHAT}]
    assert not dry["migrated"]
    assert taskqueue("migrate", "--json").document["migrated"]


def test_nodes_that_still_run_are_named(url: str, taskqueue: Taskqueue, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_store(url)) as store:
        now = store.now()
        holder = Holder(seat="web-1", incarnation="a1")
        store.acquire(Lease(name="seat:web-1", holder=holder, since=now, until=now + timedelta(hours=1)), now)
    install_next_version(monkeypatch)

    dry = taskqueue("migrate", "--dry-run")
    refused = taskqueue("migrate")

    assert dry.out.endswith("nodes of an older taskqueue must be stopped first: web-1\n")
    assert refused.code == Exit.STORE
    assert refused.complaint.endswith("nodes of an older taskqueue run on it (web-1): stop them first")
