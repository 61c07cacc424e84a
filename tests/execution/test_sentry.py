"""Failures of jobs reach Sentry, where an application has called ``sentry_sdk.init()``, over HTTP as in production."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from taskqueue import Scheduler
from tests.nodes import LIMIT, Node, eventually, node

SHOP = """
import asyncio
import logging
import os

import sentry_sdk
from taskqueue import Fail, Job, Retry

sentry_sdk.init(os.environ["SENTRY_ADDRESS"])


class Order(Job):
    options = {"retry": 2, "retry_interval": 0}

    def start(self):
        sentry_sdk.add_breadcrumb(message=f"order {self.data}")
        raise OSError("the till of http://ann:geheim@till/ is locked")


class Known(Job):
    options = {"retry": 5}

    def start(self):
        raise Fail("no such order")


class Once(Job):
    options = {"retry": 1, "retry_interval": 0}

    def start(self):
        if self.attempt == 1:
            raise Retry(0, "not yet")


class Picky(Job):
    options = {"retry": 5, "retry_on": ["OSError"]}

    def start(self):
        raise LookupError("no such shelf")


class Slow(Job):
    options = {"timeout": 0.2}

    def start(self):
        import time

        time.sleep(60)


class Logs(Job):
    def start(self):
        logging.getLogger("parcels").error("no label")


class AtOnce(Job):
    options = {"concurrency": 10}

    async def start(self):
        sentry_sdk.add_breadcrumb(message=f"order {self.data}")
        await asyncio.sleep(0.05)
        raise OSError(f"order {self.data} is lost")


class Told(Job):
    def start(self):
        raise Fail("no such order")

    def on_last_failure(self, error):
        logging.getLogger("parcels").error("the customer must be told")
        raise LookupError("no address")


class ToldAtOnce(Told):
    options = {"concurrency": 10}

    async def start(self):
        raise Fail("no such order")


class Fine(Job):
    def start(self):
        return sentry_sdk.get_isolation_scope()._tags["job"]


class Quits(Job):
    def start(self):
        os.kill(os.getpid(), 9)
"""


class Receiver:
    """A Sentry that keeps the events it gets."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        outer = self

        class Request(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                _, *items = body.split(b"\n")
                for header, payload in zip(items[::2], items[1::2], strict=False):
                    if header and json.loads(header)["type"] == "event":
                        outer.events.append(json.loads(payload))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
        self.address = f"http://key@127.0.0.1:{self.server.server_port}/1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def heed(self, count: int) -> list[dict[str, Any]]:
        """Wait until there are as many events, and return them."""
        return eventually(lambda: list(self.events) if len(self.events) >= count else [])


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    (tmp_path / "shop.py").write_text(SHOP)
    with Scheduler(f"sqlite:///{tmp_path}/jobs.db") as scheduler:
        yield scheduler


def a_node(folder: Path, receiver: Receiver, *options: str) -> AbstractContextManager[Node]:
    return node(f"sqlite:///{folder}/jobs.db", folder, *options, SENTRY_ADDRESS=receiver.address)


def messages(event: dict[str, Any]) -> list[str]:
    return [crumb["message"] for crumb in event.get("breadcrumbs", {}).get("values", []) if "order" in crumb["message"]]


@pytest.mark.parametrize("preload", [(), ("--preload", "shop")], ids=["imported", "preloaded"])
def test_a_job_that_has_failed_for_good_is_reported_once(
    scheduler: Scheduler, tmp_path: Path, receiver: Receiver, preload: tuple[str, ...]
) -> None:
    with a_node(tmp_path, receiver, *preload):
        order = scheduler.add_job("shop:Order", 7, queue="sales", meta={"tenant": "acme"})
        order.wait(LIMIT)
        fine = scheduler.add_job("shop:Fine")
        fine.wait(LIMIT)
        receiver.heed(1)
    [event] = receiver.events

    [error] = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("OSError", "the till of http://ann:***@till/ is locked")
    assert error["mechanism"]["type"] == "taskqueue"
    assert "geheim" not in json.dumps(event)
    assert event["tags"] == {"job": "shop:Order", "job_id": str(order.id), "queue": "sales", "attempt": "3"}
    assert event["transaction"] == "shop:Order"
    assert event["contexts"]["meta"]["tenant"] == "acme"
    assert messages(event) == ["order 7"]
    assert fine.result == "shop:Fine"


def test_a_worker_sends_before_it_ends(scheduler: Scheduler, tmp_path: Path, receiver: Receiver) -> None:
    options = ("--max-jobs-per-child", "1", "--preload", "shop")  # each of five workers would import the SDK anew
    with a_node(tmp_path, receiver, *options):
        jobs = [scheduler.add_job("shop:Known", number) for number in range(5)]
        scheduler.wait_for(jobs, timeout=LIMIT)
        ids = {event["tags"]["job_id"] for event in receiver.heed(5)}
    assert ids == {str(job.id) for job in jobs}
    assert len(receiver.events) == 5


def test_what_a_job_declares_decides_which_failure_is_the_last(
    scheduler: Scheduler, tmp_path: Path, receiver: Receiver
) -> None:
    with a_node(tmp_path, receiver):
        jobs = [scheduler.add_job(f"shop:{name}") for name in ("Once", "Picky", "Slow", "Known")]
        scheduler.wait_for(jobs, timeout=LIMIT)
        receiver.heed(3)  # a stop of the node interrupts hooks
    assert [event for event in receiver.events if "tags" not in event] == []  # of no job
    errors = {event["tags"]["job"]: event["exception"]["values"][-1]["type"] for event in receiver.events}

    assert errors == {"shop:Picky": "LookupError", "shop:Slow": "JobTimeout", "shop:Known": "Fail"}
    assert {event["tags"]["attempt"] for event in receiver.events} == {"1"}


def test_jobs_that_run_at_once_have_scopes_of_their_own(
    scheduler: Scheduler, tmp_path: Path, receiver: Receiver
) -> None:
    with a_node(tmp_path, receiver):
        jobs = [scheduler.add_job("shop:AtOnce", number) for number in range(8)]
        scheduler.wait_for(jobs, timeout=LIMIT)
        events = {event["tags"]["job_id"]: event for event in receiver.heed(8)}

    for number, job in enumerate(jobs):
        event = events[str(job.id)]
        assert event["exception"]["values"][0]["value"] == f"order {number} is lost"
        assert messages(event) == [f"order {number}"]


def test_an_event_of_a_job_itself_has_its_tags(scheduler: Scheduler, tmp_path: Path, receiver: Receiver) -> None:
    with a_node(tmp_path, receiver):
        job = scheduler.add_job("shop:Logs")
        job.wait(LIMIT)
        [event] = receiver.heed(1)

    assert event["logentry"]["message"] == "no label"
    assert event["tags"]["job_id"] == str(job.id)


def test_what_the_hooks_of_a_job_report_has_its_tags(scheduler: Scheduler, tmp_path: Path, receiver: Receiver) -> None:
    with a_node(tmp_path, receiver):
        jobs = [scheduler.add_job("shop:Told"), scheduler.add_job("shop:ToldAtOnce")]
        scheduler.wait_for(jobs, timeout=LIMIT)
        events = receiver.heed(6)

    told = [(event["tags"]["job_id"], event["logentry"]["message"]) for event in events if "logentry" in event]
    assert sorted(id for id, _ in told) == sorted(2 * [str(job.id) for job in jobs])
    assert [text for _, text in told].count("the customer must be told") == 2
    assert {event["tags"]["job_id"] for event in events if "logentry" not in event} == {str(job.id) for job in jobs}


CALLER = """
import sys

import sentry_sdk
import shop
from taskqueue import Scheduler

sentry_sdk.set_tag("of", "the caller")
with Scheduler(sys.argv[1]) as scheduler:
    order = scheduler.run_job(shop.Known)
    scheduler.run_job(shop.Fine)
    assert "job" not in sentry_sdk.get_isolation_scope()._tags
    try:
        scheduler.run_job(shop.Known, reraise=True)
    except shop.Fail as error:
        sentry_sdk.capture_exception(error)
print(order.id)
sentry_sdk.flush()
"""


def test_a_job_that_runs_in_the_caller_is_reported_once(
    scheduler: Scheduler, tmp_path: Path, receiver: Receiver
) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    done = subprocess.run(
        [sys.executable, "caller.py", f"sqlite:///{tmp_path}/jobs.db"],
        cwd=tmp_path,
        env={**os.environ, "SENTRY_ADDRESS": receiver.address},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )

    assert done.returncode == 0, done.stderr
    first, second = receiver.heed(2)
    assert len(receiver.events) == 2
    assert first["tags"] == {
        "of": "the caller",
        "job": "shop:Known",
        "job_id": done.stdout.strip(),
        "queue": "default",
        "attempt": "1",
    }
    assert second["exception"]["values"][-1]["type"] == "Fail"


def test_a_receiver_that_does_not_answer_holds_up_no_job(scheduler: Scheduler, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with node(
        f"sqlite:///{tmp_path}/jobs.db",
        tmp_path,
        "--max-jobs-per-child",
        "1",
        SENTRY_ADDRESS="http://key@127.0.0.1:9/1",
    ):
        jobs = [scheduler.add_job("shop:Known"), scheduler.add_job("shop:Fine")]
        scheduler.wait_for(jobs, timeout=LIMIT)

    assert jobs[1].result == "shop:Fine"
