"""``taskqueue backup`` writes a whole store beside those who work, or nothing."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.store import Note
from taskqueue.store.open import open_store
from tests.cli.conftest import Answer
from tests.store.records import WEB_1, a_record, all_kept, ids, running

Taskqueue = Callable[..., Answer]


def test_a_backup_is_a_store_with_all_that_was_acknowledged(taskqueue: Taskqueue, url: str, tmp_path: Path) -> None:
    file = tmp_path / "backup.db"
    with closing(open_store(url)) as store, closing(sqlite3.connect(url.removeprefix("sqlite://"))) as busy:
        store.add([a_record() for _ in range(3)])
        busy.execute("BEGIN IMMEDIATE")  # somebody writes meanwhile

        answer = taskqueue("backup", str(file))

        expected = ids(all_kept(store))
    assert answer.out == f"{file} holds a copy of the store: {file.stat().st_size:,} bytes\n"
    assert file.stat().st_mode & 0o777 == 0o600
    with closing(open_store(str(file))) as copy:
        assert ids(all_kept(copy)) == expected
        copy.add([a_record()])
        assert len(all_kept(copy)) == 4


def test_a_backup_has_the_log_lines_of_jobs(taskqueue: Taskqueue, url: str, tmp_path: Path) -> None:
    with closing(open_store(url)) as store:
        record = running(store, a_record())
        store.note(WEB_1, {record.id: Note(lines="1\n")})

    taskqueue("backup", str(tmp_path / "backup.db"))

    with closing(open_store(str(tmp_path / "backup.db"))) as copy:
        assert copy.log_lines(record.id) == {1: "1\n"}


def test_a_file_that_exists_is_not_replaced(taskqueue: Taskqueue, tmp_path: Path) -> None:
    taskqueue("add", "shop:Job")
    file = tmp_path / "backup.db"
    file.write_text("last week")

    answer = taskqueue("backup", str(file))

    assert answer.code == Exit.CONFIG
    assert "already exists" in answer.complaint
    assert file.read_text() == "last week"
    assert sorted(path.name for path in tmp_path.glob("backup.db*")) == ["backup.db"]


@pytest.mark.parametrize(
    ("address", "file", "code", "complaint"),
    [
        ("mongodb://localhost/jobs", "b.db", Exit.CONFIG, "mongodump"),
        ("nothing.db", "b.db", Exit.STORE, "there is no such file"),
        ("", "nowhere/b.db", Exit.CONFIG, "cannot be written"),
        ("", "~nobody-has-this-name/b.db", Exit.CONFIG, "is in the home folder of an unknown user"),
    ],
)
def test_what_cannot_be_backed_up_is_named(
    taskqueue: Taskqueue, tmp_path: Path, address: str, file: str, code: Exit, complaint: str
) -> None:
    taskqueue("add", "shop:Job")
    which = ("--url", address if "://" in address else str(tmp_path / address)) if address else ()

    answer = taskqueue(*which, "backup", file if file.startswith("~") else str(tmp_path / file))

    assert answer.code == code
    assert complaint in answer.complaint
    assert not list(tmp_path.rglob("b.db*"))
    assert not (tmp_path / "nothing.db").exists()


def test_a_name_that_is_no_text_is_refused(taskqueue: Taskqueue, tmp_path: Path) -> None:
    taskqueue("add", "shop:Job")

    answer = taskqueue("backup", f"{tmp_path}/\udcff.db")

    assert answer.code == Exit.CONFIG
    assert "is not UTF-8, which SQLite needs: name another file" in answer.err
    assert not list(tmp_path.glob("*unfinished*"))


def test_what_a_killed_backup_left_is_named(taskqueue: Taskqueue, tmp_path: Path) -> None:
    taskqueue("add", "shop:Job")
    left = tmp_path / f"backup.db.{os.getpid()}.unfinished"
    left.touch()

    answer = taskqueue("backup", f"{tmp_path}/backup.db")

    assert answer.code == Exit.CONFIG
    assert f"{left} is left over from a backup that was killed: remove it" in answer.err
    assert left.exists()
