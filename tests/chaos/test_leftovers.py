"""What a writer that died has left half done does not wait for its return: the nodes that live complete it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from bson import ObjectId

from taskqueue import Scheduler, Status
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.mongodb.url import parse
from taskqueue.store.open import open_store
from tests.acceptance.work import Echo
from tests.nodes import LIMIT, node
from tests.scheduler.playing import begin, end, take
from tests.servers import prepared
from tests.store.test_mongodb_cut_off import CutConnection, Death, StatementCutter


def test_a_dependent_is_released_though_the_node_died_between_two_writes(mongo_set: str, tmp_path: Path) -> None:
    url = prepared(mongo_set, f"leftovers_{ObjectId()}")
    with Scheduler(url) as scheduler, closing(open_store(url)) as store:
        first = scheduler.add_job(Echo, 1)
        dependent = scheduler.add_job(Echo, 2, depends_on=[first])
        [run] = take(store)
        connection = CutConnection(parse(url))
        with closing(MongoStore(connection)) as dying:
            run = begin(dying, run)
            connection.cutter = StatementCutter(last=1)
            with pytest.raises(Death):
                end(dying, run)
            connection.cutter = None

        assert first.refresh().status is Status.DONE
        assert dependent.refresh().status is Status.POSTPONED
        with node(url, tmp_path) as living:
            scheduler.wait_for([dependent], timeout=LIMIT)
            assert "completed 1 changes that dead nodes had left unfinished" in living.log.read_text()
    assert dependent.result == 2
