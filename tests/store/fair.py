"""A real store whose claims are those of one node with fair queues, for tests that hold with either order."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from taskqueue.model.record import Holder
from taskqueue.store import Claim, ClaimRequest, Store
from taskqueue.store.queue_shares import QueueShares

ORDERS = ("fair", "strict")


class FairStore:
    """Has each claim share its records among queues."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shares = QueueShares()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, holder: Holder, demand: ClaimRequest, now: datetime, until: datetime) -> Claim:
        claim = self._store.claim(holder, replace(demand, shares=self._shares), now, until)
        self._shares.count(claim.records, now)
        return claim


def ordered(store: Store, order: str) -> Store:
    """Return the store with this order of queues."""
    return cast(Store, FairStore(store)) if order == "fair" else store
