"""Prices come from a service that is often busy."""

import sqlite3
from datetime import timedelta
from urllib.error import URLError

import pytest
from shop import database
from shop.services import Wholesaler
from shop.wholesaler import PriceJob

from taskqueue import Fail, Retry, Scheduler
from taskqueue.testing import Jobs, MovableClock


def test_a_price_is_kept_in_cents(jobs: Jobs, wholesaler: Wholesaler, momo: sqlite3.Row) -> None:
    wholesaler.answers += [19.99]

    assert jobs.perform(PriceJob, {"isbn": momo["isbn"]}) == 1999
    assert database.find_book(momo["isbn"])["cents"] == 1999


def test_a_book_that_the_wholesaler_does_not_have_fails_at_once(jobs: Jobs, wholesaler: Wholesaler) -> None:
    wholesaler.answers += [(404, {})]

    with pytest.raises(Fail, match="does not have /books/1"):
        jobs.perform(PriceJob, {"isbn": "1"})


def test_a_busy_service_names_the_time_of_the_next_attempt(
    scheduler: Scheduler, jobs: Jobs, wholesaler: Wholesaler, clock: MovableClock
) -> None:
    wholesaler.answers += [(429, {"Retry-After": "120"})]
    process = scheduler.add_job(PriceJob, {"isbn": "1"})

    with pytest.raises(Retry):
        jobs.drain()

    assert process.refresh().ready_at == clock.now() + timedelta(minutes=2)


@pytest.mark.parametrize("answer", [(500, {}), (503, {}), (429, {}), (429, {"Retry-After": "Fri, 31 Dec 1999"})])
def test_a_broken_service_is_asked_again(
    scheduler: Scheduler, jobs: Jobs, wholesaler: Wholesaler, momo: sqlite3.Row, answer: tuple[int, dict[str, str]]
) -> None:
    wholesaler.answers += [answer, answer, 12.5]
    process = scheduler.add_job(PriceJob, {"isbn": momo["isbn"]})

    jobs.run_for("1m")

    assert process.refresh().result == 1250
    assert len(process.attempts) == 3


def test_an_answer_that_makes_no_sense_is_not_asked_for_again(
    scheduler: Scheduler, jobs: Jobs, wholesaler: Wholesaler
) -> None:
    wholesaler.answers += ["much"]
    process = scheduler.add_job(PriceJob, {"isbn": "1"})

    jobs.drain(raise_errors=False)

    assert process.refresh().is_failed


def test_a_service_that_is_away_for_long_fails_the_job(
    scheduler: Scheduler, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_WHOLESALER", "http://127.0.0.1:1")
    scheduler.add_job(PriceJob, {"isbn": "1"})

    with pytest.raises(URLError):
        jobs.run_for("1d")
