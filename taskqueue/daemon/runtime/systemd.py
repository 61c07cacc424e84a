"""Tell systemd how the node is doing: the protocol of sd_notify(3), in one datagram a message.

Without NOTIFY_SOCKET in the environment nothing is said and nothing is wrong. No call blocks.
"""

import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger(__name__)


def ready(status: str) -> None:
    """Say that the start, or a reload, is complete."""
    notify(READY="1", STATUS=status)


def reloading() -> None:
    """Say that the configuration is being read again; ``ready`` ends it."""
    notify(RELOADING="1", MONOTONIC_USEC=str(time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000))


def stopping(status: str) -> None:
    """Say that the node is about to leave."""
    notify(STOPPING="1", STATUS=status)


def tell(status: str) -> None:
    """Show ``status`` in systemctl status."""
    notify(STATUS=status)


def alive() -> None:
    """Feed the watchdog: to be called every ``watchdog_interval()`` seconds."""
    notify(WATCHDOG="1")


def extend_timeout(seconds: float) -> None:
    """Ask for ``seconds`` more, from now on, before a start or a stop counts as hung."""
    notify(EXTEND_TIMEOUT_USEC=str(round(seconds * 1_000_000)))


def watchdog_interval(environ: Mapping[str, str] = os.environ, pid: int | None = None) -> float | None:
    """Return how many seconds may pass between two ``alive``: half of what systemd allows, None without a watchdog."""
    allowed = environ.get("WATCHDOG_USEC", "")
    watched = environ.get("WATCHDOG_PID", "")
    if not allowed.isdecimal() or int(allowed) == 0:
        return None
    if watched and watched != str(os.getpid() if pid is None else pid):
        return None
    return int(allowed) / 2 / 1_000_000


def notify(**fields: str) -> None:
    """Send ``fields`` as one message, if there is somebody to send it to."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # the abstract namespace is spelled so in the environment
        address = "\0" + address[1:]
    message = "\n".join(f"{name}={' '.join(value.split())}" for name, value in fields.items())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as notifier:
        try:
            notifier.sendto(message.encode(errors="backslashreplace"), address)
        except OSError as error:
            log.warning("systemd was not told %s at NOTIFY_SOCKET %s: %s", ", ".join(fields), address, error)
