"""A node whose files are taken away or replaced by a backup: it says so, loses nothing, and works on or starts anew."""

from __future__ import annotations

import shutil
from pathlib import Path

from taskqueue import Scheduler, Status
from taskqueue.exit_codes import Exit
from taskqueue.store.backup import back_up
from tests.acceptance.work import Echo
from tests.nodes import LIMIT, eventually, node


def test_a_node_leaves_to_be_started_anew_when_a_backup_replaces_its_file(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    with Scheduler(str(database)) as scheduler:
        kept = scheduler.add_job(Echo, "kept").id
        back_up(str(database), tmp_path / "backup.db")
    with node(str(database), tmp_path) as running:
        running.heed("works")
        with Scheduler(str(database)) as scheduler:
            [done] = scheduler.wait_for([scheduler.get_job(kept)], timeout=LIMIT)
            assert done.status is Status.DONE

        (tmp_path / "backup.db").rename(database)

        assert running.process.wait(LIMIT) == Exit.STORE
        assert "restarted with the new store" in running.log.read_text()
    with node(str(database), tmp_path), Scheduler(str(database)) as scheduler:
        [again] = scheduler.wait_for([scheduler.get_job(kept)], timeout=LIMIT)

    assert again.status is Status.DONE


def test_a_node_saves_a_journal_that_is_removed_and_works_on(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    with Scheduler(str(database)) as scheduler, node(str(database), tmp_path) as running:
        running.heed("works")
        before = scheduler.add_job(Echo, 1)
        scheduler.wait_for([before], timeout=LIMIT)

        (tmp_path / "jobs.db-wal").unlink()

        after = scheduler.add_job(Echo, 2)
        scheduler.wait_for([after], timeout=LIMIT)
        assert running.stop() == Exit.OK
    with Scheduler(str(database)) as scheduler:
        assert [scheduler.get_job(job.id).status for job in (before, after)] == [Status.DONE] * 2


def test_a_node_leaves_when_journal_and_index_are_removed_and_nothing_is_lost(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    with node(str(database), tmp_path) as running:
        running.heed("works")
        with Scheduler(str(database)) as scheduler:
            done = scheduler.add_job(Echo, 1)
            scheduler.wait_for([done], timeout=LIMIT)

        for end in ("-wal", "-shm"):
            database.with_name(f"jobs.db{end}").unlink()

        assert running.process.wait(LIMIT) == Exit.STORE
    with Scheduler(str(database)) as scheduler:
        assert scheduler.get_job(done.id).status is Status.DONE


def test_a_node_whose_bells_are_removed_hangs_them_anew_and_says_so(tmp_path: Path) -> None:
    database, folder = tmp_path / "jobs.db", tmp_path / "jobs.db.bells"

    def topics() -> set[str]:
        return {path.name.partition("-")[0] for path in folder.iterdir()} if folder.is_dir() else set()

    with Scheduler(str(database)) as scheduler, node(str(database), tmp_path) as running:
        running.heed("works")
        eventually(lambda: topics() == {"work", "stops", "plans", "controls"})

        shutil.rmtree(folder)

        eventually(lambda: topics() == {"work", "stops", "plans", "controls"})
        assert "was removed; created it again" in running.log.read_text()
        done = scheduler.add_job(Echo, 1)
        scheduler.wait_for([done], timeout=LIMIT)
