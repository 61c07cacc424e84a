"""Serves the dashboard with uvicorn, until it is asked to stop or the process that started it has left."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette

from taskqueue.errors import ConfigError

LEAVES_WITHIN = 2
"""Seconds that open requests get when it stops."""

SENT_WITHIN = 30.0
"""Seconds that a client gets to send a request: connections with half a one would take all descriptors."""

LOOK_EVERY = 10
"""Ticks of the server, ten a second, between two looks for such connections."""


class Server(uvicorn.Server):
    """A server that closes connections of slow clients, and the streams of open pages when it stops."""

    def __init__(self, application: Starlette, sent_within: float = SENT_WITHIN) -> None:
        """``sent_within`` is how many seconds a client gets to send a request."""
        config = uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            proxy_headers=False,  # the application knows which proxies to trust
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=LEAVES_WITHIN,
        )
        super().__init__(config)
        self._close: Callable[[], None] = application.state.dashboard.hub.close
        self._sent_within = sent_within
        self._unsent: dict[Any, float] = {}
        """The connections with an unsent request, and since when, on the monotonic clock."""

    async def on_tick(self, counter: int) -> bool:
        """Close connections of slow clients; return whether the server is to stop."""
        if counter % LOOK_EVERY == 0:
            now = time.monotonic()
            waiting = filter(_awaits_request, self.server_state.connections)
            self._unsent = {connection: self._unsent.get(connection, now) for connection in waiting}
            for connection, since in self._unsent.items():
                if now - since >= self._sent_within:
                    connection.transport.abort()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then what else is open."""
        self._close()
        await super().shutdown(sockets)

    def stop_with_input(self) -> None:
        """Stop when standard input ends: the process that started this one has left."""

        def wait() -> None:
            sys.stdin.buffer.read()
            self.should_exit = True

        threading.Thread(target=wait, daemon=True).start()


def _awaits_request(connection: Any) -> bool:
    """Return whether the head or the body of a request is still to come; uvicorn itself closes those that are idle."""
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
            f"--listen {host}:{port} cannot be listened at ({reason}): choose a free port and an address of this host"
        ) from None
    # Else the body of an answer waits 40 ms for the receipt of its head: asyncio sets this only for sockets that
    # name their protocol. Connections have it from here.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
