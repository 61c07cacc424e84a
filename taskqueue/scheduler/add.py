"""Adds checked jobs to the store: several at once, or one only once.

A job whose unique key another job has replaces it, extends it or raises, as ``on_duplicate`` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from taskqueue.errors import InvalidOption, KeyTaken
from taskqueue.insight.records import present
from taskqueue.model import unique_period
from taskqueue.model.lifecycle.pending import planned
from taskqueue.model.options.new_record import changed as changed_options
from taskqueue.model.options.new_record import expiry
from taskqueue.model.options.update import revised
from taskqueue.model.record import Record, Status, changed
from taskqueue.model.serializer import same
from taskqueue.model.unique_period import PERIOD, end_of, period, starts_at
from taskqueue.model.unique_period import without as without_period
from taskqueue.scheduler.new_jobs import Order
from taskqueue.store import Store
from taskqueue.store.relational.engine import Adder
from taskqueue.store.tries import Tries


def existed(new: Record, stored: Record) -> bool:
    """Return whether the stored record was there before the new one."""
    return stored is not new and (stored.existed or stored.id != new.id)


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
    check_many(new)
    pairs = zip(new, store.add(new), strict=True)
    return [resolved(store, record, stored) for record, stored in pairs]


def after_duplicate(store: Store, new: Record, stored: Record, session: Any) -> Record:
    """Return the job that has the unique key of the new one afterwards, which may be another job."""
    if session is not None:
        check_alone(new, "a call in your own transaction cannot change another job")
    return resolved(store, new, stored)


def refuse_of_key(options: Mapping[str, Any]) -> None:
    """Refuse options of ``add_job`` for which ``add_job_once`` has its own rules."""
    for name in ("unique_for", "on_duplicate"):
        if name in options:
            raise InvalidOption(f"add_job_once: {name} is for add_job: pass it there, or leave it out")


def add_once(store: Store, order: Order, cancel_running: str | None) -> Record:
    """Return the equal pending job, or the new one that was stored.

    Pending jobs of the same class and data are the same, with ``ignore_data`` those of the same class, however they
    were added; with ``unique`` those of the same key. If an option named in the call differs, or the ignored data do,
    the new one replaces all of these: a job that has not started is canceled; a running one may finish first while the
    new one waits for it, or is asked to end for the reason ``cancel_running``.
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
    stored_jobs = adder.alike(new, order.options["ignore_data"]) if order.record.unique is None else []
    alike = [changed(stored, existed=True) for stored in stored_jobs]
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


ACTION = "on_duplicate"


def action_of(new: Record) -> str:
    """Return the action of the new job if another one has its key."""
    return str(new.given.get(ACTION, "return"))


def refuse(new: Record, kept: Record) -> None:
    """Raise ``KeyTaken`` if the new job was not stored and asks for that."""
    if kept.id != new.id and action_of(new) == "raise":
        raise KeyTaken(new.unique, kept.id, kept.job, kept.status.name, end_of(kept))


def check_many(new: Sequence[Record]) -> None:
    """Raise ``InvalidOption`` for a job that would have to raise when others of its call are stored."""
    for index, record in enumerate(new):
        if action_of(record) == "raise":
            raise InvalidOption(
                f"jobs[{index}].{record.job}: on_duplicate='raise' works only with add_job, since jobs before it are "
                "already stored: leave it out, and check `existed` of each process"
            )


def check_alone(new: Record, what: str) -> None:
    """Raise ``InvalidOption`` for a job that would have to change another one if that is impossible."""
    if action_of(new) in ("replace", "extend"):
        raise InvalidOption(
            f"{new.job}: on_duplicate={action_of(new)!r}: {what}: pass 'return' or 'raise', or leave it out"
        )


def resolved(store: Store, new: Record, kept: Record) -> Record:
    """Return the job that has the key afterwards: the kept one, perhaps changed by the new one, or the new one.

    A started job runs to its end, and the new one after it; after an ended job, the new one runs when its period ends.
    """
    refuse(new, kept)
    tries = Tries(store.url, f"job {kept.id} with unique={new.unique!r}")
    while kept.id != new.id and action_of(new) != "return":
        tries.another()
        if kept.status is Status.PROCESSING:
            placed = store.replace(_behind(new, kept), kept, None, store.now())
            if placed is not None:
                return placed
        elif kept.status.is_pending:
            after = _changed(store, new, kept)
            if after is not None:
                return after
        else:
            new = _behind(new, kept)
        [kept] = store.add([new])  # a turn fails only if another process has moved the job
    return kept


def _behind(new: Record, kept: Record) -> Record:
    """Return the new record, which runs when the period of the kept one ends and then has its own period."""
    ends_at = end_of(kept)
    if ends_at is None or ends_at <= starts_at(new):
        return new
    given: dict[str, Any] = dict(new.given)
    if PERIOD in given:
        given[PERIOD] = period(new.unique or "", given["unique_for"], ends_at)
    later = planned(new, ends_at, new.created_at)
    return changed(later, given=given, expires_at=expiry(new, ends_at)).at_rank()


def _changed(store: Store, new: Record, kept: Record) -> Record | None:
    """Return the kept record with the data of the new one, and with its time; None if it has moved."""
    stored = next(iter(present(store, [kept.id])), None)
    if stored is None or stored.unique != new.unique or stored.status not in (Status.WAITING, Status.POSTPONED):
        return None
    now = store.now()
    moves_to = _time(new, stored)
    after = revised(stored, {} if moves_to is None else {"at": moves_to}, new.data, now)
    unmoved = moves_to is None and same(stored.data, new.data)
    return after if unmoved or store.update(stored, after, now) else None


def _time(new: Record, kept: Record) -> datetime | None:
    """Return the time to which the new job moves the kept one: never an earlier one, nor beyond its period."""
    if action_of(new) != "extend" or kept.ready_at is None:
        return None
    moment, ends_at = starts_at(new), end_of(kept)
    if ends_at is not None:
        moment = min(moment, ends_at)
    return moment if moment > kept.ready_at else None
