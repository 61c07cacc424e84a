"""Notify systemd of the node's state by the protocol of sd_notify(3), one datagram per message.

Without NOTIFY_SOCKET in the environment all functions do nothing. No call blocks.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger(__name__)


def ready(status: str) -> None:
    """Report that the start, or a reload, is complete."""
    notify(READY="1", STATUS=status)


def reloading() -> None:
    """Report that the configuration is being reloaded; ``ready`` ends the reload."""
    notify(RELOADING="1", MONOTONIC_USEC=str(time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000))


def stopping(status: str) -> None:
    """Report that the node is shutting down."""
    notify(STOPPING="1", STATUS=status)


def show_status(status: str) -> None:
    """Set the text that ``systemctl status`` shows."""
    notify(STATUS=status)


def alive() -> None:
    """Reset the watchdog; call this every ``watchdog_interval()`` seconds."""
    notify(WATCHDOG="1")


def extend_timeout(seconds: float) -> None:
    """Extend the timeout of the current start or stop to ``seconds`` from now."""
    notify(EXTEND_TIMEOUT_USEC=str(round(seconds * 1_000_000)))


def watchdog_interval(environ: Mapping[str, str] = os.environ, pid: int | None = None) -> float | None:
    """Return the seconds between two calls of ``alive``: half the watchdog timeout; None without a watchdog."""
    allowed = environ.get("WATCHDOG_USEC", "")
    watched = environ.get("WATCHDOG_PID", "")
    if not allowed.isdecimal() or int(allowed) == 0:
        return None
    if watched and watched != str(os.getpid() if pid is None else pid):
        return None
    return int(allowed) / 2 / 1_000_000


def notify(**fields: str) -> None:
    """Send ``fields`` as one message, if NOTIFY_SOCKET is set."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # the environment spells the abstract namespace with @
        address = "\0" + address[1:]
    message = "\n".join(f"{name}={' '.join(value.split())}" for name, value in fields.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as notifier:
            notifier.sendto(message.encode(errors="backslashreplace"), address)
    except OSError as error:
        log.warning("cannot notify systemd of %s at NOTIFY_SOCKET %s: %s", ", ".join(fields), address, error)
