"""What three faults do to the queues of ``multiprocessing`` and to our channels, and what a message costs on each.

Run it by hand: ``python -m benchmarks.queues [MESSAGES]``. It writes the two tables of the page on architecture.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from taskqueue.daemon.protocol.channel import pair

FORK = multiprocessing.get_context("fork")
PATIENCE = 2.0
"""Seconds after which a reader that got nothing is said to be stopped."""

SMALL = b"r" * 400  # about the size of a run
LARGE = 512 * 1024  # more than a socket takes at once, so that its writer waits in the middle of it
INTERRUPTED = 200  # messages whose writer is interrupted
ROUND_TRIPS = 3000


class Interrupt(BaseException):
    """Raised by a signal handler, as a timeout or a cancel request is in a job."""


class OutOfPatience(Exception):
    """A call did not return in time."""


class Pipe(Protocol):
    """Both ends of something that carries bytes from one process to another."""

    def send(self, payload: bytes) -> None: ...

    def receive(self) -> bytes: ...


class Shared:
    """A queue of the standard library, which any number of processes may read."""

    def __init__(self, queue: Any) -> None:
        self.send = queue.put
        self.receive = queue.get


class Piped:
    """A pipe of the standard library."""

    def __init__(self) -> None:
        ours, theirs = FORK.Pipe(duplex=False)
        self.receive = ours.recv_bytes
        self.send = theirs.send_bytes


class Ours:
    """A channel of taskqueue."""

    def __init__(self) -> None:
        self._ours, self._theirs = pair()

    def send(self, payload: bytes) -> None:
        self._theirs.send(payload)
        self._theirs.flush_blocking()

    def receive(self) -> bytes:
        payload = self._ours.take() or self._ours.wait()
        assert payload is not None
        return payload


class Batches(Ours):
    """A channel whose writer sends 16 messages at once, as node, manager and worker do with what they have."""

    def __init__(self) -> None:
        super().__init__()
        self._batch: list[bytes] = []

    def send(self, payload: bytes) -> None:
        self._batch.append(payload)
        if len(self._batch) == 16:
            self._theirs.send(*self._batch)
            self._theirs.flush_blocking()
            self._batch.clear()


KINDS: dict[str, Callable[[], Pipe]] = {
    "`multiprocessing.Queue`": lambda: Shared(FORK.Queue()),
    "`multiprocessing.SimpleQueue`": lambda: Shared(FORK.SimpleQueue()),
    "`multiprocessing.Pipe`": Piped,
    "our channel": Ours,
}


class Cost(NamedTuple):
    """What a message costs: microseconds there and back, messages a second one way, microseconds of CPU for each."""

    round_trip: float
    rate: float
    cpu: float


# A consumer is killed while it waits


def killed_consumer(queues: Sequence[Pipe]) -> str:
    """Kill one of two consumers while both wait, and return what the other one gets of what is sent then.

    ``queues`` has one that both read, or one for each.
    """
    heard, told = FORK.Pipe(duplex=False)
    first = forked(queues[0].receive)
    until_asleep(first)
    second = forked(lambda: told.send_bytes(queues[-1].receive()))
    until_asleep(second)
    kill(first)
    queues[-1].send(SMALL)
    result = "gets the message" if heard.poll(PATIENCE) else f"gets nothing, {PATIENCE:g} s long"
    kill(second)
    return f"the other consumer {result}"


# A writer is stopped in the middle of a message


def stopped_writer_of_a_pipe() -> str:
    """Return what ``recv_bytes`` does when the writer is stopped in the middle of a message."""
    ours, theirs = FORK.Pipe(duplex=False)
    writer = stopped(lambda: theirs.send_bytes(b"x" * LARGE))
    try:
        assert ours.poll(0)
        return within_patience(lambda: len(ours.recv_bytes()))
    finally:
        kill(writer)


def stopped_writer_of_a_channel() -> str:
    """Return what ``Channel.receive`` does when the writer is stopped in the middle of a message."""
    ours, theirs = pair()

    def write() -> None:
        theirs.send(b"x" * LARGE)
        theirs.flush_blocking()

    writer = stopped(write)
    try:
        return within_patience(ours.receive)
    finally:
        kill(writer)


# A signal handler raises while messages are sent


def interrupted_writer(pipe: Pipe) -> str:
    """Interrupt a writer again and again, and return what the reader makes of what it gets."""
    writer = forked(lambda: write_interrupted(pipe))
    whole = 0
    try:
        with limited(10 * PATIENCE):
            while (payload := pipe.receive()) != b"end":
                if len(payload) != LARGE or payload.count(payload[:1]) != LARGE:
                    return f"after {whole} messages a message is mixed from two"
                whole += 1
    except OutOfPatience:
        return f"after {whole} messages it waits for bytes that never come"
    except (OSError, EOFError) as error:
        return f"after {whole} messages it fails: {type(error).__name__} {error}".rstrip()
    finally:
        kill(writer)
    return f"all {whole} messages that were taken in before the interrupt arrive whole"


def write_interrupted(pipe: Pipe) -> None:
    """Send messages of one letter each while a timer raises; what was interrupted is left, and the next one sent."""
    armed = False

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupt

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
    for number in range(INTERRUPTED):
        try:
            armed = True
            pipe.send(b"abcdefghijklmnopqrstuvwxyz"[number % 26 :][:1] * LARGE)
            armed = False
        except Interrupt:
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    pipe.send(b"end")
    signal.pause()  # a queue of the standard library sends from a thread: the process must not end before that


# What a message costs


def cost(kind: Callable[[], Pipe], one_way: Callable[[], Pipe], count: int) -> Cost:
    """Measure messages there and back one at a time, and ``count`` one after the other one way."""
    there, back = kind(), kind()
    echo = forked(lambda: reflect(there, back))
    taken = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        there.send(SMALL)
        back.receive()
        taken.append(time.perf_counter() - began)
    kill(echo)
    pipe, done = one_way(), FORK.Event()
    cpu = sum(os.times()[:4])

    def write_all() -> None:
        for _ in range(count):
            pipe.send(SMALL)
        done.wait()  # a queue of the standard library sends from a thread: the process must not end before that

    writer = forked(write_all)
    pipe.receive()
    began = time.perf_counter()
    for _ in range(count - 1):
        pipe.receive()
    seconds = time.perf_counter() - began
    done.set()
    os.waitpid(writer, 0)
    cpu = sum(os.times()[:4]) - cpu
    return Cost(statistics.median(taken) * 1e6, (count - 1) / seconds, cpu / count * 1e6)


def reflect(there: Pipe, back: Pipe) -> None:
    """Send back whatever comes."""
    while True:
        back.send(there.receive())


# Processes


def forked(act: Callable[[], object]) -> int:
    """Return the pid of a child that does this, and then ends."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(0)
    return pid


def stopped(write: Callable[[], object]) -> int:
    """Return the pid of a child that was stopped while it waited for room in the middle of a message."""
    pid = forked(write)
    until_asleep(pid)
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    return pid


def until_asleep(pid: int) -> None:
    """Wait until a child waits for something: it has slept at ten looks in a row."""
    looks = 0
    while looks < 10:
        time.sleep(0.01)
        with open(f"/proc/{pid}/stat") as file:
            looks = looks + 1 if file.read().rpartition(")")[2].split()[0] == "S" else 0


def kill(pid: int) -> None:
    """End a child, also a stopped one."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise ``OutOfPatience`` in what takes longer."""

    def give_up(*_: object) -> None:
        raise OutOfPatience

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def within_patience(call: Callable[[], object]) -> str:
    """Return how long the call took, or that it blocks."""
    began = time.perf_counter()
    try:
        with limited(PATIENCE):
            call()
    except OutOfPatience:
        return f"blocks, {PATIENCE:g} s long, until a signal ends it"
    return f"returns after {(time.perf_counter() - began) * 1e3:.1f} ms, and the loop goes on"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a page."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def print_rows(
    module: str, about: str | None, heads: Sequence[str], rows: Callable[..., Iterable[tuple[str, ...]]], **counts: int
) -> None:
    """Print the table of a program that takes ``--url`` and numbers, which have these names and defaults."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=about)
    parser.add_argument("--url")
    for name, count in counts.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    sys.stdout.write(f"{table(heads, list(rows(**vars(parser.parse_args()))))}\n")


def main(count: int) -> None:
    """Write both tables."""
    shared, simple = Shared(FORK.Queue()), Shared(FORK.SimpleQueue())
    faults = [
        ("a consumer is killed while it waits", "`multiprocessing.Queue`", killed_consumer([shared])),
        ("", "`multiprocessing.SimpleQueue`", killed_consumer([simple])),
        ("", "our channel, one a worker", killed_consumer([Ours(), Ours()])),
        ("a writer is stopped inside a message", "`Connection.recv_bytes`", stopped_writer_of_a_pipe()),
        ("", "`Channel.receive`", stopped_writer_of_a_channel()),
        ("a signal handler raises in the writer", "`Connection.send_bytes`", interrupted_writer(Piped())),
        ("", "`Channel.send`", interrupted_writer(Ours())),
    ]
    write(table(("fault", "with", "what happens"), faults))
    rows = [(name, cost(kind, kind, count)) for name, kind in KINDS.items()]
    rows.append(("our channel, 16 at once", cost(Ours, Batches, count // 16 * 16)))
    figures = [(name, f"{one.round_trip:.0f}", f"{one.rate:,.0f}", f"{one.cpu:.1f}") for name, one in rows]
    write(table(("queue", "there and back, µs", "messages/s, one way", "CPU of both ends, µs a message"), figures))
    write(f"{count:,} messages of {len(SMALL)} bytes; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")


def write(text: str) -> None:
    """Write a paragraph."""
    sys.stdout.write(f"{text}\n\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
