"""Which files and functions of taskqueue one plain warm job passes, from ``add_job`` to the end of ``wait``.

``python -m tests.benchmarks.way_of_a_job [--url URL] [--rounds 7]`` prints them, each process with its functions in
their order; without a URL in an SQLite file in the present folder. Application, node, manager and worker are real
processes that trace themselves while the job is under way. What only a timer happened to do meanwhile is left out:
a function counts if most rounds have it. Lambdas and comprehensions count as part of their function.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

import taskqueue
from taskqueue import Scheduler
from taskqueue.cli import node as command
from taskqueue.cli.bench.environment import ScratchStores, scratch_stores
from tests.daemon.jobs import Empty

PACKAGE = str(Path(taskqueue.__file__).parent)
APPLICATION, NODE, MANAGER, WORKER = ROLES = ("application", "node", "manager", "worker")

WARM_UP = 20
"""Jobs before the first round: each process has imported and cached all it needs."""

PATIENCE = 60.0

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
        if self._shared[0] != self._round:
            self._save()
        if self._round and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self._seen.setdefault(frame.f_code)

    def _save(self) -> None:
        """Append the functions of the last round to the file, with the role of this process."""
        places = dict.fromkeys(_place(code) for code in tuple(self._seen))
        if places:
            with self._found.open("a") as file:
                file.write(json.dumps([self._round, self._present_role(), list(places)]) + "\n")
        self._seen.clear()
        self._round = self._shared[0]

    def _present_role(self) -> str:
        if os.getpid() == self._first:
            return self._role
        return MANAGER if os.getppid() == self._first else WORKER


@dataclass(frozen=True)
class Way:
    """The functions that each process enters, in their order."""

    places: Mapping[str, Sequence[Place]]

    @property
    def files(self) -> list[str]:
        """Return all files, in the order in which the job reaches them."""
        return list(dict.fromkeys(file for role in ROLES for file, _ in self.places[role]))

    @property
    def functions(self) -> set[Place]:
        """Return all functions; one that two processes enter is one."""
        return {place for places in self.places.values() for place in places}


def trace(place: ScratchStores, rounds: int) -> Way:
    """Send jobs through a node with one worker, and return the way of most of them."""
    with place.fresh() as url, Scheduler(url) as scheduler:
        (place.folder / "round").write_bytes(b"\0")
        recorder = Recorder(place.folder, APPLICATION)
        with _node(url, place.folder):
            for _ in range(WARM_UP):
                scheduler.add_job(Empty).wait(timeout=PATIENCE)
            for number in range(1, rounds + 1):
                recorder.set_round(number)
                recorder.start()
                try:
                    scheduler.add_job(Empty).wait(timeout=PATIENCE)
                finally:
                    recorder.set_round(0)
                    recorder.stop()
                scheduler.add_job(Empty).wait(timeout=PATIENCE)  # each process saves what it has recorded
    return _way((place.folder / "found").read_text().splitlines(), rounds)


def _way(lines: Sequence[str], rounds: int) -> Way:
    times: Counter[tuple[str, Place]] = Counter()
    for line in lines:
        _, role, places = json.loads(line)
        times.update((role, (file, function)) for file, function in places)
    most = [entered for entered, count in times.items() if count > rounds / 2]
    return Way({role: [place for of, place in most if of == role] for role in ROLES})


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


def summary(way: Way) -> Iterator[str]:
    """Yield the totals, and what each process passes."""
    yield f"{len(way.files)} files, {len(way.functions)} functions"
    for role in ROLES:
        places = way.places[role]
        yield f"\n{role}: {len({file for file, _ in places})} files, {len(places)} functions"
        yield from (f"  {file} {function}" for file, function in places)


def main() -> None:
    """Trace a job and print its way; or be its node."""
    if sys.argv[1:2] == ["--node-in"]:
        Recorder(Path(sys.argv[2]), NODE).start()
        sys.argv[1:3] = []
        sys.exit(command.main())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="way.db")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with scratch_stores(given.url, None) as place:
        way = trace(place, given.rounds)
    sys.stdout.write("\n".join([*summary(way), ""]))


if __name__ == "__main__":
    main()
