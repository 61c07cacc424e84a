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

from taskqueue import Scheduler
from taskqueue.cli import main
from taskqueue.cli.bench.figures import Figure, percentile
from taskqueue.cli.bench.jobs import Empty
from taskqueue.cli.bench.node import MeasurementFailed, node
from taskqueue.cli.bench.workloads import WORKLOADS, drained_within
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


def test_every_workload_is_measured_and_nothing_is_left_behind(
    taskqueue: Taskqueue, store: Store, tmp_path: Path
) -> None:
    kept = store.add([record for name, record in records.in_every_status().items() if name == "waiting"])
    before = sorted(tmp_path.iterdir())

    answer = taskqueue(*SMALL, "--json", "--plot", str(tmp_path / "figures.svg"))

    assert answer.code == Exit.OK, answer.err
    found = answer.document
    assert {figure["workload"] for figure in found["figures"]} == set(WORKLOADS)
    measured = [figure for figure in found["figures"] if not figure["name"].startswith("processor for a job")]
    assert [figure for figure in measured if figure["median"] <= 0] == [  # the processor's time comes in ticks of 10 ms
        {"workload": "W4", "name": "started early", "unit": "jobs", "median": 0, "values": [0]}
    ]
    assert found["durability"]["synchronous"] == "full"
    assert {write["unit"] for write in found["durability"]["writes"]} == {"ms"}
    assert found["hardware"]["cores"] >= 1
    assert "drain with 2 workers" in (tmp_path / "figures.svg").read_text()
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "figures.svg"])
    assert store.find(EVERYTHING) == kept


def test_a_server_is_measured_in_collections_that_are_dropped(
    mongo_set: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{with_database(mongo_set, f'bench-{ObjectId()}')}&timeoutMS={PATIENCE * 1000:.0f}"

    code = main.main(["--url", f"{url}&taskqueue.prefix=mine_", *SMALL, "--workload", "W3", "--json"])

    assert code == Exit.OK
    assert '"a single write of one document"' in capsys.readouterr().out
    with MongoClient[dict[str, Any]](url) as client:
        assert client.get_default_database().list_collection_names() == []


def test_people_see_what_is_measured_and_the_spread_of_rounds(url: str) -> None:
    with terminal(url, 100, *SMALL, "--workload", "W1", "--repeat", "2", "--synchronous", "normal") as shown:
        assert shown.end() == Exit.OK

    assert "W1 adding jobs" in shown.shown
    assert "synchronous=normal)" in shown.shown
    head = next(line.split() for line in shown.lines if "median" in line)
    assert head == ["figure", "median", "unit", "least", "most"]
    assert len([line for line in shown.lines if line.startswith("W1  ")]) == 2


def test_one_round_has_no_spread(taskqueue: Taskqueue) -> None:
    answer = taskqueue(*SMALL, "--workload", "W1")

    assert ["figure", "found", "unit"] in [line.split() for line in answer.out.splitlines()]


def test_without_the_extra_a_plot_is_refused_before_anything_is_measured(url: str, tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('No module named matplotlib')")

    done = subprocess.run(
        [sys.executable, "-m", "taskqueue.cli.main", "--url", url, *SMALL, "--plot", str(tmp_path / "figures.svg")],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )

    assert done.returncode == Exit.CONFIG
    assert "pip install 'taskqueue[bench]'" in done.stderr
    assert not done.stdout


def test_a_picture_that_cannot_be_written_is_an_error_in_words(taskqueue: Taskqueue, tmp_path: Path) -> None:
    answer = taskqueue(*SMALL, "--workload", "W1", "--plot", f"{tmp_path}/nowhere/figures.svg")

    assert answer.code == Exit.CONFIG
    assert "enqueue one by one" in answer.out  # what was found is told first
    assert "nowhere/figures.svg cannot be written" in answer.complaint


def test_the_default_ground_is_beside_the_embedded_database(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([*SMALL, "--workload", "W1", "--json"]) == Exit.OK
    assert '"synchronous": "full"' in capsys.readouterr().out
    assert not list((Path(os.environ["XDG_STATE_HOME"]) / "taskqueue").glob("taskqueue-bench-*"))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--url", "mongodb://host/db", *SMALL, "--synchronous", "full"), Exit.CONFIG, "--synchronous is for SQLite"),
        (("--url", "/nowhere/at/all/jobs.db", *SMALL), Exit.STORE, "no folder can be made there"),
        (("--url", "/tmp/jobs.db", "bench", "--jobs", "1"), Exit.CONFIG, "--jobs"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: tuple[str, ...], code: Exit, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("before", ["", "sqlite://", "sqlite:///"])
def test_a_file_can_be_measured_at_another_level(
    before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--url",
        f"{before}{tmp_path}/jobs.db",
        *SMALL,
        "--workload",
        "W1",
        "--synchronous",
        "normal",
        "--json",
    ]

    assert main.main(arguments) == Exit.OK
    assert '"synchronous": "normal"' in capsys.readouterr().out


def test_a_node_that_leaves_ends_the_measurement(url: str, tmp_path: Path) -> None:
    with (
        Scheduler(url) as scheduler,
        node(url, tmp_path, 1, "--lease", "0") as running,
        pytest.raises(MeasurementFailed, match=r"left with exit code 3: .*lease"),
    ):
        running.wait(scheduler.add_job(Empty))


def test_a_node_has_the_runtime_folder_of_the_measurement_and_no_other_setting_of_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path))  # where bells hang, by which waiters hear of ends
    monkeypatch.setenv("TASKQUEUE_LEASE", "7")

    with node(url, tmp_path, 1) as running:
        given = psutil.Process(running.pid).environ()

    assert given["TASKQUEUE_RUNTIME_DIR"] == str(tmp_path)
    assert "TASKQUEUE_LEASE" not in given


def test_a_job_that_fails_ends_the_measurement(url: str, tmp_path: Path) -> None:
    with (
        Scheduler(url) as scheduler,
        node(url, tmp_path, 1) as running,
        pytest.raises(MeasurementFailed, match="ended as FAILED"),
    ):
        running.wait(scheduler.add_job("taskqueue.cli.bench.jobs:Blocking"))


def test_a_node_that_gets_nowhere_ends_the_measurement_with_the_reason(url: str, tmp_path: Path) -> None:
    with (
        Scheduler(url) as scheduler,
        node(url, tmp_path, 1) as running,
        pytest.raises(MeasurementFailed, match=r"(?is)nothing moved .*in queue default"),
    ):
        running.check(0.0, scheduler.add_job(Empty))


def test_a_terminated_measurement_stops_its_node_and_removes_its_files(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "taskqueue.cli.main", "--url", url, "bench", "--workload", "W5"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        family = eventually(lambda: found if len(found := _below(started.pid)) == 3 else [])
        started.send_signal(signal.SIGTERM)
        assert started.wait(LIMIT) == Exit.INTERRUPTED

    _, alive = psutil.wait_procs(family, timeout=LIMIT)
    assert alive == []
    assert not list(tmp_path.glob("taskqueue-bench-*"))


def test_percentiles_lie_between_the_values() -> None:
    assert [percentile([4, 1, 3, 2], share) for share in (0, 0.5, 0.95, 1)] == [1, 2.5, pytest.approx(3.85), 4]
    assert percentile([7], 0.99) == 7
    assert Figure(workload="W1", name="add", unit="ms", values=(3, 1, 2)).median == 2


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

        with pytest.raises(MeasurementFailed, match="the node left with exit code -9"):
            running.drain(store)


def test_a_drain_that_is_not_over_has_no_rate(store: Store) -> None:
    done, still_running = a_record(), a_record()
    store.add([done, still_running])
    first, second = claim(store, 2).records
    settle(store, first)
    store.renew(WEB_1, NOON + HOUR, {second.id: Note(started_at=NOON)})

    with pytest.raises(MeasurementFailed, match=f"job {second.id} has not ended, but is PROCESSING"):
        drained_within(store)
