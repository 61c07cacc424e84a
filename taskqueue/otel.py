"""Hooks for OpenTelemetry: one trace from the call that adds a job through its attempts to the jobs that it adds.

The trace travels in the ``meta`` of the job, as ``traceparent`` and ``tracestate`` of the W3C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from taskqueue.errors import ConfigError, InvalidOption
from taskqueue.model.meta import checked_meta

try:
    from opentelemetry import trace
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    hint = "pip install 'taskqueue-jobs[otel]'"
    raise ConfigError(f"taskqueue.otel needs the package opentelemetry-api: {hint}") from None

if TYPE_CHECKING:
    from taskqueue.model.job import RunningJob
    from taskqueue.scheduler.job_meta import NewJob

_tracer = trace.get_tracer("taskqueue")
_propagator = TraceContextTextMapPropagator()


def before_add(new: NewJob) -> None:
    """Put the current trace into the meta of the job, or start one; each occurrence of a series has its own."""
    for name in _propagator.fields:
        new.meta.pop(name, None)
    if new.options.get("interval"):
        return
    about = {"messaging.system": "taskqueue", "taskqueue.job": new.job}
    with _tracer.start_as_current_span(f"add {_name(new.job)}", kind=SpanKind.PRODUCER, attributes=about):
        _propagator.inject(new.meta)
    while _is_too_large(new.meta):  # a job without its trace is better than none
        if not any(new.meta.pop(name, None) for name in ("tracestate", "traceparent")):
            return


def _is_too_large(meta: Mapping[str, str]) -> bool:
    try:
        checked_meta(meta)
    except InvalidOption:
        return True
    return False


async def around_run(job: RunningJob, proceed: Callable[[], Any]) -> None:
    """Run the job in a span of its trace; a failed attempt is a span with an error."""
    about: dict[str, str | int] = {
        "messaging.system": "taskqueue",
        "messaging.destination.name": job.queue,
        "messaging.message.id": str(job.id),
        "taskqueue.job": job.job,
        "taskqueue.attempt": job.attempt,
    }
    parent = _propagator.extract(job.meta)
    with _tracer.start_as_current_span(
        f"run {_name(job.job)}", context=parent, kind=SpanKind.CONSUMER, attributes=about
    ):
        await proceed()


def _name(path: str) -> str:
    """Return the class or function of an import path."""
    return path.rpartition(":")[2]
