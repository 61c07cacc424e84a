"""Ends a node that was started for the jobs that are due now, as soon as none is left."""

from __future__ import annotations

import logging
from collections.abc import Callable

from taskqueue.daemon.node.dispatcher import Dispatcher
from taskqueue.daemon.node.in_flight import InFlight
from taskqueue.daemon.node.maintenance import Maintenance
from taskqueue.daemon.node.node_hooks import NodeHooks
from taskqueue.daemon.runtime.loop import Loop

log = logging.getLogger(__name__)


class Burst:
    """Checks after each turn of the loop whether the node has anything left to do.

    An outcome may have released a job whose ring has not arrived yet, so the last claim follows the last outcome.
    """

    def __init__(
        self,
        *,
        loop: Loop,
        dispatcher: Dispatcher,
        in_flight: InFlight,
        maintenance: Maintenance,
        hooks: NodeHooks,
        may_claim: Callable[[], bool],
        on_end: Callable[[], None],
    ) -> None:
        """``on_end`` is called once, when no job is in flight and the store has none that can start."""
        self._loop = loop
        self._dispatcher = dispatcher
        self._in_flight = in_flight
        self._maintenance = maintenance
        self._hooks = hooks
        self._may_claim = may_claim
        self._on_end = on_end
        self._has_asked = False
        self._has_ended = False

    def check(self) -> None:
        """End the node if it has nothing to do, even after a last claim."""
        fetcher = self._dispatcher.fetcher
        if self._has_ended:
            return
        if len(self._in_flight) or self._maintenance.has_tasks or self._hooks.is_busy:
            self._has_asked = False
        elif not self._may_claim():
            self._end("this node is drained")
        elif fetcher.expects_jobs:
            return
        elif self._has_asked:
            self._end("no job is due now")
        else:
            self._has_asked = True
            fetcher.wake("nothing seems to be due")
            self._loop.soon(lambda: None)

    def _end(self, reason: str) -> None:
        self._has_ended = True
        log.info("exiting: %s", reason)
        self._on_end()
