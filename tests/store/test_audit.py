"""The audit keeps who did what, the newest first, whatever becomes of the jobs, and not for ever."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from bson import ObjectId

from taskqueue.errors import InvalidQuery
from taskqueue.model.audit import KEPT_FOR, AuditEntry
from taskqueue.store import Store
from tests.store.damaging import FAR, REFUSED, damager
from tests.store.records import HOUR, NOON


def an_entry(**fields: object) -> AuditEntry:
    known = {"at": NOON, "by": "ann", "action": "pause", "target": "mail", "source": "203.0.113.9"}
    return AuditEntry(**{**known, **fields})  # type: ignore[arg-type]


def test_a_store_without_actions_has_none(store: Store) -> None:
    assert store.audit(10) == []


def test_entries_are_kept_as_they_are_the_newest_first(store: Store) -> None:
    first = an_entry(about={"reason": "the relay is down ✉", "a.b$": [1, None, {"c": True}]})
    second = an_entry(action="resume", by="bob", at=NOON + HOUR, source="")
    store.record_action(first)
    store.record_action(second)
    store.flush()

    found = store.audit(10)

    assert [(one.at, one.by, one.action, one.target, one.source, one.about) for one in found] == [
        (one.at, one.by, one.action, one.target, one.source, one.about) for one in (second, first)
    ]


def test_entries_are_read_page_by_page(store: Store) -> None:
    for target in "abcde":
        store.record_action(an_entry(target=target))

    [newest, next_one] = store.audit(2)
    others = store.audit(10, next_one.cursor)

    assert "".join(sorted(one.target for one in (newest, next_one, *others))) == "abcde"
    assert store.audit(10, others[-1].cursor) == []


def test_old_entries_are_removed_when_others_come(store: Store) -> None:
    now = store.now()
    store.record_action(an_entry(at=now - 2 * KEPT_FOR, target="old"))
    store.record_action(an_entry(at=now + KEPT_FOR + 2 * HOUR))

    assert [one.target for one in store.audit(10)] == ["mail"]


@pytest.mark.parametrize("cursor", ["", "x", "-1", "9" * 19, "1" * 30, "١"])
def test_a_cursor_of_something_else_is_refused(store: Store, cursor: str) -> None:
    store.record_action(an_entry())

    with pytest.raises(InvalidQuery, match="is not a cursor of the audit"):
        store.audit(10, cursor)


@pytest.mark.parametrize(
    ("field", "value"),
    [("about", "[]"), ("about", "5"), ("about", '"x"'), ("about", "{"), ("about", b"{}"), ("at", FAR)],
)
def test_an_unreadable_entry_is_left_out(store: Store, store_url: str, field: str, value: Any) -> None:
    store.record_action(an_entry(target="damaged"))
    store.record_action(an_entry(target="whole"))
    id: Callable[[str], Any] = ObjectId if store_url.startswith("mongodb") else str
    is_refused = True
    with damager(store_url) as damage_it, contextlib.suppress(*REFUSED):
        damage_it("audit", id(store.audit(2)[1].cursor), field, value)
        is_refused = False

    assert [one.target for one in store.audit(10)] == (["whole", "damaged"] if is_refused else ["whole"])
