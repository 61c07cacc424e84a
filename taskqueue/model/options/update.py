"""Updates the options and data of a waiting job."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from taskqueue.errors import InvalidOption, WrongStatus
from taskqueue.model.lifecycle.pending import planned
from taskqueue.model.meta import META
from taskqueue.model.options import checked
from taskqueue.model.options.new_record import expiry
from taskqueue.model.options.readers import stated
from taskqueue.model.record import Record, Status, changed, rank_of
from taskqueue.model.schedules import Moment, moment_of
from taskqueue.model.serializer import same


class JobChanges(TypedDict, total=False):
    """The types of the changes of one job."""

    priority: int
    at: Moment | timedelta | None
    queue: str
    tags: str | Collection[str]
    meta: Mapping[str, str] | Sequence[str]
    data: Any


REVISABLE = tuple(JobChanges.__annotations__)
"""The options that can be changed, by their names in ``add_job``."""


def checked_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options among the changes in their stored form; raise ``InvalidOption`` for other names."""
    for name in changes:
        if name not in REVISABLE:
            raise InvalidOption(f"update_job: {name} cannot be changed: only {', '.join(REVISABLE)} can")
    if not changes:
        raise InvalidOption(f"update_job: nothing to change: pass {', '.join(REVISABLE[:-1])} or data")
    return checked({name: value for name, value in changes.items() if name != "data"}, "update_job")


def revised(record: Record, options: Mapping[str, Any], data: str | None, now: datetime) -> Record:
    """Return the waiting record with these options, checked before, and with these data unless they are None.

    Raises ``WrongStatus`` for a job that runs or has ended, and ``InvalidOption`` for conflicts with other options.
    """
    if record.status not in (Status.WAITING, Status.POSTPONED):
        raise WrongStatus(record.id, record.status.name, "be updated while it is WAITING or POSTPONED")
    fields = {name: value for name, value in options.items() if name not in ("at", META)}  # given keeps the meta
    given = {**record.given, **{name: stated(value) for name, value in options.items()}}
    after = changed(record, **fields, given=given)
    # A job that waits for its children has no ready_at: only its rank holds its place in the queue.
    after = changed(after, rank=record.rank + rank_of(now, after.priority) - rank_of(now, record.priority)).at_rank()
    if "at" in options:
        at = now if options["at"] is None else moment_of(options["at"], now)
        after = changed(planned(after, at, now), expires_at=expiry(record, max(at, now)))
        _check_expiry(after, now)
    if data is None or same(data, record.data):
        return after
    check_data_may_change(record)
    return changed(after, data=data)


def check_data_may_change(record: Record) -> None:
    """Raise ``InvalidOption`` for a job that is identified by its data."""
    if record.unique is not None and record.unique.startswith(f"once:{record.job}:"):
        raise InvalidOption(
            f"update_job: job {record.id} was added by add_job_once, which identifies it by its data: "
            "cancel it and add another"
        )


def _check_expiry(after: Record, now: datetime) -> None:
    starts_at = now if after.ready_at is None else max(after.ready_at, now)
    if after.ready_at is not None and after.expires_at is not None and after.expires_at <= starts_at:
        raise InvalidOption(
            f"update_job: at={starts_at:%Y-%m-%d %H:%M:%S} UTC is not before the job expires "
            f"({after.expires_at:%Y-%m-%d %H:%M:%S} UTC): pass an earlier time"
        )
