"""Serves the dashboard with uvicorn, until it is asked to stop or the process that started it has left."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from taskqueue.errors import ConfigError
from taskqueue.web.dashboard import Dashboard
from taskqueue.web.request_checks import client_of
from taskqueue.web.settings import Settings
from taskqueue.web.user_shares import FairTurns, network_of

log = logging.getLogger(__name__)

LEAVES_WITHIN = 2
"""Seconds that open requests get when it stops."""

SENT_WITHIN = 30.0
"""Seconds that a client gets to send a request: connections with half a one would take all descriptors."""

READ_WITHIN = 30.0
"""Seconds after which a client that has read nothing more of an answer is cut off."""

LOOK_EVERY = 10
"""Ticks of the server, ten a second, between two looks for such connections."""

MOST_CONNECTIONS = 1000
"""Connections that are open at once, on a host that allows as many descriptors."""

OF_ADDRESS = 4
LEAST_OF_ADDRESS = 8
"""One address may have one of four connections, and always eight: a browser opens six."""

ACCEPTED_AT_ONCE = 64
"""Connections that the event loop accepts before any of them can be refused."""

PIECE = 512
"""Bytes of a request that are read at once: a chunk of the body may have six, and takes 30 µs."""

TURN = 0.001
"""Seconds for which one connection is read before others have their turn."""

MOST_UNREAD = 32 * 1024 * 1024
"""Bytes of answers that all clients together leave unread."""

OF_PROCESS = 32
"""Descriptors that the store, the log and the event loop need."""

LINES = 5
LINES_EVERY = 60.0
"""Seconds in which similar log lines about clients are counted together."""


class Connection(H11Protocol):
    """A connection that counts what its client has left unread, and may be closed to make room for another."""

    most = MOST_CONNECTIONS
    most_unread = MOST_UNREAD
    is_proxy: Callable[[str], bool]
    """Returns whether an address belongs to a trusted proxy, which has no share: many users come through it."""
    turns: FairTurns
    """The turns in which requests are read, one connection of each address at a time."""

    def connection_made(self, transport: Any) -> None:
        """Begin, if need be in place of the connection that has done nothing for the longest time.

        An address with more than its share of connections loses one of its own.
        """
        self.moved_at = self.read_at = self.began_at = time.monotonic()
        self.unread = 0
        self._received = bytearray()
        self._has_turn = False
        all_open = (peer for peer in self.server_state.connections if isinstance(peer, Connection))
        present = [peer for peer in all_open if not _is_ending(peer)]
        super().connection_made(transport)
        self.flow = FlowControl(cast("asyncio.Transport", self))
        share = max(LEAST_OF_ADDRESS, self.most // OF_ADDRESS)
        own = [] if self.is_proxy(self.address) else [peer for peer in present if peer.network == self.network]
        if len(own) >= share:
            self._end_one(own, f"more than {share} connections from one address are open: one from %s is closed")
        elif len(present) >= self.most:
            self._end_one(present, f"more than {self.most} connections are open: the one from %s is closed")

    def _end_one(self, present: list[Connection], says: str) -> None:
        """End the connection that has done nothing for the longest time; this one, if all others are busy."""
        ended = min((peer for peer in present if peer.is_idle), key=lambda peer: peer.moved_at, default=self)
        log.warning(says, ended.address)
        ended.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Keep what has come until the address has its turn, and take no more before that."""
        self.moved_at = time.monotonic()
        if self.timeout_keep_alive_task is not None:  # nothing had come of this request
            self.began_at = self.moved_at
        self._received += data
        self._unset_keepalive_if_required()  # the request has come, although its turn has not
        self.pause_reading()
        self.resume_reading()

    @property
    def _is_readable(self) -> bool:
        return bool(self._received) and not self.flow.read_paused and not self.transport.is_closing()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self.began_at = time.monotonic()
        super().on_response_complete()
        if self._received:
            self._unset_keepalive_if_required()

    def pause_reading(self) -> None:
        """Take nothing more from the client."""
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read what has come in the next turn, and then take more from the client."""
        if self.transport.is_closing():
            self._received.clear()
        if self.flow.read_paused or self._has_turn:
            return
        if self._received:
            self._has_turn = True
            self.turns.call(f"{self.client}" if self.is_proxy(self.address) else self.network, self._read)
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def _read(self) -> None:
        """Read for one turn only: the data may take thousands of times as long to handle as most requests."""
        self._has_turn = False
        until = time.monotonic() + TURN
        while self._is_readable and time.monotonic() < until:
            piece = bytes(self._received[:PIECE])
            del self._received[:PIECE]
            try:
                super().data_received(piece)
            except Exception:
                self.transport.abort()
                raise
        self.resume_reading()

    @property
    def address(self) -> str:
        """Return where the connection comes from."""
        return self.client[0] if self.client else "somewhere"

    @cached_property
    def network(self) -> str:
        """Return whose share of the connections it takes."""
        return network_of(self.address)

    @property
    def is_idle(self) -> bool:
        """Return whether it waits for its client: to send a request, or to read the answer."""
        is_between = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        return bool(is_between) or self.transport.get_write_buffer_size() > 0

    def is_unread(self, now: float, within: float) -> bool:
        """Return whether the client has read nothing for this many seconds although data is pending."""
        size = self.transport.get_write_buffer_size()
        if size == 0 or self.unread == 0 or size < self.unread:
            self.read_at = now
        self.unread = size
        return size > 0 and now - self.read_at >= within

    def pause_writing(self) -> None:
        """Stop an answer that is read slowly; end another one if too much is unread altogether."""
        super().pause_writing()
        sizes: dict[Connection, int] = {
            peer: peer.transport.get_write_buffer_size()
            for peer in self.server_state.connections
            if isinstance(peer, Connection) and peer.transport is not None
        }
        if sum(sizes.values()) <= self.most_unread or sum(map(bool, sizes.values())) == 1:
            return
        of_networks: Counter[str] = Counter()
        for peer, size in sizes.items():
            of_networks[peer.network] += size
        [(network, _)] = of_networks.most_common(1)
        ended = max((peer for peer in sizes if peer.network == network), key=sizes.__getitem__)
        log.warning("over %d bytes of responses are unread: the largest one for %s ends", self.most_unread, network)
        ended.transport.abort()

    def resume_writing(self) -> None:
        """Continue an answer of which the client has read a part."""
        self.unread = 0
        super().resume_writing()


class FewLines(logging.Filter):
    """Passes a few lines a minute of each kind that clients cause: they cannot fill the log."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is written; one that is the first after others were left out says how many."""
        kind = str(record.msg)[:40]
        if record.levelno != logging.WARNING and not kind.startswith("socket.accept() out of system resource"):
            return True
        now = time.monotonic()
        since, number = self._passed.get(kind, (now, 0))
        if now - since >= LINES_EVERY:
            if number > LINES:
                record.msg = f"{record.msg} ({number - LINES} more such lines were left out)"
            since, number = now, 0
        self._passed[kind] = since, number + 1
        return number < LINES


_FEW_LINES = FewLines()


class Server(uvicorn.Server):
    """A server that closes connections of slow clients, and the streams of open pages when it stops."""

    def __init__(
        self, application: Starlette, sent_within: float = SENT_WITHIN, read_within: float = READ_WITHIN
    ) -> None:
        """``sent_within`` is how many seconds a client gets to send a request, ``read_within`` to read on."""
        most, at_once = _room()
        settings: Settings = application.state.dashboard.settings
        for name in ("uvicorn.error", "asyncio", __name__):
            logging.getLogger(name).addFilter(_FEW_LINES)
        turns = FairTurns()

        async def in_turn(scope: Scope, receive: Receive, send: Send) -> None:
            """Begin one request of each client in each pass of the event loop."""
            await turns.turn(network_of(client_of(scope, settings)))
            await application(scope, receive, send)

        bounds = {"most": most, "is_proxy": staticmethod(settings.is_proxy), "turns": turns}
        config = uvicorn.Config(
            in_turn,
            http=type("BoundedConnection", (Connection,), bounds),
            backlog=at_once,
            log_config=None,
            access_log=False,
            proxy_headers=False,  # the application knows which proxies to trust
            server_header=False,
            lifespan="off",
            ws="none",  # connections of another protocol would have none of the bounds
            timeout_graceful_shutdown=LEAVES_WITHIN,
        )
        super().__init__(config)
        self._dashboard: Dashboard = application.state.dashboard
        self._sent_within = sent_within
        self._read_within = read_within

    async def on_tick(self, counter: int) -> bool:
        """Close connections of slow clients; return whether the server must stop."""
        if counter % LOOK_EVERY == 0:
            now = time.monotonic()
            for connection in list(self.server_state.connections):
                if not isinstance(connection, Connection):
                    continue
                if _awaits_request(connection) and now - connection.began_at >= self._sent_within:
                    connection.transport.abort()
                elif connection.is_unread(now, self._read_within):
                    log.warning("disconnecting a client at %s that does not read its responses", connection.address)
                    connection.transport.abort()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then what else is open."""
        self._dashboard.hub.close()
        try:
            await super().shutdown(sockets)
        finally:
            self._dashboard.end_threads()

    def stop_with_input(self) -> None:
        """Stop when standard input ends: the process that started this one has left."""

        def wait() -> None:
            sys.stdin.buffer.read()
            self.should_exit = True

        threading.Thread(target=wait, daemon=True).start()


def _room() -> tuple[int, int]:
    """Return how many connections there may be, and how many are accepted at once, with the descriptors allowed.

    Those that are accepted take descriptors for some turns of the event loop until they are refused.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS, ACCEPTED_AT_ONCE
    at_once = max(1, min(ACCEPTED_AT_ONCE, allowed // 16))
    return max(4, min(MOST_CONNECTIONS, allowed - 5 * at_once - OF_PROCESS)), at_once


def _is_ending(connection: Any) -> bool:
    """Return whether its descriptor is as good as closed; one with an unread answer is closed when that is read."""
    transport = connection.transport
    return transport is None or (transport.is_closing() and transport.get_write_buffer_size() == 0)


def _awaits_request(connection: Any) -> bool:
    """Return whether the head or the body of a request is still to come; uvicorn itself closes idle connections."""
    cycle = connection.cycle
    if cycle is None or cycle.response_complete:
        return connection.timeout_keep_alive_task is None
    return bool(cycle.more_body)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there. Raises ``ConfigError``."""
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"--listen {host}:{port} cannot be used ({reason}): choose a free port and an address of this host"
        ) from None
    # Else the body of an answer waits 40 ms for the receipt of its head: asyncio sets this only for sockets that
    # name their protocol. Connections have it from here.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
