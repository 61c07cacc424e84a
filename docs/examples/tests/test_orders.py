"""An order is a workflow of four jobs."""

import signal
import sqlite3
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from shop import database, orders
from shop.mail import MailJob
from shop.services import MailServer, Wholesaler

from taskqueue import Scheduler, workflows
from taskqueue.testing import Jobs, MovableClock

KILLED = """
import os
from types import SimpleNamespace
from shop import jobs, orders

jobs.customer = SimpleNamespace(get=lambda: os.kill(os.getpid(), 9))  # the first job asks for it when it is added
orders.place("9783522202602", "ann@example.org", "2030-05-01")
"""


@pytest.fixture
def flow(scheduler: Scheduler, momo: sqlite3.Row, mails: MailServer, wholesaler: Wholesaler) -> workflows.Workflow:
    """Return the jobs of an order of one book; none has run yet."""
    with database.connected() as shop:
        number = database.save_order(shop, momo["isbn"], "ann@example.org", "2030-05-01")
    return orders.fulfil(scheduler, number, momo["isbn"], "ann@example.org")


def test_the_mail_names_what_the_other_jobs_have_returned(
    flow: workflows.Workflow, jobs: Jobs, mails: MailServer
) -> None:
    jobs.drain()

    text = mails.box[0].get_payload(decode=True).decode()
    assert text.startswith("Thank you for ordering Momo.")
    assert text.split()[-3:] in (["R1,", "payment", "R2."], ["R2,", "payment", "R1."])


def test_an_order_is_not_kept_if_the_shop_is_killed_before_its_jobs_are_added(jobs: Jobs, momo: sqlite3.Row) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED], check=False, cwd=Path(__file__).parents[1])

    assert killed.returncode == -signal.SIGKILL
    jobs.refute_added()
    with database.connected() as shop:
        assert shop.execute("SELECT count(*) FROM orders").fetchone()[0] == 0


def test_a_second_attempt_of_a_payment_finds_the_first_one(
    scheduler: Scheduler, jobs: Jobs, wholesaler: Wholesaler
) -> None:
    process = jobs.crash(scheduler.add_job(orders.charge, {"order": 1}), at="end")  # paid, and then the worker dies

    assert len(process.attempts) == 2
    assert process.result == "R1"
    assert len(wholesaler.references) == 1


def test_an_order_waits_while_the_wholesaler_is_busy(
    flow: workflows.Workflow, jobs: Jobs, wholesaler: Wholesaler, clock: MovableClock, mails: MailServer
) -> None:
    wholesaler.answers += [(429, {"Retry-After": "60"})]
    began = clock.now()

    jobs.run_for("1h")

    assert flow.refresh().is_done
    assert flow.processes[-1].started_at - began == timedelta(minutes=1)


def test_an_order_that_cannot_be_reserved_is_not_confirmed(
    flow: workflows.Workflow, jobs: Jobs, wholesaler: Wholesaler, mails: MailServer
) -> None:
    wholesaler.answers += [(404, {})]

    jobs.drain(raise_errors=False)

    assert [job.status.name for job in flow.refresh().processes] == ["FAILED", "DONE", "CANCELED", "CANCELED"]
    assert mails.box == []
    jobs.assert_added(MailJob, count=1)
