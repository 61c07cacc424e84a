"""Which variables of a node's environment are for the node alone, and not for what its jobs start."""

from __future__ import annotations

from collections.abc import Mapping

VOICE = frozenset(
    (
        "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID",
        "FDSTORE", "MAINPID",
    )
)  # fmt: skip
"""What lets a process speak to systemd in the name of the unit: no worker has them (sd_notify(3))."""

OWN = VOICE | {
    "TASKQUEUE_URL", "CREDENTIALS_DIRECTORY", "INVOCATION_ID", "JOURNAL_STREAM", "MANAGERPID", "MEMORY_PRESSURE_WATCH",
    "MEMORY_PRESSURE_WRITE", "SYSTEMD_EXEC_PID",
}  # fmt: skip
"""What no command is handed: the address of the store, which may hold a password, and what systemd tells the unit."""


def for_commands(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a command of a job is handed."""
    return {name: value for name, value in environment.items() if name not in OWN}
