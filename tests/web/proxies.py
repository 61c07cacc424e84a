"""A proxy that makes an application reachable below a path, as nginx or Traefik does."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.nodes import LIMIT


class ProxiedRequest(BaseHTTPRequestHandler):
    """One request; what is not below the path is not there."""

    root: str
    port: int
    removes_path: bool

    def do_GET(self) -> None:
        """Pass on the request, and the bytes of the answer until one of the two sides has left."""
        if not self.path.startswith(f"{self.root}/"):
            self.send_error(404)
            return
        path = self.path.removeprefix(self.root) if self.removes_path else self.path
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        if self.removes_path:
            headers["X-Forwarded-Prefix"] = self.root
        lines = [f"{self.command} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        head = "\r\n".join([*lines, "Connection: close", "", ""])
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with socket.create_connection(("127.0.0.1", self.port), LIMIT) as upstream:
            upstream.sendall(head.encode("latin-1") + body)
            while self.connection not in select.select([upstream, self.connection], [], [])[0]:
                piece = upstream.recv(65536)
                if not piece:
                    return
                self.connection.sendall(piece)

    def do_POST(self) -> None:
        """Pass on the request with its body."""
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def proxied(address: str, root: str, *, removes_path: bool) -> Iterator[str]:
    """Make the application at ``address`` reachable below the path ``root``, and yield the address of that."""
    port = int(address.rpartition(":")[2])
    request = type("Request", (ProxiedRequest,), {"root": root, "port": port, "removes_path": removes_path})
    with ThreadingHTTPServer(("127.0.0.1", 0), request) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_address[1]}{root}"
        finally:
            proxy.shutdown()
            thread.join(LIMIT)
