"""Renews the lead of a node, and acts when the node begins or ceases to lead."""

from __future__ import annotations

from collections.abc import Callable

from taskqueue.daemon.node.controls_view import ControlsView
from taskqueue.daemon.node.event_buffer import EventBuffer
from taskqueue.daemon.node.leader_hooks import LeaderHooks
from taskqueue.daemon.node.leases import NodeLeases
from taskqueue.daemon.runtime.timers import ResettableTimer
from taskqueue.daemon.settings import Lead

LEASE_SLACK = 0.1
"""Seconds after the end of a lease at which the store surely sees it as ended."""

EXPIRY_SLACK = 0.01
"""Seconds after the trusted time of the lead at which this node surely no longer leads."""


class Leadership:
    """The lead of one node."""

    def __init__(
        self,
        *,
        lead: Lead,
        leases: NodeLeases,
        controls: ControlsView,
        hooks: LeaderHooks,
        events: EventBuffer,
        is_seated: Callable[[], bool],
        timer: Callable[[Callable[[], None]], ResettableTimer],
        on_gained: Callable[[], None],
        on_lost: Callable[[], None],
        on_applied: Callable[[], None],
    ) -> None:
        """``timer`` makes timers; ``on_applied`` is called each time the lead was looked at."""
        self._mode = lead
        self._leases = leases
        self._controls = controls
        self._hooks = hooks
        self._events = events
        self._is_seated = is_seated
        self._on_gained = on_gained
        self._on_lost = on_lost
        self._on_applied = on_applied
        self._expiry_timer = timer(self.apply)
        self._retry_timer = timer(self.renew)

    def renew(self) -> None:
        """Acquire or renew the lead, and set the timer for its end or for the next try."""
        if not self._is_seated():
            return
        if self._controls.drain is not None and self._mode is Lead.CLUSTER:
            self._leases.resign_lead()  # the leader does the work
            self.apply()
            return
        free_at = self._leases.renew_lead()
        self.apply()
        self._expiry_timer.cancel()
        self._retry_timer.cancel()
        if self._leases.leads:
            self._expiry_timer.after(self._leases.lead_trusted_for + EXPIRY_SLACK)
        elif free_at is not None:
            self._retry_timer.at(free_at, LEASE_SLACK)

    def distrust(self) -> None:
        """Stop leading, but keep the lease for the rest of the shutdown."""
        self._leases.distrust_lead()
        self.apply()

    def apply(self) -> None:
        """Act on a change of leadership, if there is one."""
        leads = self._leases.leads
        if leads and not self._hooks.leads:
            self._on_gained()
        elif self._hooks.leads and not leads:
            self._on_lost()
        if leads is not self._hooks.leads:
            self._events.leadership_changed(leads)
        self._hooks.leadership_changed(leads)
        self._on_applied()
