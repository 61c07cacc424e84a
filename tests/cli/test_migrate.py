"""``taskqueue migrate`` says what it would do, does it, and says so."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import psycopg
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

    assert dry.out.endswith("stop the nodes of an older taskqueue first: web-1\n")
    assert refused.code == Exit.STORE
    assert refused.complaint.endswith("nodes of an older taskqueue run on it (web-1): stop them first")


@pytest.mark.parametrize("options", [("--sql",), ("--grants", "add", "web")])
def test_the_sql_of_another_store_than_postgresql_is_refused(taskqueue: Taskqueue, options: tuple[str, ...]) -> None:
    refused = taskqueue("migrate", *options)

    assert refused.code == Exit.CONFIG
    assert "only PostgreSQL has --sql and --grants: leave them out" in refused.complaint


@pytest.mark.parametrize("other", ["--json", "--dry-run"])
def test_sql_is_printed_alone(taskqueue: Taskqueue, other: str) -> None:
    refused = taskqueue("migrate", "--sql", other)

    assert refused.code == Exit.USAGE
    assert "pass them without --dry-run and --json" in refused.err


def test_an_administrator_gets_sql_for_the_store_and_its_users(
    postgresql_url: str, taskqueue: Taskqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"migrated_{secrets.token_hex(6)}"
    url = f"{postgresql_url}?taskqueue.schema={name}"
    with psycopg.connect(postgresql_url, autocommit=True) as administrator:
        administrator.execute(f'CREATE ROLE "{name} user"')
        try:
            to_create = taskqueue("--url", url, "migrate", "--sql", "--grants", "add", f"{name} user").out
            assert to_create.startswith(f"BEGIN;\nCREATE SCHEMA {name};\n")
            assert to_create.endswith(f' ON {name}.jobs TO "{name} user";\n')
            administrator.execute(to_create)
            assert taskqueue("--url", url, "migrate", "--sql").out.endswith("nothing to do\n")

            install_next_version(monkeypatch)
            to_migrate = taskqueue("--url", url, "migrate", "--sql").out
            assert taskqueue("--url", url, "list").code == Exit.STORE
            administrator.execute(to_migrate)
            assert taskqueue("--url", url, "list").out == "no jobs\n"
            [color] = administrator.execute(f"SELECT count(*) FROM {name}.colors").fetchone() or [None]
            assert color == 0
        finally:
            administrator.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
            administrator.execute(f'DROP ROLE "{name} user"')
