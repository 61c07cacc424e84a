"""The interface of all receivers of notifications, and where their secrets come from."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import SplitResult, urlsplit

from taskqueue.errors import ConfigError

if TYPE_CHECKING:
    from taskqueue.insight.notifications import Message

log = logging.getLogger(__name__)

WITHIN = 20.0
"""Seconds that a whole delivery may take; its run would count as stuck soon after."""

ANSWERS_WITHIN = 10.0
"""Seconds that a receiver may stay silent in the middle of a delivery."""


class NotDelivered(Exception):
    """A receiver has not accepted a message; the text says why, without secrets."""


class Receiver(Protocol):
    """One receiver; ``name`` is shown to people, and has no secrets."""

    @property
    def name(self) -> str:
        """The address as it is shown."""

    def check(self, variables: Mapping[str, str]) -> None:
        """Raise ``ConfigError`` if a message could not even be sent: a secret or a program is missing."""

    def send(self, message: Message, variables: Mapping[str, str]) -> None:
        """Deliver the message; raise ``NotDelivered``, or ``ConfigError`` as ``check`` does."""


def in_time(deliver: Callable[[], None], within: float = WITHIN) -> None:
    """Run a delivery over a network for up to ``within`` seconds; raise ``NotDelivered`` whatever else happens in it.

    The drivers have time-outs for each part of an answer alone, and none for names; a delivery that takes longer is
    left to its thread.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            deliver()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="delivery of a notification", daemon=True)
    thread.start()
    thread.join(within)
    if thread.is_alive():
        raise NotDelivered(f"did not accept it within {within:g} s")
    for error in errors:
        if isinstance(error, (NotDelivered, ConfigError)):
            raise error
        log.debug("a delivery failed", exc_info=error)
        raise NotDelivered(f"failed with {type(error).__name__}") from None  # its text may have secrets


def split_url(text: str) -> tuple[SplitResult, str]:
    """Return the parts of a URL, and its host; the host is empty if there is none, or none of that name can be."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return urlsplit(""), ""
    return parts, host if _is_host(host) else ""


def _is_host(name: str) -> bool:
    """Return whether this can be the name of a host: an address, or parts of 1 to 63 characters with dots between."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def secret(name: str, variables: Mapping[str, str]) -> str:
    """Return the value of a variable, or of the file that ``NAME_FILE`` names; empty if there is neither."""
    path = variables.get(f"{name}_FILE")
    if not path:
        return variables.get(name, "").strip()
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(
            f"{name}_FILE={path} cannot be read ({reason}): name a file that this user can read"
        ) from None
