"""The report of each night, for the owner."""

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from bookshop import database
from bookshop.mail import MailJob
from bookshop.settings import Settings
from taskqueue import Job, Scheduler

ZONE = "Europe/Berlin"


class NightlyReport(Job):
    """Mails the sales of ``day``, or of yesterday, and returns the number of books that were sold."""

    options = {"retry": 3, "retry_interval": "10m"}

    def start(self) -> int:
        yesterday = datetime.now(ZoneInfo(ZONE)).date() - timedelta(days=1)
        day = date.fromisoformat(self.data["day"]) if self.data else yesterday
        rows = database.sales(day.isoformat())
        lines = [f"{row['sold']:4} {row['title']}: {(row['cents'] or 0) / 100:.2f} €" for row in rows]
        text = "\n".join(lines) or "Nothing was sold."
        self.scheduler.add_job(MailJob, {"to": Settings().owner, "subject": f"Sales of {day}", "text": text})
        return sum(row["sold"] for row in rows)


def define_schedules(scheduler: Scheduler) -> None:
    """Define the schedules of the shop, or give them these definitions; call it at each start."""
    scheduler.schedule("nightly-report", NightlyReport, cron="30 2 * * *", tz=ZONE, misfire="once")
