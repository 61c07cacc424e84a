"""Adding a job unless it is pending already: a unique index decides, and a changed job is replaced in one step."""

from __future__ import annotations

from dataclasses import replace

from taskqueue.model import once_key
from taskqueue.model.options.new_record import changed
from taskqueue.model.record import Record
from taskqueue.model.serializer import same
from taskqueue.scheduler.add import Order
from taskqueue.store import Store


def add_once(store: Store, order: Order, cancel_running: str | None) -> Record:
    """Return the equal pending job, or the new one that was stored.

    Pending jobs of the same class and data are the same, with ``ignore_data`` those of the same class, however they
    were added; with ``unique`` those of the same key. If an option that the call names differs, or data where they are
    ignored, the new one takes the place of all of these: a job that has not begun is canceled; a running one is left
    to finish and the new one waits behind it, or is asked to end for the reason ``cancel_running``.
    """
    new = replace(order.record, unique=_key(order))
    while True:  # each turn that fails is one in which another process has moved the job
        alike = store.alike(new, order.options["ignore_data"]) if order.record.unique is None else []
        if not alike:
            alike = store.add([new])  # the unique index decides among those who come at once
        kept = next((one for one in alike if one.id == new.id or not _differs(one, order)), None)
        if kept is not None:
            return kept
        placed = [store.replace(new, old, cancel_running, new.created_at) for old in alike]
        replaced = next((one for one in placed if one is not None), None)
        if replaced is not None:
            return replaced


def _key(order: Order) -> str:
    """Return the key that only one pending job can have."""
    record = order.record
    if record.unique is not None:
        return record.unique
    if order.options["ignore_data"]:
        return once_key.of_class(record.job)
    return once_key.of_data(record.job, record.data)


def _differs(kept: Record, order: Order) -> bool:
    new = order.record
    return bool(changed(kept, order.given)) or kept.job != new.job or not same(kept.data, new.data)
