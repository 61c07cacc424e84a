"""Asks the node that runs a job for the stack of the job; request and answer are leases, which end by themselves."""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta

from taskqueue.errors import StackUnavailable, WrongStatus
from taskqueue.insight import host
from taskqueue.insight.nodes import SEAT
from taskqueue.insight.records import read
from taskqueue.model.ids import JobId
from taskqueue.model.record import Holder, Record, Status
from taskqueue.model.stack import ANSWER, REQUEST
from taskqueue.store import Lease, Store
from taskqueue.store.bell import CONTROLS, Bell

ANSWERS_WITHIN = 3.0
"""Seconds that a node gets to answer; most need a tenth."""

LOOKS_EVERY = 0.5
"""Seconds after which the answer is looked for without a ring."""


def stack(store: Store, id: JobId) -> str:
    """Return the stack of a running job. Raises ``JobNotFound``, ``WrongStatus`` and ``StackUnavailable``."""
    record = _running(store, id)
    _check_node(store, record, store.leases())
    token = secrets.token_hex(8)
    asker, now = Holder(seat="stack", incarnation=token), store.now()
    request = Lease(
        name=f"{REQUEST}{token}",
        holder=asker,
        since=now,
        until=now + timedelta(seconds=ANSWERS_WITHIN),
        about={"job": str(id), "claims": record.claims},
    )
    with closing(store.bell(CONTROLS)) as bell:
        store.acquire(request, now)
        try:
            answer = _awaited(store, bell, record, token)
        finally:
            store.resign(request.name, asker)
    store.resign(answer.name, answer.holder)
    if answer.about["stack"]:
        return str(answer.about["stack"])
    _running(store, id)
    raise StackUnavailable(id, f"{answer.about['why_not']}: ask again, or see `taskqueue why {id}`")


def _running(store: Store, id: JobId) -> Record:
    """Return the record of the job; raise ``WrongStatus`` if it does not run."""
    [record] = read(store, [id])
    if record.status is not Status.PROCESSING or record.holder is None:
        raise WrongStatus(id, record.status.name, "show its stack while it is PROCESSING")
    return record


def _awaited(store: Store, bell: Bell, record: Record, token: str) -> Lease:
    """Return the answer once it has come."""
    rings = select.poll()
    rings.register(bell.fileno(), select.POLLIN)
    deadline = time.monotonic() + ANSWERS_WITHIN
    while True:
        leases = store.leases()
        answer = next((lease for lease in leases if lease.name == f"{ANSWER}{token}"), None)
        if answer is not None:
            return answer
        _check_node(store, record, leases)
        seconds_left = deadline - time.monotonic()
        if seconds_left <= 0:
            _running(store, record.id)
            raise StackUnavailable(record.id, f"its node did not answer within {ANSWERS_WITHIN:g} s: ask again")
        rings.poll(min(seconds_left, LOOKS_EVERY) * 1000)
        bell.clear()


def _check_node(store: Store, record: Record, leases: Sequence[Lease]) -> None:
    """Raise ``StackUnavailable`` if no living node has the job."""
    assert record.holder is not None
    name = record.holder.seat
    seat = next((lease for lease in leases if lease.name == f"{SEAT}{name}" and lease.holder == record.holder), None)
    if seat is None:
        raise StackUnavailable(record.id, f"it runs on no node: process {name} runs it itself, or its node has left")
    if not host.is_live(seat, store.now()):
        raise StackUnavailable(record.id, f"node {name} is dead or silent: the job runs again when its lease expires")
