"""A host of the fault matrix: a store, and one node that is started again whenever it has left."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import psutil

from taskqueue import Process, Scheduler
from taskqueue.daemon.protocol.messages import WATCH
from taskqueue.store.open import open_store
from tests.chaos.gate import Gate
from tests.chaos.process_fault import is_gone
from tests.chaos.work import Mark
from tests.nodes import LIMIT, Node, eventually, node, node_with_output, title

OPTIONS = (
    *("--pm", "static", "--min-children", "1", "--finish", "0", "--grace", "0.3", "--bootstrap", "boot.py"),
    *("--metrics", "127.0.0.1:0", "--log-format", "json", "--capture-output"),
)

WATCHES = f"taskqueue: worker {WATCH} "
"""How the title of the worker begins that looks for findings."""


class Host:
    """One worker at most does one job at a time; what jobs and workers do is written to a file."""

    def __init__(
        self, url: str, folder: Path, lease: float, output: int | None = None, wrapper: Sequence[str] = ()
    ) -> None:
        """``wrapper`` is the command that starts the command of each node."""
        self.url = url
        self.folder = folder
        self.lease = lease
        self._output = output
        self._wrapper = wrapper
        self.file = str(folder / "lines")
        Path(self.file).touch()
        self.gate = Gate(folder / "gate")
        self.entrance = Gate(folder / "entrance")
        self.gate.open()
        self.entrance.open()
        (folder / "boot.py").write_text(
            "import os\n"
            "from tests.acceptance.work import write_line\n"
            "from tests.chaos.gate import pass_through\n"
            f"write_line({self.file!r}, f'booting {{os.getpid()}}')\n"
            f"pass_through({self.entrance.path!r})\n"
        )
        self.scheduler = Scheduler(url)
        self._store = open_store(url)
        _, self._cursor = self._store.events(None)
        self._finals: list[tuple[str, str]] = []
        self._up: Node | None = None
        self._stack = ExitStack()

    def up(self) -> Node:
        """Return the node, started if there is none, at work with an idle worker, and leading.

        A leader starts a worker that looks for findings. It must not come later: it would wait at a closed entrance,
        where nothing distinguishes it from the worker of the pool.
        """
        self.entrance.open()
        self.gate.open()
        if self._up is None:
            self._up = self._stack.enter_context(self.another("first"))
            self._up.heed("works")
        eventually(self._is_idle)
        return self._up

    def another(self, name: str) -> AbstractContextManager[Node]:
        """Return a node that is started when its context is entered."""
        options = ("--name", name, "--lease", str(self.lease), *OPTIONS)
        if self._output is None:
            return node(self.url, self.folder, *options, wrapper=self._wrapper)
        return node_with_output(self._output, self.url, self.folder, *options)

    def down(self) -> int:
        """Wait until the node has left with everything that it had started, and return its exit code."""
        assert self._up is not None
        code = self._up.wait()
        self._up = None
        self._stack.close()
        eventually(lambda: not self.processes())
        return code

    @property
    def this(self) -> psutil.Process:
        """The node."""
        assert self._up is not None
        return psutil.Process(self._up.pid)

    def manager(self) -> psutil.Process:
        """Return the manager of the node."""
        [manager] = self.this.children()
        return manager

    def worker(self) -> psutil.Process:
        """Return the only worker of the node, once there is no other."""
        [worker] = eventually(lambda: found if len(found := self._workers()) == 1 else [])
        return worker

    def processes(self) -> list[psutil.Process]:
        """Return whatever works in the folder of this host."""
        return [process for process in psutil.process_iter() if _works_in(process, self.folder)]

    def renew_worker(self) -> None:
        """Have the worker replaced by one that waits at the entrance."""
        self.entrance.close()
        before = self.worker()
        before.terminate()
        eventually(lambda: is_gone(before))
        self.heed(f"booting {self.worker().pid}")

    def add(self) -> Process:
        """Add a job that passes the gate and tells so."""
        return self.scheduler.add_job(Mark, {"file": self.file, "gate": self.gate.path})

    def heed(self, beginning: str) -> None:
        """Wait for a line of a job that begins so."""
        eventually(lambda: any(line.startswith(beginning) for line in self._lines()))

    def outlast_lease(self) -> None:
        """Wait until every lease of this moment is over unless it is renewed."""
        began_at = self._store.now()
        eventually(lambda: (self._store.now() - began_at).total_seconds() > self.lease + 0.2)

    def check(self, process: Process, runs_at_most: int) -> None:
        """Wait for the end of the job and of one that is added now, and check that the first ended once for good."""
        self.scheduler.wait_for([process], timeout=LIMIT)
        self.scheduler.wait_for([self.add()], timeout=LIMIT)
        process.refresh()
        runs = [line.split()[1] for line in self._lines() if line.startswith(f"started {process.id}")]
        assert process.is_done, self.scheduler.why(process.id)
        assert 1 <= len(runs) <= runs_at_most, (runs, self.scheduler.why(process.id))
        assert len(set(runs)) == len(runs)
        assert process.result == f"{process.id}:{process.snapshot.claims}"
        assert process.result in runs
        assert eventually(lambda: self._outcomes(process)) == ["done"]
        assert list(self.scheduler.get_jobs()) == []
        lines = [(line.message, line.run) for line in process.logs()]
        assert {run for _, run in lines} >= {process.snapshot.claims}
        assert all(message == f"run {process.id}:{run}" for message, run in lines)

    def close(self) -> None:
        """End the node, and check that it leaves nothing behind."""
        try:
            if self._up is not None:
                self._up.process.terminate()
                assert self.down() == 0
        finally:
            self._stack.close()
            self._store.close()
            self.scheduler.close()
            self.gate.close()
            self.entrance.close()

    def _lines(self) -> list[str]:
        return Path(self.file).read_text().splitlines()

    def _is_idle(self) -> bool:
        titles = sorted(title(worker) for worker in self._children_of_manager())
        return len(titles) == 2 and titles[0] == "taskqueue: worker idle" and WATCHES in titles[1]

    def _workers(self) -> list[psutil.Process]:
        """Return the workers, without the one in which the leader looks for findings."""
        return [worker for worker in self._children_of_manager() if WATCHES not in title(worker)]

    def _children_of_manager(self) -> list[psutil.Process]:
        children = [worker for manager in self.this.children() for worker in manager.children()]
        return [worker for worker in children if not is_gone(worker)]

    def _outcomes(self, process: Process) -> list[str]:
        """Return the names of the final events of the job, each event once."""
        while True:
            events, self._cursor = self._store.events(self._cursor)
            if not events:
                break
            self._finals += [(event.id, event.name) for event in events if event.ended]
        return [name for id, name in dict(self._finals).items() if id.startswith(str(process.id))]


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
