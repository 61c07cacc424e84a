"""The users of the dashboard: their roles, and the file that keeps them with hashes of passwords and tokens."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from taskqueue.errors import ConfigError
from taskqueue.model.options import value_of

NAME = r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}"
"""Matches the name of a user."""

SHORTEST_PASSWORD = 8
LONGEST_PASSWORD = 1000

_MEMORY, _TIME = 19_456, 2
"""KiB and rounds of a hash, as OWASP recommends for argon2id with one lane."""


class Role(str, Enum):
    """What a user may do: a reader sees, an operator also acts."""

    READER = "reader"
    OPERATOR = "operator"


@dataclass(frozen=True, kw_only=True)
class User:
    """A person or program that the dashboard knows."""

    name: str
    role: Role = Role.READER
    queues: tuple[str, ...] | None = None
    """The queues that an operator may act on; None means all, and things without a queue."""
    unmask: bool = False
    """Whether the user may see values that look secret; each look is kept in the audit."""

    def may_act_on(self, queue: str | None) -> bool:
        """Return whether the user may act on jobs of the queue; None stands for things without a single queue."""
        return self.role is Role.OPERATOR and (self.queues is None or queue in self.queues)


@dataclass(frozen=True, kw_only=True)
class Account:
    """A user with the ways to prove that it is one."""

    user: User
    password: str | None = None
    tokens: tuple[str, ...] = field(default=())
    """SHA-256 of each token; these have 256 random bits, so that a slow hash would add nothing."""


class UsersFile:
    """The file of users; it is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._read: tuple[tuple[int, ...], Mapping[str, Account]] | None = None

    def accounts(self) -> Mapping[str, Account]:
        """Return the accounts by name. Raises ``ConfigError`` if others can read the file, or nobody can."""
        with self._lock:
            try:
                status = self.path.stat()
                state = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
                if self._read is None or self._read[0] != state:
                    _check_mode(self.path, status)
                    self._read = state, _accounts(self.path, self.path.read_bytes())
            except OSError as error:
                raise ConfigError(
                    f"{self.path} cannot be read ({error.strerror}): create it with `taskqueue web user add NAME`"
                ) from None
            return self._read[1]

    def by_token(self, token: str) -> User | None:
        """Return the user of this token; it takes the same time if there is none."""
        sent = digest(token)
        user = None
        for account in self.accounts().values():
            for hashed in account.tokens:
                if hmac.compare_digest(hashed.encode(), sent.encode()):  # a file made by hand may have any text
                    user = account.user
        return user

    def by_password(self, name: str, password: str) -> Account | None:
        """Return the account of this name and password; an unknown name takes as long as a wrong password."""
        account = self.accounts().get(name)
        password_hash = None if account is None else account.password
        is_right = _verify(password_hash or _NOBODYS_HASH, password)
        return account if password_hash is not None and is_right else None

    @property
    def _real_path(self) -> Path:
        return Path(os.path.realpath(self.path))

    @contextlib.contextmanager
    def changing(self) -> Iterator[dict[str, Account]]:
        """Yield the accounts, and write them if they were changed; other writers wait."""
        try:
            folder = os.open(self._real_path.parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be created ({error.strerror}): create its folder first") from None
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # the folder's, for the file is another one after each change
            before = self.accounts() if self.path.exists() else {}
            changed = dict(before)
            yield changed
            if changed != before:
                self.change(changed)
        finally:
            os.close(folder)

    def change(self, accounts: Mapping[str, Account]) -> None:
        """Replace the file in one step, readable only by its owner, who stays the same; so does a link to it."""
        target = self._real_path
        text = json.dumps({name: _document(account) for name, account in sorted(accounts.items())}, indent=2) + "\n"
        handle, path = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                if target.exists() and (owner := target.stat()).st_uid != os.geteuid():
                    os.fchown(handle, owner.st_uid, owner.st_gid)  # by root: the dashboard must be able to read it
                file.write(text)
                file.flush()
                os.fsync(handle)
            os.replace(path, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            raise


def account(user: User, password: str | None, tokens: tuple[str, ...] = ()) -> Account:
    """Return the account of a user. Raises ``ConfigError`` for a name, a queue or a password that cannot be kept."""
    if not re.fullmatch(NAME, user.name):
        raise ConfigError(f"user {user.name!r}: a name has 1 to 100 letters, digits and . _ @ + -, no space")
    for queue in user.queues or ():
        value_of("queue", queue)
    if password is not None and not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise ConfigError(f"the password has {len(password)} characters: use {SHORTEST_PASSWORD} to {LONGEST_PASSWORD}")
    try:
        return Account(user=user, password=None if password is None else _hasher().hash(password), tokens=tokens)
    except UnicodeEncodeError:
        raise ConfigError("the password is not UTF-8, in which browsers send it: set the encoding to UTF-8") from None


def with_new_token(account: Account) -> tuple[Account, str]:
    """Return the account with one more token, and the token, which is kept nowhere."""
    token = secrets.token_urlsafe(32)
    return replace(account, tokens=(*account.tokens, digest(token))), token


def digest(secret: str) -> str:
    """Return the form in which tokens and ids of sessions are kept."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


# The hash of no password; comparing with it takes as long as with a user's.
_NOBODYS_HASH = "$argon2id$v=19$m=19456,t=2,p=1$XfDX20RCmHdtKizaLZwkiA$YDiJDj3/nPRPNSiUcdHU+fYaRvMlcLsPKfW1wsf1oMM"


def _hasher() -> Any:
    from argon2 import PasswordHasher

    return PasswordHasher(time_cost=_TIME, memory_cost=_MEMORY, parallelism=1)


def _verify(stored: str, password: str) -> bool:
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        return bool(_hasher().verify(stored, password[:LONGEST_PASSWORD]))
    except (InvalidHashError, VerificationError):
        return False


def _check_mode(path: Path, status: os.stat_result) -> None:
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path} can be read or written by others: chmod 600 {path}")


def _accounts(path: Path, text: bytes) -> Mapping[str, Account]:
    try:
        document = json.loads(text)
        return {name: _account(name, fields) for name, fields in document.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} is not a file of users ({error}): create it with `taskqueue web user add NAME`"
        ) from None


def _account(name: str, fields: Mapping[str, Any]) -> Account:
    queues = fields.get("queues")
    user = User(
        name=name,
        role=Role(fields["role"]),
        queues=None if queues is None else tuple(map(str, queues)),
        unmask=fields.get("unmask") is True,
    )
    return Account(user=user, password=fields.get("password"), tokens=tuple(map(str, fields.get("tokens", ()))))


def _document(account: Account) -> dict[str, Any]:
    user = account.user
    return {
        "role": user.role.value,
        "queues": None if user.queues is None else list(user.queues),
        "unmask": user.unmask,
        "password": account.password,
        "tokens": list(account.tokens),
    }
