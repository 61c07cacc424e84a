"""Real PostgreSQL servers for the tests, which can be killed, stopped and started again.

A server refuses to run as root. That of root runs as another user, who may enter every folder, as root may.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
from typing_extensions import Self

from tests.servers import PATIENCE, ServerMissing, launch_at

CHECKOUT = Path(__file__).resolve().parent.parent
UNPACKED = CHECKOUT / ".venv/postgresql"
"""Where ``bin/setup test`` unpacks Debian's packages on a machine without a server."""

OLDEST = 15
NOBODY = 65534
AS_NOBODY = (
    *("--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"),
    *("--inh-caps", "+dac_override,+dac_read_search", "--ambient-caps", "+dac_override,+dac_read_search"),
)
SMALL = {
    "shared_buffers": "64MB",
    "max_connections": "200",
    "fsync": "off",  # a process that is killed loses nothing; only a power cut would
    "jit": "off",
    "dynamic_shared_memory_type": "mmap",  # in its folder, which the tests remove
    "unix_socket_directories": "",
}
USER = "postgres"

template: Path | None = None
"""Where the servers of a run find the empty database cluster that they copy; None if each makes one."""


def programs() -> Path:
    """Return the folder of the newest server of this machine, or else of the one that ``bin/setup test`` unpacked."""
    for root in (Path("/"), UNPACKED):
        folders = [
            path.parent for path in root.glob("usr/lib/postgresql/*/bin/initdb") if version(path.parent) >= OLDEST
        ]
        if folders:
            return max(folders, key=version)
    raise ServerMissing(f"no PostgreSQL server from version {OLDEST} on: run bin/setup test, or install postgresql")


def version(folder: Path) -> int:
    """Return the version of the programs in a folder such as ``/usr/lib/postgresql/15/bin``."""
    return int(folder.parent.name)


class PostgreSQL:
    """One server with a folder and a port of its own; it dies with the thread that started it."""

    def __init__(self, folder: Path, **options: str) -> None:
        """``options`` are settings of the server, such as ``fsync="on"``."""
        self.folder = folder
        self.options = {**SMALL, **options}
        self.port = 0
        self.password = secrets.token_hex(8)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of its database ``postgres`` for the user who may do everything."""
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, on the port it had before if it had one, and return once it takes connections."""
        if not self.data.exists():
            self._create()
        launch_at(self.port, self._launch, self._log)

    def stop(self) -> None:
        """End it at once; the server removes what it keeps outside of its folder."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.send(signal.SIGCONT)  # if it was stopped
            self.process.wait()

    def kill(self) -> None:
        """End all of its processes with SIGKILL: what it has not written to the files is lost."""
        if self.process is None:
            return
        self.send(signal.SIGSTOP)  # it starts no process any more
        ends = _ends(self._processes())
        self.send(signal.SIGKILL)
        self.process.wait()
        for end in ends:
            select.select([end], [], [], PATIENCE)
            os.close(end)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes: SIGSTOP makes a server that never answers, SIGCONT lets it go on."""
        processes = self._processes()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if number == signal.SIGSTOP:  # until they have stopped, some may still answer
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline and any(map(_runs, processes)):
                time.sleep(0.01)

    def command(self) -> list[str]:
        """Return the command that starts it, without its options."""
        return command_of(programs() / "postgres", UNPACKED)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def data(self) -> Path:
        """The folder of its files."""
        return self.folder / "data"

    def _processes(self) -> list[psutil.Process]:
        """Return the server and its children, each of which leads a group of its own."""
        if self.process is None or self.process.poll() is not None:
            return []
        try:
            server = psutil.Process(self.process.pid)
            return [server, *server.children()]
        except psutil.NoSuchProcess:
            return []

    def _create(self) -> None:
        """Copy the empty database cluster of the run, which takes a tenth of the time that ``initdb`` takes."""
        if template is None:
            self._initialize()
            return
        template.mkdir(exist_ok=True)
        with (template / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            first = PostgreSQL(template)
            if not first.data.exists():
                first._initialize()
        self.password = (template / "password").read_text()
        self.folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "--archive", first.data, self.data], check=True)

    def _initialize(self) -> None:
        """Make an empty database cluster whose only user has a password: other users of the host reach the port.

        It gets its name when it is whole: a process that is killed here leaves no half of it to others.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        password = self.folder / "password"
        password.write_text(self.password)
        made = self.folder / f"data-{os.getpid()}"
        command = [*command_of(programs() / "initdb", UNPACKED), "--pgdata", str(made)]
        command += ["--username", USER, "--pwfile", str(password)]
        command += ["--auth=password", "--encoding=UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            shutil.rmtree(made, ignore_errors=True)
            raise ServerMissing(f"initdb ended with {done.returncode}: {done.stdout[-2000:]}")
        made.rename(self.data)

    def _launch(self, port: int) -> None:
        self.port = port
        settings = {**self.options, "port": str(self.port), "listen_addresses": "127.0.0.1"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "postgresql.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*self.command(), "-D", str(self.data), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready():
            if self.process.poll() is not None:
                raise ServerMissing(f"postgres ended with {self.process.returncode}: {self._log()[-2000:]}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerMissing(f"postgres took no connection for {PATIENCE:.0f} s: {self._log()[-2000:]}")
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        """Return whether the server has written that it takes connections, which ``pg_ctl`` waits for, too."""
        path = self.data / "postmaster.pid"
        lines = path.read_text().split("\n") if path.exists() else []
        return self.process is not None and lines[:1] == [str(self.process.pid)] and lines[7:8] == ["ready   "]

    def _log(self) -> str:
        path = self.folder / "postgresql.log"
        return path.read_text(errors="replace") if path.exists() else "it wrote no log"


def command_of(program: Path, unpacked: Path) -> list[str]:
    """Return the command that runs a program as a user that it accepts, until this thread ends.

    The libraries of one that was unpacked are in the same folder.
    """
    as_other = AS_NOBODY if os.geteuid() == 0 else ()
    libraries = [str(folder) for folder in unpacked.glob("usr/lib/*-linux-gnu")] if unpacked in program.parents else []
    environment = ["env", "TZ=UTC", f"LD_LIBRARY_PATH={':'.join(libraries)}"]
    return ["setpriv", "--pdeathsig", "QUIT", *as_other, "--", *environment, str(program)]


def _runs(process: psutil.Process) -> bool:
    """Return whether the process has neither stopped nor ended."""
    try:
        return process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _ends(processes: list[psutil.Process]) -> list[int]:
    """Return a descriptor for each process that becomes readable when the process has ended."""
    ends = []
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            ends.append(os.pidfd_open(process.pid))
    return ends
