"""Parses the address of a SQLite store, and refuses files on which SQLite is not safe."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from taskqueue.errors import ConfigError, StoreUnavailable
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.raw_value import flaw_of
from taskqueue.store.permissions import set_mode
from taskqueue.store.redaction import concealed, split

NETWORK_FILESYSTEMS = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "davfs",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
    ]
)
"""Filesystems on which locks or shared memory between hosts cannot be trusted (https://sqlite.org/wal.html)."""

MEMORY = ":memory:"
"""SQLite's name of a database in memory."""

IMMEDIATE = "immediate:"
"""The address of a ``Scheduler`` that runs each job when it is added; it names no store."""

OPTIONS = ("mode", "synchronous", "timeout")


@dataclass(frozen=True, kw_only=True)
class SqliteUrl:
    """One database file with the options of its address."""

    path: Path
    """Absolute, without symbolic links."""
    mode: int = 0o600
    """Permissions of the database when it is created; the files beside it and the bells get the same."""
    synchronous: str = "full"
    """``full``: every commit reaches the disk; ``normal``: the last commits may be lost in a power cut."""
    timeout: float = 5.0
    """Seconds that a write waits for other writers."""

    @property
    def url(self) -> str:
        """Return the address of the file."""
        return f"sqlite://{quote(str(self.path))}"

    @property
    def bells(self) -> Path:
        """Return the folder of the bells beside the database."""
        return self.path.with_name(f"{self.path.name}.bells")


def location(url: str) -> SqliteUrl:
    """Parse ``sqlite:///absolute/path?mode=0660&synchronous=normal&timeout=5`` or a bare path.

    Raises ``ConfigError`` naming the part that is wrong.
    """
    flaw = flaw_of(url)
    if flaw:
        raise ConfigError(f"the store {concealed(url)!r} {flaw}")
    if url == IMMEDIATE:
        raise ConfigError(
            "immediate: does not name a store: a Scheduler with this address runs each job in its own process, "
            "and there is nothing for other processes: name a store with --url or TASKQUEUE_URL"
        )
    if MEMORY in url:
        raise ConfigError(
            f"{MEMORY} names a database in memory, which no other process could read: "
            "name a file; for tests one in a temporary folder, which run_pending() works on without a node"
        )
    if not url.startswith("sqlite:"):
        return SqliteUrl(path=_resolved(url, url))
    shown = concealed(url)
    parts = split(url)
    if parts.netloc or not parts.path:
        raise ConfigError(f"{shown} does not name a file: write sqlite:///absolute/path.db, or just the path")
    if parts.fragment:
        raise ConfigError(f"'#{parts.fragment}' of {shown} is not read: write %23 for a # in the path")
    if parts.path != parts.path.strip():
        raise ConfigError(f"the path in {shown} begins or ends with a space: remove it, or write %20")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    for name in options:
        if [option for option, _ in pairs].count(name) > 1:
            raise ConfigError(f"{shown}: {name} is given twice: pass it once")
        if name not in OPTIONS:
            raise ConfigError(f"{shown} has the option {name!r}: use {', '.join(OPTIONS)}")
    return SqliteUrl(
        path=_resolved(unquote(parts.path), url),
        mode=_mode(options.get("mode", "0600"), shown),
        synchronous=_synchronous(options.get("synchronous", "full"), shown),
        timeout=_timeout(options.get("timeout", "5"), shown),
    )


def prepare(address: SqliteUrl, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """Create the empty file with its permissions if there is none, and refuse one that SQLite cannot keep safe.

    Raises ``StoreUnavailable``. The file is never opened here: closing any descriptor of it would drop the locks that
    another connection of this process holds.
    """
    folder = address.path.parent
    if not folder.is_dir():
        raise StoreUnavailable(str(address.path), f"there is no folder {folder}", "create it, or name another file")
    kind = filesystem(folder, mounts.read_text(encoding="utf-8", errors="surrogateescape"))
    if kind in NETWORK_FILESYSTEMS:
        raise StoreUnavailable(
            str(address.path),
            f"is on a network filesystem ({kind}), where locks cannot be trusted",
            "use a local disk, or a PostgreSQL or MongoDB store for several hosts",
        )
    try:
        os.mknod(address.path, address.mode | stat.S_IFREG)
        set_mode(address.path, address.mode, stat.S_IFREG)
    except FileExistsError:
        _refuse_strange(address)
    except OSError as error:
        raise StoreUnavailable(
            str(address.path), f"cannot be created ({error.strerror})", f"make {folder} writable for this user"
        ) from None


def shares_memory(folder: Path) -> bool:
    """Return whether processes can share memory through a file in the folder, as the index of the journal requires.

    They cannot on some shares of virtual machines and containers; without room for a file, the answer is unknown.
    """
    import mmap
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(mmap.PAGESIZE))
            file.flush()
            try:
                mmap.mmap(file.fileno(), mmap.PAGESIZE).close()
            except OSError as error:
                return error.errno not in (errno.ENODEV, errno.EINVAL)
    except OSError:
        return True
    return True


def filesystem(folder: Path, mountinfo: str) -> str:
    """Return the type of the filesystem that holds the folder, from the text of a ``mountinfo``, "" if unknown."""
    type_found, longest = "", -1
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or not kind:
            continue
        mounted = re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits[1], 8)), fields[4])
        if len(mounted) >= longest and folder.is_relative_to(mounted):
            type_found, longest = kind[0], len(mounted)
    return type_found


def _refuse_strange(address: SqliteUrl) -> None:
    status = address.path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise StoreUnavailable(str(address.path), "is not a regular file", "name a database file")
    if status.st_nlink > 1:
        raise StoreUnavailable(
            str(address.path),
            f"has {status.st_nlink} hard links, and two names of one database get two journals",
            "remove the other names",
        )


def _resolved(path: str, url: str) -> Path:
    shown = concealed(url)
    if not path or "\0" in path:
        raise ConfigError(f"{shown!r} does not name a file: write sqlite:///absolute/path.db, or just the path")
    names_a_server = path == url and ("?" in path or re.match(r"\s*[A-Za-z][A-Za-z0-9+.-]*://", path))
    if names_a_server or (path[0] not in "/.~" and concealed(path) != path):
        driver = re.match(r"\s*(?:postgres(?:ql)?|sqlite)(\+\w+)://", path)
        if driver is not None:
            raise ConfigError(f"{shown} names a driver, as SQLAlchemy does: leave out {driver[1]}")
        raise ConfigError(
            f"{shown} is not the address of a store: write sqlite:///path?mode=0660, postgresql://host/db, "
            "mongodb://host/db, or a path"
        )
    try:
        return Path(os.path.realpath(Path(path).expanduser()))
    except RuntimeError:  # of expanduser
        raise ConfigError(f"{shown!r} is in the home folder of an unknown user: write an absolute path") from None
    except FileNotFoundError:
        raise ConfigError(f"{shown!r} is in the working folder, which was removed: write an absolute path") from None


def _mode(text: str, url: str) -> int:
    if not re.fullmatch(r"0?[0-7]{3}", text) or int(text, 8) & 0o600 != 0o600:
        raise ConfigError(f"{url}: mode={text!r}: pass octal permissions that let the owner read and write, e.g. 0660")
    return int(text, 8)


def _synchronous(text: str, url: str) -> str:
    if text.lower() not in ("full", "normal"):
        raise ConfigError(f"{url}: synchronous={text!r}: pass full or normal")
    return text.lower()


def _timeout(text: str, url: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text) or not 0 < float(text) <= 3600:
        raise ConfigError(f"{url}: timeout={text!r}: pass seconds above 0, at most 3600")
    return float(text)
