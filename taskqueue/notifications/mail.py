"""Sends notifications by mail, through a server that takes mail by SMTP."""

from __future__ import annotations

import smtplib
import socket
import ssl
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from taskqueue.errors import ConfigError
from taskqueue.insight.notifications import KnownFinding, Message
from taskqueue.model.timestamps import moment
from taskqueue.model.wording import count, local
from taskqueue.notifications.receiver import ANSWERS_WITHIN, NotDelivered, in_time, secret, split_url

PASSWORD = "TASKQUEUE_NOTIFY_PASSWORD"  # noqa: S105 - the name of a variable
"""The variable with the password of the user of the mail server."""

DEFAULT = "smtp://localhost"

PORTS = {"smtp": 25, "smtps": 465}
SUBMISSION = 587
"""The port of a server that wants a user, if no other is named."""

LONGEST_SUBJECT = 150

EXAMPLE = "mailto:ops@example.org?smtp=smtps://user@mail.example.org&from=taskqueue@example.org"


@dataclass(frozen=True)
class Mail:
    """One address of mail, and the server that takes its messages."""

    to: str
    sender: str
    scheme: str
    host: str
    port: int
    user: str

    @property
    def name(self) -> str:
        """The address."""
        return f"mailto:{self.to}"

    def check(self, variables: Mapping[str, str]) -> None:
        """Raise ``ConfigError`` if the server wants a user, and there is no password."""
        if not self.user:
            return
        password = secret(PASSWORD, variables)
        if not password:
            raise ConfigError(
                f"--notify {self.name}: user {self.user} of {self.host} needs a password: set {PASSWORD} or "
                f"{PASSWORD}_FILE"
            )
        if not password.isascii():
            raise ConfigError(
                f"--notify {self.name}: the password in {PASSWORD} has characters other than ASCII, which the login "
                "to a mail server requires: choose another"
            )

    def send(self, message: Message, variables: Mapping[str, str]) -> None:
        """Hand the mail to the server."""
        in_time(lambda: self._hand_over(message, variables))

    def _hand_over(self, message: Message, variables: Mapping[str, str]) -> None:
        self.check(variables)
        try:
            with closing(self._connected()) as server:
                if self.user:
                    server.login(self.user, secret(PASSWORD, variables))
                server.send_message(self.mail_of(message), self.sender, [self.to])
                with suppress(OSError, smtplib.SMTPException):  # it has accepted the mail, however the connection ends
                    server.quit()
        except smtplib.SMTPRecipientsRefused as refused:
            raise NotDelivered("; ".join(_answer(*answer) for answer in refused.recipients.values())) from None
        except smtplib.SMTPResponseException as refused:
            raise NotDelivered(_answer(refused.smtp_code, refused.smtp_error)) from None
        except ssl.SSLCertVerificationError as error:
            raise NotDelivered(f"the certificate of {self.host} is not valid: {error.verify_message}") from None
        except TimeoutError:
            raise NotDelivered(f"{self.host} did not answer within {ANSWERS_WITHIN:g} s") from None
        except (OSError, smtplib.SMTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NotDelivered(f"{self.host}, port {self.port}: {reason}") from None

    def _connected(self) -> smtplib.SMTP:
        """Return a connection, encrypted unless the server is this host, or has no encryption and wants no password."""
        if self.scheme == "smtps":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(self.host, self.port, timeout=ANSWERS_WITHIN, context=context)
        server = smtplib.SMTP(self.host, self.port, timeout=ANSWERS_WITHIN)
        try:
            server.ehlo()
            if self.host not in ("localhost", "127.0.0.1", "::1"):
                if server.has_extn("starttls"):
                    server.starttls(context=ssl.create_default_context())
                elif self.user:
                    raise NotDelivered(f"{self.host} offers no encryption for the password: use smtps://")
        except BaseException:
            server.close()
            raise
        return server

    def mail_of(self, message: Message) -> EmailMessage:
        """Return the mail of a message; its Message-ID is the id, and servers may drop a second one."""
        mail = EmailMessage()
        mail["Subject"] = subject_of(message)
        mail["From"] = self.sender
        mail["To"] = self.to
        mail["Date"] = formatdate(message.at / 1000)
        mail["Message-ID"] = f"<{message.id}@{self.sender.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(text_of(message).encode(errors="replace").decode())
        return mail


def _answer(code: int, text: bytes | str) -> str:
    if code < 0:
        return "the mail server sent an answer that is not SMTP"
    words = text.decode(errors="replace") if isinstance(text, bytes) else text
    return f"the mail server answered {code} {' '.join(words.split())}"


def subject_of(message: Message) -> str:
    """Return the subject of the mail."""
    findings = message.began or message.over
    says = "; ".join(" ".join(finding.says.split()) for finding in findings)
    new, over = len(message.began), len(message.over)
    numbers = [f"{new} new" if new else "", f"{over} ended" if over else ""]
    more = ", ".join(filter(None, numbers))
    line = f"[taskqueue] {more}: {says}".encode(errors="replace").decode()
    return line if len(line) <= LONGEST_SUBJECT else f"{line[: LONGEST_SUBJECT - 1]}…"


def text_of(message: Message) -> str:
    """Return the message for people."""
    lines: list[str] = []
    for finding in message.began:
        lines += [f"{finding.level}: {finding.says}", f"    since {local(moment(finding.since))}"]
        lines += [f"    do: {finding.do}", ""]
    for finding in message.over:
        lines += [f"ended: {finding.says}", f"    {_lasted(finding)}", ""]
    return "\n".join([*lines, f"{count(message.open, 'finding')} open now. See `taskqueue doctor`.", ""])


def _lasted(finding: KnownFinding) -> str:
    until = finding.since if finding.gone_since is None else finding.gone_since
    return f"from {local(moment(finding.since))} to {local(moment(until))}"


def mail_of(text: str) -> Mail:
    """Return the receiver ``mailto:…``; raise ``ConfigError``."""
    parts = urlsplit(text)
    to = unquote(parts.path)
    options = parse_qs(parts.query.replace("+", "%2B"), keep_blank_values=True)  # an address may have a plus
    unknown = [name for name in options if name not in ("smtp", "from")]
    sender = options.get("from", [f"taskqueue@{socket.gethostname()}"])[0]
    for address in (to, sender):
        if not _is_address(address):
            raise ConfigError(f"--notify mailto: {address!r} is not one address: write {EXAMPLE}")
    if unknown or any(len(values) > 1 for values in options.values()):
        what = unknown[0] if unknown else "an option twice"
        raise ConfigError(f"--notify mailto:{to} has {what}: it takes smtp and from, each once")
    server = _server(to, options.get("smtp", [DEFAULT])[0])
    user = unquote(server.username or "")
    if not user.isascii():
        raise ConfigError(f"--notify mailto:{to}: user {user} of smtp= has characters other than ASCII")
    port = server.port or (SUBMISSION if user and server.scheme == "smtp" else PORTS[server.scheme])
    return Mail(to=to, sender=sender, scheme=server.scheme, host=server.hostname or "", port=port, user=user)


def _is_address(text: str) -> bool:
    """Return whether the text is one address alone; a mail to another text may go to nobody, or to somebody else."""
    in_ascii = text.encode("ascii", "replace").decode()
    try:
        is_whole = Address(addr_spec=in_ascii).addr_spec == in_ascii
    except (MessageError, ValueError, IndexError):
        return False
    return is_whole and text.isprintable() and not set(text) & set(" ,;<>\"'")


def _server(to: str, url: str) -> SplitResult:
    server, host = split_url(url)
    if server.password is not None:
        raise ConfigError(f"--notify mailto:{to}: smtp={server.scheme}://… has a password: set {PASSWORD} in its place")
    if not host or server.scheme not in PORTS or server.path.strip("/") or server.query or server.fragment:
        raise ConfigError(
            f"--notify mailto:{to}: smtp is not the address of a mail server: write {EXAMPLE}, or smtp:// for "
            "STARTTLS or no encryption"
        )
    return server
