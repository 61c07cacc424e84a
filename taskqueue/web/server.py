"""Serves the dashboard with uvicorn, until it is asked to stop or the process that started it has left."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette

from taskqueue.errors import ConfigError

LEAVES_WITHIN = 2
"""Seconds that open requests get when it stops."""


class Server(uvicorn.Server):
    """A server that ends the streams of open pages when it stops: they never end by themselves."""

    def __init__(self, application: Starlette) -> None:
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
