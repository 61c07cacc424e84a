"""Encodes and decodes the parts of a record that every store keeps alike: options and failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from taskqueue.model.options.readers import stated_options
from taskqueue.model.options.table import OPTIONS
from taskqueue.model.reading import text
from taskqueue.model.record import RUN_FIELDS, Failure, Options
from taskqueue.model.retry import policy
from taskqueue.model.serializer import clean

_FIRST = frozenset(
    ("retry", "timeout", "stall_timeout", "retry_on_timeout", "crash_retries", "on_crash", "force_spawn")
)
"""The options that are in every record. This is part of the stored form: options that are new are not among them."""

_DEFAULTS = stated_options(Options())


def options_fields(options: Options) -> dict[str, Any]:
    """Return the options as plain values, without those that were added later and have their defaults."""
    stated = stated_options(options)
    fields = {name: value for name, value in stated.items() if name in _FIRST or value != _DEFAULTS[name]}
    return {**fields, "undeclared": True} if options.undeclared else fields


def options_of(fields: Mapping[str, Any]) -> Options:
    """Return the options of such values; raise ``LookupError`` or ``InvalidOption`` for what cannot be read."""
    checks: dict[str, Callable[[Any], Any]] = {name: OPTIONS[name].check for name in RUN_FIELDS} | {"retry": policy}
    read = {name: check(fields[name]) for name, check in checks.items() if name in _FIRST or name in fields}
    return Options(**read, undeclared=fields.get("undeclared", False))


def failure_fields(failure: Failure) -> dict[str, Any]:
    """Return the failure as plain values; its texts as every store can keep them."""
    return {
        "type": clean(failure.type),
        "message": clean(failure.message),
        "traceback": clean(failure.traceback),
        "bases": [clean(base) for base in failure.bases],
    }


def failure_of(fields: Mapping[str, Any]) -> Failure:
    """Return the failure of such values."""
    return Failure(
        type=text(fields["type"]),
        message=text(fields["message"]),
        traceback=text(fields["traceback"]),
        bases=tuple(map(text, fields["bases"])),
    )
