"""Masks values that look secret by the names of their keys, before they leave the server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from taskqueue.errors import ConfigError
from taskqueue.model.audit import AuditEntry
from taskqueue.model.secret_keys import MASK, SecretKeys
from taskqueue.web.problems import Problem
from taskqueue.web.users import User


class Masking(SecretKeys):
    """Masks by the usual patterns of secret keys, and by patterns of the settings."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        try:
            super().__init__(patterns)
        except re.error as error:
            raise ConfigError(f"secret patterns {', '.join(patterns)}: not a regular expression ({error})") from None

    def entry(self, entry: AuditEntry) -> AuditEntry:
        """Return an entry of the audit with its query masked by these patterns: commands know only the usual ones."""
        query = entry.about.get("query")
        return replace(entry, about={**entry.about, "query": self._query(query)}) if isinstance(query, str) else entry

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
            raise Problem("masked-value", f"the value {MASK} stands for an unknown secret: write out the value")
        return old

    def check_query_of(self, query: Any, user: User) -> None:
        """Refuse a query by which a user could guess a value that is masked for them. Raises ``InvalidQuery``."""
        if not user.unmask:
            self.check_query(query)

    def _query(self, text: str) -> str:
        """Return the text of a query masked; a long one, which was cut and is not JSON, as a whole."""
        try:
            return json.dumps(self.masked(json.loads(text)), ensure_ascii=False)
        except (ValueError, RecursionError):
            return MASK if self.is_secret(text) else text
