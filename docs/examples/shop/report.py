"""The report of each night, for the owner."""

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from shop import database
from shop.mail import MailJob
from shop.settings import Settings
from taskqueue import Job, schedule

ZONE = "Europe/Berlin"


# Nodes apply what the code declares (--schedules shop.report). "once": after a night without a node, one report is made
# at the next start. Nobody's request adds this job, so it names its customer itself.
@schedule("nightly-report", cron="30 2 * * *", tz=ZONE, misfire="once", meta={"customer": "staff"})
class NightlyReport(Job):
    """Mails the sales of ``day``, or of yesterday, and returns the number of books that were sold."""

    options = {"queue": "reports", "retry": 3, "retry_interval": "10m"}

    def start(self) -> int:
        yesterday = datetime.now(ZoneInfo(ZONE)).date() - timedelta(days=1)
        day = date.fromisoformat(self.data["day"]) if self.data else yesterday
        rows = database.sales(day.isoformat())
        lines = [f"{row['sold']:4} {row['title']}: {(row['cents'] or 0) / 100:.2f} €" for row in rows]
        text = "\n".join(lines) or "Nothing was sold."
        # The mail is a job of its own: a mail server that is away must not make the report again.
        self.scheduler.add_job(MailJob, {"to": Settings().owner, "subject": f"Sales of {day}", "text": text})
        return sum(row["sold"] for row in rows)
