"""Metrics of processes that set them with prometheus_client: added up whatever becomes of the processes and files."""

from __future__ import annotations

import json
import logging
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskqueue.daemon.node import job_metrics
from taskqueue.daemon.node.job_metrics import MOST_SERIES, PROCESSES_KEPT, Family, JobMetrics
from taskqueue.insight import control_socket
from taskqueue.model.environment import METRICS_FOLDER
from tests.nodes import LIMIT, eventually

COUNTER = "Counter('orders', 'Orders.', ['country']).labels('de').inc()"


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a runtime folder as a node makes it."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv(control_socket.VARIABLE, str(folder))
    monkeypatch.delenv(METRICS_FOLDER, raising=False)
    return folder


@pytest.fixture
def metrics(parent: Path) -> Iterator[JobMetrics]:
    opened = JobMetrics("web-1", "a1", 0, frozenset({"process_open_fds"}))
    opened.open()
    yield opened
    opened.close()


def ran(metrics: JobMetrics, code: str) -> int:
    """Run the code in a process that sets metrics, and return its pid when it has ended."""
    with process_of(metrics, code) as process:
        assert process.wait(LIMIT) == 0
    return process.pid


def process_of(metrics: JobMetrics, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"from prometheus_client import *\n{code}"],
        env={**os.environ, METRICS_FOLDER: metrics.folder},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def samples(metrics: JobMetrics) -> dict[str, float]:
    """Return the value of each sample by its name and labels."""
    return {
        name + "".join(f" {label}={text}" for label, text in labels.items()): value
        for family in metrics.families()
        for name, labels, value in family.samples
    }


def write(folder: str, name: str, *entries: tuple[str, float], used: int = 0) -> Path:
    """Write a file as prometheus_client does, whatever the keys are."""
    data = b""
    for key, value in entries:
        encoded = key.encode()
        data += struct.pack("i", len(encoded)) + encoded + b" " * (8 - (len(encoded) + 4) % 8)
        data += struct.pack("dd", value, 0)
    path = Path(folder, name)
    path.write_bytes(struct.pack("ii", used or len(data) + 8, 0) + data)
    return path


def key(family: str, name: str, labels: object = None) -> str:
    return json.dumps([family, name, labels or {}, "Meaning."])


def test_counters_of_processes_that_have_ended_are_added_up_and_leave_no_files(metrics: JobMetrics) -> None:
    for _ in range(3):
        ran(metrics, COUNTER)

    assert samples(metrics) == {"orders_total country=de": 3}
    assert samples(metrics) == {"orders_total country=de": 3}
    assert os.listdir(metrics.folder) == []


def test_files_of_processes_that_have_ended_go_without_a_scrape(
    metrics: JobMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(metrics, COUNTER)

    eventually(lambda: os.listdir(metrics.folder) == [])
    assert samples(metrics) == {"orders_total country=de": 1}


def test_a_living_process_counts_as_it_is(metrics: JobMetrics) -> None:
    with process_of(metrics, f"{COUNTER}\nprint(flush=True); input()") as living:
        assert living.stdout is not None
        living.stdout.readline()
        ran(metrics, COUNTER)

        assert samples(metrics) == {"orders_total country=de": 2}
        assert os.listdir(metrics.folder) == [f"counter_{living.pid}.db"]
        living.communicate("\n", LIMIT)
    assert samples(metrics) == {"orders_total country=de": 2}


def test_a_process_that_is_killed_while_it_writes_loses_nothing(metrics: JobMetrics) -> None:
    code = "counter = Counter('orders', 'Orders.')\nwhile True:\n    counter.inc(); print(flush=True)"
    with process_of(metrics, code) as counting:
        assert counting.stdout is not None
        for _ in range(100):
            counting.stdout.readline()
        counting.kill()
        counted = 100 + len(counting.stdout.read().splitlines())

    assert counted <= samples(metrics)["orders_total"] <= counted + 1


def test_histograms_and_summaries_are_added_up(metrics: JobMetrics) -> None:
    code = "h = Histogram('wait', 'Waits.', buckets=(1, 5)); [h.observe(each) for each in (0.5, 3, 9)]"
    ran(metrics, f"{code}; Summary('size', 'Sizes.').observe(4)")
    ran(metrics, f"{code}; Summary('size', 'Sizes.').observe(6)")

    assert samples(metrics) == {
        "wait_sum": 25,
        "wait_bucket le=1.0": 2,
        "wait_bucket le=5.0": 4,
        "wait_bucket le=+Inf": 6,
        "wait_count": 6,
        "size_count": 2,
        "size_sum": 10,
    }


@pytest.mark.parametrize(
    ("mode", "value"), [("max", 7), ("min", 3), ("sum", 15), ("mostrecent", 5), ("livemax", None), ("liveall", None)]
)
def test_gauges_of_processes_that_have_ended_are_as_their_mode_says(
    metrics: JobMetrics, mode: str, value: float | None
) -> None:
    for number in (3, 7, 5):
        ran(metrics, f"Gauge('depth', 'Depth.', multiprocess_mode={mode!r}).set({number})")

    assert samples(metrics).get("depth") == value


def test_gauges_of_the_last_processes_are_kept_one_by_one(metrics: JobMetrics) -> None:
    for pid in range(10**9, 10**9 + PROCESSES_KEPT + 5):  # greater than the pid of any process
        write(metrics.folder, f"gauge_all_{pid}.db", (key("depth", "depth"), pid % 100))
        samples(metrics)

    assert samples(metrics) == {f"depth pid={10**9 + number}": number for number in range(5, PROCESSES_KEPT + 5)}


def test_a_gauge_that_the_manager_has_only_declared_is_none(parent: Path) -> None:
    metrics = JobMetrics("web-1", "a1", os.getpid(), frozenset())
    metrics.open()
    write(metrics.folder, f"gauge_min_{os.getpid()}.db", (key("depth", "depth"), 0), (key("built", "built"), 1))
    ran(metrics, "Gauge('depth', 'Depth.', multiprocess_mode='min').set(5)")

    assert samples(metrics) == {"depth": 5, "built": 1}
    metrics.close()


CORRUPT = {
    "noise": b"\xff" * 100,
    "a length beyond the end": struct.pack("ii", 4000, 0) + b"x",
    "a negative length": struct.pack("iii", 40, 0, -9) + b"x" * 40,
    "no value": struct.pack("iii", 16, 0, 4) + b"null",
    "other JSON": b"",
    "a number": b"7",
    "a name that is none": key("a b", "a b_total").encode(),
    "a name of another metric": key("orders", "refunds_total").encode(),
    "a label that is none": key("orders", "orders_total", {"a-b": "x"}).encode(),
    "a value that is no text": key("orders", "orders_total", {"a": 1}).encode(),
    "a surrogate": key("orders", "orders_total", {"a": "\udc80"}).encode(),
    "depth": b"[" * 100_000,
}


@pytest.mark.parametrize("is_dead", [True, False])
@pytest.mark.parametrize("content", CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_file_is_named_once_and_harms_no_other(
    metrics: JobMetrics, content: bytes, is_dead: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ran(metrics, COUNTER)
    name = f"counter_{10**9 if is_dead else os.getpid()}.db"
    if content[:1] in b"[7":
        write(metrics.folder, name, (content.decode() or '{"a": 1}', 1))
    else:
        Path(metrics.folder, name).write_bytes(content)

    with caplog.at_level(logging.WARNING):
        assert samples(metrics) == samples(metrics) == {"orders_total country=de": 1}

    assert [record.getMessage().partition(" cannot")[0] for record in caplog.records] == [
        f"metrics of jobs: file {name}"
    ]
    assert os.listdir(metrics.folder) == ([] if is_dead else [name])


@pytest.mark.parametrize("what", ["pipe", "link", "folder", "large"])
def test_something_else_in_place_of_a_file_is_not_read(metrics: JobMetrics, what: str, tmp_path: Path) -> None:
    path = Path(metrics.folder, f"counter_{os.getpid()}.db")
    match what:
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(write(str(tmp_path), "elsewhere", (key("orders", "orders_total"), 1)))
        case "folder":
            path.mkdir()
        case "large":
            path.touch()
            os.truncate(path, job_metrics.MOST_BYTES + 1)

    assert samples(metrics) == {}


def test_a_file_that_was_just_made_is_not_corrupt(metrics: JobMetrics, caplog: pytest.LogCaptureFixture) -> None:
    Path(metrics.folder, f"counter_{os.getpid()}.db").touch()
    Path(metrics.folder, f"histogram_{os.getpid()}.db").write_bytes(bytes(1 << 16))

    assert samples(metrics) == {}
    assert caplog.records == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("Counter('taskqueue_runs', '').inc()", "counter taskqueue_runs has a name of the node's own metrics: rename"),
        (
            "Gauge('process_open_fds', '', registry=CollectorRegistry()).inc()",
            "gauge process_open_fds has a name of the node's own metrics: rename",
        ),
        ("Gauge('orders', '').inc()", "gauge orders has the name of counter orders of other jobs: rename one"),
        ("Gauge('orders_total', '').inc()", "gauge orders_total has the name of counter orders of other jobs: rename"),
    ],
)
def test_a_name_that_is_taken_is_refused(
    metrics: JobMetrics, code: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran(metrics, COUNTER)
    assert samples(metrics) == {"orders_total country=de": 1}
    ran(metrics, code)

    assert samples(metrics) == samples(metrics) == {"orders_total country=de": 1}
    [record] = caplog.records
    assert words in record.getMessage()


def test_two_modes_of_one_gauge_are_refused(metrics: JobMetrics, caplog: pytest.LogCaptureFixture) -> None:
    ran(metrics, "Gauge('depth', '', multiprocess_mode='max').set(3)")
    ran(metrics, "Gauge('depth', '', multiprocess_mode='min').set(4)")

    assert len(samples(metrics)) == 1
    assert "gauge depth has multiprocess_mode" in caplog.text


def test_a_gauge_of_each_process_has_no_label_pid_of_its_own(
    metrics: JobMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [(key("depth", "depth", {"pid": pid}), 1.0) for pid in "12"]
    write(metrics.folder, f"gauge_all_{os.getpid()}.db", *entries)
    write(metrics.folder, f"gauge_max_{os.getpid()}.db", (key("width", "width", {"pid": "1"}), 2))

    assert samples(metrics) == {"width pid=1": 2}
    assert "gauge depth has the label pid, as its multiprocess_mode all has: rename the label" in caplog.text


def test_more_series_than_a_node_can_bear_are_refused(metrics: JobMetrics, caplog: pytest.LogCaptureFixture) -> None:
    ran(metrics, COUNTER)
    samples(metrics)
    every = [(key("visits", "visits_total", {"address": str(number)}), 1.0) for number in range(MOST_SERIES + 1)]
    write(metrics.folder, f"counter_{10**9}.db", *every)
    found = samples(metrics)

    assert (len(found), found["orders_total country=de"]) == (MOST_SERIES, 1)
    assert f"metric visits has too many series: {MOST_SERIES:,} are served" in caplog.text


def test_a_folder_of_a_node_that_was_killed_is_removed_and_that_of_a_living_one_stays(
    parent: Path, metrics: JobMetrics
) -> None:
    left = parent / "web-9.metrics"
    left.mkdir()
    (left / "counter_1.db").touch()
    second = JobMetrics("web-2", "b2", 0, frozenset())
    second.open()

    assert not left.exists()
    assert {str(each) for each in parent.iterdir()} == {metrics.folder, second.folder}
    second.close()
    assert [str(each) for each in parent.iterdir()] == [metrics.folder]


def test_a_folder_that_others_can_write_to_is_not_used(parent: Path, caplog: pytest.LogCaptureFixture) -> None:
    parent.chmod(0o777)
    metrics = JobMetrics("web-1", "a1", 0, frozenset())
    metrics.open()

    assert (metrics.folder, metrics.families()) == ("", [])
    assert "metrics of jobs are not served" in caplog.text
    assert control_socket.VARIABLE in caplog.text
    metrics.close()


def test_a_folder_of_the_operator_is_left_alone(parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(str(tmp_path), f"counter_{10**9}.db", (key("orders", "orders_total"), 1))
    monkeypatch.setenv(METRICS_FOLDER, str(tmp_path))
    metrics = JobMetrics("web-1", "a1", 0, frozenset())
    metrics.open()

    assert (metrics.folder, metrics.families()) == ("", [])
    assert path.exists()
    metrics.close()


def test_families_have_kind_and_meaning(metrics: JobMetrics) -> None:
    ran(metrics, COUNTER)

    assert metrics.families() == [Family("counter", "orders", "Orders.", [("orders_total", {"country": "de"}, 1)])]
