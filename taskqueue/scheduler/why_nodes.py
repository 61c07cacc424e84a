"""Sentences about nodes, from the leases of their seats."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from taskqueue.model.controls import Controls
from taskqueue.model.wording import at, since, some
from taskqueue.scheduler import host
from taskqueue.store import Lease, Store

SEAT = "seat:"
"""The prefix of a node's lease."""


def nodes_taking(store: Store, controls: Controls, queue: str, now: datetime) -> str:
    """Say which nodes take jobs of the queue, or what to do if none does."""
    return _nodes_taking(store, controls, queue, now)[1]


def why_no_node(store: Store, controls: Controls, queue: str, now: datetime) -> str:
    """Say why no node takes jobs of the queue, and what to do; empty if one does."""
    taken, said = _nodes_taking(store, controls, queue, now)
    return "" if taken else said


def _nodes_taking(store: Store, controls: Controls, queue: str, now: datetime) -> tuple[bool, str]:
    seats = [lease for lease in _seats(store) if host.is_live(lease, now)]
    if not seats:
        return False, "No node is running on this store: start one with `taskqueue-node`."
    taking = [lease for lease in seats if not _queues(lease) or queue in _queues(lease)]
    drained = [drain for lease in taking if (drain := controls.drain_of(_name(lease)))]
    taking = [lease for lease in taking if controls.drain_of(_name(lease)) is None]
    if drained and not taking:
        each = some([f"{drain.name} {since(drain, now)}" for drain in drained])
        way_out = "`taskqueue undrain NODE` lets it work."
        return False, f"Every node that takes jobs of this queue is drained: {each}; {way_out}"
    if taking:
        return True, f"Nodes that take jobs of this queue: {some([_described(lease) for lease in taking])}."
    others = some([f"{_name(lease)} takes {', '.join(_queues(lease))}" for lease in seats])
    return False, f"No node takes jobs of queue {queue} ({others}): start one with `taskqueue-node --work-on {queue}`."


def node_sentence(store: Store, seat: str, now: datetime) -> str:
    """Say whether the node lives."""
    for lease in _seats(store):
        if _name(lease) == seat:
            where = f"pid {lease.about.get('pid', 'unknown')} on host {lease.about.get('host', 'unknown')}"
            if host.is_gone(lease):
                return f"{where}, dead: its processes have ended"
            state = "alive, its seat holds until" if lease.until > now else "not heard of, its seat was over"
            return f"{where}, {state} {at(lease.until, now)}"
    return "it has no seat now"


def _seats(store: Store) -> list[Lease]:
    return [lease for lease in store.leases() if lease.name.startswith(SEAT)]


def _name(lease: Lease) -> str:
    return lease.name.removeprefix(SEAT)


def _queues(lease: Lease) -> Mapping[str, Any]:
    """Return the queues that a node has chosen; none means it takes every queue."""
    queues = lease.about.get("queues")
    return queues if isinstance(queues, Mapping) else {}


def _described(lease: Lease) -> str:
    about = lease.about
    return (
        f"{_name(lease)} ({about.get('phase', 'works')}, {about.get('busy', '?')} busy, {about.get('idle', '?')} idle)"
    )
