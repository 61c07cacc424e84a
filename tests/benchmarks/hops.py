"""How many empty jobs a second go through a manager and two workers alone: ``python -m tests.benchmarks.hops``."""

from __future__ import annotations

import json
import sys
import time

from taskqueue.daemon.manager.scaling import PoolMode
from taskqueue.daemon.protocol.channel import ChannelClosed
from taskqueue.daemon.protocol.messages import Ended, Run, RunsHandedBack, decode, encode
from taskqueue.model.ids import JobId
from tests.daemon.foreman import JOBS, Foreman

IN_FLIGHT = 256
"""As many as a node claims ahead for two workers whose jobs are short."""


def measure(count: int) -> tuple[float, float]:
    """Return the jobs a second of ``count`` empty ones, sent as a node sends them, and the CPU seconds of each job.

    The CPU time is that of manager and workers together, and depends less on what else the machine does.
    """
    payloads = [encode(_run()) for _ in range(count)]
    with Foreman(pm=PoolMode.STATIC, min_children=2, max_children=2) as foreman:
        for _ in range(2):
            foreman.result(foreman.run("Empty"))
        began = time.perf_counter()
        _send_all(foreman, payloads)
        seconds = time.perf_counter() - began
        exit = foreman.drain()
    return count / seconds, (exit.user_time + exit.system_time) / count


def latency(count: int) -> float:
    """Return the median seconds of a run alone, from sending it to hearing its end."""
    with Foreman(pm=PoolMode.STATIC, min_children=2, max_children=2) as foreman:
        foreman.result(foreman.run("Empty"))
        taken = []
        for _ in range(count):
            began = time.perf_counter()
            foreman.expect(Ended, foreman.run("Empty"))
            taken.append(time.perf_counter() - began)
            foreman.heard.clear()
        foreman.drain()
    return sorted(taken)[count // 2]


def _run() -> Run:
    return Run(
        id=str(JobId()),
        claims=1,
        job=f"{JOBS}:Empty",
        data="null",
        state=None,
        attempt=1,
        is_last=True,
        timeout=None,
        force_spawn=False,
    )


def _send_all(foreman: Foreman, payloads: list[bytes]) -> None:
    left = len(payloads)
    batch, payloads = payloads[:IN_FLIGHT], payloads[IN_FLIGHT:]
    foreman.channel.send(*batch)
    owed = 0
    while left:
        payload = foreman.channel.wait(30)
        if payload is None:
            raise ChannelClosed("the manager is silent")
        message = decode(payload)
        if isinstance(message, RunsHandedBack):
            raise AssertionError(f"{len(message.runs)} runs came back")
        if not isinstance(message, Ended):
            continue
        left -= 1
        owed += 1
        if owed >= IN_FLIGHT // 2:
            batch, payloads = payloads[:owed], payloads[owed:]
            if batch:
                foreman.channel.send(*batch)
            owed = 0


if __name__ == "__main__":
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    rate, cost = measure(jobs)
    figures = {
        "jobs": jobs,
        "per_second": round(rate),
        "cpu_us": round(cost * 1e6),
        "alone_us": round(latency(500) * 1e6),
    }
    sys.stdout.write(f"{json.dumps(figures)}\n")
