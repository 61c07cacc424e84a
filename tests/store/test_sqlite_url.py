"""Addresses of SQLite stores: what they mean, who may read the files, and which files are refused with a reason."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from taskqueue.errors import ConfigError, SchemaMismatch, StoreUnavailable
from taskqueue.store import SCHEMA_VERSION
from taskqueue.store.bell import WORK
from taskqueue.store.open import default_url, open_store, resolved
from taskqueue.store.sqlite.url import SqliteUrl, filesystem, location, prepare
from tests.store.children import in_child
from tests.store.records import a_record, all_kept

NOBODY = 65534


@pytest.fixture
def environment() -> Iterator[None]:
    """Give the environment back as it was."""
    before = dict(os.environ)
    for name in ("TASKQUEUE_URL", "STATE_DIRECTORY", "XDG_STATE_HOME"):
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)


def refused(url: str | Path) -> StoreUnavailable:
    """Return the error of opening, which names the file."""
    with pytest.raises(StoreUnavailable) as raised:
        open_store(str(url))
    return raised.value


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("form", ["sqlite://{}", "{}"], ids=["address", "path"])
def test_an_address_and_a_bare_path_mean_the_same_file(tmp_path: Path, form: str) -> None:
    with closing(open_store(form.format(tmp_path / "jobs.db"))) as store:
        assert store.url == f"sqlite://{tmp_path}/jobs.db"
        store.add([a_record()])

    with closing(open_store(str(tmp_path / "jobs.db"))) as store:
        assert len(all_kept(store)) == 1


def test_a_path_with_strange_characters_can_be_written_as_an_address(tmp_path: Path) -> None:
    path = tmp_path / "a b?c#ü%41.db"

    with closing(open_store(f"sqlite://{quote(str(path))}")) as store:
        store.add([a_record()])
        assert store.url == f"sqlite://{quote(str(path))}"

    assert path.exists()


def test_symbolic_links_and_dots_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    assert location(f"{tmp_path}/link/../link/jobs.db").path == tmp_path / "real" / "jobs.db"


def test_a_relative_path_is_below_the_present_folder() -> None:
    assert location("jobs.db").path == Path.cwd() / "jobs.db"


def test_the_options_of_an_address_are_read() -> None:
    read = location("sqlite:///tmp/x.db?mode=0660&synchronous=NORMAL&timeout=0.5")

    assert read == SqliteUrl(path=Path("/tmp/x.db").resolve(), mode=0o660, synchronous="normal", timeout=0.5)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("sqlite://", "does not name a file"),
        ("sqlite://host/jobs.db", "does not name a file"),
        ("sqlite:///tmp/jobs.db?speed=11", "'speed'"),
        ("sqlite:///tmp/jobs.db?mode=rw", "mode='rw'"),
        ("sqlite:///tmp/jobs.db?mode=0444", "mode='0444'"),
        ("sqlite:///tmp/jobs.db?synchronous=off", "synchronous='off'"),
        ("sqlite:///tmp/jobs.db?timeout=soon", "timeout='soon'"),
        ("sqlite:///tmp/jobs.db?timeout=0", "timeout='0'"),
        ("sqlite:///tmp/x%00.db", "does not name a file"),
        ("jobs.db?mode=0660", "is not the address of a store"),
        ("mysql://host/jobs", "is not the address of a store"),
        ("postgresql+psycopg://h/jobs", "names a driver, as SQLAlchemy does: leave out +psycopg"),
        ("sqlite:///tmp/jobs.db#1", "'#1' of sqlite:///tmp/jobs.db#1 is not read: write %23 for a # in the path"),
        ("sqlite:///tmp/jobs.db?mode=0600&mode=0666", "mode is given twice"),
        ("/tmp/jobs.db ", "'/tmp/jobs.db ' begins or ends with a space"),
        (" /tmp/jobs.db", "begins or ends with a space"),
        ("/tmp/jobs.db\n", "begins or ends with a space"),
        ("sqlite:///tmp/jobs.db?mode=0660 ", "begins or ends with a space"),
        ("sqlite:///tmp/jobs.db ?mode=0660", "begins or ends with a space"),
        ('"/tmp/jobs.db"', "begins or ends with a quote"),
        ("'sqlite:///tmp/jobs.db'", "begins or ends with a quote"),
        ('sqlite:///tmp/jobs.db"', "begins or ends with a quote"),
        ('"mongodb://host/jobs"', "begins or ends with a quote"),
        ("/tmp/jobs.db # the jobs", "contains a comment"),
        ("   ", "begins or ends with a space"),
        ("~nobody-has-this-name/jobs.db", "is in the home folder of an unknown user"),
    ],
)
def test_a_wrong_address_is_refused_with_what_is_wrong(url: str, named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        open_store(url)


def test_the_guarantee_is_said_in_words(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite://{tmp_path}/a.db")) as full:
        assert "power cut" in full.guarantee
        assert "synchronous=full" in full.guarantee
    with closing(open_store(f"sqlite://{tmp_path}/b.db?synchronous=normal")) as normal:
        assert "synchronous=normal" in normal.guarantee


def test_without_an_address_the_environment_decides(environment: None, tmp_path: Path) -> None:
    os.environ["TASKQUEUE_URL"] = str(tmp_path / "mine.db")

    with closing(open_store()) as store:
        assert store.url == f"sqlite://{tmp_path}/mine.db"


def test_without_anything_the_state_folder_of_the_user_is_made(environment: None, tmp_path: Path) -> None:
    os.environ["HOME"] = str(tmp_path)

    with closing(open_store()) as store:
        assert store.url == f"sqlite://{tmp_path}/.local/state/taskqueue/jobs.db"
    assert permissions(tmp_path / ".local" / "state" / "taskqueue") == 0o700


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        (
            {"STATE_DIRECTORY": "/var/lib/taskqueue:/other", "XDG_STATE_HOME": "/x"},
            "sqlite:///var/lib/taskqueue/jobs.db",
        ),
        ({"XDG_STATE_HOME": "/x y"}, "sqlite:///x%20y/taskqueue/jobs.db"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/a"}, "sqlite:///home/a/.local/state/taskqueue/jobs.db"),
    ],
)
def test_the_default_follows_systemd_and_the_user(environment: None, variables: dict[str, str], url: str) -> None:
    os.environ.update(variables)

    assert default_url() == url


def test_a_user_without_a_home_folder_is_told_to_name_the_store(environment: None) -> None:
    os.environ["HOME"] = "~"  # as if neither a variable nor the password database had one

    with pytest.raises(ConfigError, match="has no home folder for a store: name the store, or set TASKQUEUE_URL"):
        open_store()


def test_a_resolved_address_opens_the_same_store_from_anywhere(environment: None, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    assert resolved(f"{tmp_path}/link/jobs.db") == f"sqlite://{tmp_path}/jobs.db"
    assert resolved(f"sqlite://{tmp_path}/jobs.db?mode=0660") == f"sqlite://{tmp_path}/jobs.db?mode=0660"
    assert resolved("mongodb://host/db") == "mongodb://host/db"


def test_a_default_folder_that_cannot_be_made_is_named(environment: None, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.environ["XDG_STATE_HOME"] = str(tmp_path / "file")

    with pytest.raises(StoreUnavailable, match="TASKQUEUE_URL"):
        open_store()


@pytest.mark.parametrize(("query", "mode", "folder"), [("", 0o600, 0o700), ("?mode=0660", 0o660, 0o770)])
def test_all_files_of_a_store_have_its_permissions(tmp_path: Path, query: str, mode: int, folder: int) -> None:
    with closing(open_store(f"sqlite://{tmp_path}/jobs.db{query}")) as store, closing(store.bell(WORK)):
        store.add([a_record()])

        bells = tmp_path / "jobs.db.bells"
        assert permissions(bells) & 0o777 == folder
        for path in (*(tmp_path / f"jobs.db{end}" for end in ("", "-wal", "-shm")), *bells.iterdir()):
            assert permissions(path) == mode


def test_files_in_a_folder_that_keeps_its_group_have_that_group(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2770)

    with closing(open_store(f"sqlite://{tmp_path}/shared/jobs.db?mode=0660")) as store, closing(store.bell(WORK)):
        assert (tmp_path / "shared" / "jobs.db.bells").stat().st_mode & stat.S_ISGID


def test_permissions_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with closing(open_store(f"sqlite://{tmp_path}/jobs.db?mode=0666")) as store, closing(store.bell(WORK)):
            store.add([a_record()])
            assert permissions(tmp_path / "jobs.db-wal") == 0o666
            assert permissions(tmp_path / "jobs.db.bells") == 0o777
    finally:
        os.umask(before)


def test_bells_have_the_permissions_of_a_database_that_was_there(tmp_path: Path) -> None:
    open_store(f"sqlite://{tmp_path}/jobs.db?mode=0660").close()

    with closing(open_store(f"{tmp_path}/jobs.db")) as store, closing(store.bell(WORK)):
        assert permissions(tmp_path / "jobs.db.bells") == 0o770


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").touch()

    with closing(open_store(f"{tmp_path}/jobs.db")) as store:
        store.add([a_record()])


def test_a_missing_folder_is_named_and_not_made(tmp_path: Path) -> None:
    error = refused(tmp_path / "missing" / "jobs.db")

    assert str(tmp_path / "missing") in str(error)
    assert "create it" in str(error)
    assert not (tmp_path / "missing").exists()


def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk\n" * 100)

    assert "not a SQLite database" in str(refused(path))
    assert path.read_text().startswith("remember")


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE books (title)")
    before = path.read_bytes()

    assert "another program" in str(refused(path))
    assert path.read_bytes() == before


def test_a_store_of_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    open_store(str(path)).close()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 99")

    with pytest.raises(SchemaMismatch, match="99") as raised:
        open_store(str(path))
    assert (raised.value.found, raised.value.known) == (99, SCHEMA_VERSION)


def test_a_damaged_database_is_named_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with closing(open_store(str(path))) as store:
        store.add([a_record() for _ in range(500)])
    damaged = bytearray(path.read_bytes())
    damaged[4096:] = os.urandom(len(damaged) - 4096)
    path.write_bytes(damaged)

    error = refused(path)

    assert str(path) in str(error)
    assert ".recover" in str(error)


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    assert "not a regular file" in str(refused(tmp_path))


def test_a_file_with_several_names_is_refused(tmp_path: Path) -> None:
    open_store(f"{tmp_path}/jobs.db").close()
    os.link(tmp_path / "jobs.db", tmp_path / "other.db")

    assert "2 hard links" in str(refused(tmp_path / "other.db"))


MOUNTS = """\
22 28 0:21 / /proc rw,nosuid shared:12 - proc proc rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 28 0:35 / /srv/shared rw shared:20 - nfs4 server:/export rw,vers=4.2
41 28 0:36 / /srv/my\\040data rw - fuse.sshfs me@host: rw
42 40 0:37 / /srv/shared/local rw - tmpfs tmpfs rw
broken line
43 28 0:38 / /srv/twice rw - ext4 /dev/vdb rw
44 43 0:39 / /srv/twice rw - cifs //server/share rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/me", "ext4"),
        ("/srv/shared", "nfs4"),
        ("/srv/shared/a/b", "nfs4"),
        ("/srv/shared/local/a", "tmpfs"),
        ("/srv/sharedness", "ext4"),
        ("/srv/my data/x", "fuse.sshfs"),
        ("/srv/twice", "cifs"),
    ],
)
def test_the_filesystem_of_a_folder_is_that_of_its_nearest_mount(folder: str, kind: str) -> None:
    assert filesystem(Path(folder), MOUNTS) == kind


def test_an_unknown_filesystem_has_no_name() -> None:
    assert filesystem(Path("/x"), "") == ""


def test_a_file_on_a_network_filesystem_is_refused_with_the_reason(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"40 28 0:35 / {tmp_path} rw - nfs4 server:/export rw\n")

    with pytest.raises(StoreUnavailable, match=r"nfs4.*local disk"):
        prepare(SqliteUrl(path=tmp_path / "jobs.db"), mounts)
    assert not (tmp_path / "jobs.db").exists()


def as_nobody() -> None:
    """Give up the rights of root, to whom no permission applies."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder that any user can reach."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_read_only_database_is_named_with_the_way_out(open_folder: Path) -> None:
    path = open_folder / "jobs.db"
    open_store(f"sqlite://{path}?mode=0644").close()
    path.chmod(0o444)

    def open_it() -> None:
        as_nobody()
        error = refused(path)
        assert str(path) in str(error)
        assert "writable" in str(error) or "read and write" in str(error)

    in_child(open_it)


def test_a_database_that_was_read_only_when_it_was_opened_takes_jobs_once_it_is_writable(open_folder: Path) -> None:
    path = open_folder / "jobs.db"
    open_folder.chmod(0o777)

    def add_before_and_after() -> None:
        as_nobody()
        with closing(open_store(str(path))) as other:
            other.add([a_record()])
            path.chmod(0o444)
            with closing(open_store(str(path))) as store:
                with pytest.raises(StoreUnavailable, match=f"make {path} writable for this user"):
                    store.add([a_record()])
                assert len(all_kept(store)) == 1
                path.chmod(0o644)
                with pytest.raises(StoreUnavailable):  # and so it notices
                    store.add([a_record()])
                store.add([a_record()])
                assert len(all_kept(other)) == 2

    in_child(add_before_and_after)


def test_a_journal_that_has_kept_the_permissions_of_a_read_only_database_is_named(open_folder: Path) -> None:
    path = open_folder / "jobs.db"
    open_folder.chmod(0o777)

    def add_before_and_after() -> None:
        as_nobody()
        open_store(str(path)).close()
        path.chmod(0o444)
        with closing(open_store(str(path))) as store:
            assert all_kept(store) == []
            assert Path(f"{path}-wal").stat().st_mode & 0o777 == 0o444
            path.chmod(0o644)
            with pytest.raises(StoreUnavailable, match=f"make {path}-wal and {path}-shm writable for this user"):
                store.add([a_record()])
            for end in ("-wal", "-shm"):
                Path(f"{path}{end}").chmod(0o644)
            store.add([a_record()])
            assert len(all_kept(store)) == 1

    in_child(add_before_and_after)


def test_a_read_only_folder_is_named_with_the_way_out(open_folder: Path) -> None:
    open_folder.chmod(0o555)

    def open_it() -> None:
        as_nobody()
        assert f"make {open_folder} writable" in str(refused(open_folder / "jobs.db"))

    in_child(open_it)
    open_folder.chmod(0o755)


def test_a_bell_that_cannot_be_hung_is_an_error_with_the_way_out(open_folder: Path) -> None:
    path = open_folder / "jobs.db"
    open_folder.chmod(0o777)
    open_store(f"sqlite://{path}?mode=0666").close()
    (open_folder / "jobs.db.bells").mkdir(mode=0o555)
    (open_folder / "jobs.db.bells").chmod(0o555)

    def hang() -> None:
        as_nobody()
        with closing(open_store(str(path))) as store, pytest.raises(StoreUnavailable, match="no bell"):
            store.bell(WORK)

    in_child(hang)
