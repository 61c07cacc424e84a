"""The workloads by name, and rounds of them: all of one round before the next, so that a slow minute hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from taskqueue.cli.bench import backlog, death, drain, durability, enqueue, lateness, leaving, round_trip
from taskqueue.cli.bench.figures import Figure, Sample, over_rounds
from taskqueue.cli.bench.ground import Ground
from taskqueue.cli.bench.scale import Scale

Workload = Callable[[Ground, Scale], Iterable[Sample]]

WORKLOADS: Mapping[str, Workload] = {
    "W1": enqueue.measure,
    "W2": drain.measure,
    "W3": round_trip.measure,
    "W4": lateness.measure,
    "W5": backlog.measure,
    "W6": death.measure,
    "W7": leaving.measure,
}

TITLES: Mapping[str, str] = {
    "W1": "adding jobs",
    "W2": "draining a backlog",
    "W3": "single jobs on an idle system",
    "W4": "jobs due at a time",
    "W5": "a backlog, and an idle node",
    "W6": "killed workers",
    "W7": "stopping",
}

Tell = Callable[[int, int, str], None]
"""Takes how much is done, of how much, and what is measured now."""


def run(ground: Ground, names: Sequence[str], scale: Scale, repeat: int, tell: Tell) -> list[Figure]:
    """Return the figures of all rounds; the first ones are those of ``durability``."""
    found: list[tuple[str, Sample]] = []
    done, total = 0, repeat * len(names)
    for _ in range(repeat):
        found += [(durability.NAME, sample) for sample in durability.measure(ground)]
        for name in names:
            tell(done, total, f"{name} {TITLES[name]}")
            found += [(name, sample) for sample in WORKLOADS[name](ground, scale)]
            done += 1
    return over_rounds(found)
