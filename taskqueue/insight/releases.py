"""The marks of releases: when which version of an application was put into service.

A mark is the data of a lease that nobody holds, like a decision about failures, and so it survives nodes and a flush.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from taskqueue.model.history import Step
from taskqueue.model.reading import readable
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.store import Lease

PREFIX = "release:"
"""The prefix of the leases that hold marks; the time and the name follow."""

KEPT_FOR = timedelta(days=90)
"""How long marks are kept: as long as the figures of hours, on whose charts they are drawn."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """The mark of a release."""

    name: str
    at: datetime
    by: str

    @property
    def key(self) -> str:
        """Return the name of its lease."""
        return f"{PREFIX}{milliseconds(self.at)}:{self.name}"

    @property
    def about(self) -> dict[str, Any]:
        """Return the data of its lease, in plain JSON values."""
        return {"name": self.name, "at": milliseconds(self.at), "by": self.by}


def releases_of(leases: Iterable[Lease]) -> list[Release]:
    """Return the releases that a store keeps, the oldest first; one that cannot be read is left out.

    Of marks in a row with the same name only the first counts: several hosts may mark one deployment.
    """
    marks = [lease for lease in leases if lease.name.startswith(PREFIX)]
    releases: list[Release] = []
    for release in sorted(readable(marks, _release, "a mark of a release"), key=lambda release: release.at):
        if not releases or releases[-1].name != release.name:
            releases.append(release)
    return releases


def release_before(releases: Sequence[Release], minute: datetime) -> Release | None:
    """Return the last release that was marked before the end of this minute; None if there is none."""
    end = minute + Step.MINUTE.length
    return next((release for release in reversed(releases) if release.at < end), None)


def _release(lease: Lease) -> Release:
    name, at, by = (lease.about[name] for name in ("name", "at", "by"))
    if not isinstance(at, int):
        raise TypeError("the time of a release is not a number")
    return Release(name=str(name), at=moment(at), by=str(by))
