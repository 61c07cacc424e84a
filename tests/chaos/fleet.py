"""Nodes under a supervisor: whoever leaves is started again at once."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from pathlib import Path

import psutil

from tests.chaos.observation import Observation
from tests.chaos.process_fault import is_gone
from tests.nodes import LIMIT, Node, eventually


class Kind(Enum):
    """What a process of a node is."""

    WORKER = "worker"
    MANAGER = "manager"
    NODE = "node"


class Fleet:
    """Nodes by name, all on one store."""

    def __init__(
        self,
        url: str,
        folder: Path,
        names: Iterable[str],
        options: Iterable[str],
        observation: Observation | None = None,
        output: int | None = None,
        wrapper: Iterable[str] = (),
    ) -> None:
        self._url = url
        self._options = tuple(options)
        self._observation = observation
        self._output = output
        self._wrapper = tuple(wrapper)
        self._folders = {name: folder / name for name in names}
        for place in self._folders.values():
            place.mkdir()
        self._up: dict[str, Node] = {}
        self.starts = 0
        self.exits: Counter[int] = Counter()

    def tend(self) -> None:
        """Start whoever is not there."""
        for name, place in self._folders.items():
            node = self._up.get(name)
            if node is not None:
                code = node.process.poll()
                if code is None:
                    continue
                self.exits[code] += 1
                node.close()
            seen = self._observation
            options = ("--name", name, *self._options, *(seen.options(name) if seen else ()))
            variables = seen.environment if seen else {}
            self._up[name] = Node(self._url, place, options, variables, self._output, self._wrapper)
            self.starts += 1

    def one(self, kind: Kind, chance: random.Random) -> psutil.Process | None:
        """Return a process of this kind that lives, if there is one."""
        found: list[psutil.Process] = []
        for node in self._up.values():
            with suppress(psutil.NoSuchProcess):
                found += _members(psutil.Process(node.pid), kind)
        alive = sorted((process for process in found if not is_gone(process)), key=lambda process: process.pid)
        return chance.choice(alive) if alive else None

    def processes(self) -> list[psutil.Process]:
        """Return all that live now."""
        return self._present()

    def leave(self) -> list[int]:
        """Ask all nodes to leave, and return their exit codes."""
        for node in self._up.values():
            node.process.send_signal(signal.SIGTERM)
        return [node.process.wait(LIMIT) for node in self._up.values()]

    def leftovers(self) -> list[psutil.Process]:
        """Return what is still there of all that was ever started, once that does not change any more."""
        with suppress(AssertionError):
            eventually(lambda: not self._present(), limit=10)
        return self._present()

    def logs(self) -> str:
        """Return what all nodes have logged, each from its first start to its last."""
        logs = [(name, sorted(place.glob("node-*.log"))) for name, place in self._folders.items()]
        return "\n".join(f"{name}:\n{log.read_text()}" for name, started in logs for log in started)

    def close(self) -> None:
        """End everything."""
        for node in self._up.values():
            node.close()
        for process in self._present():
            process.kill()

    def _present(self) -> list[psutil.Process]:
        places = {str(place) for place in self._folders.values()}
        return [process for process in psutil.process_iter() if not is_gone(process) and _folder_of(process) in places]


def _members(node: psutil.Process, kind: Kind) -> list[psutil.Process]:
    if kind is Kind.NODE:
        return [node]
    managers: list[psutil.Process] = node.children()
    if kind is Kind.MANAGER:
        return managers
    return [worker for manager in managers for worker in manager.children()]


def _folder_of(process: psutil.Process) -> str:
    try:
        return str(process.cwd())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""
