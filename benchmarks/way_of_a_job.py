"""Which files and functions of taskqueue one plain warm job passes, from ``add_job`` to the end of ``wait``.

``python -m benchmarks.way_of_a_job [--url URL] [--rounds 7]`` prints them, each process with its functions in
their order; without a URL in an SQLite file in the current folder. Application, node, manager and worker are real
processes that trace themselves while the job is under way. What only a timer happened to do meanwhile is left out:
a function counts if most rounds have it. Lambdas and comprehensions count as part of their function.

Then come counts for each of ``COUNTED`` jobs, one after the other, with all that follows from them: calls of functions,
statements and steps of SQLite or commands to MongoDB, in each process: what most jobs need at least (the lower
quartile), since timers and a busy machine add to some; below, the means of the most frequent, ``--top`` of each.
A job whose run took 5 ms, so that the node is told of its start, is left out of files, functions and totals. A machine
that is so busy that too few jobs are left runs more of them.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from types import CodeType, FrameType
from typing import Any

import taskqueue
from taskqueue import Scheduler
from taskqueue.cli import node as command
from taskqueue.cli.bench import ScratchStores, scratch_stores
from tests.counting import uncounted
from tests.daemon.jobs import Empty

PACKAGE = str(Path(taskqueue.__file__).parent)
APPLICATION, NODE, MANAGER, WORKER = ROLES = ("application", "node", "manager", "worker")

WARM_UP = 20
"""Jobs before the first round: each process has imported and cached all it needs."""

MOST_ROUNDS = 100
"""The most rounds of one job each, on a busy machine."""

COUNTED = 21
"""Jobs that are counted one by one; a busy machine counts as many again, up to ``LAST``."""

FIRST, LAST = MOST_ROUNDS + 1, 255
"""The numbers of the rounds of the first and the last of them: a number is a byte."""

TOLD_OF_START = "InFlight.on_started"
"""What a node enters only for a run that takes 5 ms, as on a busy machine."""

ENOUGH = 4
"""The fewest jobs without such a run; all are taken only where even the last round has not brought as many."""

CALLS, STATEMENTS, STEPS, COMMANDS = ("calls", "statements", "steps", "commands")

PATIENCE = 60.0

VALUE = re.compile(r"'(?:[^']|'')*'|\b\d+(?:\.\d+)?\b")

Place = tuple[str, str]
"""A file below the checkout, and the qualified name of a function in it."""


class Recorder:
    """Records the functions that this process, and those it forks, enter during a round.

    The number of the round is a byte that all processes share; none is under way while it is 0.
    """

    def __init__(self, folder: Path, role: str) -> None:
        with (folder / "round").open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 1)
        self._found = folder / "found"
        self._role, self._first = role, os.getpid()
        self._round = 0
        self._seen: dict[CodeType, None] = {}
        self._counted: Counter[tuple[str, str]] = Counter()
        self._opening: list[sqlite3.Connection] = []
        sys.addaudithook(self._on_audit)

    def start(self) -> None:
        """Trace all threads of this process from now on."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def stop(self) -> None:
        """Trace no more."""
        sys.setprofile(None)
        threading.setprofile(None)
        self._save()

    def set_round(self, number: int) -> None:
        """Begin a round in all processes, or end it with 0."""
        self._shared[0] = number

    def _on_event(self, frame: FrameType, event: str, _argument: object) -> None:
        if self._opening and event == "call":
            self._listen()
        if self._shared[0] != self._round:
            self._save()
        if self._round and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self._seen.setdefault(frame.f_code)
            if self._round >= FIRST:
                self._counted[CALLS, ": ".join(_place(frame.f_code))] += 1

    def _on_audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note each connection to SQLite that this process begins to open."""
        if event == "sqlite3.connect/handle":
            self._opening.extend(arguments)

    def _listen(self) -> None:
        """Note the statements of connections, and their steps, from the next call of a function on."""
        while self._opening:
            raw = self._opening.pop()
            raw.set_trace_callback(lambda statement: self.note(STATEMENTS, _without_values(statement)))
            raw.set_progress_handler(lambda: self.note(STEPS, "of SQLite"), 1)

    def note(self, kind: str, what: str) -> None:
        """Count it if one of the jobs that are counted is under way."""
        if self._shared[0] == self._round >= FIRST:
            self._counted[kind, what] += 1

    def _save(self) -> None:
        """Append the functions of the last round to the file, with the role of this process."""
        seen, self._seen = self._seen, {}  # other threads go on meanwhile
        counted, self._counted = self._counted, Counter()
        number, self._round = self._round, self._shared[0]
        places = dict.fromkeys(_place(code) for code in seen.copy())
        if places:
            counts = [[kind, what, count] for (kind, what), count in counted.copy().items()]
            line = json.dumps([number, self._present_role(), list(places), counts]) + "\n"
            with self._found.open("ab", buffering=0) as file:  # in one write: other processes append as well
                file.write(line.encode())

    def _present_role(self) -> str:
        if os.getpid() == self._first:
            return self._role
        return MANAGER if os.getppid() == self._first else WORKER


def note_commands(recorder: Recorder) -> None:
    """Have the recorder note the commands of all clients of MongoDB that this process makes from now on."""
    from pymongo import monitoring

    class Listener(monitoring.CommandListener):
        def started(self, event: monitoring.CommandStartedEvent) -> None:
            if event.command_name not in ("getMore", "endSessions"):  # a stream is fetched from time to time
                target = event.command.get(event.command_name)
                recorder.note(COMMANDS, f"{event.command_name} {target}")

        def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
            pass

        def failed(self, event: monitoring.CommandFailedEvent) -> None:
            pass

    monitoring.register(Listener())


@dataclass(frozen=True)
class Way:
    """The functions that each process enters, in their order, and what it does how often for a job."""

    places: Mapping[str, Sequence[Place]]
    counts: Mapping[str, Mapping[str, Mapping[str, float]]]
    """By process, by kind, what was done how often for one job, on an average."""
    totals: Mapping[str, Mapping[str, float]]
    """By process, by kind, how much most jobs need at least: the lower quartile."""

    @property
    def files(self) -> list[str]:
        """Return all files, in the order in which the job reaches them."""
        return list(dict.fromkeys(file for role in ROLES for file, _ in self.places[role]))

    @property
    def functions(self) -> set[Place]:
        """Return all functions; one that two processes enter is one."""
        return {place for places in self.places.values() for place in places}


def trace(place: ScratchStores, rounds: int) -> Way:
    """Send jobs through a node with one worker, and return the way of most of them. Once in a process."""
    with place.fresh() as url:
        (place.folder / "round").write_bytes(b"\0")
        recorder = Recorder(place.folder, APPLICATION)
        if url.startswith("mongodb"):
            note_commands(recorder)
        with Scheduler(url) as scheduler, _node(url, place.folder):

            def send(*numbers: int) -> None:
                recorder.start()
                try:
                    for number in numbers:
                        recorder.set_round(number)
                        scheduler.add_job(Empty).wait(timeout=PATIENCE)
                finally:
                    recorder.set_round(0)
                    recorder.stop()
                scheduler.add_job(Empty).wait(timeout=PATIENCE)  # each process saves what it has recorded

            for _ in range(WARM_UP):
                scheduler.add_job(Empty).wait(timeout=PATIENCE)
            found = place.folder / "found"
            single = 0
            while single < rounds or (single < MOST_ROUNDS and not _are_enough(range(1, single + 1), found)):
                single += 1
                send(single)
            end = FIRST
            while end == FIRST or (end + COUNTED <= LAST and not _are_enough(range(FIRST, end), found)):
                send(*range(end, end + COUNTED))
                end += COUNTED
    return _way(_recorded(found), range(1, single + 1), range(FIRST, end))


def _recorded(found: Path) -> Sequence[Any]:
    """Return what the processes have saved: number of the round, role, places and counts."""
    return [json.loads(line) for line in found.read_text().splitlines()]


def _slow(recorded: Sequence[Any]) -> Set[int]:
    """Return the numbers of the rounds with a run that took 5 ms."""
    return {
        number
        for number, role, places, _ in recorded
        if role == NODE and any(function == TOLD_OF_START for _, function in places)
    }


def _are_enough(numbers: range, found: Path) -> bool:
    """Return whether enough of these rounds had no such run."""
    return len(set(numbers) - _slow(_recorded(found))) >= ENOUGH


def _way(recorded: Sequence[Any], single: range, counted_rounds: range) -> Way:
    times: Counter[tuple[str, Place]] = Counter()
    counts: dict[str, dict[str, Counter[str]]] = {role: {} for role in ROLES}
    of_rounds: Counter[tuple[str, str, int]] = Counter()
    slow = _slow(recorded)
    followed = _quick(single, slow)
    for number, role, places, counted in recorded:
        if number in followed:
            times.update((role, (file, function)) for file, function in places)
        for kind, what, count in counted:
            counts[role].setdefault(kind, Counter())[what] += count
            of_rounds[role, kind, number] += count
    most = [entered for entered, count in times.items() if count > len(followed) / 2]
    quick = _quick(counted_rounds, slow)
    return Way(
        places={role: [place for of, place in most if of == role] for role in ROLES},
        counts={
            role: {kind: {what: n / len(counted_rounds) for what, n in of.most_common()} for kind, of in kinds.items()}
            for role, kinds in counts.items()
        },
        totals={
            role: {kind: at_least([of_rounds[role, kind, number] for number in quick]) for kind in kinds}
            for role, kinds in counts.items()
        },
    )


def _quick(numbers: Sequence[int], slow: Set[int]) -> Sequence[int]:
    """Return the numbers without those of slow rounds, if enough are left."""
    quick = [number for number in numbers if number not in slow]
    return quick if len(quick) >= ENOUGH else numbers


def at_least(counts: Sequence[int]) -> float:
    """Return how much most of them are at least."""
    return quantiles(counts, n=4)[0]


def traced(url: str) -> Way:
    """Return the way of a job, as a process of its own finds it that nothing else traces."""
    command = [sys.executable, "-m", "benchmarks.way_of_a_job", "--url", url, "--rounds", "15", "--json"]
    done = subprocess.run(command, env=uncounted(), capture_output=True, text=True, timeout=4 * PATIENCE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    places = {role: [(file, name) for file, name in found["places"][role]] for role in ROLES}
    return Way(places, found["counts"], found["totals"])


def _without_values(statement: str) -> str:
    """Return the beginning of a statement, alike for all values."""
    return VALUE.sub("?", " ".join(statement.split()))[:100]


def _place(code: CodeType) -> Place:
    name = getattr(code, "co_qualname", code.co_name)  # 3.10 has no qualified names
    within = [part for part in name.split(".") if not part.startswith("<")]
    return str(Path(code.co_filename).relative_to(Path(PACKAGE).parent)), ".".join(within) or code.co_name


@contextmanager
def _node(url: str, folder: Path) -> Iterator[None]:
    options = ["--name", "way", "--log-level", "warning", "--pm", "static", "--min-children", "1"]
    running = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, "--node-in", str(folder), *options],
        env={**os.environ, "TASKQUEUE_URL": url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(PATIENCE)


def summary(way: Way, most: int = 0) -> Iterator[str]:
    """Yield the totals, what each process passes, and what it does most often."""
    yield f"{len(way.files)} files, {len(way.functions)} functions"
    for role in ROLES:
        places = way.places[role]
        yield f"\n{role}: {len({file for file, _ in places})} files, {len(places)} functions"
        yield from (f"  {file} {function}" for file, function in places)
    yield f"\nfor one of {COUNTED} jobs, one after the other"
    for role in ROLES:
        for kind, counted in way.counts[role].items():
            yield f"\n{role}: {way.totals[role][kind]:g} {kind}"
            yield from (f"  {count:6.2f} {what}" for what, count in list(counted.items())[:most])


def main() -> None:
    """Trace a job and print its way; or be its node."""
    if sys.argv[1:2] == ["--node-in"]:
        recorder = Recorder(Path(sys.argv[2]), NODE)
        if os.environ["TASKQUEUE_URL"].startswith("mongodb"):
            note_commands(recorder)
        recorder.start()
        sys.argv[1:3] = []
        sys.exit(command.main())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="way.db")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--top", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with scratch_stores(given.url) as place:
        way = trace(place, given.rounds)
    sys.stdout.write(json.dumps(asdict(way)) if given.json else "\n".join([*summary(way, given.top), ""]))


if __name__ == "__main__":
    main()
