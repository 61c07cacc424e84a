"""Records in every state, for commands to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from bson import ObjectId

from taskqueue.model.record import Attempt, Cause, Failure, Holder, Options, Record, Status
from taskqueue.model.retry import FixedRetry

NOW = datetime.now(timezone.utc).replace(microsecond=0)
FAILURE = Failure(
    type="shop.errors.OutOfStock", message="no more\nteapots", traceback="Traceback …\nOutOfStock: teapots"
)


def record(**fields: Any) -> Record:
    """Return a record that waits since ten minutes, with other fields as given."""
    values: dict[str, Any] = {"id": ObjectId(), "job": "shop.mail:MailJob", "created_at": NOW - timedelta(days=10)}
    values["ready_at"] = values["created_at"]
    return Record(**(values | fields)).at_rank()


def in_every_status() -> Mapping[str, Record]:
    """Return one record in each status, and some more by what is special about them."""
    holder = Holder(seat="web-1", incarnation="a1")
    running = record(status=Status.PROCESSING, cause=Cause.CLAIMED, holder=holder, claims=1, ready_at=NOW)
    ended = {"ready_at": None, "ended_at": NOW}
    return {
        "waiting": record(),
        "interrupted": record(cause=Cause.INTERRUPTED),
        "scheduled": record(status=Status.POSTPONED, cause=Cause.SCHEDULED, ready_at=NOW + timedelta(hours=5)),
        "behind": record(status=Status.POSTPONED, cause=Cause.BEHIND, ready_at=None, waiting_for=(running.id,)),
        "retry": record(
            status=Status.POSTPONED, cause=Cause.RETRY, ready_at=NOW + timedelta(days=2), failures=2, error=FAILURE
        ),
        "running": replace(running, started_at=NOW, progress=45.0, progress_message="page 9"),
        "silent": replace(running, id=ObjectId()),
        "done": record(status=Status.DONE, cause=Cause.RETURNED, result='{"sent":1}', progress=100.0, **ended),
        "failed": in_full(),
        "canceled": record(status=Status.CANCELED, cause=Cause.CANCELED, error=CANCELED, **ended),
        "timeout": record(status=Status.TIMEOUT, cause=Cause.TIMED_OUT, error=FAILURE, failures=1, **ended),
    }


CANCELED = Failure(type="Canceled", message="wrong customer")


def in_full() -> Record:
    """Return a failed record in which every field says something."""
    attempt = Attempt(
        number=1,
        claims=1,
        node="web-1",
        pid=4711,
        started_at=NOW - timedelta(seconds=3),
        ended_at=NOW,
        outcome="Failed",
        error=FAILURE,
        exit="",
        peak_memory=512 * 1024**2,
    )
    crash = attempt._replace(number=2, outcome="Crashed", error=None, exit="SIGKILL", started_at=None, pid=None)
    return record(
        job="shop.mail:MailJob",
        data='{"to":"a@example.org"}',
        state="7",
        queue="mail",
        priority=-3,
        tags=("a", "b"),
        unique="mail:7",
        options=Options(retry=FixedRetry(times=1, interval=60.0), timeout=30.0, force_spawn=True),
        expires_at=NOW + timedelta(days=1),
        status=Status.FAILED,
        cause=Cause.EXHAUSTED,
        ready_at=None,
        claims=2,
        failures=1,
        crashes=1,
        started_at=NOW - timedelta(seconds=3),
        ended_at=NOW,
        progress=99.6,
        progress_message="page 2",
        error=FAILURE,
        attempts=(attempt, crash),
    )
