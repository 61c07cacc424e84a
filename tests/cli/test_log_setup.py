"""How log lines look as text and JSON, and which fields a format of the user's own may name."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from taskqueue.cli import log_setup
from taskqueue.model.log_fields import CURRENT, RunFields

pytestmark = pytest.mark.usefixtures("logging_as_before")


@contextmanager
def in_a_run() -> Iterator[RunFields]:
    """Log as a run does meanwhile."""
    fields = RunFields(job_id="6507a1b2c3d4e5f60000000c", job="shop:Mail", queue="mail", attempt=2, node="web-1")
    token = CURRENT.set(fields)
    try:
        yield fields
    finally:
        CURRENT.reset(token)


def test_json_logs_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_setup.configure("info", "json")
    try:
        raise ValueError("no\nteapots")
    except ValueError:
        logging.getLogger("taskqueue.test").exception("job %s failed", 7)
    logging.getLogger("taskqueue.test").debug("not told")

    [line] = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["level"], told["logger"], told["message"], told["pid"]) == (
        *("error", "taskqueue.test", "job 7 failed"),
        os.getpid(),
    )
    assert told["traceback"].endswith("ValueError: no\nteapots")


def test_a_json_line_of_a_run_has_its_fields_and_every_extra(capsys: pytest.CaptureFixture[str]) -> None:
    log_setup.configure("info", "json")
    endless: list[Any] = []
    endless.append(endless)
    with in_a_run() as fields:
        fields.meta = {"tenant": "acme"}
        extra = {"order": 7, "queue": "at the baker", "at": Path("/x"), "endless": endless, "nan": float("nan")}
        logging.getLogger("library").info("sent", extra=extra)

    told = json.loads(capsys.readouterr().err)
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "info",
        "logger": "library",
        "message": "sent",
        "job_id": "6507a1b2c3d4e5f60000000c",
        "job": "shop:Mail",
        "queue": "mail",
        "attempt": 2,
        "node": "web-1",
        "meta": {"tenant": "acme"},
        "pid": os.getpid(),
        "order": 7,
        "queue_": "at the baker",
        "at": "/x",
        "endless": "[[...]]",
        "nan": "nan",
    }


def test_a_json_line_of_no_run_has_no_fields_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    log_setup.configure("info", "json")
    logging.getLogger("library").info("idle")

    assert set(json.loads(capsys.readouterr().err)) == {"time", "level", "logger", "message", "node", "pid"}


def test_text_logs_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    log_setup.configure("warning", "text")
    logging.getLogger("taskqueue.test").warning("seat %s is lost", "web-1")
    with in_a_run():
        logging.getLogger("library").error("no such address")

    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d WARNING seat web-1 is lost", first)
    assert second.endswith(" ERROR   6507a1b2..00000c no such address")


@pytest.mark.parametrize(
    ("zone", "winter", "summer"),
    [
        ("Europe/Berlin", "2026-01-15 13:00:00+01:00", "2026-07-15 14:00:00+02:00"),
        ("Asia/Kolkata", "2026-01-15 17:30:00+05:30", "2026-07-15 17:30:00+05:30"),
        ("IST-5:30", "2026-01-15 17:30:00+05:30", "2026-07-15 17:30:00+05:30"),  # in the words of POSIX
        (":Asia/Kolkata", "2026-01-15 17:30:00+05:30", "2026-07-15 17:30:00+05:30"),
        ("", "2026-01-15 12:00:00+00:00", "2026-07-15 12:00:00+00:00"),
    ],
)
def test_lines_have_the_zone_in_which_the_log_was_set_up(
    monkeypatch: pytest.MonkeyPatch, zone: str, winter: str, summer: str
) -> None:
    with monkeypatch.context() as environment:
        environment.setenv("TZ", zone)
        time.tzset()
        log_setup.configure("info", "text")
        [handler] = logging.root.handlers
        environment.setenv("TZ", "America/Los_Angeles")  # as a job or its framework does in a worker
        time.tzset()
        written = []
        for at in ("2026-01-15T12:00:00+00:00", "2026-07-15T12:00:00+00:00"):
            record = logging.makeLogRecord({"msg": "idle", "created": datetime.fromisoformat(at).timestamp()})
            written.append(handler.format(record).partition(" INFO")[0][:25])
    time.tzset()

    assert written == [winter, summer]


def test_without_a_variable_lines_have_the_zone_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)
    time.tzset()
    log_setup.configure("info", "text")
    [handler] = logging.root.handlers
    moment = datetime.now(timezone.utc).replace(microsecond=0)

    line = handler.format(logging.makeLogRecord({"msg": "idle", "created": moment.timestamp()}))

    assert line.startswith(moment.astimezone().isoformat(" "))


@pytest.mark.parametrize("form", log_setup.FORMATS)
def test_no_line_has_the_password_of_a_url(capsys: pytest.CaptureFixture[str], form: str) -> None:
    log_setup.configure("info", form)
    address = "mongodb://ann:g3heim@db/shop"
    try:
        raise ConnectionError(address)
    except ConnectionError:
        logging.getLogger("library").exception("cannot reach %s", address, extra={"address": address})

    said = capsys.readouterr().err
    assert "mongodb://ann:***@db/shop" in said
    assert "ConnectionError" in said
    assert "g3heim" not in said


@pytest.mark.parametrize("style", ["%", "{"])
def test_a_format_of_the_users_own_may_name_the_job_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], style: str
) -> None:
    form = "%(job_id)s %(message)s" if style == "%" else "{job_id} {message}"
    written = {
        "formatters": {"plain": {"format": form, "style": style}},
        "handlers": {"err": {"class": "logging.StreamHandler", "formatter": "plain"}},
        "root": {"handlers": ["err"]},
    }
    (tmp_path / "logging.json").write_text(json.dumps(written))

    log_setup.configure("debug", "text", tmp_path / "logging.json")
    logging.getLogger("taskqueue.test").warning("idle")
    with in_a_run():
        logging.getLogger("library").error("lost")

    assert capsys.readouterr().err.splitlines() == ["- idle", "6507a1b2c3d4e5f60000000c lost"]
