"""A storm over a cluster: three nodes on a set of three members, and everything that can happen to them.

``python -m tests.chaos.cluster_storm --jobs 5000 --hits 150`` prints the figures.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from tests.chaos.async_application import AsyncApplication
from tests.chaos.cluster_faults import ClusterFaults
from tests.chaos.proxied import ProxiedCluster
from tests.chaos.storm import Report, Storm, StormSettings, tell
from tests.servers import prepared

LEASE = 15.0
"""Seconds: longer than three members take to write where disks are slow, so that runs are not lost in turns."""

OPTIONS = ("--pm", "static", "--min-children", "4", "--grace", "0.5", "--lease", str(LEASE))


def run_cluster_storm(
    folder: Path, *, jobs: int, hits: int, seed: int, seconds: float, with_asyncio: bool = False
) -> Report:
    """Run it over a set of its own in ``folder`` and report; ``with_asyncio`` an asyncio application adds jobs."""
    settings = StormSettings(jobs=jobs, kills=hits, seed=seed, seconds=seconds, nodes=("a", "b", "c"), options=OPTIONS)
    with ProxiedCluster(folder / "set", size=3, election_timeout=2.0) as cluster:
        url = prepared(cluster.url, "storm")
        with ExitStack() as open_ones:
            application = open_ones.enter_context(closing(AsyncApplication(url))) if with_asyncio else None
            storm = open_ones.enter_context(closing(Storm(settings, url, folder, application)))
            ClusterFaults(cluster, storm, LEASE, seed)
            return storm.run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a storm over a cluster and print its figures; return 1 if the books do not balance."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.cluster_storm", description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--hits", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=0.7, help="the most a job takes")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="storm-", ignore_cleanup_errors=True) as name:
        return tell(
            run_cluster_storm(Path(name), jobs=given.jobs, hits=given.hits, seed=given.seed, seconds=given.seconds)
        )


if __name__ == "__main__":
    sys.exit(main())
