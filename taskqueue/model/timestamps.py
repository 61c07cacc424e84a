"""Times as all parts keep them: UTC, in whole milliseconds."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


MILLISECOND = timedelta(milliseconds=1)
"""The unit of stored times; two moments may be that much further apart than they show."""

CLOCKS_APART = timedelta(seconds=5)
"""How far two nodes' estimates of the store's time may be apart; a later time is of a clock that was set back."""


def milliseconds(moment: datetime) -> int:
    """Return whole milliseconds since 1970 in UTC."""
    since = moment - EPOCH  # its parts take three quarters of the time of a division by MILLISECOND
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


def moment(milliseconds: int) -> datetime:
    """Return the time that many milliseconds after 1970, as aware UTC."""
    return EPOCH + milliseconds * MILLISECOND


def host_time() -> datetime:
    """Return the clock of this host, in whole milliseconds."""
    return moment(time.time_ns() // 1_000_000)


def whole(moment: datetime) -> datetime:
    """Return the time cut to whole milliseconds, as it is stored."""
    if moment.tzinfo is timezone.utc and moment.microsecond % 1000 == 0:
        return moment
    return moment.astimezone(timezone.utc).replace(microsecond=moment.microsecond // 1000 * 1000)
