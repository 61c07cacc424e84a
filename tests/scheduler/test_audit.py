"""The audit through a client: what is kept of an action, and in which order it comes back."""

from __future__ import annotations

from taskqueue import Scheduler
from taskqueue.model.serializer import LONGEST_TEXT


def test_an_action_is_kept_with_who_did_it_and_from_where(scheduler: Scheduler) -> None:
    scheduler.record_action("pause", "mail", by="ann", source="203.0.113.9", about={"reason": "relay"})
    scheduler.record_action("resume", "mail\ud800" * 300, by="bob")

    last, first = scheduler.audit()

    assert (first.by, first.action, first.target, first.source) == ("ann", "pause", "mail", "203.0.113.9")
    assert (first.about, last.about) == ({"reason": "relay"}, {})
    assert len(last.target) == LONGEST_TEXT
    assert "\ud800" not in last.target
    assert scheduler.audit(1, last.cursor)[0].by == "ann"
