"""What a person writes on a command line and what it means: durations, sizes, queues with a bound, JSON."""

from __future__ import annotations

import re
from typing import Any

import click

from taskqueue.errors import InvalidJob

_AMOUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zA-Z]*)")
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_BYTES = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


class Duration(click.ParamType):
    """Seconds, written as ``30``, ``0.5``, ``30s``, ``500ms``, ``5m``, ``2h`` or ``1d``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        number, unit = _parts(value)
        if number is None or unit not in _SECONDS:
            self.fail(f"{value!r} is not a duration: write seconds (30, 0.5) or 500ms, 30s, 5m, 2h, 1d", param, ctx)
        return number * _SECONDS[unit]


class Size(click.ParamType):
    """Bytes, written as ``1048576``, ``512K``, ``512M`` or ``2G`` (multiples of 1024; MB and MiB mean the same)."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        number, unit = _parts(value)
        unit = re.sub(r"(?<=[kmgt])i?b$", "", unit)
        if number is None or unit not in _BYTES:
            self.fail(f"{value!r} is not a size: write bytes (1048576) or 512K, 512M, 2G", param, ctx)
        return int(number * _BYTES[unit])


class WorkOn(click.ParamType):
    """A queue, with the most of its jobs to run at once after an ``=``: ``mail``, ``reports=2``."""

    name = "queue[=n]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int | None]:
        """Return the queue and its bound, None without one."""
        if isinstance(value, tuple):
            return value
        queue, equals, bound = str(value).rpartition("=")
        if not equals:
            return str(value), None
        if not queue or not bound.isdecimal() or int(bound) < 1:
            self.fail(f"{value!r} is not a queue with a bound: write mail, or reports=2 for at most two at once", param, ctx)
        return queue, int(bound)


class Json(click.ParamType):
    """A value written as JSON; Extended JSON carries what JSON does not have: ``{"$date": …}``, ``{"$oid": …}``."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value."""
        from taskqueue.model.data import decode

        if not isinstance(value, str):
            return value
        try:
            return decode(value)
        except (ValueError, TypeError, InvalidJob) as error:
            self.fail(f"is not JSON ({error}): {value!r}", param, ctx)


def _parts(value: Any) -> tuple[float | None, str]:
    """Return the number and the unit in lower case; no number where there is none."""
    if isinstance(value, bool):
        return None, ""
    if isinstance(value, (int, float)):
        return float(value), ""
    found = _AMOUNT.fullmatch(str(value).strip())
    if found is None:
        return None, ""
    return float(found["number"]), found["unit"].lower()
