"""Every option, variable, command, exit code, attribute and argument that a page names exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.names import CHECKOUT, wrong_names

PAGES = (*sorted(CHECKOUT.glob("*.md")), *sorted((CHECKOUT / "docs").rglob("*.md")))

FOREIGN = {
    *("--hostname", "--nginx", "--now", "--oplog", "--oplogReplay"),  # docker, certbot, systemctl, mongodump
    *("--schema", "--format", "--file", "--dbname", "sslmode=", "sslrootcert="),  # pg_dump, pg_restore, libpq
    "--name-of-the-option",
    *("disable_existing_loggers=", "isolation_level=", "max_failures=", "w="),  # logging, sqlite3, lzq, MongoDB
    "synchronous=",  # a parameter of the URL of a SQLite store
    "retyr=",  # a slip that a page shows
    *(".venv", ".json", ".item"),  # a folder, and what a file or a key of a page's own data ends with
}
"""What pages name of other systems, or as an example."""


def is_migration(page: Path) -> bool:
    """Return whether the first column of the page's tables is of another system."""
    return page.name.startswith("from-") or page.parent.name == "ancestors"


def test_what_a_page_names_exists() -> None:
    wrong = {page: {*wrong_names(page.read_text(), is_migration=is_migration(page))} - FOREIGN for page in PAGES}

    assert {page: names for page, names in wrong.items() if names} == {}


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ("`taskqueue-node --keep-events 3d`", "taskqueue-node --keep-events"),
        ("`taskqueue list --keep-done 3d`, an option of another command", "taskqueue list --keep-done"),
        ("`taskqueue schedule add mail --burst`", "taskqueue schedule add --burst"),
        ("keep events with `--keep-events`", "--keep-events"),
        ("`TASKQUEUE_LEASES` is a variable", "TASKQUEUE_LEASES"),
        ("| `taskqueue workers` | a command |", "taskqueue workers"),
        ("it leaves with exit code 99", "exit code 99"),
        ("`scheduler.enqueue(job)`", "scheduler.enqueue"),
        ("`pending` | `present.zombies`, `.lost`", "present.zombies"),
        ("`pending` | `present.queued`, `.vanished`", ".vanished"),
        ("`job.percent`", "job.percent"),
        ("`self.check_point(state)`", "self.check_point"),
        ("`StepwiseJob.repeat`", "StepwiseJob.repeat"),
        ("`retry.fibonacci()`", "retry.fibonacci"),
        ("`taskqueue.errors.NoSuchError`", "taskqueue.errors.NoSuchError"),
        ("`add_job(MailJob, expire=5)`", "add_job(expire=)"),
        ("`retries=3` of the class", "retries="),
    ],
)
def test_a_wrong_name_is_found(wrong: str, name: str) -> None:
    page = f"# A page\n\n{wrong}\n\n```sh\ntaskqueue anything --in-a-block\n```\n"

    assert list(wrong_names(page)) == [name]


def test_the_column_of_another_system_is_not_looked_at() -> None:
    page = "| there | here |\n| --- | --- |\n| `self.retries \\| job.x` | `self.attempt`, `--tries` |\n"

    assert list(wrong_names(page, is_migration=True)) == ["--tries"]
    assert "self.retries" in list(wrong_names(page))
