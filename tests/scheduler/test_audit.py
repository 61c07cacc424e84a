"""The audit through a client: what is kept of an action, and in which order it comes back."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from taskqueue import Scheduler
from taskqueue.model.audit import AuditEntry
from taskqueue.model.job_filter import JobFilter
from taskqueue.model.query import parse
from taskqueue.model.serializer import LONGEST_TEXT
from taskqueue.scheduler.audit_trail import shown_query

NOW = datetime(2030, 7, 1, tzinfo=timezone.utc)


def test_the_class_of_a_job_stands_behind_the_other_details() -> None:
    about = {"job": "shop.mail:Mail", "reason": "stuck", "edited": False, "none": None}
    entry = AuditEntry(at=datetime.now(timezone.utc), by="ann", action="cancel", target="f" * 24, about=about)

    assert entry.details == "reason stuck, edited false, job shop.mail:Mail"


def test_an_action_is_kept_with_who_did_it_and_from_where(scheduler: Scheduler) -> None:
    scheduler.record_action("pause", "mail", by="ann", source="203.0.113.9", about={"reason": "relay"})
    scheduler.record_action("resume", "mail\ud800" * 300, by="bob")

    last, first = scheduler.audit()

    assert (first.by, first.action, first.target, first.source) == ("ann", "pause", "mail", "203.0.113.9")
    assert (first.about, last.about) == ({"reason": "relay"}, {})
    assert len(last.target) == LONGEST_TEXT
    assert "\ud800" not in last.target
    assert scheduler.audit(1, last.cursor)[0].by == "ann"


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        (
            {"$and": [JobFilter.read("class:pdf status:failed").query(NOW)]},
            '{"status": "FAILED", "job": {"$contains": "pdf"}}',
        ),
        ({"status": {"$lte": 2}, "priority": 2}, '{"status": {"$lte": "PROCESSING"}, "priority": 2}'),
        (
            {"$or": [{"status": {"$in": [4, 6]}}, {"$and": [{"queue": "mail"}]}]},
            '{"$or": [{"status": {"$in": ["FAILED", "TIMEOUT"]}}, {"queue": "mail"}]}',
        ),
        (
            {"$and": [{"tags": "a"}, {"tags": "b"}, {"queue": "c"}]},
            '{"$and": [{"tags": "a", "queue": "c"}, {"tags": "b"}]}',
        ),
    ],
)
def test_a_query_is_shown_as_a_person_would_write_it(query: dict[str, Any], shown: str) -> None:
    parse(query)

    assert shown_query(query) == shown
