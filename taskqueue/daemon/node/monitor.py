"""Answers probes and scrapes of metrics about one node, in threads of its own that never call the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from taskqueue.daemon.node.backlog import BacklogReader
from taskqueue.daemon.node.circuit_breaker import CircuitBreaker
from taskqueue.daemon.node.control_server import ControlServer
from taskqueue.daemon.node.figures import Figures
from taskqueue.daemon.node.health import NodeHealth
from taskqueue.daemon.node.status import NodeStatus
from taskqueue.daemon.runtime.loop import Loop
from taskqueue.daemon.settings import Settings
from taskqueue.model.record import Holder
from taskqueue.store import Store

if TYPE_CHECKING:
    from taskqueue.daemon.node.metrics_server import MetricsServer


class Monitor:
    """The control socket and the metrics of one node.

    Their threads start after the fork of the manager, and end with the process at the latest: the node forks no more,
    and its execution of itself at a reload ends all threads.
    """

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        store: Store,
        holder: Holder,
        status: NodeStatus,
        breaker: CircuitBreaker,
        figures: Figures,
        is_seated: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._status = status
        self._figures = figures
        self._http: MetricsServer | None = None
        self._backlog = BacklogReader(loop, store, breaker, is_seated)
        self._health = NodeHealth(settings, holder, store.url, status, self._backlog)
        self._control = ControlServer(holder.seat, holder.incarnation, self._health.document)

    def listen(self) -> None:
        """Listen at the address of the metrics, if there is one. Raise ``ConfigError``."""
        address = self._settings.metrics_address
        if address is None:
            return
        from taskqueue.daemon.node.metrics import Metrics
        from taskqueue.daemon.node.metrics_server import MetricsServer

        metrics = Metrics(self._settings.name, self._status, self._figures, self._health, self._backlog)
        self._http = MetricsServer(address, metrics.text, self._health.document)
        self._status.metrics = self._http.url

    def start(self) -> None:
        """Start to answer."""
        self._loop.after_turn(self._health.note_turn)
        self._control.start()
        if self._http is not None:
            self._http.start()

    def close(self) -> None:
        """Answer no more; the loop has stopped."""
        self._control.close()
        if self._http is not None:
            self._http.close()
