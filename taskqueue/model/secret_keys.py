"""Masks values that look secret by the names of their keys, before they are shown or kept where many can read them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from taskqueue.errors import InvalidQuery
from taskqueue.model.limits import Family, LimitKey

MASK = "•••"
"""The text that is shown in place of a secret value."""

WORDS = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "authorization", "api_?key", "apikey", "private_?key",
    "access_?key", "credential", "cookie", "session_?id",
)  # fmt: skip
"""Patterns that match anywhere in a key; ``-`` counts as ``_``."""


class SecretKeys:
    """Knows secret keys by the patterns above and more of a caller's; raises ``re.error`` for an invalid one."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._secret = re.compile("|".join(f"(?:{word})" for word in (*WORDS, *patterns)), re.IGNORECASE)

    def masked(self, value: Any) -> Any:
        """Return the JSON value with secret values masked, at any depth."""
        if isinstance(value, Mapping):
            return {key: MASK if self._hides(key, item) else self.masked(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.masked(item) for item in value]
        return value

    def is_secret(self, key: str) -> bool:
        """Return whether values under this key are masked."""
        return self._secret.search(key.replace("-", "_")) is not None

    def limit(self, limit_key: LimitKey) -> LimitKey:
        """Return the key of a limit with the values that it counts by masked if they are of a secret key."""
        paths = Family.of(limit_key.family).by
        is_secret = any(self.is_secret(name) for path in paths for name in path.split("."))
        return replace(limit_key, key=f"{limit_key.family} {MASK}") if is_secret else limit_key

    def check_query(self, query: Any) -> None:
        """Refuse a query by which a value that is masked could be guessed. Raises ``InvalidQuery``."""
        if isinstance(query, Mapping):
            for name, value in query.items():
                if str(name).startswith(("data.", "meta.")) and any(map(self.is_secret, str(name).split(".")[1:])):
                    searcher = "only a user who may see secrets in the dashboard can search for its values"
                    raise InvalidQuery(f"{name} is masked: {searcher}")
                self.check_query(value)
        elif isinstance(query, list):
            for part in query:
                self.check_query(part)

    def _hides(self, key: object, value: Any) -> bool:
        return value is not None and value != "" and not isinstance(value, bool) and self.is_secret(str(key))
