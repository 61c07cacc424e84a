"""A store decides by the clock that it was opened with."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime

from taskqueue.store.open import open_store
from tests.store.records import NOON, SECOND, WEB_1, a_record, claim, kept


def test_the_time_of_a_store_is_that_of_the_clock_it_was_given(store_url: str) -> None:
    times = [NOON]

    def clock() -> datetime:
        return times[-1]

    with closing(open_store(store_url, clock)) as store:
        assert store.now() == NOON
        added = a_record()
        store.add([added])
        claim(store)
        times.append(NOON + SECOND)

        assert store.now() == NOON + SECOND
        store.renew(WEB_1, NOON + 9 * SECOND, {})
        assert kept(store, added.id).ready_at == NOON + 9 * SECOND
        assert store.expired(NOON + 10 * SECOND, 1) == [kept(store, added.id)]
