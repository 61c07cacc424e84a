"""Encodes and decodes the parts of a record that every store keeps alike: options and failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskqueue.model.conditions import condition, document
from taskqueue.model.reading import figure, number, or_none, text
from taskqueue.model.record import Failure, OnCrash, Options
from taskqueue.model.retry import policy
from taskqueue.model.serializer import clean


def options_fields(options: Options) -> dict[str, Any]:
    """Return the options as plain values."""
    return {
        "retry": options.retry.document(),
        "timeout": options.timeout,
        "stall_timeout": options.stall_timeout,
        "retry_on_timeout": options.retry_on_timeout,
        "crash_retries": options.crash_retries,
        "on_crash": options.on_crash.value,
        "force_spawn": options.force_spawn,
        **({"ready": document(options.ready)} if options.ready is not None else {}),
        **({"undeclared": True} if options.undeclared else {}),
    }


def options_of(fields: Mapping[str, Any]) -> Options:
    """Return the options of such values."""
    return Options(
        retry=policy(fields["retry"]),
        timeout=or_none(figure)(fields["timeout"]),
        stall_timeout=or_none(figure)(fields["stall_timeout"]),
        retry_on_timeout=fields["retry_on_timeout"],
        crash_retries=number(fields["crash_retries"]),
        on_crash=OnCrash(fields["on_crash"]),
        force_spawn=fields["force_spawn"],
        ready=condition(fields["ready"]) if "ready" in fields else None,
        undeclared=fields.get("undeclared", False),
    )


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
