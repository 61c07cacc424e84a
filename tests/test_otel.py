"""Traces of jobs with a real tracer, whose spans are kept in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from taskqueue import Job, Retry, Scheduler, otel


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def scheduler(exporter: InMemorySpanExporter, tmp_path: Path) -> Iterator[Scheduler]:
    exporter.clear()
    url = f"sqlite://{tmp_path}/jobs.db?synchronous=normal"
    with Scheduler(url, before_add=otel.before_add, around_run=otel.around_run) as scheduler:
        yield scheduler


class Order(Job):
    """Fails once, and adds a job then."""

    def start(self) -> None:
        if self.attempt == 1:
            raise Retry(0, "the till is locked")
        self.scheduler.add_job(Invoice)


class Invoice(Job):
    async def start(self) -> str:
        return format(trace.get_current_span().get_span_context().trace_id, "032x")


def tree(spans: tuple[ReadableSpan, ...]) -> list[str]:
    """Return each span as its name and that of its parent."""
    names = {span.context.span_id: span.name for span in spans if span.context}
    return [f"{span.name} < {names[span.parent.span_id] if span.parent else '-'}" for span in spans]


def test_one_trace_leads_from_the_call_through_retries_to_the_jobs_of_the_job(
    scheduler: Scheduler, exporter: InMemorySpanExporter
) -> None:
    with trace.get_tracer("shop").start_as_current_span("request"):
        order = scheduler.add_job(Order, retry=1)
    _, invoice = dict.fromkeys(scheduler.run_pending())

    spans = exporter.get_finished_spans()
    assert tree(spans) == [
        "add Order < request",
        "request < -",
        "run Order < add Order",
        "add Invoice < run Order",
        "run Order < add Order",
        "run Invoice < add Invoice",
    ]
    assert {span.context.trace_id for span in spans if span.context} == {int(invoice.result, 16)}
    first, second = (dict(span.attributes or {}) for span in spans if span.name == "run Order")
    assert (first["taskqueue.attempt"], second["taskqueue.attempt"]) == (1, 2)
    assert second["messaging.message.id"] == str(order.id)
    [error] = [event.attributes or {} for span in spans for event in span.events]
    assert error["exception.message"] == "the till is locked"


def test_without_a_present_trace_each_job_begins_one(scheduler: Scheduler, exporter: InMemorySpanExporter) -> None:
    one, other = scheduler.add_job(Invoice), scheduler.add_job(Invoice, meta={"tenant": "acme"})
    scheduler.run_pending()

    assert one.refresh().result != other.refresh().result
    assert one.meta["traceparent"].split("-")[1] == one.result
    assert other.meta["tenant"] == "acme"


def test_an_occurrence_of_a_series_begins_a_trace_when_it_runs(
    scheduler: Scheduler, exporter: InMemorySpanExporter
) -> None:
    with trace.get_tracer("shop").start_as_current_span("request"):
        job = scheduler.add_job(Invoice, interval="1h")
    scheduler.run_pending(once=True)

    assert job.refresh().meta == {}
    assert tree(exporter.get_finished_spans()) == ["request < -", "run Invoice < -"]


def test_without_the_package_it_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('none here')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import taskqueue.otel"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    hint = "pip install 'taskqueue-jobs[otel]'"
    assert f"ConfigError: taskqueue.otel needs the package opentelemetry-api: {hint}" in ran.stderr


@pytest.mark.parametrize(
    "meta",
    [{f"k{number}": "v" for number in range(16)}, {"k": "v" * 2040}, {"k": "v" * 1900}],
    ids=["keys", "all", "fit"],
)
def test_a_job_whose_meta_has_no_room_is_added_without_its_trace(scheduler: Scheduler, meta: dict[str, str]) -> None:
    job = scheduler.add_job(Invoice, meta=meta)

    has_room = sum(len(key) + len(value) for key, value in meta.items()) < 1950 and len(meta) < 16
    assert {key: job.meta[key] for key in meta} == meta
    assert ("traceparent" in job.meta) is has_room
