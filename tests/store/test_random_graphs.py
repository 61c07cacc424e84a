"""Random graphs of dependent jobs that fail, time out, are canceled and lost end as a small model says.

The suite draws a sample; ``python -m tests.store.random_graphs`` goes through many more.
"""

from __future__ import annotations

import pytest

from taskqueue.store import Store
from tests.store.random_graphs import Graph, expected, play, settled


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 25))])
def test_a_random_graph_ends_as_the_model_predicts(store: Store, seed: int) -> None:
    graph = Graph.drawn(seed)

    canceled = play(store, graph)

    assert settled(store, graph) == expected(graph, canceled)
    assert store.repair(graph.end) == 0
