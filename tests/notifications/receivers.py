"""Real receivers of notifications for tests: an HTTP server that checks signatures, and a command."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from taskqueue.insight.notifications import KnownFinding, Message
from tests.nodes import LIMIT

KEY = "whsec_" + base64.b64encode(bytes(range(32))).decode()
"""The key of the tests; its bytes are ``range(32)``."""

FINDING = KnownFinding(
    id="fnd_1",
    key="queue\nmail",
    subject="queue",
    name="mail",
    level="error",
    says="queue mail: 12 jobs waiting. No node takes them – none at all",
    do="start one: `taskqueue-node --work-on mail`",
    since=1_795_946_782_529,
)

MESSAGE = Message(id="msg_1", at=1_795_946_783_000, began=(FINDING,), open=1)


@dataclass
class Hook:
    """A webhook: it answers with the statuses in ``answers``, then with 204, and keeps what it got."""

    url: str
    answers: list[int] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    hold: threading.Event | None = None
    """Keeps answers back until it is set."""
    location: str = ""
    """Where a redirect leads; empty for another path of its own."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return the documents that were posted, whatever the answer was."""
        return [json.loads(body) for _, body in list(self.requests)]

    def said(self, part: str) -> list[str]:
        """Return the sentences in ``began`` or ``over`` of all messages, each message once."""
        by_id = {message["data"]["id"]: message for message in self.messages}
        return [finding["says"] for message in by_id.values() for finding in message["data"][part]]


@contextmanager
def hook(answers: Sequence[int] = ()) -> Iterator[Hook]:
    """Serve a webhook."""

    class Request(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            if got.hold is not None:
                got.hold.wait(LIMIT)
            self.send_response(got.answers.pop(0) if got.answers else 204)
            self.send_header("Location", got.location or f"{got.url}/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
    server.daemon_threads = True
    got = Hook(f"http://127.0.0.1:{server.server_port}/hooks/secret-path", list(answers))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def signed_by(headers: dict[str, str], body: bytes, key: bytes) -> bool:
    """Return whether the signature is right, as a receiver finds out by the text of Standard Webhooks."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return f"v1,{wanted}" in headers["webhook-signature"].split(" ")


def command(folder: Path, text: str = 'cat > "$OUT/$TASKQUEUE_NOTIFICATION_ID.json"') -> str:
    """Write a command for the shell, which has ``$OUT`` as its folder, and return its path."""
    path = folder / "page"
    path.write_text(f"#!/bin/sh\nOUT={folder}\n{text}\n")
    path.chmod(0o755)
    return str(path)
