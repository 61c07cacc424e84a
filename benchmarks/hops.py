"""How many empty jobs a second go through a manager and two workers alone: ``python -m benchmarks.hops``."""

from __future__ import annotations

import json
import sys
import time

from taskqueue.daemon.protocol.channel import ChannelClosed
from taskqueue.daemon.protocol.codec import decode, encode
from taskqueue.daemon.protocol.messages import Ended, RunsHandedBack
from taskqueue.daemon.settings import PoolMode
from taskqueue.execution.run import Run
from taskqueue.model.ids import JobId
from tests.daemon.fake_node import JOBS, FakeNode

IN_FLIGHT = 256
"""As many as a node claims ahead for two workers whose jobs are short."""


def measure(count: int) -> tuple[float, float]:
    """Return the jobs a second of ``count`` empty ones, sent as a node sends them, and the CPU seconds of each job.

    The CPU time is that of manager and workers together, and depends less on what else the machine does.
    """
    payloads = [encode(_run()) for _ in range(count)]
    with FakeNode(pm=PoolMode.STATIC, min_children=2, max_children=2) as fake_node:
        for _ in range(2):
            fake_node.result(fake_node.run("Empty"))
        began = time.perf_counter()
        _send_all(fake_node, payloads)
        seconds = time.perf_counter() - began
        exit = fake_node.drain()
    return count / seconds, (exit.user_time + exit.system_time) / count


def latency(count: int) -> float:
    """Return the median seconds of a run alone, from sending it to hearing its end."""
    with FakeNode(pm=PoolMode.STATIC, min_children=2, max_children=2) as fake_node:
        fake_node.result(fake_node.run("Empty"))
        taken = []
        for _ in range(count):
            began = time.perf_counter()
            fake_node.expect(Ended, fake_node.run("Empty"))
            taken.append(time.perf_counter() - began)
            fake_node.heard.clear()
        fake_node.drain()
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


def _send_all(fake_node: FakeNode, payloads: list[bytes]) -> None:
    left = len(payloads)
    batch, payloads = payloads[:IN_FLIGHT], payloads[IN_FLIGHT:]
    fake_node.channel.send(*batch)
    owed = 0
    while left:
        payload = fake_node.channel.wait(30)
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
                fake_node.channel.send(*batch)
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
