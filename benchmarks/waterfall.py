"""Where the time of a single job goes after a pause, hop by hop: ``python -m benchmarks.waterfall``.

A real node, jobs after pauses of 5 to 25 ms, and the kernel's own record of who sent and who woke up when (``perf
record``, as root): nothing is measured inside the processes, in which all code is cold. Prints the median of each step
in milliseconds since ``add_job`` was called, and how long it took.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import workloads
from benchmarks.environment import at_level
from benchmarks.jobs import Moment
from benchmarks.node import family, node
from benchmarks.scale import Scale
from taskqueue import Scheduler
from taskqueue.cli.bench import scratch_stores

APPLICATION, NODE, MANAGER, WORKER = ROLES = ("application", "node", "manager", "worker")
MARK, SENDS, WAITS, AWAKE = "enter_getppid", "enter_sendto", "enter_poll", ("exit_epoll_wait", "exit_poll")
"""System calls: one that nothing else makes, and those by which processes hand a job on."""

SENDERS = (APPLICATION, NODE, MANAGER, WORKER, MANAGER, NODE)
"""Who hands a job on, in order."""

LINE = re.compile(r"\s*(?P<pid>\d+)\s+(?P<seconds>\d+\.\d+):\s+syscalls:sys_(?P<call>\w+):")


class Call(NamedTuple):
    """A system call of a process, in microseconds of the kernel's clock."""

    at: float
    role: str
    name: str


def calls_of(lines: Iterable[str], roles: Mapping[int, str]) -> list[Call]:
    """Return the calls that ``perf script`` has written, in order."""
    found = [match for line in lines if (match := LINE.match(line)) and int(match["pid"]) in roles]
    return sorted(Call(float(one["seconds"]) * 1e6, roles[int(one["pid"])], one["call"]) for one in found)


def jobs_of(calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
    """Yield the calls of each job, from the mark before it to that behind it."""
    marks = [place for place, call in enumerate(calls) if call.role == APPLICATION and call.name == MARK]
    for first, last in zip(marks[::2], marks[1::2], strict=True):
        yield calls[first : last + 1]


def steps_of(calls: Sequence[Call]) -> dict[str, float] | None:
    """Return the microseconds of each step since the first call; None of a job that did not go the usual way."""
    began, steps, place = calls[0].at, {}, 0
    for number, role in enumerate(SENDERS):
        sent = next((at for at in range(place, len(calls)) if calls[at][1:] == (role, SENDS)), None)
        if sent is None:
            return None
        if number:
            awake = [call.at for call in calls[place:sent] if call.role == role and call.name in AWAKE]
            if not awake:
                return None
            steps[f"{number} {role}: awake"] = awake[-1] - began
        steps[f"{number} {role}: handed on"] = calls[sent].at - began
        place = sent
    awake = [call.at for call in calls[place:] if call.role == APPLICATION and call.name in AWAKE]
    waits = [call.at for call in calls if call.role == APPLICATION and call.name == WAITS]
    if not awake or not waits:
        return None
    steps["0 application: waits"] = waits[0] - began
    steps["6 application: awake"] = awake[0] - began
    steps["6 application: has the result"] = calls[-1].at - began
    return steps


@contextmanager
def recording(pids: Iterable[int], file: Path) -> Iterator[None]:
    """Record the system calls of these processes while the block runs."""
    events = [f"syscalls:sys_{name}" for name in (MARK, SENDS, WAITS, *AWAKE)]
    (told, tell), (hear, heard) = os.pipe(), os.pipe()
    command = ["perf", "record", "-q", "-e", ",".join(events), "-k", "CLOCK_MONOTONIC", "-D", "-1", "-m", "2048"]
    command += ["-p", ",".join(map(str, pids)), "-o", str(file), f"--control=fd:{told},{heard}"]
    with subprocess.Popen(command, pass_fds=(told, heard)) as recorder:
        os.close(told)
        os.close(heard)
        os.write(tell, b"enable\n")
        if not os.read(hear, 16):
            sys.exit("perf cannot record here: run as root, with Debian's linux-perf")
        try:
            yield
        finally:
            recorder.send_signal(signal.SIGINT)
    os.close(tell)
    os.close(hear)


def measure(url: str, synchronous: str | None, jobs: int) -> list[dict[str, float]]:
    """Return the steps of each job."""
    with (
        scratch_stores(at_level(url, synchronous)) as stores,
        stores.fresh() as store,
        Scheduler(store) as scheduler,
        node(store, stores.folder, 1) as running,
    ):
        workloads.warm(running, scheduler, Scale())
        roles = dict(zip((os.getpid(), *family(running.pid)), ROLES, strict=True))
        file = stores.folder / "perf.data"
        with recording(roles, file):
            for _ in range(jobs):
                time.sleep(random.uniform(*workloads.PAUSES))
                os.getppid()
                running.wait(scheduler.add_job(Moment))
                os.getppid()
        command = ["perf", "script", "--ns", "-F", "pid,time,event", "-i", str(file)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [steps for calls in jobs_of(calls_of(lines, roles)) if (steps := steps_of(calls)) is not None]


def table(found: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Yield a line for each step, in the order of time."""
    medians = {name: statistics.median(steps[name] for steps in found) for name in found[0]}
    before = 0.0
    for name, at in sorted(medians.items(), key=lambda step: step[1]):
        yield f"| {name.partition(' ')[2]} | {at / 1000:.2f} | {(at - before) / 1000:.2f} |"
        before = at


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="jobs.db")
    parser.add_argument("--synchronous", choices=["full", "normal"])
    parser.add_argument("--jobs", type=int, default=200)
    given = parser.parse_args()
    if shutil.which("perf") is None:
        sys.exit("perf is not installed: it is Debian's package linux-perf")
    found = measure(given.url, given.synchronous, given.jobs)
    sys.stdout.write("\n".join([f"{len(found)} jobs", *table(found), ""]))


if __name__ == "__main__":
    main()
