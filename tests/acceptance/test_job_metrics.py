"""Metrics that jobs set with prometheus_client, on real nodes: workers come and go, and their counts stay."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from taskqueue import Scheduler
from tests.acceptance.test_metrics import ONE, heed, page, port_of, value
from tests.nodes import LIMIT, Node, eventually, node

SHOP = """
import os
import signal

from prometheus_client import Counter, Gauge, Histogram
from taskqueue import Job

ORDERS = Counter("shop_orders", "Orders.", ["country"])
WEIGHT = Histogram("shop_weight", "Weights.", buckets=(1, 10))
LATEST = Gauge("shop_latest", "The number of the latest order.", multiprocess_mode="mostrecent")
OPEN = Gauge("shop_open", "Open orders.", multiprocess_mode="min")

with open("imported.txt", "a") as imported:
    print(os.getpid(), file=imported)


class Order(Job):
    def start(self):
        ORDERS.labels("de").inc()
        WEIGHT.observe(self.data)
        LATEST.set(self.data)
        OPEN.set(7)


class Killed(Job):
    options = {"crash_retries": 0}

    def start(self):
        ORDERS.labels("at").inc()
        os.kill(os.getpid(), signal.SIGKILL)


class AtOnce(Job):
    options = {"concurrency": 10}

    async def start(self):
        ORDERS.labels("ch").inc()


class Folder(Job):
    def start(self):
        return os.environ.get("PROMETHEUS_MULTIPROC_DIR")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the nodes of one test in a folder of their own, with the jobs in ``shop.py``."""
    monkeypatch.setenv("TASKQUEUE_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@pytest.fixture
def scheduler(folder: Path) -> Iterator[Scheduler]:
    with Scheduler(f"sqlite:///{folder}/jobs.db") as scheduler:
        yield scheduler


def a_node(folder: Path, *options: str, **environment: str) -> AbstractContextManager[Node]:
    return node(f"sqlite:///{folder}/jobs.db", folder, *options, **environment)


def end(scheduler: Scheduler, *jobs: str, data: object = None) -> None:
    """Add the jobs, and wait until they have ended."""
    scheduler.wait_for([scheduler.add_job(f"shop:{job}", data) for job in jobs], timeout=LIMIT)


@pytest.mark.parametrize("preload", [(), ("--preload", "shop")], ids=["imported", "preloaded"])
def test_counts_of_workers_that_come_and_go_are_complete(
    folder: Path, scheduler: Scheduler, preload: tuple[str, ...]
) -> None:
    options = ("--pm", "static", "--min-children", "2", "--max-jobs-per-child", "1")
    with a_node(folder, "--metrics", "0", *options, *preload) as running:
        port = port_of(running)
        end(scheduler, *["Order"] * 8, data=5)
        heed(port, "shop_open", 7)
        end(scheduler, "Killed", "Killed")
        end(scheduler, "Order", data=20)
        text = heed(port, 'shop_orders_total{country="de"}', 9)
        eventually(lambda: len([*folder.glob("run/*.metrics/*.db")]) <= 3 * 4)

        assert value(text, 'shop_orders_total{country="at"}') == 2
        assert value(text, 'shop_weight_bucket{le="10.0"}') == 8
        assert value(text, "shop_weight_count") == 9
        assert value(text, "shop_weight_sum") == 60
        assert value(text, "shop_latest") == 20
        assert str(running.pid) not in (folder / "imported.txt").read_text().split()
    assert [*folder.glob("run/*")] == []


def test_jobs_that_run_at_once_and_commands_count_too(folder: Path, scheduler: Scheduler) -> None:
    code = "from prometheus_client import Counter; Counter('shop_orders', 'Orders.', ['country']).labels('sh').inc()"
    with a_node(folder, "--metrics", "0") as running:
        end(scheduler, *["AtOnce"] * 12)
        commands = [scheduler.add_job("taskqueue:ShellJob", {"argv": [sys.executable, "-c", code]}) for _ in range(2)]
        scheduler.wait_for(commands, timeout=LIMIT)

        text = heed(port_of(running), 'shop_orders_total{country="ch"}', 12)
        assert value(text, 'shop_orders_total{country="sh"}') == 2


def test_a_node_that_was_killed_leaves_no_files_after_the_next_one(folder: Path, scheduler: Scheduler) -> None:
    with a_node(folder, "--metrics", "0") as killed:
        end(scheduler, "Order", data=5)
        [left] = folder.glob("run/*.metrics")
        killed.kill()
    with a_node(folder, "--metrics", "0"):
        assert not left.exists()


def test_new_code_keeps_the_counts(folder: Path, scheduler: Scheduler) -> None:
    with a_node(folder, "--metrics", "0", *ONE) as running:
        end(scheduler, "Order", data=5)
        (folder / "shop.py").write_text(SHOP.replace("inc()", "inc(10)"))
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "its node was asked to load new code" in running.log.read_text())
        end(scheduler, "Order", data=5)

        heed(port_of(running), 'shop_orders_total{country="de"}', 11)


def test_a_node_that_cannot_write_serves_its_own_metrics(folder: Path, scheduler: Scheduler) -> None:
    with a_node(folder, "--metrics", "0", TASKQUEUE_RUNTIME_DIR="/proc/taskqueue") as running:
        end(scheduler, "Order", data=5)
        text = heed(port_of(running), 'taskqueue_runs_total{class="shop:Order",outcome="done",queue="default"}', 1)

    assert "shop_orders" not in text
    assert "metrics of jobs are not served" in running.log.read_text()


def test_a_file_that_a_job_has_damaged_is_named_by_the_log(folder: Path, scheduler: Scheduler) -> None:
    with a_node(folder, "--metrics", "0") as running:
        end(scheduler, "Order", data=5)
        [metrics] = folder.glob("run/*.metrics")
        (metrics / "counter_1.db").write_bytes(b"\xff" * 100)
        page(port_of(running), "/metrics")

        heed(port_of(running), 'shop_orders_total{country="de"}', 1)
        assert "metrics of jobs: file counter_1.db cannot be read" in running.log.read_text()


def test_workers_have_no_folder_where_nobody_reads_it(folder: Path, scheduler: Scheduler) -> None:
    with a_node(folder):
        process = scheduler.add_job("shop:Folder")
        process.wait(LIMIT)

    assert process.result is None
