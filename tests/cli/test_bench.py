"""``bench`` measures every workload on stores of its own, tells what it found, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from bson import ObjectId
from pymongo import MongoClient

from benchmarks.jobs import Empty
from benchmarks.node import node
from taskqueue import Scheduler
from taskqueue.cli import main
from taskqueue.cli.bench import MeasurementFailed, drained_within, node_environment
from taskqueue.exit_codes import Exit
from taskqueue.model.query import EVERYTHING, PENDING
from taskqueue.store import Note, Store
from taskqueue.store.open import open_store
from tests.cli import records
from tests.cli.conftest import Answer
from tests.cli.test_terminal import terminal
from tests.nodes import LIMIT, eventually
from tests.servers import PATIENCE, with_database
from tests.store.records import HOUR, NOON, WEB_1, a_record, claim, settle

Taskqueue = Callable[..., Answer]
SMALL = ("bench", "--jobs", "10")
NAMES = [
    "add jobs one by one",
    "add jobs in bulk",
    "drain with 2 workers",
    "add_job to result, p50",
    "add_job to result, p99",
]


def test_everything_is_measured_and_nothing_is_left_behind(taskqueue: Taskqueue, store: Store, tmp_path: Path) -> None:
    kept = store.add([record for name, record in records.in_every_status().items() if name == "waiting"])
    before = sorted(tmp_path.iterdir())

    answer = taskqueue(*SMALL, "--json")

    assert answer.code == Exit.OK, answer.err
    assert [figure["name"] for figure in answer.document["figures"]] == NAMES
    assert [figure for figure in answer.document["figures"] if figure["value"] <= 0] == []
    assert answer.document["guarantee"] == store.guarantee
    assert sorted(tmp_path.iterdir()) == before
    assert store.find(EVERYTHING) == kept


def test_a_server_is_measured_in_collections_that_are_dropped(
    mongo_set: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{with_database(mongo_set, f'bench-{ObjectId()}')}&timeoutMS={PATIENCE * 1000:.0f}"

    code = main.main(["--url", f"{url}&taskqueue.prefix=mine_", *SMALL])

    assert code == Exit.OK
    assert "drain with 2 workers" in capsys.readouterr().out
    with MongoClient[dict[str, Any]](url) as client:
        assert client.get_default_database().list_collection_names() == []


def test_people_see_a_table(url: str) -> None:
    with terminal(f"sqlite://{Path(url.removeprefix('sqlite://'))}", 100, *SMALL) as shown:
        assert shown.end() == Exit.OK

    assert ["figure", "value", "unit"] in [line.split() for line in shown.lines]
    assert [name for name in NAMES if name not in shown.shown] == []


def test_the_default_ground_is_beside_the_embedded_database(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([*SMALL, "--json"]) == Exit.OK
    assert '"guarantee"' in capsys.readouterr().out
    assert not list((Path(os.environ["XDG_STATE_HOME"]) / "taskqueue").glob("taskqueue-bench-*"))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--url", "/nowhere/at/all/jobs.db", *SMALL), Exit.STORE, "no folder can be created there"),
        (("--url", "/tmp/jobs.db", "bench", "--jobs", "1"), Exit.CONFIG, "--jobs"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: tuple[str, ...], code: Exit, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) == code
    assert words in capsys.readouterr().err


def test_a_node_that_leaves_ends_the_measurement(url: str, tmp_path: Path) -> None:
    with (
        Scheduler(url) as scheduler,
        node(url, tmp_path, 1, "--lease", "0") as running,
        pytest.raises(MeasurementFailed, match=r"exited with code 3: .*lease"),
    ):
        running.wait(scheduler.add_job(Empty))


def test_a_node_has_the_runtime_folder_of_the_measurement_and_no_other_setting_of_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path))  # where bells hang, by which waiters hear of ends
    monkeypatch.setenv("TASKQUEUE_LEASE", "7")

    given = node_environment(url)

    assert given["TASKQUEUE_URL"] == url
    assert given["TASKQUEUE_RUNTIME_DIR"] == str(tmp_path)
    assert "TASKQUEUE_LEASE" not in given


def test_a_job_that_fails_ends_the_measurement(url: str, tmp_path: Path) -> None:
    with (
        Scheduler(url) as scheduler,
        node(url, tmp_path, 1) as running,
        pytest.raises(MeasurementFailed, match="ended as FAILED"),
    ):
        running.wait(scheduler.add_job("benchmarks.jobs:Blocking"))


def test_a_node_that_gets_nowhere_ends_the_measurement_with_the_reason(url: str, tmp_path: Path) -> None:
    with (
        Scheduler(url) as scheduler,
        node(url, tmp_path, 1) as running,
        pytest.raises(MeasurementFailed, match=r"(?is)no progress .*in queue default"),
    ):
        running.check(0.0, scheduler.add_job(Empty))


def test_a_terminated_measurement_stops_its_node_and_removes_its_files(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "taskqueue.cli.main", "--url", url, "bench", "--jobs", "10000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        # The node starts behind 2,000 single adds, each of which is synchronised with a disk that others use, too.
        family = eventually(lambda: found if len(found := _below(started.pid)) >= 3 else [], 4 * LIMIT)
        started.send_signal(signal.SIGTERM)
        assert started.wait(LIMIT) == Exit.INTERRUPTED

    _, alive = psutil.wait_procs(family, timeout=LIMIT)
    assert alive == []
    assert not list(tmp_path.glob("taskqueue-bench-*"))


def _below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_a_drain_lasts_until_all_jobs_have_ended_though_the_newest_ends_first(url: str, tmp_path: Path) -> None:
    with Scheduler(url) as scheduler, closing(open_store(url)) as store:
        scheduler.add_jobs([*[(Empty, None)] * 200, (Empty, None, {"priority": -20})])
        with node(url, tmp_path, 1) as running:
            running.drain(store)

            assert store.count(PENDING) == 0


def test_a_drain_ends_the_measurement_when_its_node_leaves(url: str, tmp_path: Path) -> None:
    with Scheduler(url) as scheduler, closing(open_store(url)) as store, node(url, tmp_path, 1) as running:
        scheduler.add_job(Empty, at=HOUR)
        os.kill(running.pid, signal.SIGKILL)

        with pytest.raises(MeasurementFailed, match="the node exited with code -9"):
            running.drain(store)


def test_a_drain_that_is_not_over_has_no_rate(store: Store) -> None:
    done, still_running = a_record(), a_record()
    store.add([done, still_running])
    first, second = claim(store, 2).records
    settle(store, first)
    store.renew(WEB_1, NOON + HOUR, {second.id: Note(started_at=NOON)})

    with pytest.raises(MeasurementFailed, match=f"job {second.id} has not ended, but is PROCESSING"):
        drained_within(store)
