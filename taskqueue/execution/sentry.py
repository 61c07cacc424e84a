"""Reports the final failures of jobs to Sentry, if the application has called ``sentry_sdk.init()`` in this process.

The SDK is never imported here: nothing happens in a process whose application has not imported it.
"""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from taskqueue.execution.executor import Ran, exception_of
from taskqueue.execution.job_context import JobContext
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.record import Status
from taskqueue.store.redaction import concealed_in

log = logging.getLogger(__name__)

SENT_WITHIN = 1.5
"""Seconds that an exiting worker gives the SDK to send; less than the two after which its manager kills it."""

_FAILURES = (outcomes.Failed, outcomes.GivenUp, outcomes.TimedOut)


class SentryScope:
    """The scope of one run: tags, breadcrumbs and users set in it apply only to the events of that run."""

    def __init__(self, sdk: Any, context: JobContext) -> None:
        self._sdk = sdk
        self._context = context
        self._entered = ExitStack()
        self._scope = self._entered.enter_context(sdk.isolation_scope())
        fields = context.fields
        self._scope.set_transaction_name(fields.job, source="task")
        self._scope.set_tags(
            {"job": fields.job, "job_id": fields.job_id, "queue": fields.queue, "attempt": str(fields.attempt)}
        )
        if context.meta:
            self._scope.set_context("meta", dict(context.meta))
        self._scope.add_event_processor(_concealed_event)

    def leave(self) -> None:
        """Leave the scope, at the end of the run."""
        self._entered.close()

    def entered(self) -> AbstractContextManager[object]:
        """Return the scope as a context, for the hooks after the run."""
        scope: AbstractContextManager[object] = self._sdk.scope.use_isolation_scope(self._scope)
        return scope

    def report(self, ran: Ran, status: Status) -> None:
        """Report a failure after which the job is not retried; called in its scope when its outcome has been stored."""
        is_last = isinstance(ran.outcome, outcomes.GivenUp) or self._context.is_last_attempt
        if not may_report(ran) or not (status.is_final or (self._context.course is not None and is_last)):
            return
        error = exception_of(ran) if ran.error is None else ran.error
        event, hint = self._sdk.utils.event_from_exception(
            error,
            client_options=self._sdk.get_client().options,
            mechanism={"type": "taskqueue", "handled": False},
        )
        self._sdk.capture_event(event, hint=hint)


def may_report(ran: Ran) -> bool:
    """Return whether the run must wait until its outcome is stored: it may be a failure to report."""
    return isinstance(ran.outcome, _FAILURES)


def scope_of(context: JobContext) -> SentryScope | None:
    """Enter the scope of a run, and return it; None if the SDK is not set up."""
    sdk: Any = sys.modules["sentry_sdk"]
    try:
        return SentryScope(sdk, context) if sdk.get_client().is_active() else None
    except Exception:
        log.exception("the failures of this run are not reported to Sentry: %s", context.id)
        return None


def send() -> None:
    """Give the SDK a moment to send the remaining events before the worker exits."""
    sdk: Any = sys.modules.get("sentry_sdk")
    if sdk is None:
        return
    try:
        sdk.flush(timeout=SENT_WITHIN)
    except Exception:
        log.exception("events for Sentry may be lost")


def _concealed_event(event: Any, _hint: Any) -> Any:
    """Return an event without the passwords of URLs in its messages, values of variables and breadcrumbs."""
    if isinstance(event, str):
        return concealed_in(event)
    if isinstance(event, dict):
        return {key: _concealed_event(value, None) for key, value in event.items()}
    return [_concealed_event(value, None) for value in event] if isinstance(event, list) else event
