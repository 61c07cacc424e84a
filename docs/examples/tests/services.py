"""A mail server and a wholesaler, both real servers in a thread of the tests."""

import json
import socket
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from aiosmtpd.controller import Controller


class MailServer:
    """Keeps mails; refuses those to ``nobody@…``, and all while it is ``busy``."""

    def __init__(self) -> None:
        self.box: list[Message] = []
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
        self.box.append(message_from_bytes(envelope.content))
        return "250 OK"


class Wholesaler:
    """Answers each request with the next of ``answers``: a price, or a status with headers."""

    def __init__(self) -> None:
        self.answers: list[float | tuple[int, dict[str, str]]] = []
        answers = self.answers

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = answers.pop(0)
                status, headers = answer if isinstance(answer, tuple) else (200, {})
                body = json.dumps({"price": answer} if status == 200 else {}).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def __enter__(self) -> "Wholesaler":
        Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"
