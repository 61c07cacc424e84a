"""The names of events: transitions of jobs, their progress, events of nodes, and the flush of the store."""

from __future__ import annotations

from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.record import Status

ANY = "*"
"""The name that means every event."""

PROGRESS = "progress"
RETRIED = "retried"
JOB_EVENTS = (*(status.name.lower() for status in Status), RETRIED, PROGRESS)
"""``retried`` replaces ``waiting`` or ``postponed`` if the job runs again after a failure or a crash."""

WORKER_SPAWNED = "worker_spawned"
WORKER_ENDED = "worker_ended"
BECAME_LEADER = "became_leader"
STEPPED_DOWN = "stepped_down"
NODE_EVENTS = (WORKER_SPAWNED, WORKER_ENDED, BECAME_LEADER, STEPPED_DOWN)

FLUSHED = "store_flushed"
"""All jobs were removed, and the events before this one."""

EVENTS = (*JOB_EVENTS, *NODE_EVENTS, FLUSHED)


def checked(name: Any) -> str:
    """Return the name of an event, or ``*``; raise ``InvalidOption`` for anything else."""
    if isinstance(name, str) and name in (ANY, *EVENTS):
        return name
    from difflib import get_close_matches

    near = get_close_matches(str(name), EVENTS, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"use '*' or one of {', '.join(EVENTS)}"
    raise InvalidOption(f"there is no event {name!r}: {hint}")
