"""Mail goes through a real server."""

import smtplib
from datetime import timedelta

import pytest
from shop.mail import MailJob
from shop.services import MailServer

from taskqueue import Fail, Scheduler
from taskqueue.testing import Jobs, MovableClock

HELLO = {"to": "ann@example.org", "subject": "Hello", "text": "Grüße"}


def test_a_mail_arrives(jobs: Jobs, mails: MailServer) -> None:
    jobs.perform(MailJob, HELLO)

    [mail] = mails.box
    assert (mail["To"], mail["Subject"]) == ("ann@example.org", "Hello")
    assert mail.get_payload(decode=True).decode().strip() == "Grüße"


def test_the_result_is_the_id_of_the_mail(jobs: Jobs, mails: MailServer) -> None:
    assert jobs.perform(MailJob, HELLO) == mails.box[0]["Message-ID"]


def test_an_address_that_is_refused_is_not_tried_again(scheduler: Scheduler, jobs: Jobs, mails: MailServer) -> None:
    process = scheduler.add_job(MailJob, {**HELLO, "to": "nobody@example.org"})

    with pytest.raises(Fail, match="nobody@example.org is refused"):
        jobs.drain()

    assert process.refresh().is_failed
    assert len(process.attempts) == 1


def test_a_server_that_is_busy_is_tried_again_in_half_a_minute(
    scheduler: Scheduler, jobs: Jobs, mails: MailServer, clock: MovableClock
) -> None:
    mails.busy = 1
    process = scheduler.add_job(MailJob, HELLO)

    with pytest.raises(smtplib.SMTPDataError):
        jobs.drain()

    assert process.refresh().is_postponed
    assert process.ready_at == clock.now() + timedelta(seconds=30)


def test_pauses_double(scheduler: Scheduler, jobs: Jobs, mails: MailServer, clock: MovableClock) -> None:
    mails.busy = 4
    began = clock.now()
    process = scheduler.add_job(MailJob, HELLO)

    jobs.run_for("1h")

    assert [(one.started_at - began).seconds for one in process.refresh().attempts] == [0, 30, 90, 210, 450]
    assert process.is_done


def test_the_id_of_a_mail_is_the_same_in_every_attempt(scheduler: Scheduler, jobs: Jobs, mails: MailServer) -> None:
    mails.busy = 1
    process = scheduler.add_job(MailJob, HELLO)

    jobs.run_for("1m")

    assert mails.box[0]["Message-ID"] == f"<{process.id}@shop.example>"


def test_a_server_that_stays_away_fails_the_job(scheduler: Scheduler, jobs: Jobs, mails: MailServer) -> None:
    mails.busy = 99
    process = scheduler.add_job(MailJob, HELLO)

    jobs.run_for("1d", raise_errors=False)

    assert process.refresh().is_failed
    assert process.error is not None
    assert process.error.type == "smtplib.SMTPDataError"
    assert len(process.attempts) == 6


def test_no_server_at_all_is_an_error_that_is_retried(
    scheduler: Scheduler, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_SMTP", "127.0.0.1:1")
    process = scheduler.add_job(MailJob, HELLO)

    jobs.drain(raise_errors=False)

    assert process.refresh().is_postponed
