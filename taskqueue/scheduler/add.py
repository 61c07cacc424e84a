"""Adds checked jobs to the store: several at once, one with the unique key of another, or one only once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model import unique_period
from taskqueue.model.options.new_record import changed as changed_options
from taskqueue.model.record import Record, changed
from taskqueue.model.serializer import same
from taskqueue.model.unique_period import without as without_period
from taskqueue.scheduler.new_jobs import Order
from taskqueue.store import Store
from taskqueue.store.relational.engine import Adder
from taskqueue.store.tries import Tries


def existed(new: Record, stored: Record) -> bool:
    """Return whether the stored record was there before the new one."""
    return stored.existed or stored.id != new.id


def many_added(store: Store, new: Sequence[Record], adder: Adder | None) -> list[Record]:
    """Add the records and return the stored ones; some may change other jobs that have their unique keys.

    An ``adder`` adds them within a transaction of the caller, and changes no other job.
    """
    if adder is not None:
        return [
            after_duplicate(store, record, stored, adder)
            if stored is not record and "on_duplicate" in record.given
            else stored
            for record, stored in zip(new, adder.add(new), strict=True)
        ]
    if not any("on_duplicate" in record.given for record in new):
        return store.add(new)
    from taskqueue.scheduler import duplicates

    duplicates.check_many(new)
    pairs = zip(new, store.add(new), strict=True)
    return [duplicates.resolved(store, record, stored) for record, stored in pairs]


def after_duplicate(store: Store, new: Record, stored: Record, session: Any) -> Record:
    """Return the job that has the unique key of the new one afterwards, which may be another job."""
    from taskqueue.scheduler import duplicates

    if session is not None:
        duplicates.check_alone(new, "a call in your own transaction cannot change another job")
    return duplicates.resolved(store, new, stored)


def refuse_of_key(options: Mapping[str, Any]) -> None:
    """Refuse options of ``add_job`` for which ``add_job_once`` has its own rules."""
    for name in ("unique_for", "on_duplicate"):
        if name in options:
            raise InvalidOption(f"add_job_once: {name} is for add_job: pass it there, or leave it out")


def add_once(store: Store, order: Order, cancel_running: str | None) -> Record:
    """Return the equal pending job, or the new one that was stored.

    Pending jobs of the same class and data are the same, with ``ignore_data`` those of the same class, however they
    were added; with ``unique`` those of the same key. If an option that the call names differs, or data where they are
    ignored, the new one takes the place of all of these: a job that has not begun is canceled; a running one is left
    to finish and the new one waits for it, or is asked to end for the reason ``cancel_running``.
    """
    new = without_period(replace(order.record, unique=_once_key(order)))
    tries = Tries(store.url, f"the job with unique={new.unique!r}")
    while True:  # a turn fails only if another process has moved the job
        tries.another()
        equal, alike = _equal(store, new, order)
        if equal is not None:
            return equal
        replacements = [store.replace(new, old, cancel_running, new.created_at) for old in alike]
        replacement = next((record for record in replacements if record is not None), None)
        if replacement is not None:
            return replacement


def add_once_within(adder: Adder, order: Order) -> Record:
    """Return the equal pending job, or the new one that was added within a transaction of the caller.

    Raises ``InvalidOption`` if the new one would have to replace another job, which such a transaction cannot.
    """
    new = without_period(replace(order.record, unique=_once_key(order)))
    equal, alike = _equal(adder, new, order)
    if equal is not None:
        return equal
    raise InvalidOption(
        f"add_job_once with session: {new.job}: the pending job {alike[0].id} has other options or data, and a call "
        "in your own transaction cannot change it: leave out session, or add the job after your commit"
    )


def _equal(adder: Adder, new: Record, order: Order) -> tuple[Record | None, list[Record]]:
    """Return the equal pending job, with all that are the same job; the new one if there are none."""
    found = adder.alike(new, order.options["ignore_data"]) if order.record.unique is None else []
    alike = [changed(stored, existed=True) for stored in found]
    if not alike:
        alike = adder.add([new])  # of concurrent callers, the unique index lets only one add
    return next((stored for stored in alike if stored.id == new.id or not _differs(stored, order)), None), alike


def _once_key(order: Order) -> str:
    """Return the key, which only one pending job can have."""
    record = order.record
    if record.unique is not None:
        return record.unique
    if order.options["ignore_data"]:
        return unique_period.of_class(record.job)
    return unique_period.of_data(record.job, record.data)


def _differs(stored: Record, order: Order) -> bool:
    new = order.record
    return bool(changed_options(stored, order.given)) or stored.job != new.job or not same(stored.data, new.data)
