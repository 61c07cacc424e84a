"""The audit through a client: what is kept of an action, and in which order it comes back."""

from __future__ import annotations

from datetime import datetime, timezone

from taskqueue import Scheduler
from taskqueue.model.audit import AuditEntry
from taskqueue.model.serializer import LONGEST_TEXT


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
