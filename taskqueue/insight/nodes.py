"""The nodes of a store as an operator sees them: their leases, the jobs they hold, and their states in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from taskqueue.insight import host
from taskqueue.model.controls import Control, Controls
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.query import parse
from taskqueue.model.record import Status
from taskqueue.model.wording import span
from taskqueue.store import Lease, Store

WAITS_FOR_LEAD = "waits for the lead"
"""The phase of a node that takes no jobs because another node leads."""

LEAD = "lead"
"""The name of the leader's lease."""

SEAT = "seat:"
"""The prefix of a node's lease."""


LOST_FOR = timedelta(hours=1)
"""A node that is silent for longer is no longer expected."""


def seats(leases: Iterable[Lease]) -> list[Lease]:
    """Return the leases of nodes, by name."""
    return sorted((lease for lease in leases if lease.name.startswith(SEAT)), key=lambda lease: lease.name)


def live_seats(leases: Iterable[Lease], now: datetime) -> list[Lease]:
    """Return the leases of live nodes, by name."""
    return [seat for seat in seats(leases) if host.is_live(seat, now)]


def name_of(seat: Lease) -> str:
    """Return the name of the node."""
    return seat.name.removeprefix(SEAT)


def names(leases: Iterable[Lease]) -> list[str]:
    """Return the names of the nodes."""
    return [name_of(seat) for seat in seats(leases)]


def leader(leases: Sequence[Lease], now: datetime) -> Lease | None:
    """Return the leader's lease; None if no node leads, or the leader's processes are dead."""
    lead = next((lease for lease in leases if lease.name == LEAD and lease.until > now), None)
    return None if any(leads(seat, lead) and host.is_gone(seat) for seat in seats(leases)) else lead


def leads(seat: Lease, lead: Lease | None) -> bool:
    """Return whether the node has the leader's lease."""
    return lead is not None and seat.holder == lead.holder


def slots(seat: Lease) -> int | None:
    """Return how many jobs the node's pool can run at once, with workers it may still start; None if unknown."""
    most = seat.about.get("min_children" if seat.about.get("pm") == "static" else "max_children")
    return most if isinstance(most, int) and most > 0 else None


def trouble(seat: Lease, now: datetime) -> str:
    """Return why a live node takes no jobs now, as far as its lease shows; empty if it does."""
    degraded = seat.about.get("degraded")
    if degraded:
        return f"degraded: {degraded}"
    lasts = seat.about.get("lease")
    if not isinstance(lasts, int | float):
        return ""
    silent_for = lasts - (seat.until - now).total_seconds()
    # It renews after each third of the lease.
    return f"not heard from for {span(silent_for)}" if silent_for > lasts / 2 else ""


def state(seat: Lease, controls: Controls, now: datetime, jobs: int) -> str:
    """Return the activity of the node, in a few words; ``jobs`` is how many it has claimed."""
    if host.is_gone(seat):  # the lease was ended by the node that rescued its jobs
        return "gone: its processes have died"
    if seat.until <= now:
        return f"silent for {span((now - seat.until).total_seconds())}"
    drain = controls.drain_of(name_of(seat))
    if drain is not None:
        return f"{'drains' if jobs else 'is drained'}, by {drain.by}"
    return trouble(seat, now) or str(seat.about.get("phase", "works"))


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that works on the store, or did so until its seat is taken again."""

    lease: Lease
    """The lease of its seat, with the facts published in its last renewal."""
    jobs: int
    """How many jobs it holds now."""
    is_leader: bool
    is_live: bool
    drain: Control | None
    """Its drain; None if it is not drained."""
    state: str
    """What it does, in words: ``works``, ``drains, by ann@web``, ``silent for 4 min``."""

    @property
    def name(self) -> str:
        """Return its name."""
        return name_of(self.lease)

    @property
    def pool(self) -> str:
        """Return its workers in words: how many are busy, how many it may have, and those beside the pool."""
        words = f"{self.about.get('busy', '?')} of {self.about.get('max_children', '?')} busy"
        forced, concurrent = self.about.get("forced"), self.about.get("concurrent")
        return words + (f", {forced} beside" if forced else "") + (f", {concurrent} concurrent" if concurrent else "")

    def number(self, name: str) -> int:
        """Return a number that it published in its last renewal; 0 if it has not reported it."""
        value = self.about.get(name)
        return value if isinstance(value, int) else 0

    @property
    def failed(self) -> int | None:
        """Return how many attempts failed on it in the last hour, since its start; None if it has not reported it."""
        failed = self.about.get("failed_in_hour")
        return failed if isinstance(failed, int) else None

    @property
    def memory(self) -> Mapping[str, int]:
        """Return the resident bytes of the node, its manager and its workers; empty if it has not reported them."""
        return _numbers(self.about.get("use"), "memory")

    @property
    def cpu(self) -> Mapping[str, float]:
        """Return which share of one processor each of them used before the last renewal; empty if that is unknown."""
        return _numbers(self.about.get("use"), "cpu")

    @property
    def code_since(self) -> datetime | None:
        """Return when the oldest of its workers started to load code; None if it has none, or has not reported it."""
        age, lasts = _numbers(self.about, "use").get("code_age"), self.about.get("lease")
        if age is None or not isinstance(lasts, int | float):
            return None
        return self.lease.until - timedelta(seconds=lasts + age)  # its clock may differ from the one of the store

    @property
    def about(self) -> Mapping[str, object]:
        """Return the facts published in its last renewal."""
        return self.lease.about


def live_and_lost(leases: Sequence[Lease], now: datetime) -> Mapping[str, int]:
    """Return how many nodes are ``live``, and how many ``lost``: silent or killed, and not for longer than an hour."""
    live = len(live_seats(leases, now))
    recent = sum(lease.until > now - LOST_FOR for lease in seats(leases))
    return {"live": live, "lost": recent - live}


def nodes(store: Store) -> list[Node]:
    """Return the nodes, by name."""
    leases = store.leases()
    of_seat = {seat: parse({"seat": seat, "status": int(Status.PROCESSING)}) for seat in names(leases)}
    jobs = {seat: store.count(query) for seat, query in of_seat.items()}
    return nodes_of(leases, store.controls(), jobs, store.now())


def nodes_of(leases: Sequence[Lease], controls: Controls, jobs: Mapping[str, int] | None, now: datetime) -> list[Node]:
    """Return the nodes of these leases; ``jobs`` has the claimed jobs of each; if None, nodes report them."""
    lead = leader(leases, now)
    nodes = []
    for seat in seats(leases):
        reported = seat.about.get("running")
        claimed = jobs.get(name_of(seat), 0) if jobs is not None else reported if isinstance(reported, int) else 0
        node = Node(
            lease=seat,
            jobs=claimed,
            is_leader=leads(seat, lead),
            is_live=host.is_live(seat, now),
            drain=controls.drain_of(name_of(seat)),
            state=state(seat, controls, now, claimed),
        )
        nodes.append(node)
    return nodes


def _numbers(document: object, name: str) -> Mapping[str, Any]:
    """Return the numbers below this name in what a node of any version has published."""
    values = document.get(name) if isinstance(document, Mapping) else None
    if not isinstance(values, Mapping):
        return {}
    return {str(key): value for key, value in values.items() if isinstance(value, int | float)}
