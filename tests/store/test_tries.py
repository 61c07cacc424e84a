"""A call that other processes forestall each time ends, and says which job it could not change."""

from __future__ import annotations

from typing import Any, cast

import pytest

from taskqueue.errors import StoreContended
from taskqueue.model.options.update import revised
from taskqueue.model.record import Record, changed
from taskqueue.scheduler import add, changes
from taskqueue.store import Store
from taskqueue.store.tries import MOST_TRIES, Tries
from tests.store.records import a_record, kept


class Forestalled:
    """A store on which another client is faster than each change of this one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.tries = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def update(self, before: Record, after: Record, now: Any) -> bool:
        self.tries += 1
        present = kept(self._store, before.id)
        assert self._store.update(present, revised(present, {"tags": (f"{self.tries}",)}, None, now), now)
        return self._store.update(before, after, now)


def test_an_update_that_is_always_forestalled_ends(store: Store) -> None:
    [before] = store.add([a_record()])
    forestalled = Forestalled(store)

    with pytest.raises(StoreContended, match=rf"job {before.id} was changed .* each of {MOST_TRIES} tries: try again"):
        changes.update(cast(Any, forestalled), before.id, {"priority": 3})
    assert forestalled.tries == MOST_TRIES


def test_a_duplicate_that_is_always_forestalled_ends(store: Store) -> None:
    [kept] = store.add([a_record(unique="k")])
    new = changed(a_record(unique="k", data='"new"'), given={"on_duplicate": "replace"})

    with pytest.raises(StoreContended, match=rf"job {kept.id} with unique='k' was changed"):
        add.resolved(cast(Any, Forestalled(store)), new, kept)


def test_tries_are_counted(store: Store) -> None:
    tries = Tries("x", "lease y")
    for _ in range(MOST_TRIES):
        tries.another()
    with pytest.raises(StoreContended, match="lease y") as told:
        tries.another()
    assert (told.value.what, told.value.tries) == ("lease y", MOST_TRIES)
