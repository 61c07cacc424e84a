"""The variables of the environment that are not options: which ones commands do not get, and how a node is started.

The manager, which starts workers, and the job that runs commands share these lists.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VOICE = frozenset(
    (
        "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID",
        "FDSTORE", "MAINPID",
    )
)  # fmt: skip
"""Variables with which a process can notify systemd for the unit: removed from workers (sd_notify(3))."""

OWN = VOICE | {
    "TASKQUEUE_URL", "TASKQUEUE_NOTIFY", "TASKQUEUE_NOTIFY_KEY", "TASKQUEUE_NOTIFY_PASSWORD",
    "CREDENTIALS_DIRECTORY", "INVOCATION_ID", "JOURNAL_STREAM", "MANAGERPID", "MEMORY_PRESSURE_WATCH",
    "MEMORY_PRESSURE_WRITE", "SYSTEMD_EXEC_PID",
}  # fmt: skip
"""Variables withheld from commands: addresses, which may hold secrets, keys and passwords, and those of systemd."""


METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder in which prometheus_client keeps metrics; it counts when that is imported."""


NODE_COMMAND = "TASKQUEUE_NODE_COMMAND"
"""The variable with the command that starts a node, if the application has one of its own, as a Django project has."""


def node_command() -> str:
    """Return the command that starts a node, for messages."""
    return os.environ.get(NODE_COMMAND) or "taskqueue-node"


def for_commands(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a job's command."""
    return {name: value for name, value in environment.items() if name not in OWN}
