"""A mail server and a wholesaler: real servers in threads, for the tests and for ``start``."""

import json
import socket
from collections.abc import Callable
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread
from typing import Any

from aiosmtpd.controller import Controller


class MailServer:
    """Keeps mails; refuses those to ``nobody@…``, and all while it is ``busy``."""

    def __init__(self, received: Callable[[EmailMessage], object] = lambda mail: None) -> None:
        self._received = received
        self.box: list[EmailMessage] = []
        self.busy = 0
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._controller = Controller(self, hostname="127.0.0.1", port=free.getsockname()[1])

    def __enter__(self) -> "MailServer":
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._controller.port}"

    def empty(self) -> None:
        self.box.clear()
        self.busy = 0

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:  # noqa: N802
        if address.startswith("nobody@"):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        if self.busy:
            self.busy -= 1
            return "451 try again later"
        self.box.append(message_from_bytes(envelope.content, policy=policy.default))
        self._received(self.box[-1])
        return "250 OK"


class Wholesaler:
    """Answers a GET with a price and a POST with a reference, the same one for the same key.

    The next of ``answers`` comes first, if there is one: a price, or a status with headers. ``flaky``: of ten requests,
    two find it busy and one finds it broken.
    """

    def __init__(self, *, flaky: bool = False) -> None:
        self.answers: list[float | str | tuple[int, dict[str, str]]] = []
        self.references: dict[str, str] = {}
        self._flaky = flaky
        self._requests = count(1)
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer({"price": 9.99 + sum(self.path.encode()) % 20})

            def do_POST(self) -> None:
                key = self.headers["Idempotency-Key"]
                self.answer({"reference": service.references.setdefault(key, f"R{len(service.references) + 1}")})

            def answer(self, body: dict[str, Any]) -> None:
                answer = service.next_answer()
                status, headers = answer if isinstance(answer, tuple) else (200, {})
                text = json.dumps(body if answer is None else {"price": answer}).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(text))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def next_answer(self) -> float | str | tuple[int, dict[str, str]] | None:
        """Return what the next request gets instead of its answer."""
        if self.answers:
            return self.answers.pop(0)
        number = next(self._requests) % 10 if self._flaky else 0
        return {3: (429, {"Retry-After": "2"}), 6: (429, {"Retry-After": "5"}), 9: (503, {})}.get(number)

    def __enter__(self) -> "Wholesaler":
        Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"
