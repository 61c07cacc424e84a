"""The servers that peers need: each run gets its own, on loopback, with Debian's settings and an empty folder."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.nodes import LIMIT, eventually
from tests.servers import free_port

REDIS = Path("/usr/bin/redis-server")
REDIS_SETTINGS = Path("/etc/redis/redis.conf")
POSTGRES = Path("/usr/lib/postgresql")
PACKAGES = {"redis": (REDIS, "redis-server"), "postgres": (POSTGRES, "postgresql")}
"""The program of each server, and its Debian package."""


def missing_packages(servers: Collection[str]) -> list[str]:
    """Return the Debian packages that have to be installed first."""
    return [package for server, (path, package) in PACKAGES.items() if server in servers and not path.exists()]


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Run a Redis server that saves snapshots and keeps no log, as Debian's does, and yield its URL."""
    port = free_port()
    place = folder / "redis"
    place.mkdir()
    settings = {
        "port": port,
        "bind": "127.0.0.1",
        "dir": place,
        "daemonize": "no",
        "supervised": "no",
        "pidfile": place / "pid",
        "logfile": place / "log",
    }
    given = [str(part) for name, value in settings.items() for part in (f"--{name}", value)]
    with _running([str(REDIS), str(REDIS_SETTINGS), *given], place, signal.SIGTERM):
        eventually(lambda: _answers(port))
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run a PostgreSQL server with the settings that ``initdb`` writes, and yield the address of an empty database."""
    port = free_port()
    place = folder / "postgres"
    place.mkdir()
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(place, user.pw_uid, user.pw_gid)
        for parent in (folder, *folder.parents):
            parent.chmod(parent.stat().st_mode | 0o011)  # the server has to get through
    programs = max(POSTGRES.iterdir(), key=lambda version: int(version.name)) / "bin"
    name = None if user is None else user.pw_name
    init = [str(programs / "initdb"), "-D", str(place), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
    subprocess.run(init, check=True, user=name, cwd="/", env={"LC_ALL": "C.UTF-8"}, stdout=subprocess.DEVNULL)
    server = [str(programs / "postgres"), "-D", str(place), "-p", str(port), "-k", str(place)]
    make = [str(programs / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "bench"]
    with _running([*server, "-c", "listen_addresses=127.0.0.1"], Path("/"), signal.SIGINT, user=name):
        eventually(lambda: subprocess.run(make, stderr=subprocess.DEVNULL, check=False).returncode == 0)
        yield f"postgresql://postgres@127.0.0.1:{port}/bench"


SERVERS: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "": lambda _folder: contextlib.nullcontext(""),
    "redis": redis,
    "postgres": postgres,
}


@contextmanager
def _running(command: list[str], place: Path, farewell: signal.Signals, user: str | None = None) -> Iterator[None]:
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(command, cwd=place, user=user, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        server.send_signal(farewell)
        try:
            server.wait(LIMIT)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
