"""Both stores examine themselves: what is well is said, and what is not comes with what to do."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from taskqueue.model.finding import Finding, Level, below
from taskqueue.store import Store
from taskqueue.store.open import open_store
from tests.nodes import eventually
from tests.servers import Cluster
from tests.store.records import a_record


def named(found: list[Finding], about: str) -> Finding:
    """Return the one finding about this."""
    [finding] = [one for one in found if one.about == about]
    return finding


def test_a_store_says_how_it_is_kept(store: Store) -> None:
    found = store.diagnose()
    abouts = {finding.about for finding in found}
    assert (
        abouts >= {"integrity", "free space", "file system", "journal mode"}
        or abouts >= {"MongoDB", "indexes"}
        or abouts >= {"PostgreSQL", "fsync", "connections", "oldest transaction", "table jobs"}
    )
    errors = {finding.about for finding in found if finding.level is Level.ERROR}
    tolerated = {
        "oplog",
        "fsync",
        "full_page_writes",
    }  # the one is small here, the others are off, as tests are to be fast
    assert errors <= tolerated
    assert all(bool(finding.do) == (finding.level is not Level.OK) for finding in found)
    assert all(finding.says for finding in found)


def test_a_replica_set_of_one_server_is_a_warning_with_the_way_out(mongo_set: str) -> None:
    store = open_store(mongo_set.replace("/?", "/doctor?"))
    found = store.diagnose()
    store.close()
    members = named(found, "replica set")
    assert (members.level, members.says) == (Level.WARNING, "rs0, 1 server")
    assert members.do.startswith("use three servers")
    assert named(found, "write concern").says == "w=majority, j=True; reads majority"
    assert "it reaches back for " in named(found, "oplog").says


def test_a_server_without_replica_set_is_a_warning(mongo_standalone: str) -> None:
    store = open_store(f"{mongo_standalone.rstrip('/')}/doctor")
    found = store.diagnose()
    store.close()
    assert named(found, "replica set").do.startswith("start mongod with --replSet")


def test_a_member_of_the_replica_set_that_is_down_is_named(cluster: Cluster) -> None:
    with closing(open_store(cluster.url.replace("/?", "/strains?"))) as store:
        assert [finding.about for finding in store.strains()] == ["free space"]
        member = cluster.secondaries()[0]
        member.kill()

        down = eventually(lambda: [one for one in store.strains() if one.about == "member of the replica set"])

    assert [(one.says.partition(" is ")[0], one.name, one.level) for one in down] == [
        (member.address, member.address, Level.WARNING)
    ]
    assert "not reachable" in down[0].says
    assert down[0].do.startswith("start this member again")


def test_a_server_without_replica_set_has_no_members(mongo_standalone: str) -> None:
    with closing(open_store(f"{mongo_standalone.rstrip('/')}/strains")) as store:
        assert "member of the replica set" not in {finding.about for finding in store.diagnose()}


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with closing(open_store(str(path))) as store:
        store.add([a_record() for _ in range(100)])  # the last page is one of theirs, which no opening reads
    damaged = bytearray(path.read_bytes())
    page = int.from_bytes(damaged[16:18], "big")
    damaged[-page:] = b"\xff" * page
    path.write_bytes(damaged)
    store = open_store(str(path))
    integrity = named(store.diagnose(), "integrity")
    store.close()
    assert integrity.level is Level.ERROR
    assert integrity.says.startswith("the file is damaged: ")
    assert "restore a backup" in integrity.do


def test_the_size_of_a_store_counts_what_is_still_in_the_journal(tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "jobs.db"))) as store:
        store.add([a_record(data='"' + "x" * 10_000 + '"') for _ in range(110)])
        said = named(store.diagnose(), "free space").says

    assert said.endswith("the store has 1 MiB")


def test_a_file_that_all_users_read_is_a_warning(tmp_path: Path) -> None:
    store = open_store(f"sqlite://{tmp_path}/jobs.db?mode=0644")
    (tmp_path / "jobs.db").chmod(0o644)
    permissions = named(store.diagnose(), "permissions")
    store.close()
    assert (permissions.level, permissions.do) == (Level.WARNING, f"chmod o-rwx {tmp_path}/jobs.db")


def test_a_file_that_those_of_its_address_may_not_write_is_a_warning(tmp_path: Path) -> None:
    store = open_store(f"sqlite://{tmp_path}/jobs.db?mode=0660")
    assert named(store.diagnose(), "permissions").level is Level.OK
    (tmp_path / "jobs.db").chmod(0o640)  # as cp leaves it
    permissions = named(store.diagnose(), "permissions")
    store.close()
    assert (permissions.level, permissions.says[:10]) == (Level.WARNING, "mode 0640,")
    assert f"chmod 0660 {tmp_path}/jobs.db" in permissions.do


@pytest.mark.parametrize(("value", "level"), [(5, Level.OK), (2, Level.WARNING), (0, Level.ERROR)])
def test_a_figure_is_as_bad_as_the_bound_that_it_is_below(value: float, level: Level) -> None:
    finding = below("room", "so much", value, warning=3, error=1, do="make room")
    assert (finding.level, finding.do) == (level, "make room" if value < 3 else "")
