"""New ids are made in order, and no other process makes the same."""

from __future__ import annotations

import os
import time
from itertools import islice

from taskqueue.model.ids import new_ids
from tests.forking import fork


def test_new_ids_come_in_order_whoever_makes_them() -> None:
    before = int(time.time())
    first, second = new_ids(), new_ids()

    made = [next(first), next(second), *islice(first, 3), *islice(new_ids(), 3)]

    assert made == sorted(set(made))
    assert all(before <= id.generation_time.timestamp() <= time.time() for id in made)


def test_a_forked_child_makes_other_ids() -> None:
    own = next(new_ids())
    reading, writing = os.pipe()
    child = fork()
    if child == 0:
        os.write(writing, next(new_ids()).binary)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        other = answer.read()
    os.waitpid(child, 0)

    assert len(other) == 12
    assert other[4:9] != own.binary[4:9]
