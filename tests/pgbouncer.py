"""A real PgBouncer for the tests, which hands out the sessions of a PostgreSQL server by transaction.

It refuses to run as root, as the server does.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

from typing_extensions import Self

from tests.postgresql import CHECKOUT, PostgreSQL, command_of
from tests.servers import PATIENCE, ServerMissing, launch_at

UNPACKED = CHECKOUT / ".venv/pgbouncer"
"""Where ``bin/setup test`` unpacks Debian's packages on a machine without PgBouncer."""

SESSIONS = {"transaction": 3, "session": 30}
"""The sessions of the server that all clients share; in session mode each client keeps one."""


def pgbouncer() -> Path:
    """Return the PgBouncer of this machine, or else the one that ``bin/setup test`` unpacked."""
    unpacked = UNPACKED / "usr/sbin/pgbouncer"
    installed = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if installed is None and not unpacked.exists():
        raise ServerMissing("no PgBouncer: run bin/setup test, or install pgbouncer")
    return Path(installed or unpacked)


class PgBouncer:
    """A pooler in front of one server, with a folder and a port of its own; it dies with the thread that started it."""

    def __init__(self, server: PostgreSQL, folder: Path, pool_mode: str = "transaction") -> None:
        self.server = server
        self.folder = folder
        self.pool_mode = pool_mode
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the server's database ``postgres`` through the pooler."""
        return self.server.url.replace(f":{self.server.port}/", f":{self.port}/")

    def start(self) -> None:
        """Start it, on the port it had before if it had one, and return once it takes connections."""
        self.folder.mkdir(parents=True, exist_ok=True)
        launch_at(self.port, self._launch, self._log)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def _launch(self, port: int) -> None:
        self.port = port
        users, settings = self.folder / "users.txt", self.folder / "pgbouncer.ini"
        user = urlsplit(self.server.url)
        users.write_text(f'"{user.username}" "{user.password}"\n')
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={self.server.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = plain\nauth_file = {users}\n"
            f"pool_mode = {self.pool_mode}\ndefault_pool_size = {SESSIONS[self.pool_mode]}\nmax_client_conn = 200\n"
        )
        with (self.folder / "pgbouncer.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command_of(pgbouncer(), UNPACKED), str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE
        while not self._listens():
            if self.process.poll() is not None:
                raise ServerMissing(f"pgbouncer ended with {self.process.returncode}: {self._log()[-2000:]}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerMissing(f"pgbouncer took no connection for {PATIENCE:.0f} s: {self._log()[-2000:]}")
            time.sleep(0.02)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _log(self) -> str:
        path = self.folder / "pgbouncer.log"
        return path.read_text(errors="replace") if path.exists() else "it wrote no log"
