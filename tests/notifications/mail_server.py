"""A real mail server for tests, and a certificate for it. Only the environment of the tests has its package."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

from tests.nodes import LIMIT
from tests.servers import free_port


@dataclass
class MailServer:
    """A mail server that refuses the first mails as ``refusals`` says, and keeps the others."""

    port: int = 0
    refusals: list[str] = field(default_factory=list)
    mails: list[EmailMessage] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)
    parting: str = "221 Bye"
    users: list[tuple[bytes, bytes]] = field(default_factory=list)

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        """Take one mail."""
        if self.refusals:
            return self.refusals.pop(0)
        content = envelope.content if isinstance(envelope.content, bytes) else str(envelope.content).encode()
        mail = message_from_bytes(content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        self.recipients += envelope.rcpt_tos
        return "250 taken"

    async def handle_QUIT(self, _server: SMTP, _session: Session, _envelope: Envelope) -> str:  # noqa: N802
        """Part."""
        return self.parting

    def authenticate(self, _server: SMTP, _session: Session, _envelope: Envelope, _kind: str, given: Any) -> AuthResult:
        """Check user and password."""
        self.users.append((given.login, given.password))
        return AuthResult(success=given.password == b"right", handled=False)


@contextmanager
def mail_server(
    refusals: Sequence[str] = (), context: ssl.SSLContext | None = None, **options: Any
) -> Iterator[MailServer]:
    """Serve a mail server on this host; with a ``context`` encrypted from the start."""
    got = MailServer(port=free_port(), refusals=list(refusals))
    controller = Controller(
        got,
        hostname="localhost",
        port=got.port,
        ssl_context=context,
        authenticator=got.authenticate,
        auth_require_tls=False,
        **options,
    )
    controller.start()
    try:
        yield got
    finally:
        controller.stop()


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Return the file of a certificate for localhost, and what a server needs to show it."""
    key, path = folder / "localhost.key", folder / "localhost.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(path)),
        ],
        check=True,
        capture_output=True,
        timeout=LIMIT,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    return path, context
