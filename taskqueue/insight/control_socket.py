"""Finds the control sockets of nodes, and asks a node for its health; imports next to nothing.

A node listens in its runtime folder. One whose folder cannot be used, as in a container whose file system is read-only
or whose user has another number than its image, listens at an *abstract* address, which is in no file system (unix(7)).
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

ANSWERS_WITHIN = 3.0
"""Seconds that a node has to answer; a node that is stopped or swapped out does not."""

SYSTEM_FOLDER = Path("/run/taskqueue")
"""The folder that systemd makes for the service of the node (RuntimeDirectory); each instance has one below it."""

VARIABLE = "TASKQUEUE_RUNTIME_DIR"
"""The variable that names the runtime folder, for nodes and for the commands that ask them."""

_CREDENTIALS = struct.Struct("3i")
_SUFFIX = ".control"
_ABSTRACT = "@taskqueue-"
"""The beginning of addresses without a file, as the kernel shows them: with ``@`` for the zero byte."""


class Silence(Enum):
    """Why no node answered at a socket; the values are shown to users."""

    KILLED = "its process is gone: it was killed and left its socket behind"
    HUNG = f"it did not answer within {ANSWERS_WITHIN:g} s: it is stopped, or its host is overloaded"
    DENIED = "this user is not allowed to ask it: ask as its user, or as root"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The health that a node reported, or why it did not."""

    health: dict[str, Any] | None = None
    silence: Silence | None = None
    pid: int = 0
    """The process of the node as the kernel names it here; 0 if it is in another PID namespace."""


def own_folder() -> Path:
    """Return the runtime folder of this process: the given one, that of its service or user session, or one in /tmp."""
    given = os.environ.get(VARIABLE) or os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if given:
        return Path(given)
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    if session.startswith("/") and os.path.isdir(session) and os.stat(session).st_uid == os.geteuid():
        return Path(session) / "taskqueue"
    return Path(f"/tmp/taskqueue-{os.geteuid()}")  # noqa: S108 - `is_safe` refuses the folder of another user


def is_safe(folder: Path) -> bool:
    """Return whether only this user, or root, can have put something into the folder."""
    return _is_of(folder, os.geteuid())


def _may_ask(folder: Path) -> bool:
    """Return whether the nodes of a folder may be asked: root trusts the owners of services and of the named folder."""
    return _is_of(folder, None if _asks_any_user(folder) else os.geteuid())


def _asks_any_user(folder: Path) -> bool:
    is_trusted = folder.is_relative_to(SYSTEM_FOLDER) or folder == Path(os.environ.get(VARIABLE, ""))
    return is_trusted and os.geteuid() == 0


def _is_of(folder: Path, user: int | None) -> bool:
    """Return whether only this user or root can have put something into the folder; if None, only its owner."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    is_owned = user is None or status.st_uid in (0, user)
    return stat.S_ISDIR(status.st_mode) and is_owned and not status.st_mode & 0o022


def path_of(folder: Path, node: str, incarnation: str) -> Path:
    """Return the path of a node's socket: a file name, whatever the name of the node."""
    return folder / f"{_digest(node)}-{incarnation[:8]}{_SUFFIX}"


def path_without_folder(folder: Path, node: str, incarnation: str) -> Path:
    """Return the abstract address of a node whose runtime folder is this one and cannot be used."""
    return Path(f"{_ABSTRACT}{os.geteuid()}") / _digest(str(folder)) / path_of(folder, node, incarnation).name


def is_abstract(path: Path) -> bool:
    """Return whether the address is outside of any file system."""
    return str(path).startswith(_ABSTRACT)


def sockets(node: str | None = None) -> Iterator[Path]:
    """Yield the sockets of all nodes, or of those of one name, that this user can find on this host.

    Root finds those of other users, too, in the folders of services and in the one that the variable names.
    """
    pattern = f"{'*' if node is None else _digest(node)}-*{_SUFFIX}"
    folders = [own_folder()]
    if not os.environ.get(VARIABLE):
        below = sorted(SYSTEM_FOLDER.glob("*/")) if SYSTEM_FOLDER.is_dir() else []
        folders += [Path(f"/tmp/taskqueue-{os.geteuid()}"), SYSTEM_FOLDER, *below]  # noqa: S108
    listening = _abstract_addresses()
    for folder in dict.fromkeys(folders):
        if _may_ask(folder):
            yield from sorted(folder.glob(pattern))
        users = "*" if _asks_any_user(folder) else os.geteuid()
        yield from map(Path, fnmatch.filter(listening, f"{_ABSTRACT}{users}/{_digest(str(folder))}/{pattern}"))


def _abstract_addresses() -> list[str]:
    """Return the abstract addresses of all nodes of this host (strictly, of its network namespace)."""
    try:
        with open("/proc/net/unix", errors="replace") as table:
            addresses = {line.rstrip("\n").rpartition(" ")[2] for line in table if _ABSTRACT in line}
    except OSError:
        return []
    return sorted(address for address in addresses if address.startswith(_ABSTRACT))


@contextmanager
def short(path: Path) -> Iterator[str]:
    """Give the path a short name for the block: the address of a socket has at most 107 bytes."""
    if is_abstract(path):
        yield "\0" + str(path)[1:]
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def ask(path: Path, within: float = ANSWERS_WITHIN) -> Answer:
    """Return the health of the node at this socket; connecting is the question."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as node:
        node.settimeout(within)
        try:
            with short(path) as address:
                node.connect(address)
            if is_abstract(path) and not _is_user_of(path, peer_of(node)):  # anybody can bind such an address
                return Answer(silence=Silence.DENIED)
            answer = b"".join(iter(lambda: node.recv(65536), b""))
            if answer:
                return Answer(health=json.loads(answer), pid=_credentials_of(node)[0])
            may_ask = os.geteuid() in (0, peer_of(node))  # then it was killed after it received the question
            return Answer(silence=Silence.KILLED if may_ask else Silence.DENIED)
        except (ConnectionError, FileNotFoundError):
            return Answer(silence=Silence.KILLED)
        except PermissionError:
            return Answer(silence=Silence.DENIED)
        except (TimeoutError, BlockingIOError):
            return Answer(silence=Silence.HUNG)


def _is_user_of(address: Path, user: int) -> bool:
    return address.parts[0] == f"{_ABSTRACT}{user}"


def peer_of(connection: socket.socket) -> int:
    """Return the user at the other end, as the kernel knows it."""
    return _credentials_of(connection)[1]


def _credentials_of(connection: socket.socket) -> tuple[int, int, int]:
    """Return process, user and group at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return pid, uid, gid


def _digest(node: str) -> str:
    return hashlib.sha256(node.encode(errors="surrogatepass")).hexdigest()[:16]
