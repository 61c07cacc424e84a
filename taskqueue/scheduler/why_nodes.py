"""Sentences about nodes, from the leases of their seats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from shlex import quote
from typing import Any

from taskqueue.model.controls import Controls
from taskqueue.model.wording import at, since, some
from taskqueue.scheduler import host
from taskqueue.scheduler.node_states import name_of, seats, trouble
from taskqueue.store import Lease, Store


def nodes_taking(store: Store, controls: Controls, queue: str, now: datetime) -> str:
    """Say which nodes take jobs of the queue, or what to do if none does."""
    return _nodes_taking(store.leases(), controls, queue, now)[1]


def why_no_node(leases: Sequence[Lease], controls: Controls, queue: str, now: datetime) -> str:
    """Say why no node takes jobs of the queue, and what to do; empty if one does."""
    taken, said = _nodes_taking(leases, controls, queue, now)
    return "" if taken else said


def _nodes_taking(leases: Sequence[Lease], controls: Controls, queue: str, now: datetime) -> tuple[bool, str]:
    live = [lease for lease in seats(leases) if host.is_live(lease, now)]
    if not live:
        return False, "No node is running on this store: start one with `taskqueue-node`."
    taking = [lease for lease in live if not _queues(lease) or queue in _queues(lease)]
    drained = [drain for lease in taking if (drain := controls.drain_of(name_of(lease)))]
    taking = [lease for lease in taking if controls.drain_of(name_of(lease)) is None]
    if drained and not taking:
        each = some([f"{drain.name} {since(drain, now)}" for drain in drained])
        way_out = "`taskqueue undrain NODE` lets it work."
        return False, f"Every node that takes jobs of this queue is drained: {each}; {way_out}"
    if taking:
        described = some([_described(lease, now) for lease in taking])
        if all(trouble(lease, now) for lease in taking):
            return False, f"No node takes jobs of this queue just now: {described}; see the log of the node."
        return True, f"Nodes that take jobs of this queue: {described}."
    others = some([f"{name_of(lease)} takes {', '.join(_queues(lease))}" for lease in live])
    return (
        False,
        f"No node takes jobs of queue {queue} ({others}): start one with `taskqueue-node --work-on {quote(queue)}`.",
    )


def holder_of(store: Store, seat: str) -> Lease | None:
    """Return the lease of the seat, None if no node has it."""
    return next((lease for lease in seats(store.leases()) if name_of(lease) == seat), None)


def node_sentence(lease: Lease | None, now: datetime) -> str:
    """Say whether the node lives that has, or had, this lease of its seat."""
    if lease is None:
        return "it has no seat now"
    where = f"pid {lease.about.get('pid', 'unknown')} on host {lease.about.get('host', 'unknown')}"
    if host.is_gone(lease):
        return f"{where}, dead: its processes have ended"
    state = "alive, its seat holds until" if lease.until > now else "not heard of, its seat was over"
    return f"{where}, {state} {at(lease.until, now)}"


def _queues(lease: Lease) -> Mapping[str, Any]:
    """Return the queues that a node has chosen; none means it takes every queue."""
    queues = lease.about.get("queues")
    return queues if isinstance(queues, Mapping) else {}


def _described(lease: Lease, now: datetime) -> str:
    about = lease.about
    does = trouble(lease, now) or about.get("phase", "works")
    pool = f"{about.get('busy', '?')} busy, {about.get('idle', '?')} idle"
    return f"{name_of(lease)} ({does}, {pool})"
