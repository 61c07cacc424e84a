"""Masks values that look secret by the names of their keys, before they are shown or kept where many can read them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

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

    def _hides(self, key: object, value: Any) -> bool:
        return value is not None and value != "" and not isinstance(value, bool) and self.is_secret(str(key))
