"""The leading node relays an outbox in a worker beside its pool, and nothing is lost or doubled by kills."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from taskqueue import Scheduler, Status
from taskqueue.exit_codes import Exit
from taskqueue.outbox import Outbox
from tests.acceptance.conftest import JobFiles
from tests.acceptance.test_leading import resign
from tests.acceptance.work import Gate, Trace
from tests.nodes import LIMIT, Node, eventually, node

MODULE = """
import os
import sqlite3
from taskqueue.outbox import Outbox

def connect():
    with open({calls!r}, "a") as file:
        file.write(f"{{os.getpid()}} {version}\\n")
    return sqlite3.connect({file!r})

outbox = Outbox(connect, every=0.05)
"""


class Shop:
    """An application with a database of its own, an outbox in it, and nodes that relay it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.file, self.calls = folder / "shop.db", folder / "calls"
        self.calls.touch()
        self.write(version=1)
        self.outbox = Outbox(lambda: sqlite3.connect(self.file))

    def write(self, version: int) -> None:
        """Write the module of the outbox."""
        text = MODULE.format(file=str(self.file), calls=str(self.calls), version=version)
        (self.folder / "shop_outbox.py").write_text(text)

    def create(self) -> None:
        """Create the table."""
        with closing(sqlite3.connect(self.file)) as raw, raw:
            raw.execute(self.outbox.create_sql("sqlite"))

    def add(self, count: int, file: str) -> list[str]:
        """Add so many jobs, one in each transaction, and return their ids."""
        with closing(sqlite3.connect(self.file, timeout=LIMIT)) as raw:
            ids = []
            for _ in range(count):
                ids.append(str(self.outbox.add_job(Trace, {"file": file}, session=raw)))
                raw.commit()
            return ids

    def rows(self) -> int:
        """Return how many rows there are."""
        with closing(sqlite3.connect(self.file, timeout=LIMIT)) as raw:
            return int(raw.execute("SELECT count(*) FROM taskqueue_outbox").fetchone()[0])

    def relays(self) -> list[tuple[int, int]]:
        """Return process and version of each connection that a relay has opened."""
        return [(int(pid), int(version)) for pid, version in map(str.split, self.calls.read_text().splitlines())]

    def heed(self, count: int) -> list[tuple[int, int]]:
        """Wait until relays have opened so many connections, and return process and version of each."""
        return eventually(lambda: relays if len(relays := self.relays()) >= count else [])

    def options(self, *options: str) -> tuple[str, ...]:
        """Return the options of a node that relays."""
        return ("--outbox", "shop_outbox:outbox", "--chdir", str(self.folder), *options)


@pytest.fixture
def shop(tmp_path: Path, url: str) -> Shop:
    """Return a new application with an empty outbox."""
    folder = tmp_path / "shop"
    folder.mkdir()
    shop = Shop(folder, url)
    shop.create()
    return shop


def runs(files: JobFiles) -> Counter[str]:
    """Return how often each job has run."""
    return Counter(line.split()[0] for line in files.lines())


def test_each_committed_job_runs_once_though_relays_are_killed(
    shop: Shop, url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    ids: list[str] = []
    with node(url, tmp_path, *shop.options("--max-children", "1")) as started:
        for number in range(1, 4):
            ids += shop.add(20, files.file)
            os.kill(shop.heed(number)[-1][0], signal.SIGKILL)
        ids += shop.add(5, files.file)
        files.heed(len(ids))
        relay = psutil.Process(shop.heed(4)[-1][0])
        parents = (relay.ppid(), started.manager().pid)
        assert eventually(lambda: shop.rows() == 0)
        pool = [worker.pid for worker in started.workers() if worker.pid != relay.pid]

    assert runs(files) == Counter(ids)
    assert parents[0] == parents[1] != started.pid
    assert len(pool) == 1
    assert {str(job.id) for job in scheduler.get_jobs({})} == set(ids)


def test_the_leader_alone_relays_and_the_next_leader_continues(
    shop: Shop, url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    options = shop.options("--lease", "20")
    with node(url, tmp_path, "--name", "a", *options) as a:
        eventually(shop.relays)
        with node(url, tmp_path, "--name", "b", "--outbox", "shop_outbox:outbx", *options) as b:
            refused = "there is no outbx in shop_outbox: did you mean shop_outbox:outbox?"
            assert eventually(lambda: refused in b.log.read_text())
            files.heed(len(shop.add(3, files.file)))
            assert len(shop.relays()) == 1
            assert resign(url) == "a"
            b.heed("leads the cluster")
            [(first, _), (second, _)] = shop.heed(2)
            files.heed(len(shop.add(3, files.file)) + 3)
            assert psutil.Process(second).ppid() == b.manager().pid
            assert eventually(lambda: not psutil.pid_exists(first))
            assert a.stop() == Exit.OK

    assert len(runs(files)) == 6


def test_a_shutdown_stops_the_relay_at_once_and_waits_for_the_jobs(
    shop: Shop, url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    running = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
    with node(url, tmp_path, *shop.options("--finish", "600")) as started:
        [(relay, _)] = eventually(shop.relays)
        files.heed(1)
        started.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: not psutil.pid_exists(relay))
        files.open()
        assert started.wait() == Exit.OK

    assert running.refresh().status is Status.DONE
    assert "ERROR" not in started.log.read_text()


def test_new_code_is_loaded_on_request(shop: Shop, url: str, files: JobFiles, tmp_path: Path) -> None:
    with node(url, tmp_path, *shop.options()) as started:
        eventually(shop.relays)
        shop.write(version=22)
        started.process.send_signal(signal.SIGHUP)
        versions = [version for _, version in shop.heed(2)]
        files.heed(len(shop.add(2, files.file)))

    assert versions == [1, 22]


@pytest.fixture
def closed(shop: Shop) -> Iterator[Shop]:
    """Return an application whose database does not answer: its file is a folder."""
    table = shop.file.rename(shop.folder / "hidden.db")
    shop.file.mkdir()
    yield shop
    assert not table.exists()


def test_a_database_that_does_not_answer_is_named_in_the_log_and_asked_again(
    closed: Shop, url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, *closed.options()) as started:
        said = "the outbox shop_outbox:outbox is not relayed: sqlite3.OperationalError: unable to open database file"
        assert eventually(lambda: started.log.read_text().count(said) > 1)
        assert "(trying again in 2 s)" in started.log.read_text()
        other = scheduler.add_job(Trace, {"file": files.file})
        scheduler.wait_for(other, timeout=LIMIT)
        closed.file.rmdir()
        (closed.folder / "hidden.db").rename(closed.file)
        files.heed(len(closed.add(2, files.file)) + 1)

    assert len(runs(files)) == 3


def leaves(shop: Shop, url: str, folder: Path) -> Node:
    """Run a node until nothing is due, and return it."""
    started = Node(url, folder, shop.options("--burst"), {})
    try:
        started.wait()
    finally:
        started.close()
    return started


def test_a_burst_empties_the_outbox_first_and_runs_its_jobs(
    shop: Shop, url: str, files: JobFiles, tmp_path: Path
) -> None:
    ids = shop.add(5, files.file)

    assert leaves(shop, url, tmp_path).process.returncode == Exit.OK
    assert (runs(files), shop.rows()) == (Counter(ids), 0)


def test_a_burst_that_cannot_empty_the_outbox_says_so(
    shop: Shop, url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    scheduler.add_job(Trace, {"file": files.file})
    with closing(sqlite3.connect(shop.file)) as raw, raw:
        raw.execute("DROP TABLE taskqueue_outbox")

    left = leaves(shop, url, tmp_path)

    assert left.process.returncode == Exit.ERROR
    assert (
        "is not relayed: taskqueue.errors.ConfigError: the table taskqueue_outbox of the outbox cannot be read ("
        in (left.log.read_text())
    )
    assert len(files.lines()) == 1
