"""Decides the same for all stores: which arguments they refuse, with which message, and which jobs are the same."""

from __future__ import annotations

from collections.abc import Iterable

from taskqueue.errors import DuplicateId, InvalidQuery
from taskqueue.model.record import Record, Status, replace
from taskqueue.model.serializer import same
from taskqueue.model.wording import or_nearest
from taskqueue.store import ALIKE
from taskqueue.store.bell import CONTROLS, ENDS, NEWS, PLANS, STOPS, WORK

ORDERS = ("id", "created_at", "ended_at", "rank")
"""The fields by which ``Store.find`` orders records."""

CURSOR_DIGITS = 18
"""Maximum number of digits of a number in a cursor; no store can look for numbers beyond 64 bits."""

TOPICS = (WORK, STOPS, PLANS, CONTROLS, NEWS, ENDS)
"""The topics for which ``Store.bell`` gives bells."""


def order_of(order: str) -> tuple[str, bool]:
    """Return the field of the order, and whether it descends; raise ``InvalidQuery`` for an unknown one."""
    field = order.removeprefix("-")
    if field not in ORDERS:
        raise InvalidQuery(
            f"order={order!r}: use {', '.join(ORDERS)}, or one of them with a '-' before it to descend"
            f"{or_nearest(field, ORDERS)}"
        )
    return field, order.startswith("-")


def wrong_audit_cursor(cursor: object) -> InvalidQuery:
    """Return the error for a cursor that ``Store.audit`` cannot have returned."""
    return InvalidQuery(
        f"{cursor!r} is not a cursor of the audit: pass the cursor of an entry, or none to start with the newest"
    )


def check_topic(topic: str) -> None:
    """Raise ``ValueError`` for an unknown topic, whose bell would never ring."""
    if topic not in TOPICS:
        raise ValueError(f"topic={topic!r}: use {', '.join(TOPICS)}")


def existing(new: Record, present: Record) -> Record:
    """Return the current record with the id of a new one, marked as one that existed before.

    Raises ``DuplicateId`` if it is another job: one with another class or other data.
    """
    if new.job != present.job or not same(new.data, present.data):
        raise DuplicateId(new.id)
    return replace(present, existed=True)


def same_jobs(records: Iterable[Record], new: Record, ignore_data: bool) -> list[Record]:
    """Return those of the pending records that are the same job as the new one, in the order of ``Store.alike``."""
    same_class = (record for record in records if record.job == new.job)
    equal = [record for record in same_class if ignore_data or same(record.data, new.data)]
    equal.sort(key=lambda record: (record.status is not Status.PROCESSING, record.created_at, record.id))
    return equal[:ALIKE]
