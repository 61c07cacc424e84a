"""The systems that are compared, and what each of them promises."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from benchmarks.peers.client import Client

POWER_CUT = "a power cut"
CRASH = "a crash of any process"
SNAPSHOT = "what is in the last snapshot"
NOTHING = "nothing"

ALL = ("adding", "drain", "round_trip", "lateness", "killed")
"""The names of all workloads."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One system with one set of settings."""

    name: str
    module: str
    server: str = ""
    survives: str
    """What an acknowledged job survives."""
    isolation: str
    """What else runs in the process of a job."""
    workloads: tuple[str, ...] = ALL
    """What it takes part in."""
    bulk: bool = False
    """Whether many jobs can be added at once."""
    results: bool = True
    """Whether the client can wait for a result."""


_ALONE, _THREADS, _ASYNCIO = "nothing", "threads of other jobs", "an event loop with other jobs"
_NO_JOBS = "it runs no jobs"
_ADDING = ("adding",)
_DRAIN = ("drain",)

PEERS = {
    peer.name: peer
    for peer in (
        Peer(name="taskqueue", module="ours", survives=POWER_CUT, isolation=_ALONE, bulk=True),
        Peer(name="taskqueue-normal", module="ours", survives=CRASH, isolation=_ALONE, bulk=True),
        Peer(
            name="taskqueue-postgresql",
            module="ours",
            server="postgres",
            survives=POWER_CUT,
            isolation=_ALONE,
            bulk=True,
        ),
        Peer(
            name="taskqueue-postgresql-nodes",
            module="ours",
            server="postgres",
            survives=POWER_CUT,
            isolation=_ALONE,
            workloads=_DRAIN,
        ),
        Peer(name="rq", module="on_rq", server="redis", survives=SNAPSHOT, isolation=_ALONE, bulk=True),
        Peer(
            name="rq-simple",
            module="on_rq",
            server="redis",
            survives=SNAPSHOT,
            isolation=_ALONE,
            bulk=True,
        ),
        Peer(name="celery", module="on_celery", server="redis", survives=SNAPSHOT, isolation=_ALONE),
        Peer(name="celery-late", module="on_celery", server="redis", survives=SNAPSHOT, isolation=_ALONE),
        Peer(name="dramatiq", module="on_dramatiq", server="redis", survives=SNAPSHOT, isolation=_THREADS),
        Peer(
            name="dramatiq-one-thread",
            module="on_dramatiq",
            server="redis",
            survives=SNAPSHOT,
            isolation=_ALONE,
        ),
        Peer(name="huey-redis", module="on_huey", server="redis", survives=SNAPSHOT, isolation=_ALONE),
        Peer(name="huey-sqlite", module="on_huey", survives=POWER_CUT, isolation=_ALONE),
        Peer(name="huey-sqlite-no-sync", module="on_huey", survives=CRASH, isolation=_ALONE),
        Peer(
            name="procrastinate",
            module="on_procrastinate",
            server="postgres",
            survives=POWER_CUT,
            isolation=_ALONE,
            bulk=True,
            results=False,
        ),
        Peer(
            name="pgqueuer",
            module="on_pgqueuer",
            server="postgres",
            survives=POWER_CUT,
            isolation=_ASYNCIO,
            bulk=True,
            results=False,
        ),
        Peer(
            name="skip-locked",
            module="on_skip_locked",
            server="postgres",
            survives=POWER_CUT,
            isolation=_ALONE,
            workloads=_ADDING + _DRAIN,
            bulk=True,
            results=False,
        ),
        Peer(
            name="persist-queue", module="on_persist_queue", survives=POWER_CUT, isolation=_NO_JOBS, workloads=_ADDING
        ),
        Peer(
            name="persist-queue-files", module="on_persist_queue", survives=CRASH, isolation=_NO_JOBS, workloads=_ADDING
        ),
        Peer(
            name="process-pool",
            module="on_process_pool",
            survives=NOTHING,
            isolation=_ALONE,
            workloads=("drain", "round_trip"),
        ),
    )
}


def connect(peer: Peer) -> Client:
    """Return the system's client; where everything is, is in the environment already."""
    module = importlib.import_module(f"{__name__}.{peer.module}")
    client: Client = module.System()
    return client
