"""New ids are made in order, and no other process makes the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import islice

from taskqueue.model.ids import new_id, new_ids
from tests.forking import fork


def test_new_ids_come_in_order_whoever_makes_them() -> None:
    before = int(time.time())

    made = [new_id(), *islice(new_ids(), 3), new_id(), *islice(new_ids(), 3)]

    assert made == sorted(set(made))
    assert all(before <= id.generation_time.timestamp() <= time.time() for id in made)


def test_a_forked_child_makes_other_ids() -> None:
    own = new_id()
    reading, writing = os.pipe()
    child = fork()
    if child == 0:
        os.write(writing, new_id().binary)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        other = answer.read()
    os.waitpid(child, 0)

    assert len(other) == 12
    assert other[6:9] != own.binary[6:9]


def test_ids_of_two_processes_come_in_the_order_of_their_times() -> None:
    asked = "from taskqueue.model.ids import new_id; print(new_id())"

    made = [subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True).stdout for _ in range(4)]

    assert made == sorted(set(made))
