"""Answers probes and scrapes of metrics about one node, in threads that never call the store.

`taskqueue health` asks at a socket that only the node's own user and root may use; metrics and probes come by HTTP.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskqueue.daemon.node.context import NodeContext
from taskqueue.daemon.node.health import BacklogReader, NodeHealth
from taskqueue.daemon.node.leader_run import FindingsWatch
from taskqueue.errors import ConfigError
from taskqueue.insight import control_socket
from taskqueue.insight.control_socket import Silence

if TYPE_CHECKING:  # imported for nodes with metrics only
    from taskqueue.daemon.node.job_metrics import JobMetrics

log = logging.getLogger(__name__)

SENDS_WITHIN = 1.0
"""Seconds; a whole answer fits into the socket's buffer, so no client can hold up the thread."""

ACCEPTS_AGAIN_AFTER = 1.0
"""Seconds after a connection could not be accepted."""

LOOK_WITHIN = 0.2
"""Seconds in which an earlier node of the same name shows that it lives."""


class ControlServer:
    """The control socket of one node."""

    def __init__(self, node: str, incarnation: str, health: Callable[[], Mapping[str, Any]]) -> None:
        """``health`` is called in the thread of the server."""
        self._node = node
        self._incarnation = incarnation
        self._health = health
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self._is_closed = threading.Event()

    def start(self) -> None:
        """Listen in the runtime folder, or at an abstract address; a node that can do neither works without it."""
        folder = control_socket.own_folder()
        path = control_socket.path_of(folder, self._node, self._incarnation)
        try:
            self._make_safe(folder)
            self._listen(path)
        except OSError as error:
            abstract = control_socket.path_without_folder(folder, self._node, self._incarnation)
            log.info("its control socket is %s, because it cannot have one at %s: %s", abstract, path, error)
            try:
                self._listen(abstract)
            except OSError as error_too:
                log.warning("`taskqueue health` cannot reach this node: no socket at %s: %s", abstract, error_too)

    def _make_safe(self, folder: Path) -> None:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if not control_socket.is_safe(folder):
            raise PermissionError(
                "others can write to the folder, or own it: remove it, or name another with TASKQUEUE_RUNTIME_DIR"
            )
        _remove_left_behind(self._node, folder)

    def _listen(self, path: Path) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(listener.fileno(), 0o600)  # Linux makes the file with this mode
            with control_socket.short(path) as address:
                listener.bind(address)
            listener.listen()
        except OSError:
            listener.close()
            raise
        self._listener, self._path = listener, path
        threading.Thread(target=self._serve, args=(listener,), name="taskqueue-control", daemon=True).start()

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        if self._listener is not None and self._path is not None:
            if not control_socket.is_abstract(self._path):
                self._path.unlink(missing_ok=True)
            self._is_closed.set()
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread's accept

    def _serve(self, listener: socket.socket) -> None:
        with listener:
            while not self._is_closed.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:  # it was closed, or there are no descriptors at the moment
                    self._is_closed.wait(ACCEPTS_AGAIN_AFTER)
                    continue
                with connection, suppress(OSError):
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        if control_socket.peer_of(connection) not in (0, os.geteuid()):
            return
        connection.settimeout(SENDS_WITHIN)
        connection.sendall(json.dumps(self._health()).encode())


def _remove_left_behind(node: str, folder: Path) -> None:
    """Remove the sockets of earlier nodes of this name that were killed."""
    for path in control_socket.sockets(node):
        if path.parent == folder and control_socket.ask(path, LOOK_WITHIN).silence is Silence.KILLED:
            path.unlink(missing_ok=True)


MOST_CONNECTIONS = 8
"""Maximum number of connections that are open at once; for one more, the oldest is closed."""

REQUEST_WITHIN = 10.0
"""Seconds for a request to arrive and its answer to be sent, even on a busy host: Prometheus waits as long."""

_HOST = re.compile(r"(?P<name>[^:\[\]]+|\[[^\[\]]+\])(:[0-9]*)?")

Text = Callable[[str], tuple[bytes, str]]
"""Returns the metrics and their content type for an ``Accept`` header."""


class MetricsServer:
    """The HTTP server of one node."""

    def __init__(self, address: tuple[str, int], metrics: Text, health: Callable[[], Mapping[str, Any]]) -> None:
        """Listen; raise ``ConfigError`` if that is impossible. ``metrics`` and ``health`` run in several threads."""
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="taskqueue-metrics", daemon=True)
        try:
            self._server = _Server(address, metrics, health, self._is_closed)
        except (OSError, TypeError) as error:  # TypeError: the host is not text for the DNS
            host, port = address
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"--metrics {host}:{port} cannot be used ({reason}): choose a free port and an address of this host"
            ) from None

    @property
    def url(self) -> str:
        """Return the URL, with the port that the system has chosen for port 0."""
        host, port = self._server.server_name, self._server.server_port
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._is_closed.set()
        if self._thread.is_alive():
            with suppress(OSError):
                self._server.socket.shutdown(socket.SHUT_RDWR)  # ends the thread's wait
        else:
            self._server.server_close()

    def _serve(self) -> None:
        with self._server:
            while not self._is_closed.is_set():
                self._server.timeout = self._server.close_late()
                self._server.handle_request()


class _Server(HTTPServer):
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        metrics: Text,
        health: Callable[[], Mapping[str, Any]],
        is_closed: threading.Event,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.metrics, self.health, self._is_closed = metrics, health, is_closed
        self._changing = threading.Lock()
        self._until: dict[Any, float] = {}
        """The deadlines of the open connections, the oldest first."""
        self._free = threading.Semaphore(MOST_CONNECTIONS)
        super().__init__(address, _Request)
        self.is_for_this_host = ipaddress.ip_address(self.server_name).is_loopback

    def close_late(self) -> float | None:
        """Close the connections whose time has passed; return in how many seconds the next deadline is."""
        now = time.monotonic()
        with self._changing:
            for connection, until in self._until.items():
                if until > now:
                    return until - now
                _end(connection)
        return REQUEST_WITHIN if self._until else None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own; if there are too many, close the oldest first."""
        if not self._free.acquire(blocking=False):
            with self._changing:
                for connection in [*self._until][:1]:
                    _end(connection)
            self._free.acquire()
        with self._changing:
            self._until[request] = time.monotonic() + REQUEST_WITHIN
        threading.Thread(
            target=self._answer, args=(request, client_address), name="taskqueue-metrics-answer", daemon=True
        ).start()

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that was answered, or for which no thread could be started."""
        with self._changing:
            was_open = self._until.pop(request, None) is not None
            super().shutdown_request(request)
        if was_open:
            self._free.release()

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)

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
        if not self._is_for_us():
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain", self._refusal())
            return
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

    def _is_for_us(self) -> bool:
        """Return whether the request names this host, not another site, whose pages could then read the answer.

        A server for other hosts cannot know the names that they have for it. Programs that name none are not browsers.
        """
        named = self.headers.get_all("Host", [])
        if len(named) > 1:
            return False
        host = _HOST.fullmatch(named[0].strip()) if named else None
        if not named or (host is not None and not self.server.is_for_this_host):
            return True
        return host is not None and (host["name"].lower() == "localhost" or _is_address(host["name"].strip("[]")))

    def _refusal(self) -> bytes:
        host = ascii(", ".join(self.headers.get_all("Host", [])))[:100]
        port = self.server.server_port
        return (
            f"host {host} is not served here: ask for localhost or an address of this host, "
            f"or serve other names with --metrics 0.0.0.0:{port}\n"
        ).encode()

    def _answer(self, status: HTTPStatus, kind: str, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log requests at debug."""
        log.debug(format, *arguments)


def _end(connection: socket.socket) -> None:
    """End a connection; its thread, which waits for it, closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class Monitor:
    """The control socket and the metrics of one node.

    Their threads start after the fork of the manager, and end with the process at the latest: the node forks no more,
    and its execution of itself at a reload ends all threads.
    """

    def __init__(self, node: NodeContext, watch: FindingsWatch) -> None:
        self._node = node
        self._status = node.status
        self._watch = watch
        self._http: MetricsServer | None = None
        self._jobs: JobMetrics | None = None
        self._backlog = BacklogReader(node)
        self._health = NodeHealth(node, self._backlog)
        self._control = ControlServer(node.holder.seat, node.holder.incarnation, self._report)

    def listen(self) -> None:
        """Listen at the address of the metrics, if there is one. Raise ``ConfigError``."""
        address = self._node.settings.metrics_address
        if address is None:
            return
        from taskqueue.daemon.node.job_metrics import JobMetrics
        from taskqueue.daemon.node.metrics import OF_PROCESS, Metrics

        holder = self._node.holder
        self._jobs = JobMetrics(holder.seat, holder.incarnation, self._status.manager, OF_PROCESS)
        metrics = Metrics(self._node, self._health, self._backlog, self._watch, self._jobs)
        self._http = MetricsServer(address, metrics.text, self._health.document)
        self._status.metrics = self._http.url

    def start(self) -> None:
        """Start answering."""
        self._node.loop.after_turn(self._health.note_turn)
        self._control.start()
        if self._jobs is not None:
            self._jobs.open()  # in the folder that the control socket has made
        if self._http is not None:
            self._http.start()

    @property
    def job_metrics_folder(self) -> str:
        """Return the folder for the metrics of jobs; empty if there is none."""
        return "" if self._jobs is None else self._jobs.folder

    def _report(self) -> Mapping[str, Any]:
        """Return what users of this host may know: the health, and what the store does not know about the runs."""
        status = self._status
        private = {"problems": status.problems(), "unwritten": status.unwritten(), "pids": status.pids()}
        return {**self._health.document(), **private}

    def close(self) -> None:
        """Stop answering; the loop has stopped."""
        self._control.close()
        if self._http is not None:
            self._http.close()
        if self._jobs is not None:
            self._jobs.close()
