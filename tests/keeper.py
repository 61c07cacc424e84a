"""Keep one server of each kind for all processes of a test run, and end it with the run, however that ends.

The keeper is a process of its own: the first test that needs a server starts it, the others find it, and it leaves when
the process that controls the run has gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from tests.postgresql import PostgreSQL
from tests.servers import Cluster, Server

CHECKOUT = Path(__file__).resolve().parent.parent

Kept = tuple[str, Callable[[], None], "subprocess.Popen[bytes] | None"]
"""The URL of a server, what ends it, and its process."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One test run: the folder its processes share and the process whose end is its end."""

    folder: Path
    controller: int


def shared_server(run: Run, kind: str) -> str:
    """Return the URL of the run's server of this kind, started by whoever asks first."""
    with (run.folder / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = run.folder / f"{kind}.json"
        if not kept.exists():
            kept.write_text(start_keeper(run, kind))
        answer = json.loads(kept.read_text())
    if "error" in answer:
        raise RuntimeError(f"the tests need a server ({kind}): {answer['error']}")
    return str(answer["url"])


def start_keeper(run: Run, kind: str) -> str:
    """Start a keeper and return what it says about its server, as JSON text."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "tests.keeper", kind, str(run.folder), str(run.controller), str(writer)]
    with open(reader) as answer:
        # The launcher ends at once: the keeper is nobody's child here, and no test that looks at its children sees it.
        subprocess.run(["setsid", "--fork", *command], cwd=CHECKOUT, env=environment, pass_fds=[writer], check=True)
        os.close(writer)
        return answer.read() or json.dumps({"error": f"'{' '.join(command)}' ended without a word"})


def end_keepers(run: Run) -> None:
    """End the servers of the run and wait until they have gone."""
    for kept in run.folder.glob("*.json"):
        pid = json.loads(kept.read_text()).get("keeper")
        if pid is None:
            continue
        try:
            gone = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        os.kill(pid, signal.SIGTERM)
        select.select([gone], [], [], 30)
        os.close(gone)


def lost_servers(run: Run) -> str:
    """Return which shared servers have ended before the run, with the ends of their logs; empty if none has."""
    said = [path.read_text() for path in sorted(run.folder.glob("*.ended"))]
    for path in sorted(run.folder.glob("*.json")):
        keeper = json.loads(path.read_text()).get("keeper")
        if keeper is not None and not psutil.pid_exists(keeper):
            said.append(
                f"the keeper of the shared server ({path.stem}), pid {keeper}, is gone\n{end_of_log(run, path.stem)}"
            )
    return "\n".join(said)


def end_of_log(run: Run, kind: str) -> str:
    """Return the last lines that the server of this kind has logged."""
    logs = sorted((run.folder / kind).rglob("*.log"))
    return "\n".join(log.read_text(errors="replace")[-4000:] for log in logs)


def replica_set(folder: Path) -> Kept:
    """Start a replica set of one member."""
    cluster = Cluster(folder, size=1)
    cluster.start()
    return cluster.url, cluster.stop, cluster.members[0].process


def standalone(folder: Path) -> Kept:
    """Start a server that is in no set."""
    server = Server(folder)
    server.start()
    return f"mongodb://{server.address}/", server.kill, server.process


def postgresql(folder: Path) -> Kept:
    """Start a PostgreSQL server."""
    server = PostgreSQL(folder)
    server.start()
    return server.url, server.stop, server.process


KINDS = {"replica-set": replica_set, "standalone": standalone, "postgresql": postgresql}


def keep(kind: str, run: Run, answer: int) -> None:
    """Start the server, tell where it is, and end it after the run."""
    folder = run.folder / kind
    reader, writer = os.pipe()

    def note(number: int, frame: FrameType | None) -> None:
        os.write(writer, b"!")

    signal.signal(signal.SIGTERM, note)
    controller = os.pidfd_open(run.controller)
    try:
        url, stop, process = KINDS[kind](folder)
    except Exception as error:  # whatever it is, the tests shall fail with these words
        os.write(answer, json.dumps({"error": str(error)}).encode())
        return
    os.write(answer, json.dumps({"url": url, "keeper": os.getpid()}).encode())
    os.close(answer)
    assert process is not None
    ended = os.pidfd_open(process.pid)
    if select.select([controller, reader, ended], [], [])[0] == [ended]:
        words = f"the shared server ({kind}), pid {process.pid}, ended by itself with {process.wait()}"
        (run.folder / f"{kind}.ended").write_text(f"{words}\n{end_of_log(run, kind)}")
        select.select([controller, reader], [], [])
    stop()
    shutil.rmtree(run.folder if gone(controller) else folder, ignore_errors=True)


def gone(process: int) -> bool:
    """Return whether the process behind this pidfd has ended."""
    return bool(select.select([process], [], [], 0)[0])


if __name__ == "__main__":
    kind, folder, controller, answer = sys.argv[1:]
    keep(kind, Run(folder=Path(folder), controller=int(controller)), int(answer))
