"""What is measured of each system: adding, draining, the way of one job, due times, and a killed worker."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterable

from benchmarks.peers.client import Client, Place, workers
from benchmarks.peers.record import Start
from benchmarks.peers.systems import Peer
from tests.nodes import eventually

Figures = dict[str, float]
"""Values by name; the name ends with the unit."""

WARM_UP = 20
REST = 1.0
"""Seconds between the warm-up and the first measured job."""

SPREAD = 10.0
"""Seconds over which the jobs of ``lateness`` are due."""

HIT_RUNS = 2.0
"""Seconds of the job whose worker is killed."""

RECOVERS_WITHIN = 30.0
"""Seconds after which a job whose worker was killed is taken for lost."""

NEVER = -1.0
"""The figure of what did not happen in time."""


def adding(client: Client, place: Place, peer: Peer, jobs: int, _workers: int) -> Figures:
    """Add jobs one by one, then in bulk, with no worker running."""
    for key in range(WARM_UP):
        client.add(-1 - key)
    figures = {"one by one, jobs/s": _rate(lambda: [client.add(key) for key in range(jobs // 4)], jobs // 4)}
    if peer.bulk:
        figures["bulk, jobs/s"] = _rate(lambda: client.add_many(range(jobs, 2 * jobs)), jobs)
    return figures


def drain(client: Client, place: Place, peer: Peer, jobs: int, count: int) -> Figures:
    """Start workers for jobs that wait already; the first and the last start are the ends of the measure."""
    client.add_many(range(jobs))
    with workers(client, place, peer.name, count):
        eventually(lambda: len(place.record.path.read_bytes().splitlines()) >= jobs, 4 * RECOVERS_WITHIN)
        starts = place.record.starts()
    times = sorted(start.at for start in starts)
    return {"jobs/s": (len(times) - 1) / (times[-1] - times[0]), "run twice": float(_twice(starts))}


def round_trip(client: Client, place: Place, peer: Peer, jobs: int, count: int) -> Figures:
    """Add one job after another to an idle system, and wait for each result where there are any."""
    chance = random.Random(jobs)
    added, results = {}, []
    with workers(client, place, peer.name, count):
        _warm_up(client, place, peer)
        for key in range(jobs // 50):
            time.sleep(chance.uniform(0.005, 0.025))
            added[key] = time.time()
            began = time.perf_counter()
            handle = client.add(key)
            if peer.results:
                client.result(handle)
                results.append(time.perf_counter() - began)
            else:
                place.record.wait_for(key + 1)
        starts = place.record.wait_for(len(added))
    figures = _percentiles("start", [start.at - added[start.key] for start in starts])
    return figures | (_percentiles("result", results) if results else {})


def lateness(client: Client, place: Place, peer: Peer, jobs: int, count: int) -> Figures:
    """Add jobs that are due at random moments of some seconds, and compare."""
    chance = random.Random(jobs)
    with workers(client, place, peer.name, count):
        _warm_up(client, place, peer)
        first = time.time() + REST
        due = {key: first + chance.uniform(0, SPREAD) for key in range(jobs // 50)}
        for key, at in due.items():
            client.add_at(key, at)
        starts = place.record.wait_for(len(due), SPREAD + 2 * RECOVERS_WITHIN)
    late = [start.at - due[start.key] for start in starts]
    return _percentiles("late", late) | {"early": float(sum(one < -0.001 for one in late))}


def killed(client: Client, place: Place, peer: Peer, jobs: int, count: int) -> Figures:
    """Kill the process that runs a job: how long until the job runs again, ``NEVER`` if not in 30 s."""
    with workers(client, place, peer.name, count):
        _warm_up(client, place, peer)
        client.add(0, HIT_RUNS)
        [start] = place.record.wait_for(1)
        os.kill(start.pid, signal.SIGKILL)
        hit_at = time.time()
        try:
            again = place.record.wait_for(2, RECOVERS_WITHIN)
        except AssertionError:
            return {"runs again after, ms": NEVER}
    return {"runs again after, ms": (again[1].at - hit_at) * 1000}


Workload = Callable[[Client, Place, Peer, int, int], Figures]

WORKLOADS: dict[str, Workload] = {
    "adding": adding,
    "drain": drain,
    "round_trip": round_trip,
    "lateness": lateness,
    "killed": killed,
}


def _warm_up(client: Client, place: Place, peer: Peer) -> None:
    for key in range(WARM_UP):
        handle = client.add(-1 - key)
        if peer.results:
            client.result(handle)
    place.record.wait_for(WARM_UP)
    time.sleep(REST)
    place.record.clear()


def _rate(do: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    do()
    return count / (time.perf_counter() - began)


def _twice(starts: Iterable[Start]) -> int:
    keys = [start.key for start in starts]
    return len(keys) - len(set(keys))


def _percentiles(name: str, seconds: list[float]) -> Figures:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {f"{name} p{place}, ms": cuts[place - 1] * 1000 for place in (50, 95, 99)}
