"""Answers `taskqueue health`: a thread that reports the node's health to its own user, or root, at a socket."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from taskqueue.daemon.protocol import control_socket
from taskqueue.daemon.protocol.control_socket import Silence

log = logging.getLogger(__name__)

SENDS_WITHIN = 1.0
"""Seconds; a whole answer fits into the socket's buffer, so that no asker can hold up the thread."""

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
        """Listen; a node that cannot works nevertheless, and says so."""
        folder = control_socket.own_folder()
        path = control_socket.path_of(folder, self._node, self._incarnation)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            if not control_socket.is_safe(folder):
                raise PermissionError(
                    "others can write to the folder, or own it: remove it, or name another with TASKQUEUE_RUNTIME_DIR"
                )
            _remove_left_behind(self._node, folder)
            os.fchmod(listener.fileno(), 0o600)  # Linux makes the file with this mode
            with control_socket.short(path) as address:
                listener.bind(address)
            listener.listen()
        except OSError as error:
            listener.close()
            log.warning("`taskqueue health` cannot ask this node: no socket at %s: %s", path, error)
            return
        self._listener, self._path = listener, path
        threading.Thread(target=self._serve, args=(listener,), name="taskqueue-control", daemon=True).start()

    def close(self) -> None:
        """Stop listening, and remove the socket."""
        if self._listener is not None and self._path is not None:
            self._path.unlink(missing_ok=True)
            self._is_closed.set()
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread's accept

    def _serve(self, listener: socket.socket) -> None:
        with listener:
            while not self._is_closed.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:  # it was closed, or descriptors are short for the moment
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
