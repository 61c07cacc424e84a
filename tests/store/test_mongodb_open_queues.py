"""The places of many queues that a MongoDB store remembers: what is found and not claimed is found again."""

from __future__ import annotations

import pytest

from taskqueue.model.controls import Controls
from taskqueue.store import ClaimRequest
from taskqueue.store.bell import WORK
from taskqueue.store.mongodb.bells import StreamBell
from taskqueue.store.mongodb.queue_candidates import MERGED, OpenQueues, Search
from taskqueue.store.mongodb.store import MongoStore
from tests.nodes import eventually
from tests.store.records import NOON, SECOND, a_record


@pytest.mark.parametrize("batches", [1, 4])
def test_jobs_that_were_found_and_not_claimed_are_found_again(mongo_store: MongoStore, batches: int) -> None:
    """``batches`` is more than 1 while other nodes claim, too: then some queues are taken by chance."""
    bell = mongo_store.bell(WORK)
    assert isinstance(bell, StreamBell)
    records = [a_record(queue=f"q{number}", ready_at=NOON - number * SECOND) for number in range(3 * MERGED)]
    mongo_store.add(records)
    eventually(lambda: bell.changes is not None and bell.changes.all >= len(records))
    queues = OpenQueues(mongo_store._connection)
    queues.rely_on(bell)
    search = Search(
        forced=False,
        limit=len(records),
        demand=ClaimRequest(pooled=len(records)),
        controls=Controls(),
        batches=1,
        now=NOON,
    )

    queues.lowest(search._replace(limit=2 * MERGED, batches=batches))  # the claim of these fails
    again = queues.lowest(search)

    assert {document["_id"] for document, _ in again} == {record.id for record in records}
