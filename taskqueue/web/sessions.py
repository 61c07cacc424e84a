"""The open sessions of users who have logged in, and the tokens by which a page of ours is known from others."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from taskqueue.web.users import digest

IDLE_FOR = 2 * 3600.0
"""Seconds without a request after which a session ends."""

LASTS = 12 * 3600.0
"""Seconds after the login at which it ends in any case."""

MOST = 10_000
MOST_OF_USER = 100
"""Sessions that are kept, in all and of one user; the oldest ones go first."""


@dataclass
class Session:
    """One login."""

    name: str
    password: str | None
    """The hash of the password that began it."""
    begun_at: float
    seen_at: float


class Sessions:
    """The open sessions; the ids are kept as hashes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, Session] = {}

    def begin(self, name: str, password: str | None, replaced: str | None) -> str:
        """Begin a session with an id of its own, end the one that the browser had, and return the id.

        ``password`` is the hash of the password: once the user has another one, the session ends.
        """
        id, now = secrets.token_urlsafe(32), self._clock()
        with self._lock:
            if replaced is not None:
                self._open.pop(digest(replaced), None)
            own = [key for key, session in self._open.items() if session.name == name]
            for key in own[: max(0, len(own) - MOST_OF_USER + 1)]:
                del self._open[key]
            while len(self._open) >= MOST:
                del self._open[next(iter(self._open))]
            self._open[digest(id)] = Session(name, password, now, now)
        return id

    def find(self, id: str) -> Session | None:
        """Return the session, None if it has ended."""
        now, kept = self._clock(), digest(id)
        with self._lock:
            session = self._open.get(kept)
            if session is None:
                return None
            if now - session.seen_at > IDLE_FOR or now - session.begun_at > LASTS:
                del self._open[kept]
                return None
            session.seen_at = now
            return session

    def end(self, id: str) -> None:
        """End the session."""
        with self._lock:
            self._open.pop(digest(id), None)


class CsrfTokens:
    """Tokens that a page of ours carries and a page of another site cannot know."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def token(self, of: str) -> str:
        """Return the token of a session, or of a user without a session."""
        return hmac.new(self._key, of.encode(errors="replace"), hashlib.sha256).hexdigest()

    def is_right(self, of: str, given: str) -> bool:
        """Return whether the token is the right one."""
        return hmac.compare_digest(self.token(of).encode(), given.encode(errors="replace"))
