"""Masks values that look secret by the names of their keys, before they leave the server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from taskqueue.errors import ConfigError, InvalidQuery
from taskqueue.web.problems import Problem
from taskqueue.web.users import User

MASK = "•••"
"""What is shown in place of a secret value."""

WORDS = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "authorization", "api_?key", "apikey", "private_?key",
    "access_?key", "credential", "cookie", "session_?id",
)  # fmt: skip
"""Patterns of keys, wherever they stand in a key; ``-`` counts as ``_``."""


class Masking:
    """Masks by the patterns above and those of the settings."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        try:
            self._secret = re.compile("|".join(f"(?:{word})" for word in (*WORDS, *patterns)), re.IGNORECASE)
        except re.error as error:
            raise ConfigError(f"secret patterns {', '.join(patterns)}: no regular expression ({error})") from None

    def masked(self, value: Any) -> Any:
        """Return the JSON value with secret values masked, at any depth."""
        if isinstance(value, Mapping):
            return {key: MASK if self._hides(key, one) else self.masked(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.masked(one) for one in value]
        return value

    def limit(self, text: str) -> str:
        """Return a limit or its key with the values that it counts by masked where they are of a secret key."""
        before, by, rest = text.partition(" by=")
        paths, _, values = rest.partition(" ")
        is_secret = any(map(self.is_secret, re.split(r"[,.]", paths)))
        return f"{before}{by}{paths} {MASK}" if values and is_secret else text

    def restored(self, value: Any, old: Any) -> Any:
        """Return an edited value with the old ones for masks. Raises ``Problem`` for a mask that hid nothing."""
        if isinstance(value, Mapping):
            before = old if isinstance(old, Mapping) else {}
            return {key: self.restored(one, before.get(key)) for key, one in value.items()}
        if isinstance(value, list):
            items = old if isinstance(old, list) and len(old) == len(value) else [None] * len(value)
            return [self.restored(one, item) for one, item in zip(value, items, strict=True)]
        if value != MASK:
            return value
        if old is None:
            raise Problem("masked-value", f"the value {MASK} stands for a secret that is not known: write it out")
        return old

    def hides(self, value: Any) -> bool:
        """Return whether ``masked`` would hide a part of the value."""
        return bool(self.masked(value) != value)

    def check_query(self, query: Any, user: User) -> None:
        """Refuse a query by which a user could guess a value that is masked for them. Raises ``InvalidQuery``."""
        if user.unmask:
            return
        if isinstance(query, Mapping):
            for name, value in query.items():
                if str(name).startswith(("data.", "meta.")) and any(map(self.is_secret, str(name).split(".")[1:])):
                    raise InvalidQuery(f"{name} is masked: a user with --unmask can search for its values")
                self.check_query(value, user)
        elif isinstance(query, list):
            for part in query:
                self.check_query(part, user)

    def is_secret(self, key: str) -> bool:
        """Return whether values under this key are masked."""
        return self._secret.search(key.replace("-", "_")) is not None

    def _hides(self, key: object, value: Any) -> bool:
        return value is not None and value != "" and not isinstance(value, bool) and self.is_secret(str(key))
