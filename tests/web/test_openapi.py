"""The OpenAPI document, and a thousand requests made from it: no server error, no answer that it does not name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.python import asgi
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from taskqueue import Scheduler
from taskqueue.model.log_lines import LogLine
from taskqueue.scheduler import json_shapes
from taskqueue.web import app
from taskqueue.web.api import ROUTES
from taskqueue.web.api.route import ApiRoute
from taskqueue.web.api.schemas import COMPONENTS
from tests.scheduler.jobs import Broken

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    ignored_auth,
    unsupported_method,
]
SLOW = list(HealthCheck)
"""The health checks, none of which says anything about an answer."""


@pytest.fixture(scope="module", autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """End the thread of schemathesis' event loop: tests of other files fork in this process."""
    yield
    asgi._shutdown()  # as at the end of the process


@pytest.fixture
def api(scheduler: Scheduler, people: tuple[Path, dict[str, str]]) -> BaseSchema:
    """Return the schema of a dashboard with a few jobs, a schedule and a pause, as its operator gets it."""
    path, tokens = people
    scheduler.run_job(Broken, {"token": "t"}, retry=0)
    scheduler.add_jobs([("shop:Mail", {"to": "a", "password": "x"}, {"queue": "mail"})] * 3)
    scheduler.schedule("nightly", "shop:Report", cron="0 3 * * *")
    scheduler.pause("mail", "the relay is down")
    made = app(scheduler, users=path, hosts=["testserver"], addable=["shop:Mail"])
    return schemathesis.openapi.from_asgi(
        "/api/v1/openapi.json", made, headers={"Authorization": f"Bearer {tokens['olaf']}"}
    )


@pytest.mark.uncounted
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.name != "follow_events"], ids=lambda one: one.name
)
def test_no_request_leads_to_an_error_or_an_answer_that_is_not_in_the_document(
    api: BaseSchema, scheduler: Scheduler, people: tuple[Path, dict[str, str]], route: ApiRoute, mode: GenerationMode
) -> None:
    operation = api[route.path][route.method]
    ids = cycle([str(process.id) for process in scheduler.find_jobs()])

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=1 if settings().max_examples < 100 else 12,  # every day: one of each
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    def answer(case: Any) -> None:
        if route.name == "wait_for_job":
            case.query = {**(case.query or {}), "timeout": 0}
        if mode is GenerationMode.POSITIVE:
            known = {"id": next(ids), "name": "nightly"}
            case.path_parameters = {name: known[name] for name in case.path_parameters}
        case.call_and_validate(headers={"Authorization": f"Bearer {people[1]['olaf']}"}, checks=CHECKS)

    answer()


def test_the_schemas_of_jobs_have_all_their_fields(scheduler: Scheduler) -> None:
    record = scheduler.run_job(Broken, retry=0).snapshot
    shapes = {"Job": json_shapes.job(record), "JobInFull": json_shapes.job_in_full(record)}

    for name, shape in shapes.items():
        assert set(COMPONENTS[name]["required"]) == set(shape), name
    assert set(COMPONENTS["JobInFull"]["properties"]) == {*shapes["JobInFull"], "existed"}


def test_the_schemas_of_what_happened_have_all_their_fields(scheduler: Scheduler) -> None:
    scheduler.record_action("look", "all", by="ana")
    [entry] = scheduler.audit()
    events = scheduler.events_of(scheduler.run_job(Broken, retry=0).id)
    at = datetime.now(timezone.utc)
    line = LogLine(at=at, level="info", logger="x", message="y", attempt=1, run=1, number=1)

    assert set(COMPONENTS["AuditEntry"]["properties"]) == set(json_shapes.audit_entry(entry))
    assert set(COMPONENTS["Event"]["properties"]) == set(json_shapes.event(events[0], None, None))
    assert set(COMPONENTS["LogLine"]["properties"]) == set(json_shapes.log_line(line))


def test_every_operation_has_a_name_of_its_own_and_says_what_it_does() -> None:
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert all(route.meaning.endswith(".") for route in ROUTES)
