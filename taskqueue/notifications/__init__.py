"""Sends findings to people: to the receivers that ``--notify`` names, a webhook, a mail address or a command."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from taskqueue.notifications.mail import mail_of
from taskqueue.notifications.program import program_of
from taskqueue.notifications.receiver import Receiver
from taskqueue.notifications.webhook import webhook_of


def receiver_of(text: str, uninterrupted: Callable[[], AbstractContextManager[object]] = nullcontext) -> Receiver:
    """Return the receiver of that name; raise ``ConfigError`` if it is not a valid one.

    ``uninterrupted`` returns a context in which the run that sends messages is not interrupted.
    """
    scheme = text.partition(":")[0].lower()
    if scheme in ("http", "https"):
        return webhook_of(text)
    if scheme == "mailto":
        return mail_of(text)
    return program_of(text, uninterrupted)


def id_of(text: str) -> str:
    """Return the id under which a store knows the receiver; it does not reveal the address."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
