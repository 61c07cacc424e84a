"""Times as other systems write them: the error says what to write here."""

from __future__ import annotations

import re

import pytest

from taskqueue.errors import InvalidOption
from taskqueue.model.schedules import Cron
from taskqueue.scheduler.schedules import refuse_names


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        ("0 0 3 * * *", "there is no field for seconds or years: pass cron='0 3 * * *'"),
        ("0 0 3 ? * MON", "pass cron='0 3 ? * MON'"),
        ("0 0 3 ? * 2", "pass cron='0 3 ? * 2'; 0 is Sunday here and in Celery, Monday in APScheduler"),
        ("0 0 3 * * ? 2027", "pass cron='0 3 * * ?'"),
        ("0 3 * * * 2027", "there is no field for years: pass cron='0 3 * * *', and until="),
        ("0 3 * * ? *", "there is no field for years: pass cron='0 3 * * ?'"),
        ("*/10 * * * * *", "there is no field for seconds: pass every='10s'"),
        ("0 3 * * * Europe/Berlin", "pass cron='0 3 * * *', tz='Europe/Berlin'"),
        ("0 3 * * mon UTC", "pass cron='0 3 * * mon', tz='UTC'"),
        ("@daily Europe/Berlin", "pass cron='@daily', tz='Europe/Berlin'"),
        ("CRON_TZ=Europe/Berlin 0 3 * * *", "pass cron='0 3 * * *', tz='Europe/Berlin'"),
        ("TZ=UTC @daily", "pass cron='@daily', tz='UTC'"),
        ("@reboot", "nothing runs when a host starts"),
        ("@every 5m", "pass every='5m'"),
        ("every day at 3am", "pass cron='0 3 * * *'"),
        ("every monday at 9:30", "pass cron='30 9 * * mon'"),
        ("Fridays at 12pm", "pass cron='0 12 * * fri'"),
        ("every weekday at 18:05", "pass cron='5 18 * * mon-fri'"),
        ("daily at 12:15 am", "pass cron='15 0 * * *'"),
        ("03:15", "pass cron='15 3 * * *'"),
        ("3am", "pass cron='0 3 * * *'"),
        ("every 5 minutes", "pass every='5m'"),
        ("every hour", "pass every='1h'"),
        ("H 3 * * *", "H is a number that Jenkins chooses"),
        ("0 3 15W * *", "W, the nearest working day of Quartz, has no equivalent"),
    ],
)
def test_the_error_says_what_to_write(expr: str, words: str) -> None:
    with pytest.raises(InvalidOption, match=rf"^cron {re.escape(repr(expr))} cannot be read, .*{re.escape(words)}"):
        Cron(expr)


@pytest.mark.parametrize(
    "expr",
    [
        "",
        "soon",
        "every day at 25:00",
        "at 13pm",
        "0 3 * *",
        "0 0 0 99 * *",
        "3",
        "every 5 parsecs",
        "0 3 * * * Mars/Base",
    ],
)
def test_what_is_of_no_dialect_gets_the_usual_way_out(expr: str) -> None:
    with pytest.raises(InvalidOption, match="write minute, hour, day, month and weekday, such as '15 3"):
        Cron(expr)


def test_an_object_of_another_system_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"is not text: write for example .*; 0 is Sunday here and in Celery"):
        Cron(object())  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["minute", "day_of_week", "month_of_year"])
def test_the_fields_of_celery_and_apscheduler_are_no_options(option: str) -> None:
    with pytest.raises(InvalidOption, match=rf"nightly: there is no option '{option}': pass cron='15 3 .*Sunday"):
        refuse_names("nightly", {option: "0"})
