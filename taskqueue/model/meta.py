"""The meta of a job: a small mapping of text that travels with it to its runs, its copies, its children and the log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from taskqueue.errors import InvalidOption

META = "meta"
"""Its name as an option, and its key in ``given`` of a record."""

ADDED_BY = "added_by"
"""The key under which ``taskqueue add`` names its user and host."""

MOST_KEYS = 16
KEY_SHAPE = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""A key is a word in queries, ``meta.KEY``, and on the command line, ``KEY=VALUE``."""

MOST_BYTES = 2048
"""Maximum number of bytes of all keys and values together, as UTF-8."""

_FORMS = "a mapping of text to text, such as {'tenant': 'acme'}, or texts KEY=VALUE"


def checked_meta(value: Any) -> dict[str, str]:
    """Return the meta as it is kept; raise ``InvalidOption`` without the name of the option."""
    kept: dict[str, str] = {}
    for key, text in _pairs(value):
        if not isinstance(key, str) or not KEY_SHAPE.fullmatch(key):
            raise InvalidOption(f"the key {key!r}: pass 1 to 64 letters, digits, '_' and '-'")
        if not isinstance(text, str) or not text.isprintable():
            raise InvalidOption(f"the value of {key!r}: pass text of printable characters")
        if key in kept:
            raise InvalidOption(f"the key {key!r} is given twice: pass it once")
        kept[key] = text
    if len(kept) > MOST_KEYS:
        raise InvalidOption(f"{len(kept)} keys, including those of the job that adds it: pass up to {MOST_KEYS}")
    size = sum(len(key) + len(text.encode()) for key, text in kept.items())
    if size > MOST_BYTES:
        raise InvalidOption(f"{size:,} bytes in total: pass up to {MOST_BYTES:,}, or put them in the data")
    return kept


def meta_in(given: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the meta in ``given`` of a record; empty if it is damaged."""
    meta = given.get(META)
    return meta if type(meta) is dict else {}


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and "=" in text for text in texts):
        raise InvalidOption(f"pass {_FORMS}")
    return [(key, text) for key, _, text in (pair.partition("=") for pair in texts)]
