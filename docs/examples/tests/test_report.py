"""The owner gets a report each night."""

import sqlite3
from datetime import timedelta
from zoneinfo import ZoneInfo

from shop import database
from shop.mail import MailJob
from shop.report import ZONE, NightlyReport
from shop.services import MailServer

from taskqueue.testing import Jobs

DAY = "2030-05-01"


def test_a_day_without_sales_is_reported(jobs: Jobs) -> None:
    assert jobs.perform(NightlyReport, {"day": DAY}) == 0
    jobs.assert_added(MailJob, data={"subject": f"Sales of {DAY}", "text": "Nothing was sold."})


def test_sales_are_summed_by_title(jobs: Jobs, momo: sqlite3.Row) -> None:
    database.set_price(momo["isbn"], 1999)
    with database.connected() as shop:
        for email in ("a@example.org", "b@example.org"):
            database.save_order(shop, momo["isbn"], email, DAY)

    assert jobs.perform(NightlyReport, {"day": DAY}) == 2
    jobs.assert_added(MailJob, data={"to": "owner@shop.example", "text": "   2 Momo: 39.98 €"})


def test_a_report_is_made_each_night_of_a_month(jobs: Jobs, mails: MailServer) -> None:
    jobs.sync_schedules("shop.report")

    jobs.run_for("30d")

    jobs.assert_added(NightlyReport, count=30)
    assert len(mails.box) == 30


def test_the_report_is_made_at_half_past_two(jobs: Jobs, mails: MailServer) -> None:
    jobs.sync_schedules("shop.report")

    [report, mail] = jobs.run_for("1d")

    assert f"{report.started_at.astimezone(ZoneInfo(ZONE)):%H:%M}" == "02:30"
    assert mail.created_at - report.started_at < timedelta(minutes=1)


def test_the_report_has_the_customer_of_the_staff(jobs: Jobs, mails: MailServer) -> None:
    jobs.sync_schedules("shop.report")

    assert [job.meta for job in jobs.run_for("1d")] == [{"customer": "staff"}] * 2
