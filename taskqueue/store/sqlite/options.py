"""The options of a job as JSON text and back; the usual ones, which most jobs have, take no text."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from taskqueue.model.record import OnCrash, Options
from taskqueue.model.retry import FixedRetry
from taskqueue.store import codec

_USUAL = Options(
    retry=FixedRetry(times=0, interval=300.0),
    timeout=None,
    stall_timeout=None,
    retry_on_timeout=True,
    crash_retries=3,
    on_crash=OnCrash.RETRY,
    force_spawn=False,
)
"""The options of a row without text. This is part of the schema: it stays when defaults change."""

_dumps: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def options_text(options: Options) -> str | None:
    """Return the options as text, None for the usual ones."""
    if options == _USUAL:
        return None
    # Conditions whose settings are 1 and True are equal, but not the same.
    return _known_text(options) if options.ready is None else _text(options)


@functools.lru_cache(maxsize=512)
def _known_text(options: Options) -> str:
    """Return the text, once for all jobs that have the same options; most have."""
    return _text(options)


def _text(options: Options) -> str:
    return _dumps(codec.options_fields(options))


@functools.lru_cache(maxsize=512)
def options_of(text: str | None) -> Options:
    """Return the options of their text."""
    if text is None:
        return _USUAL
    return codec.options_of(json.loads(text))
