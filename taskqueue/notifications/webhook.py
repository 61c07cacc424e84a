"""Sends notifications to a URL, signed as https://www.standardwebhooks.com describes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from taskqueue.errors import ConfigError
from taskqueue.insight.notifications import Message
from taskqueue.model.version import VERSION
from taskqueue.notifications.receiver import ANSWERS_WITHIN, NotDelivered, in_time, secret, split_url

KEY = "TASKQUEUE_NOTIFY_KEY"
"""The variable with the key, or with two of them separated by a blank while one replaces the other."""

PREFIX = "whsec_"

SHORTEST, LONGEST = 24, 64
"""The bytes that a key may have."""

MAKE_ONE = 'make one with `echo "whsec_$(openssl rand -base64 32)"`'


@dataclass(frozen=True)
class Webhook:
    """A URL that takes messages by POST."""

    url: str

    @property
    def name(self) -> str:
        """The URL without path and query, which may be secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}/{'…' if len(parts.path) > 1 or parts.query else ''}"

    def check(self, variables: Mapping[str, str]) -> None:
        """Raise ``ConfigError`` if there is no key."""
        keys_of(variables)

    def send(self, message: Message, variables: Mapping[str, str]) -> None:
        """Post the message; an answer of 200 to 299 means that it was accepted."""
        in_time(lambda: self._post(message, variables))

    def _post(self, message: Message, variables: Mapping[str, str]) -> None:
        body = message.json()
        at = int(time.time())
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": f"taskqueue/{VERSION}",
            "webhook-id": message.id,
            "webhook-timestamp": str(at),
            "webhook-signature": " ".join(signature(key, message.id, at, body) for key in keys_of(variables)),
        }
        request = Request(self.url, data=body, headers=headers, method="POST")  # noqa: S310 - of http or https
        try:
            with _opener().open(request, timeout=ANSWERS_WITHIN):
                return
        except HTTPError as answer:
            with answer:
                raise NotDelivered(f"answered {answer.code}") from None
        except URLError as error:
            raise NotDelivered(_reason(error.reason)) from None
        except (OSError, http.client.HTTPException) as error:
            raise NotDelivered(_reason(error)) from None


def _opener() -> OpenerDirector:
    """Return an opener that treats a redirect as an answer: no message goes to an address that nobody has named."""
    opener = OpenerDirector()
    for kind in (ProxyHandler, HTTPHandler, HTTPSHandler, HTTPDefaultErrorHandler, HTTPErrorProcessor):
        opener.add_handler(kind())
    return opener


def _reason(error: object) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return f"did not answer within {ANSWERS_WITHIN:g} s"
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):
        return "sent an answer that is not HTTP"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def webhook_of(text: str) -> Webhook:
    """Return the webhook with this URL; raise ``ConfigError``, whose text does not contain the path."""
    parts, host = split_url(text)
    if not host or not text.isascii() or not text.isprintable() or " " in text:
        scheme = text.partition(":")[0]
        raise ConfigError(
            f"--notify {scheme}:… is not a URL: write one such as https://ops.example.org/hooks/taskqueue"
        )
    if "@" in parts.netloc:
        raise ConfigError(
            f"--notify {parts.scheme}://{host}/… has a user or a password: leave them out, each message is "
            f"signed ({KEY})"
        )
    if parts.fragment:
        raise ConfigError(f"--notify {parts.scheme}://{host}/… has a part after #, which is never sent: leave it out")
    return Webhook(text)


def keys_of(variables: Mapping[str, str]) -> list[bytes]:
    """Return the keys; raise ``ConfigError`` if there is none, or one is not a key."""
    keys = [_key(text) for text in secret(KEY, variables).split()]
    if not keys:
        raise ConfigError(f"a webhook of --notify needs a key: set {KEY} or {KEY}_FILE; {MAKE_ONE}")
    return keys


def _key(text: str) -> bytes:
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(PREFIX) or not SHORTEST <= len(key) <= LONGEST:
        raise ConfigError(f"{KEY} must be whsec_ and {SHORTEST} to {LONGEST} bytes in base64: {MAKE_ONE}")
    return key


def signature(key: bytes, id: str, at: int, body: bytes) -> str:
    """Return the signature of a message, as Standard Webhooks defines it for a symmetric key."""
    signed = hmac.new(key, f"{id}.{at}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(signed).decode()}"
