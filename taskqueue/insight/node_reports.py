"""Asks a node of this host what it knows and the store does not have yet: starts and ends of runs, and its trouble."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from taskqueue.insight import control_socket, host
from taskqueue.insight.node_states import name_of
from taskqueue.model.record import Record
from taskqueue.store import Lease

ANSWERS_WITHIN = 1.0
"""Seconds that a node gets to answer; most need a hundredth."""


@dataclass(frozen=True, kw_only=True)
class UnwrittenRun:
    """A run whose start or end the store does not have yet."""

    began_at: datetime | None
    ended_at: datetime | None
    ended_as: str
    """The status that the end of the run gives the job; empty while it runs."""


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """The answer of a node."""

    reason: str
    """Why it takes no jobs now; empty if it does."""
    unwritten: Mapping[tuple[str, int], UnwrittenRun] = field(default_factory=dict)
    """By job and claim."""

    def run_of(self, record: Record) -> UnwrittenRun | None:
        """Return what it knows about the present run of the job and the store does not; None if nothing."""
        return self.unwritten.get((str(record.id), record.claims))


def ask(lease: Lease) -> NodeReport | None:
    """Return the answer of the node that has this lease; None if it is on another host, or may not be asked."""
    if not lease.about.get("machine") or lease.about["machine"] != host.machine():
        return None
    for path in control_socket.sockets(name_of(lease)):
        answer = control_socket.ask(path, ANSWERS_WITHIN)
        health = answer.health
        if answer.silence is control_socket.Silence.HUNG:
            return NodeReport(reason=f"it does not answer within {ANSWERS_WITHIN:g} s, as if its host was overloaded")
        if health is not None and health["incarnation"] == lease.holder.incarnation:
            unwritten = {(run["job"], run["claims"]): _unwritten(run) for run in health.get("unwritten", ())}
            return NodeReport(reason=health["reason"], unwritten=unwritten)
    return None


def _unwritten(run: Mapping[str, Any]) -> UnwrittenRun:
    began_at, ended_at = (run[name] and datetime.fromisoformat(run[name]) for name in ("began_at", "ended_at"))
    return UnwrittenRun(began_at=began_at, ended_at=ended_at, ended_as=run["ended_as"])
