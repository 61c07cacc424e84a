"""How many system calls application, node, manager and worker make for one plain warm job.

``python -m benchmarks.system_calls [--url URL] [--top 10]`` prints them, those of each process with the most
frequent first; without a URL in an SQLite file in the current folder. strace runs all processes from their start, so
that it needs no right to attach to others, and counts those of each of ``JOBS`` jobs one after the other: what
most jobs need at least, and on an average the most frequent. In the manager a wait that ends because its time is up
does not count, nor does all up to the next wait: it looks at runs that take 5 ms, which says how fast the machine is.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.jobs import Empty
from benchmarks.node import family, node
from benchmarks.way_of_a_job import MANAGER, NODE, PATIENCE, ROLES, WORKER, at_least
from taskqueue import Scheduler
from taskqueue.cli.bench import ScratchStores, scratch_stores
from tests.counting import uncounted

JOBS = 21
LINE = re.compile(r"(?P<thread>\d+) +(?P<at>[\d.]+) (?:(?P<begun>\w+)\(|<\.\.\. (?P<resumed>\w+) resumed>)(?P<rest>.*)")
""""1234 1790000000.123456 read(3, …": a signal and an exit look otherwise."""

WAITS = frozenset(("epoll_wait", "epoll_pwait", "poll", "ppoll", "pselect6", "select"))
UNFINISHED = "<unfinished ...>"
NOTHING = re.compile(r"\) += 0( \(Timeout\))?$")
AT_ONCE = re.compile(r"(, 0|\{tv_sec=0, tv_[nu]sec=0\})(, NULL, \d+)?\) +=")
"""How a wait looks that finds nothing, and one that takes no time."""


class Calls(NamedTuple):
    """The calls of each process."""

    totals: Mapping[str, float]
    """How many it makes for most jobs at least."""
    counts: Mapping[str, Mapping[str, float]]
    """Which it makes how often for a job, on an average."""


def measure(url: str, jobs: int = JOBS) -> Calls:
    """Return the calls of each process for one of so many jobs."""
    if shutil.which("strace") is None:
        raise FileNotFoundError("install strace, Debian's package strace: bin/setup test does")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "calls")
        command = [sys.executable, "-m", "benchmarks.system_calls", "--url", url, "--traced", str(jobs)]
        strace = ["strace", "-f", "-ttt", "-s", "0", "-e", "signal=none", "-o", str(file)]
        done = subprocess.run([*strace, *command], env=uncounted(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        return _counted(file, told["times"], told["threads"])


def _counted(file: Path, times: Sequence[float], threads: Mapping[str, Sequence[int]]) -> Calls:
    role_of = {thread: role for role, all_of_it in threads.items() for thread in all_of_it}
    jobs = len(times) - 1
    counts = {role: Counter[str]() for role in ROLES}
    of_jobs = {role: [0] * jobs for role in ROLES}
    with file.open() as lines:
        for thread, at, name in calls_of(lines, without_timers=threads[MANAGER]):
            if times[0] < at < times[-1] and thread in role_of:
                counts[role_of[thread]][name] += 1
                of_jobs[role_of[thread]][bisect(times, at) - 1] += 1
    return Calls(
        totals={role: at_least(of) for role, of in of_jobs.items()},
        counts={role: {name: n / jobs for name, n in counted.most_common()} for role, counted in counts.items()},
    )


def calls_of(lines: Iterable[str], without_timers: Collection[int]) -> Iterator[tuple[int, float, str]]:
    """Yield thread, time and name of the calls; of some threads not those that follow from a wait whose time was up."""
    of_timers: set[int] = set()
    for found in filter(None, map(LINE.match, lines)):
        thread, name, rest = int(found["thread"]), found["begun"] or found["resumed"], found["rest"].rstrip()
        if name in WAITS and thread in without_timers:
            if rest.endswith(UNFINISHED):
                continue
            if not NOTHING.search(rest):
                of_timers.discard(thread)
            elif not AT_ONCE.search(rest):
                of_timers.add(thread)
        elif found["resumed"]:
            continue
        if thread not in of_timers:
            yield thread, float(found["at"]), name


def _traced(stores: ScratchStores, jobs: int) -> Mapping[str, object]:
    """Send jobs through a node, and return the times before and after each, and the threads of each process."""
    with stores.fresh() as url, Scheduler(url) as scheduler, node(url, stores.folder, 1) as running:

        def send() -> None:
            scheduler.add_job(Empty).wait(timeout=PATIENCE)

        for _ in range(jobs):
            send()
        times = [time.time()]
        for _ in range(jobs):
            send()
            times.append(time.time())
        pids = {"application": "self", **dict(zip((NODE, MANAGER, WORKER), family(running.pid), strict=True))}
        threads = {role: [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()] for role, pid in pids.items()}
    return {"times": times, "threads": threads}


def main() -> None:
    """Count and print; or be what is traced."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="calls.db")
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--traced", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.traced is not None:
        with scratch_stores(given.url) as stores:
            sys.stdout.write(json.dumps(_traced(stores, given.traced)))
        return
    found = measure(given.url)
    for role, calls in found.counts.items():
        sys.stdout.write(f"\n{role}: {found.totals[role]:g} system calls for a job\n")
        sys.stdout.writelines(f"  {count:6.2f} {name}\n" for name, count in list(calls.items())[: given.top])


if __name__ == "__main__":
    main()
