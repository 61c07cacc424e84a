"""``taskqueue migrate`` says what it would do, does it, and says so."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.model.record import Holder
from taskqueue.store import SCHEMA_VERSION, Lease
from taskqueue.store.migration import STEPS
from taskqueue.store.open import open_store
from tests.cli.conftest import Answer

Taskqueue = Callable[..., Answer]
PLAN = [f"to schema {number}: {what}" for number, what in STEPS.items()]


@pytest.fixture
def older(url: str) -> str:
    """Return the URL of a store with schema 0."""
    open_store(url).close()
    with closing(sqlite3.connect(url.removeprefix("sqlite://"))) as raw:
        raw.execute("DROP INDEX jobs_ended")
        raw.execute("PRAGMA user_version = 0")
    return url


def test_a_store_of_this_version_needs_nothing(taskqueue: Taskqueue) -> None:
    taskqueue("add", "shop:Job")

    assert (
        taskqueue("migrate").out
        == f"the store has schema {SCHEMA_VERSION}, the schema of this version: nothing to do\n"
    )


@pytest.mark.usefixtures("older")
def test_commands_point_to_migrate_which_works_after_a_dry_run(taskqueue: Taskqueue) -> None:
    assert taskqueue("list").complaint.endswith(f"knows version {SCHEMA_VERSION}: run `taskqueue migrate`")
    assert taskqueue("migrate", "--dry-run").out.splitlines() == [f"would go {step}" for step in PLAN]
    assert taskqueue("migrate").out.splitlines() == [f"went {step}" for step in PLAN]
    assert taskqueue("list").out == "no jobs\n"


@pytest.mark.usefixtures("older")
def test_programs_get_the_plan_as_json(taskqueue: Taskqueue) -> None:
    dry = taskqueue("migrate", "--dry-run", "--json").document
    assert (dry["found"], dry["known"], [step["schema"] for step in dry["steps"]]) == (
        *(0, SCHEMA_VERSION, list(STEPS)),
    )
    assert not dry["migrated"]
    assert taskqueue("migrate", "--json").document["migrated"]


def test_nodes_of_an_older_version_are_named(url: str, taskqueue: Taskqueue) -> None:
    with closing(open_store(url)) as store:
        now = store.now()
        holder = Holder(seat="web-1", incarnation="a1")
        store.acquire(Lease(name="seat:web-1", holder=holder, since=now, until=now + timedelta(hours=1)), now)
    with closing(sqlite3.connect(url.removeprefix("sqlite://"))) as raw:
        raw.execute("PRAGMA user_version = 0")

    dry = taskqueue("migrate", "--dry-run")
    refused = taskqueue("migrate")

    assert dry.out.endswith("nodes of an older taskqueue must be upgraded first: web-1\n")
    assert refused.code == Exit.STORE
    assert refused.complaint.endswith("nodes of an older taskqueue run on it (web-1): upgrade them first")
