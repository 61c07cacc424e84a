"""The moments in the life of a job at which something is done to it, each brought about and not guessed."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from taskqueue import Process
from tests.chaos.host import Host
from tests.chaos.process_fault import stop_between_writes
from tests.nodes import eventually, title


class Moment(Enum):
    """How far a job is."""

    BEFORE_CLAIM = "before its claim"
    CLAIMED = "claimed, but not begun"
    RUNNING = "running"
    ENDED = "ended, but not settled"
    SETTLED = "settled"

    def bring_about(self, host: Host, add: Callable[[], Process]) -> Process:
        """Add a job and return when it is as far as this; where it would go further, the node is stopped."""
        return _WAYS[self](host, add)


def _before_claim(host: Host, add: Callable[[], Process]) -> Process:
    stop_between_writes(host.this)
    process = add()
    assert process.is_waiting
    return process


def _claimed(host: Host, add: Callable[[], Process]) -> Process:
    host.renew_worker()
    process = add()
    eventually(lambda: process.refresh().is_processing)
    return process


def _running(host: Host, add: Callable[[], Process]) -> Process:
    host.gate.close()
    process = add()
    host.heed(f"started {process.id}")
    return process


def _ended(host: Host, add: Callable[[], Process]) -> Process:
    process = _running(host, add)
    stop_between_writes(host.this)
    host.gate.open()
    host.heed(f"ended {process.id}")
    eventually(lambda: title(host.worker()) == "taskqueue: worker idle")
    eventually(lambda: title(host.manager()) == "taskqueue: manager 0 busy, 1 idle")
    assert process.refresh().is_processing
    return process


def _settled(host: Host, add: Callable[[], Process]) -> Process:
    return add().wait()


_WAYS = {
    Moment.BEFORE_CLAIM: _before_claim,
    Moment.CLAIMED: _claimed,
    Moment.RUNNING: _running,
    Moment.ENDED: _ended,
    Moment.SETTLED: _settled,
}
