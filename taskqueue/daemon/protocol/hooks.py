"""Leader hooks: functions of the bootstrap file that a worker calls when its node begins or ceases to lead."""

from __future__ import annotations

from taskqueue.daemon.protocol.messages import Run, RunHook

BECAME_LEADER = "became_leader"
STEPPED_DOWN = "stepped_down"

TIMEOUT = 60.0
"""Seconds that a hook may take."""

NO_CLAIM = 0
"""The claim number in messages about a hook: a hook is not a claim on a job."""


def run_of(hook: RunHook) -> Run:
    """Return the run by which manager and worker carry out a hook: one attempt, in a worker of its own."""
    return Run(
        id=hook.id,
        claims=NO_CLAIM,
        job=hook.name,
        data="null",
        state=None,
        attempt=1,
        is_last=True,
        timeout=TIMEOUT,
        force_spawn=True,  # a full pool does not delay it
    )
