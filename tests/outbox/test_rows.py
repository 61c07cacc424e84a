"""A row has all of an order, so that the relay stores the very job that ``add_job`` would have stored."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from taskqueue import Check, Limit, Rate, retry
from taskqueue.errors import InvalidJob, InvalidOption
from taskqueue.model.ids import JobId
from taskqueue.model.options.table import OPTIONS
from taskqueue.model.record import Record, Status
from taskqueue.outbox.rows import Row, record_of, row_of
from taskqueue.scheduler.new_jobs import order
from tests.outbox.jobs import Declaring, Echo, Invoice, is_open, tell

NOON = datetime(2030, 7, 20, 12, tzinfo=timezone.utc)
ONE, OTHER = JobId("0123456789abcdef01234567"), JobId("0123456789abcdef01234568")
SAMPLES: dict[str, list[dict[str, Any]]] = {
    "at": [{"at": NOON + timedelta(hours=1)}, {"at": "+5 minutes"}, {"at": NOON - timedelta(hours=1)}, {"at": "now"}],
    "retry": [{"retry": 3}, {"retry": -1}, {"retry": retry.exponential(8)}],
    "retry_interval": [{"retry": 1, "retry_interval": "5m"}],
    "retry_on": [{"retry": 1, "retry_on": [OSError, "app.errors.Refused"]}],
    "retry_on_timeout": [{"retry_on_timeout": False}],
    "timeout": [{"timeout": "30s"}],
    "stall_timeout": [{"stall_timeout": 5}],
    "priority": [{"priority": -3}],
    "queue": [{"queue": "mail"}],
    "tags": [{"tags": ["b", "a"]}],
    "unique": [{"unique": "k"}],
    "unique_for": [{"unique": "k", "unique_for": "1h"}],
    "on_duplicate": [{"unique": "k", "on_duplicate": "return"}],
    "force_spawn": [{"force_spawn": True}],
    "crash_retries": [{"crash_retries": 0}],
    "on_crash": [{"on_crash": "fail"}],
    "depends_on": [
        {"depends_on": [ONE, OTHER]},
        {"depends_on": {ONE: "ignore", OTHER: "wait"}},
        {"depends_on": [ONE, Check(is_open)], "ready": "tests.outbox.jobs:is_open"},
        {"depends_on": Check(is_open)},
    ],
    "on_dependency_failure": [{"depends_on": ONE, "on_dependency_failure": "ignore"}],
    "receives": [{"depends_on": ONE, "receives": {"page": "result"}}],
    "ready": [{"ready": Check(is_open)}, {"ready": "tests.outbox.jobs:is_open"}],
    "limits": [{"limits": [Limit(5), Rate(100, per=60)]}, {"limits": "5"}],
    "parent": [{"parent": ONE}],
    "meta": [{"meta": {"tenant": "acme"}}],
    "id": [{"id": "invoice-7"}, {"id": ONE}, {"id": str(OTHER)}],
    "expires": [{"expires": "+1 hour"}, {"expires": NOON + timedelta(days=1)}, {"at": "+1 hour", "expires": "+1 hour"}],
    "interval": [{"interval": "5m"}, {"interval": -1}],
    "interval_reference": [
        {"interval": 60, "interval_reference": "start"},
        {"interval": 60, "interval_reference": NOON},
    ],
    "until": [{"interval": 60, "until": "+1 hour"}, {"interval": 60, "until": NOON + timedelta(days=1)}],
    "max_runs": [{"interval": 60, "max_runs": 3}],
    "stop_after_failures": [{"interval": 60, "stop_after_failures": 3}],
}
OF_CLASSES_AND_ADD_JOB_ONCE = {"concurrency", "ignore_data", "name", "begin_within", "promise"}


def moved(job: Any, data: Any, options: dict[str, Any], now: datetime = NOON) -> tuple[Any, Any]:
    """Return the record of the order, and the record of its row, which was added at noon."""
    ordered = order(job, data, options, {}, NOON)
    return ordered.record, record_of(row_of(ordered, options, NOON), now)


def test_every_option_has_a_sample() -> None:
    assert set(SAMPLES) | OF_CLASSES_AND_ADD_JOB_ONCE == set(OPTIONS)


@pytest.mark.parametrize(
    "options", [pytest.param(sample, id=f"{name}-{n}") for name in SAMPLES for n, sample in enumerate(SAMPLES[name])]
)
@pytest.mark.parametrize("job", [Echo, "tests.outbox.unknown:Echo"])
def test_a_job_with_any_option_becomes_the_record_that_add_job_makes(job: Any, options: dict[str, Any]) -> None:
    ordered, stored = moved(job, {"page": 1} if "receives" not in options else {"n": 1}, options)

    assert facts(stored) == facts(ordered)


def facts(record: Record) -> dict[str, Any]:
    """Return all fields; what the call named as dependencies and conditions may be written in another way."""
    given = {name: value for name, value in record.given.items() if name not in ("depends_on", "ready")}
    return {**vars(record), "given": given}


def test_options_and_types_of_the_class_travel_with_the_row() -> None:
    data = Invoice(number=7, due_at=NOON, amount=Decimal("9.90"))
    ordered, stored = moved(Declaring, data, {"retry": 2})

    assert stored == ordered
    assert stored.options.retry.times == 2
    assert (stored.queue, stored.tags, stored.options.timeout) == ("invoices", ("billing",), 300)
    assert moved(tell, {"text": "a"}, {})[1].options.retry.times == 2


def test_a_job_that_was_added_by_its_path_learns_the_options_of_its_class_later() -> None:
    ordered, stored = moved("tests.outbox.unknown:Job", {"a": [1, None, "ü"]}, {})

    assert stored == ordered
    assert stored.options.undeclared


def test_times_that_count_from_the_adding_do_not_move_with_a_late_relay() -> None:
    late = NOON + timedelta(hours=2)
    _, stored = moved(Echo, 1, {"at": "+1 hour", "expires": "+1 hour"}, late)

    assert stored.ready_at == NOON + timedelta(hours=1)
    assert stored.expires_at == NOON + timedelta(hours=2)
    assert stored.created_at == late


def test_a_job_without_a_time_is_ready_when_it_comes_into_the_store() -> None:
    late = NOON + timedelta(hours=2)
    _, stored = moved(Echo, 1, {"priority": 1}, late)

    assert (stored.status, stored.ready_at, stored.created_at) == (Status.WAITING, late, late)
    assert stored == stored.at_rank()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"unique": "k", "on_duplicate": "replace"},
            "on_duplicate='replace': the relay, which adds the job after your",
        ),
        ({"unique": "k", "on_duplicate": "raise"}, "on_duplicate='raise': the relay"),
        ({"ignore_data": True}, "ignore_data compares jobs, and the outbox has none"),
    ],
)
def test_what_only_a_store_can_do_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        moved(Echo, 1, options)


def test_a_path_that_no_column_keeps_is_refused() -> None:
    with pytest.raises(InvalidJob, match="has 1,205 characters, at most 1,000 are kept"):
        moved(f"shop:{'J' * 1200}", 1, {})


ROW = Row(id=str(ONE), added_at=NOON.isoformat(), job="shop:Mail", data="{}", options="{}", declared=None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"job": "no path"}, "no path"),
        ({"data": "{"}, "not Extended JSON"),
        ({"data": '{"$oid": "x"}'}, "not Extended JSON"),
        ({"options": "{"}, "the column options is not JSON"),
        ({"options": "[1]"}, "the column options is '\\[1\\]': it must be a JSON object"),
        ({"options": '{"retries": 1}'}, "shop:Mail: there is no option 'retries': did you mean retry"),
        ({"options": '{"priority": 99}'}, "priority=99"),
        ({"declared": '{"unique_by": 1}'}, "options of shop:Mail: there is no option 'unique_by'"),
        ({"declared": '{"id": "x"}'}, "options of shop:Mail: id applies to one job"),
        ({"added_at": "yesterday"}, "yesterday"),
        ({"id": "a\nb"}, "id="),
    ],
)
def test_a_wrong_row_is_refused_by_the_name_of_what_is_wrong(change: dict[str, str], said: str) -> None:
    with pytest.raises(Exception, match=said):
        record_of(ROW._replace(**change), NOON)


def test_a_row_of_another_program_needs_little_and_its_id_may_be_text() -> None:
    stored = record_of(ROW._replace(id="order-4711"), NOON)

    assert (stored.id_text, stored.options.undeclared) == ("order-4711", True)
    assert record_of(ROW, NOON).id == ONE
    assert record_of(ROW, NOON).id_text is None
