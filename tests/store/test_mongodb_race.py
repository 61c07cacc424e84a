"""Many processes on one MongoDB store: nothing is claimed twice, nothing is left, and no two block each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from bson import ObjectId
from pymongo.database import Database

from taskqueue.model.query import PENDING
from taskqueue.model.record import Holder, JobId, Status
from taskqueue.store import Store
from taskqueue.store.mongodb import open_mongodb
from tests.servers import with_database
from tests.store.children import Child
from tests.store.records import NOON, a_record, all_kept, claim, settlement

JOBS = 10_000
PROCESSES = 8


def claim_all(store: Store, holder: Holder, size: int) -> Iterator[JobId]:
    """Claim and settle until nothing is left, and return what this holder has settled."""
    while store.count(PENDING):
        while runs := claim(store, size, holder=holder).records:
            yield from store.settle([settlement(run) for run in runs], NOON)


def test_eight_processes_claim_ten_thousand_jobs_and_none_twice(
    mongo_set: str, mongo_database: Database[dict[str, object]], tmp_path: Path
) -> None:
    url = with_database(mongo_set, f"{mongo_database.name}-race")
    records = [a_record(queue=f"q{number % 3}") for number in range(JOBS)]

    def work(number: int) -> None:
        holder = Holder(seat=f"node-{number}", incarnation=str(number))
        with closing(open_mongodb(url)) as mine:
            settled = b"".join(id.binary for id in claim_all(mine, holder, 40 + 20 * number))
        (tmp_path / f"settled-{number}").write_bytes(settled)

    with closing(open_mongodb(url)) as store:
        store.add(records)
        for child in [Child(lambda number=number: work(number)) for number in range(PROCESSES)]:  # type: ignore[misc]
            assert child.wait() == 0

        told = b"".join((tmp_path / f"settled-{number}").read_bytes() for number in range(PROCESSES))
        counts = Counter(ObjectId(told[at : at + 12]) for at in range(0, len(told), 12))
        assert counts == Counter(record.id for record in records)
        assert sum(store.tally().values()) == JOBS
        assert {status for _, status in store.tally()} == {Status.DONE}
        assert {record.claims for record in all_kept(store)} == {1}
        assert store.mend(NOON) == 0
    mongo_database.client.drop_database(f"{mongo_database.name}-race")
