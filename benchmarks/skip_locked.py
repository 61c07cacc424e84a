"""Claims and outcomes of several nodes at once on PostgreSQL, beside a bare queue with SKIP LOCKED on the same server.

``python -m benchmarks.skip_locked [--nodes 1 4 16] [--batches 1 16 128] [--delays 0 0.5] [--rounds 3]`` prints a table
of medians. A node is a process with the store's client alone. The bare queue has the same tables and indexes, and takes
one statement for a claim and one for its outcomes. A delay is that of each answer of the server, in milliseconds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from benchmarks.queues import table
from benchmarks.store_costs import LEASE, records
from taskqueue.cli.bench import scratch_stores
from taskqueue.model.lifecycle.outcomes import Done, Run
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Holder
from taskqueue.store import ClaimRequest, Settlement
from taskqueue.store.open import open_store
from tests.postgresql import PostgreSQL

JOBS = 6_400
"""The most jobs of one measurement."""
CYCLES = 160
"""The most claims that a measurement needs."""
WARM_UP = 6
"""Cycles before the measured ones: from the sixth use on, statements are prepared."""
Cycle = Callable[[int], int]
CLAIM = """
UPDATE jobs SET status = 2, claims = claims + 1, seat = %s WHERE id = ANY(ARRAY(
    SELECT id FROM jobs WHERE status = 0 AND queue = 'default' AND forced = 0
    ORDER BY rank, id LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING id, claims, data
"""
SETTLE = """
UPDATE jobs SET status = 3, ended_at = 1, result = 'null' FROM unnest(%s::text[], %s::int[]) AS done (id, claims)
WHERE jobs.id = done.id AND jobs.claims = done.claims AND jobs.status = 2 AND jobs.seat = %s
"""


def of_store(url: str, seat: str) -> Iterator[Cycle]:
    """Yield what claims and settles this many jobs, and returns how many it settled."""
    holder = Holder(seat=seat, incarnation="1")
    with closing(open_store(url)) as store:

        def cycle(batch: int) -> int:
            now = store.now()
            runs = store.claim(holder, ClaimRequest(pooled=batch), now, now + LEASE).records
            run, now = Run(node=seat, started_at=now), store.now()
            ends = [Settlement(claims=r.claims, holder=holder, after=ended(r, Done(), run, now)) for r in runs]
            return len(store.settle(ends, now)) if ends else 0

        yield cycle


def of_bare_queue(url: str, seat: str) -> Iterator[Cycle]:
    """Yield what does the same without the store."""
    address, _, schema = url.partition("?taskqueue.schema=")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}")

        def cycle(batch: int) -> int:
            rows = connection.execute(CLAIM, (seat, batch)).fetchall()
            ids, claims = [row[0] for row in rows], [row[1] for row in rows]
            return connection.execute(SETTLE, (ids, claims, seat)).rowcount if rows else 0

        yield cycle


SYSTEMS = {"taskqueue": contextmanager(of_store), "bare queue": contextmanager(of_bare_queue)}


def rate(system: str, url: str, seen: str, nodes: int, batch: int) -> float:
    """Return how many jobs a second the nodes do, which see the store at another address."""
    jobs = min(JOBS, CYCLES * batch)
    with scratch_stores(url) as stores, stores.fresh() as fresh:
        with closing(open_store(fresh)) as store:
            for new in records(store, jobs + nodes * WARM_UP):
                store.add(new)
        there = fresh.replace(urlsplit(url).netloc, urlsplit(seen).netloc)
        fork = multiprocessing.get_context("fork")
        start, counts = fork.Barrier(nodes + 1), fork.SimpleQueue()

        def node(number: int) -> None:
            settled = 0
            try:
                with SYSTEMS[system](there, f"node-{number}") as cycle:
                    for _ in range(WARM_UP):
                        cycle(1)
                    start.wait()
                    while done := cycle(batch):
                        settled += done
            finally:
                counts.put(settled)

        running = [fork.Process(target=node, args=(number,)) for number in range(nodes)]
        for process in running:
            process.start()
        start.wait()
        began = time.perf_counter()
        settled = sum(counts.get() for _ in running)
        taken = time.perf_counter() - began
        for process in running:
            process.join()
    assert settled == jobs, f"{system}: {settled} of {jobs} jobs were settled"
    return jobs / taken


def proxied(url: str, seconds: float) -> str:
    """Return an address at which each answer of the server comes later; a process of its own passes it on."""
    if not seconds:
        return url
    parts = urlsplit(url)
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)

    def accept() -> None:
        while True:
            client, _ = listening.accept()
            server = socket.create_connection((str(parts.hostname), parts.port or 5432))
            for ends in (client, server):
                ends.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, sink, delay in ((client, server, 0.0), (server, client, seconds)):
                threading.Thread(target=_pass_on, args=(source, sink, delay), daemon=True).start()

    multiprocessing.get_context("fork").Process(target=accept, daemon=True).start()
    return url.replace(f":{parts.port}/", f":{listening.getsockname()[1]}/")


def _pass_on(source: socket.socket, sink: socket.socket, delay: float) -> None:
    with suppress(OSError):
        while chunk := source.recv(1 << 20):
            time.sleep(delay)
            sink.sendall(chunk)
    for ends in (source, sink):
        with suppress(OSError):
            ends.shutdown(socket.SHUT_RDWR)


def measured(url: str, given: argparse.Namespace) -> Sequence[Sequence[str]]:
    """Return the rows of the table: all systems in turns."""
    rows = []
    for delay in given.delays:
        seen = proxied(url, delay / 1000)
        for nodes in given.nodes:
            for batch in given.batches:
                rounds = [
                    {system: rate(system, url, seen, nodes, batch) for system in SYSTEMS} for _ in range(given.rounds)
                ]
                ours, bare = (statistics.median(figures[system] for figures in rounds) for system in SYSTEMS)
                ratio = statistics.median(figures["taskqueue"] / figures["bare queue"] for figures in rounds)
                rows.append((f"{delay:g}", str(nodes), str(batch), f"{ours:,.0f}", f"{bare:,.0f}", f"{ratio:.2f}"))
                print(*rows[-1], file=sys.stderr)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--delays", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, PostgreSQL(Path(folder) / "server", fsync="on") as server:
        rows = measured(server.url, given)
    heads = ("delay, ms", "nodes", "batch", *(f"{system}, jobs/s" for system in SYSTEMS), "ratio")
    sys.stdout.write(table(heads, rows) + "\n")


if __name__ == "__main__":
    main()
