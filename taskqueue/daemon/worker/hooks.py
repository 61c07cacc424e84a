"""Calls the hooks of a job's class in the worker, after the store has accepted the outcome."""

from __future__ import annotations

import logging
import time
from collections import deque

from taskqueue.daemon.protocol.channel import Channel
from taskqueue.daemon.protocol.messages import Message, OutcomeSettled, Run, decode
from taskqueue.daemon.worker.interrupts import SignalInterrupts
from taskqueue.execution.executor import Ran, brief, call_hook, hooks
from taskqueue.model.job import Job
from taskqueue.model.record import Status

log = logging.getLogger(__name__)

SETTLED_WITHIN = 30.0
"""Seconds that a worker waits for an outcome to be settled; after that it skips the hooks."""


class OutcomeHooks:
    """Waits until an outcome is settled, and calls the hooks."""

    def __init__(self, channel: Channel, interrupts: SignalInterrupts, received_early: deque[Message]) -> None:
        """Messages received while waiting are added to ``received_early``."""
        self._channel = channel
        self._interrupts = interrupts
        self._received_early = received_early

    def call(self, run: Run, ran: Ran) -> None:
        """Call the hooks once the outcome is accepted; skip them if it is refused or not settled in time."""
        settled = self._await_settlement(run)
        if settled is None:
            log.warning("outcome not settled within %g s, hooks skipped: job %s", SETTLED_WITHIN, run.id)
        elif settled.accepted:
            self._call_hooks(ran, Status(settled.status))

    def _await_settlement(self, run: Run) -> OutcomeSettled | None:
        deadline = time.monotonic() + SETTLED_WITHIN
        while (payload := self._channel.wait(max(0.0, deadline - time.monotonic()))) is not None:
            message = decode(payload)
            if isinstance(message, OutcomeSettled) and (message.id, message.claims) == (run.id, run.claims):
                return message
            self._received_early.append(message)
        return None

    def _call_hooks(self, ran: Ran, status: Status) -> None:
        for hook in hooks(ran, status):
            try:
                with self._interrupts.interruptible():
                    call_hook(hook)
            except BaseException as error:
                log.error("a hook was interrupted, the outcome stays: %s (%s)", hook, brief(error))
                return


def defines_hooks(kind: type[Job]) -> bool:
    """Return whether the class defines one of the hooks."""
    return (
        kind.on_success is not Job.on_success
        or kind.on_failure is not Job.on_failure
        or kind.on_last_failure is not Job.on_last_failure
        or kind.finalize is not Job.finalize
    )
