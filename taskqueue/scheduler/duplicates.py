"""Adds a job whose unique key another job has: replaces, extends or raises, as ``on_duplicate`` says."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from taskqueue.errors import InvalidOption, KeyTaken
from taskqueue.insight.records import present
from taskqueue.model.lifecycle.pending import planned
from taskqueue.model.options.new_record import expiry
from taskqueue.model.options.update import revised
from taskqueue.model.record import Record, Status, changed
from taskqueue.model.serializer import same
from taskqueue.model.unique_period import PERIOD, end_of, period, starts_at
from taskqueue.store import Store
from taskqueue.store.tries import Tries

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
    for index, one in enumerate(new):
        if action_of(one) == "raise":
            raise InvalidOption(
                f"jobs[{index}].{one.job}: on_duplicate='raise' works only with add_job, since jobs before it are "
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
    found = next(iter(present(store, [kept.id])), None)
    if found is None or found.unique != new.unique or found.status not in (Status.WAITING, Status.POSTPONED):
        return None
    now = store.now()
    moves_to = _time(new, found)
    after = revised(found, {} if moves_to is None else {"at": moves_to}, new.data, now)
    unmoved = moves_to is None and same(found.data, new.data)
    return after if unmoved or store.update(found, after, now) else None


def _time(new: Record, kept: Record) -> datetime | None:
    """Return the time to which the new job moves the kept one: never an earlier one, nor beyond its period."""
    if action_of(new) != "extend" or kept.ready_at is None:
        return None
    moment, ends_at = starts_at(new), end_of(kept)
    if ends_at is not None:
        moment = min(moment, ends_at)
    return moment if moment > kept.ready_at else None
