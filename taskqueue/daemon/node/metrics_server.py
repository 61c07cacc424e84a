"""Serves metrics and health by HTTP: one thread, one connection at a time, nothing but three pages to read."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from taskqueue.errors import ConfigError

log = logging.getLogger(__name__)

REQUEST_WITHIN = 2.0
"""Seconds for a request to come and an answer to leave: one connection may not keep the others waiting for longer."""

ACCEPTS_AGAIN_AFTER = 1.0
"""Seconds after a connection could not be accepted."""

Text = Callable[[str], tuple[bytes, str]]
"""Returns the metrics and their content type for an ``Accept`` header."""


class MetricsServer:
    """The HTTP server of one node."""

    def __init__(self, address: tuple[str, int], metrics: Text, health: Callable[[], Mapping[str, Any]]) -> None:
        """Listen; raise ``ConfigError`` where that is impossible. ``metrics`` and ``health`` run in the thread."""
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="taskqueue-metrics", daemon=True)
        try:
            self._server = _Server(address, metrics, health, self._is_closed)
        except (OSError, TypeError) as error:  # TypeError: the host is no text for the DNS
            host, port = address
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"--metrics {host}:{port} cannot be listened at ({reason}): "
                "choose a free port and an address of this host"
            ) from None

    @property
    def url(self) -> str:
        """Return the URL, with the port that the system has chosen for port 0."""
        host, port = self._server.server_name, self._server.server_port
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def start(self) -> None:
        """Start to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop to listen."""
        self._is_closed.set()
        if self._thread.is_alive():
            with suppress(OSError):
                self._server.socket.shutdown(socket.SHUT_RDWR)  # ends the thread's wait
        else:
            self._server.server_close()

    def _serve(self) -> None:
        with self._server:
            while not self._is_closed.is_set():
                self._server.handle_request()


class _Server(HTTPServer):
    def __init__(
        self,
        address: tuple[str, int],
        metrics: Text,
        health: Callable[[], Mapping[str, Any]],
        is_closed: threading.Event,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.metrics, self.health, self._is_closed = metrics, health, is_closed
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        """Bind, without the look-up of the host's name in the DNS that ``HTTPServer`` makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; while descriptors are short, do not try all the time."""
        try:
            return super().get_request()
        except OSError:
            self._is_closed.wait(ACCEPTS_AGAIN_AFTER)
            raise

    def handle_error(self, *_: Any) -> None:
        """Log the error of a request; the next one is answered."""
        log.debug("a request for metrics failed: %r", sys.exc_info()[1])


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_WITHIN
    server_version = "taskqueue"
    sys_version = ""

    def do_GET(self) -> None:
        match self.path.partition("?")[0]:
            case "/metrics":
                text, kind = self.server.metrics(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, kind, text)
            case "/live" | "/ready" as path:
                health = self.server.health()
                status = HTTPStatus.OK if health[path[1:]] else HTTPStatus.SERVICE_UNAVAILABLE
                self._answer(status, "application/json", json.dumps(health).encode())
            case _:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"/metrics, /live and /ready are here\n")

    def _answer(self, status: HTTPStatus, kind: str, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log requests at debug."""
        log.debug(format, *arguments)
