"""One run of one workload on one system: ``python -m benchmarks.peers.measure huey-redis drain`` prints JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from benchmarks.peers.client import Place
from benchmarks.peers.record import Record
from benchmarks.peers.servers import SERVERS
from benchmarks.peers.systems import PEERS, Peer, connect
from benchmarks.peers.workloads import WORKLOADS, Figures

MEMORY = "/dev/shm"


def measure(peer: Peer, workload: str, jobs: int, workers: int) -> Figures:
    """Run the workload in an empty place and return its figures; this process's environment is changed."""
    with tempfile.TemporaryDirectory(prefix="peers-") as folder, tempfile.TemporaryDirectory(dir=MEMORY) as memory:
        Path(memory).chmod(0o755)
        with SERVERS[peer.server](Path(folder)) as server:
            place = Place(folder=Path(folder), record=Record(Path(memory) / "starts"), server=server)
            os.environ.update(place.environment(peer.name))
            with closing(connect(peer)) as client:
                return WORKLOADS[workload](client, place, peer, jobs, workers)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    if given.workload not in (allowed := PEERS[given.peer].workloads):
        parser.error(f"{given.peer} takes part in {', '.join(allowed)} only, not in {given.workload}")
    json.dump(measure(PEERS[given.peer], given.workload, given.jobs, given.workers), sys.stdout)
    print()


if __name__ == "__main__":
    main()
