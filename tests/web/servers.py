"""A dashboard behind a real server on a port of this host, for a real browser."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.nodes import LIMIT


class Server(uvicorn.Server):
    """A server in a thread, which says when it listens."""

    def __init__(self, application: Any, listening: socket.socket) -> None:
        config = uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=1, proxy_headers=False)
        super().__init__(config)
        self._listening = listening
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self.run, kwargs={"sockets": [listening]})

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self._is_up.set()

    def begin(self) -> None:
        """Start, and return when it listens."""
        self._thread.start()
        assert self._is_up.wait(LIMIT)

    def end(self) -> None:
        """Stop, and return when nothing of it is left."""
        self.should_exit = True
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()
        self._listening.close()


def port_of(listening: socket.socket) -> int:
    """Return the port of a socket."""
    port: int = listening.getsockname()[1]
    return port


def listen(port: int = 0) -> socket.socket:
    """Return a socket that listens on this host, on a free port unless one is named."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    return listening


@contextmanager
def served(application: Any) -> Iterator[str]:
    """Serve an application, and yield its address."""
    listening = listen()
    server = Server(application, listening)
    server.begin()
    try:
        yield f"http://127.0.0.1:{port_of(listening)}"
    finally:
        server.end()
