"""The rows of an outbox: a checked order of a job as text, and the record that a row becomes in the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from taskqueue.errors import InvalidJob, InvalidOption
from taskqueue.model.ids import ID_TEXT, new_id
from taskqueue.model.job_path import path_of
from taskqueue.model.options import checked, merged, value_of
from taskqueue.model.options.new_record import record
from taskqueue.model.options.readers import stated
from taskqueue.model.options.table import OPTIONS, Scope
from taskqueue.model.record import Record, changed
from taskqueue.model.schedules import moment_of
from taskqueue.model.serializer import decode, dumps, encode
from taskqueue.model.shown_text import as_code
from taskqueue.scheduler.new_jobs import Order

LONGEST_PATH = 1000
"""Maximum number of characters of the path of a job."""


class Row(NamedTuple):
    """A job that has been added to an outbox; the fields are columns of its table."""

    id: str
    """Identifies the row, and the job unless it has the option ``id``."""
    added_at: str
    """When it was added, by the clock of the host that did so: ISO 8601."""
    job: str
    """The import path of the job."""
    data: str
    """The data of the job, Extended JSON."""
    options: str
    """The options of the call, a JSON object."""
    declared: str | None
    """The options of the class that are not the usual ones, a JSON object; None if the class was not imported."""


def row_of(order: Order, call: Mapping[str, Any], added_at: datetime) -> Row:
    """Return the row of an order; ``call`` has the options as they were passed. Raises ``InvalidOption``."""
    new, options = order.record, order.options
    _check(new, options, call)
    given = {name: value for name, value in new.given.items() if name in OPTIONS}
    if new.depends_on:
        given["depends_on"] = {str(job.id): job.on_failure.value for job in new.depends_on}
    else:
        given.pop("depends_on", None)
    if "depends_on" in order.given and new.options.ready is not None:
        given["ready"] = stated(new.options.ready)  # with the conditions among depends_on
    if options["id"] is not None:
        given[ID_TEXT] = str(options["id"])
    declared = {
        name: stated(value)
        for name, value in options.items()
        if name not in order.given and value != OPTIONS[name].default
    }
    return Row(
        id=str(new.id if options["id"] is None else new_id()),
        added_at=added_at.isoformat(timespec="milliseconds"),
        job=new.job,
        data=new.data,
        options=dumps(given),
        declared=None if new.options.undeclared else dumps(declared),
    )


def record_of(row: Row, now: datetime) -> Record:
    """Return the record of the row's job, which is added to the store ``now``; raise ``InvalidJob`` for a wrong row.

    Times that count from the adding count from ``added_at``. Nothing is imported.
    """
    job = path_of(row.job)
    added_at = moment_of(row.added_at, now)
    given = checked(_object("options", row.options), job)
    declared = checked(_object("declared", row.declared or "{}"), f"options of {job}", Scope.CLASS)
    options = merged(given, declared, {})
    if options["id"] is None:
        options["id"] = value_of("id", row.id)
        given[ID_TEXT] = options["id"]
    data = encode(decode(row.data))
    new = record(job=job, data=data, options=options, given=given, id=new_id(), now=added_at)
    ready_at = now if new.ready_at == added_at else new.ready_at
    if row.declared is None:
        new = changed(new, options=replace(new.options, undeclared=True))
    return changed(new, created_at=now, ready_at=ready_at).at_rank()


def _check(new: Record, options: Mapping[str, Any], call: Mapping[str, Any]) -> None:
    """Refuse what a relay, which adds the job later, cannot do."""
    if "ignore_data" in call:
        raise InvalidOption(
            f"{new.job}: ignore_data compares jobs, and the outbox has none: pass unique, or leave it out"
        )
    if options["on_duplicate"] != "return":
        raise InvalidOption(
            f"{new.job}: on_duplicate={options['on_duplicate']!r}: the relay, which adds the job after your commit, "
            "changes no other job: pass 'return', or leave it out"
        )
    if len(new.job) > LONGEST_PATH:
        raise InvalidJob(f"the path {new.job[:60]}… has {len(new.job):,} characters, at most {LONGEST_PATH:,} are kept")


def _object(column: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidJob(f"the column {column} is not JSON ({error}): {as_code(text[:60])}") from None
    if not isinstance(value, dict):
        raise InvalidJob(f"the column {column} is {as_code(text[:60])}: it must be a JSON object")
    return value
