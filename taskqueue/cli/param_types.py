"""Parameter types of the command line: durations, sizes, queues with a bound, JSON."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskqueue.errors import InvalidOption, InvalidQuery

if TYPE_CHECKING:
    from taskqueue.model.job_filter import JobFilter

_CLOCKS = timedelta(minutes=5)
"""How far the clocks of store and client may differ."""

_NUMBER = re.compile(r"\d+(\.\d+)?")
_COUNTED = re.compile(r"\d+(/\d+)?")
_SIZE = re.compile(r"(?P<number>\d{1,18}(?:\.\d+)?)\s*(?P<unit>[kmgt]?)(?:i?b)?", re.IGNORECASE)
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def duration(value: str) -> float:
    """Return the seconds of ``30``, ``0.5``, ``500ms``, ``30s``, ``5m``, ``2h`` or ``1d``."""
    from taskqueue.model.schedules import seconds_of

    try:
        return seconds_of(float(value) if _NUMBER.fullmatch(value.strip()) else value)
    except InvalidOption as refused:
        if "out of range" in str(refused):
            raise click.BadParameter(f"{value!r} is out of range: write a duration between 0 and ten years") from None
        raise click.BadParameter(f"{value!r} is not a duration: write seconds (30) or 500ms, 30s, 5m, 2h, 1d") from None


def past(value: str) -> str:
    """Return the text of a past time, or of how long ago it was; it is read on the store's clock."""
    from taskqueue.model.schedules import ago

    now = datetime.now(timezone.utc)
    try:
        time = ago(value, now)
    except InvalidOption as refused:
        raise click.BadParameter(str(refused)) from None
    if time > now + _CLOCKS or value.strip().startswith("+"):
        raise click.BadParameter(f"{value!r} is in the future: write how long ago, such as 90m or 2d")
    return value


def interval(value: str) -> float:
    """Return the seconds of a duration, or -1, which means at once."""
    if value.strip() == "-1":
        return -1
    try:
        return duration(value)
    except click.BadParameter as refused:
        raise click.BadParameter(f"{refused.message}, or -1 for at once") from None


def memory(value: str) -> int:
    """Return the number of bytes: ``1048576``, ``512K``, ``512M`` or ``2G``, in units of 1024; MB means MiB.

    A share such as ``25%`` is a share of the memory that this process may use: of its container, its unit or the host.
    """
    if size := _SIZE.fullmatch(value.strip()):
        return int(float(size["number"]) * _BYTES[size["unit"].lower()])
    share = _SHARE.fullmatch(value.strip())
    if share is None:
        raise click.BadParameter(f"{value!r} is not a size: write bytes (1048576), 512K, 512M, 2G, or a share (25%)")
    if not 0 < float(share[1]) <= 100:
        raise click.BadParameter(f"{value!r} is out of range: write a share above 0% and up to 100%")
    from taskqueue.daemon.runtime.cgroup import memory_limit

    return int(memory_limit() * float(share[1]) / 100)


def work_on(value: str) -> tuple[str, int | None]:
    """Return the queue and the most of its jobs to run at once (None: no bound) of ``mail`` or ``reports=2``."""
    if "," in value:
        ours = " ".join(f"--work-on {queue}" for queue in value.split(","))
        raise click.BadParameter(f"{value!r} names several queues: write {ours}, or with spaces in a variable")
    queue, equals, bound = value.rpartition("=")
    if not equals:
        return value, None
    if not bound.isdecimal() or len(bound) > 9:
        raise click.BadParameter(f"{value!r} is not a queue with a bound: write mail, or reports=2 for two at once")
    return queue, int(bound)


def limit_value(value: str) -> str:
    """Return the text of a limit as it is, if it is one: ``8``, ``8 by=bucket`` or ``200/60``."""
    from taskqueue.model.limits import declared

    try:
        declared(value)
    except InvalidOption as refused:
        why = str(refused) if _COUNTED.fullmatch(value.strip()) else 'write a whole number, "8 by=bucket" or 200/60'
        raise click.BadParameter(f"{value!r} is not a limit: {why}") from None
    return value


def extended_json(value: str) -> Any:
    """Parse JSON text and return its value; Extended JSON adds types that JSON lacks: ``{"$date": …}``."""
    return _decoded(value, repr(value))


def job_filter(value: str) -> JobFilter:
    """Parse a filter: tokens such as ``queue:mail status:failed``, or a query in JSON."""
    from taskqueue.model.job_filter import JobFilter

    try:
        read = JobFilter.read(value)
    except InvalidQuery as refused:
        raise click.BadParameter(str(refused)) from None
    if not read:
        raise click.BadParameter("the filter is empty: write a condition such as queue:mail, or {} for all jobs")
    return read


def job_data(value: str) -> Any:
    """Return the value of JSON text, of the file named after ``@``, or of standard input for ``-``.

    Every user of the host can see a command line, and one argument is at most 128 KiB, an eighth of the limit of data.
    """
    if value == "-":
        read = b"" if sys.stdin is None else sys.stdin.buffer.read()  # standard input is None if it is closed
        return _decoded(_text(read, "standard input"), "standard input")
    if not value.startswith("@"):
        return extended_json(value)
    path = value[1:]
    try:
        read = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path!r} cannot be read ({getattr(error, 'strerror', error)})") from None
    return _decoded(_text(read, path), path)


def _text(read: bytes, where: str) -> str:
    try:
        return read.decode()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{where} is not UTF-8 text: {error}") from None


def _decoded(text: str, where: str) -> Any:
    from taskqueue.model.serializer import decode

    try:
        return decode(text.strip() or "nothing")
    except Exception as error:  # the errors of JSON and of Extended JSON have no common base class
        reason = error.__cause__ or error
        raise click.BadParameter(f'{where} is not JSON: {reason}: write for example {{"to": "ann"}}') from None
