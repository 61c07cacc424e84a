"""A PostgreSQL server whose disk is full: it says so, nothing acknowledged is lost, and all goes on when there is room.

The files of the databases are on a small file system that the server alone sees.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from taskqueue import Scheduler
from taskqueue.errors import StoreUnavailable
from taskqueue.model.ids import JobId
from taskqueue.store import Store
from taskqueue.store.open import open_store
from tests.acceptance.work import Echo, Gate
from tests.nodes import LIMIT, eventually, node
from tests.postgresql import PostgreSQL
from tests.store.records import a_record, all_kept, claim, ids, settlement

SIZE = "64m"
ON_SMALL_DISK = """
set -eu
base=$1/base size=$2
shift 2
mv "$base" "$base.before"
mkdir --mode=700 "$base"
mount -t tmpfs -o "size=$size" none "$base"
cp -a "$base.before/." "$base"
chown --reference="$base.before" "$base"
chmod --reference="$base.before" "$base"
exec "$@"
"""
"""Moves the files of the databases to a file system of this size, in the mount namespace of the server."""


class OnSmallDisk(PostgreSQL):
    """A server that starts once, with its databases on a small file system."""

    def command(self) -> list[str]:
        """Return the command that makes the file system, and starts the server as a user that it accepts."""
        spaces, server = ["unshare", "--mount"], super().command()
        if os.geteuid() != 0:  # root in a namespace of its own mounts, and in one below it the server is not root
            spaces = ["unshare", "--map-root-user", "--mount"]
            server = ["unshare", "--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}", *server]
        return [*spaces, "bash", "-c", ON_SMALL_DISK, "small", str(self.data), SIZE, *server]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PostgreSQL]:
    """Start a server with a small disk."""
    with OnSmallDisk(tmp_path / "postgresql") as started:
        open_store(started.url).close()
        yield started


@contextmanager
def full_disk(server: PostgreSQL) -> Iterator[None]:
    """Fill the disk by a table of another program, which makes room again at the end of the block."""
    with psycopg.connect(server.url, autocommit=True) as other:
        other.execute("CREATE TABLE filler (text TEXT)")
        other.execute("ALTER TABLE filler ALTER text SET STORAGE PLAIN")  # not compressed
        with suppress(psycopg.errors.DiskFull):
            while True:
                other.execute("INSERT INTO filler SELECT repeat('x', 7000) FROM generate_series(1, 10)")
        yield
        other.execute("DROP TABLE filler")


def add_until_refused(store: Store) -> tuple[list[JobId], StoreUnavailable]:
    """Add jobs until the store refuses one, and return what it has acknowledged until then."""
    acknowledged: list[JobId] = []
    while len(acknowledged) < 10_000:
        new = a_record(data=f'"{"x" * 2000}"')
        try:
            store.add([new])
        except StoreUnavailable as error:
            return acknowledged, error
        acknowledged.append(new.id)
    raise AssertionError("the store never refused a job")


def test_a_full_disk_is_named_and_loses_nothing(server: PostgreSQL) -> None:
    with closing(open_store(server.url)) as store:
        before = store.add([a_record() for _ in range(20)])
        with full_disk(server):
            acknowledged, error = add_until_refused(store)

            assert "has a full disk (could not extend file" in str(error)
            assert str(error).endswith("make room on the server; the call may be repeated")
            assert error.only_reads
            assert set(ids(all_kept(store))) == {*ids(before), *acknowledged}

        store.add([a_record()])
        records = claim(store, 10_000).records
        assert len(records) == len(before) + len(acknowledged) + 1
        assert len(store.settle([settlement(record) for record in records], store.now())) == len(records)


def test_a_job_that_ends_on_a_full_disk_ends_once(server: PostgreSQL, tmp_path: Path) -> None:
    gate, facts = tmp_path / "gate", tmp_path / "facts"
    os.mkfifo(gate)
    with (
        closing(open_store(server.url)) as store,
        Scheduler(server.url) as scheduler,
        node(server.url, tmp_path, "--name", "web-1") as web_1,
    ):
        process = scheduler.add_job(Gate, {"file": str(facts), "gate": str(gate)})
        eventually(facts.exists)
        with full_disk(server):
            add_until_refused(store)
            gate.write_text("go")
            # An outcome may still fit into a page that has room.
            eventually(lambda: "full disk" in web_1.log.read_text() or process.refresh().is_final)

        assert process.wait(timeout=LIMIT).result == "through"
        assert scheduler.add_job(Echo, "next").wait(timeout=LIMIT).result == "next"
    assert facts.read_text().count("ended") == 1
