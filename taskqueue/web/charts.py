"""Charts as geometry: bars of a time, and the timeline of a job, in the units of an SVG's view box."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from taskqueue.model.record import Attempt, Record, Status

HEIGHT = 60
"""The height of a chart of bars; its width is the number of bars times ten."""

WIDTH = 1000
"""The width of a timeline."""

LEAST = 6
"""The least width of a run in a timeline: one of a millisecond is seen, too."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: jobs that ended well below, jobs that failed above."""

    x: int
    done: float
    failed: float
    """The heights."""
    says: str
    """The text on hover."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Bars with their scale, and what they show in words."""

    bars: Sequence[Bar]
    says: str
    most: int
    """Jobs of the highest bar."""

    @property
    def width(self) -> int:
        """Return the width of the view box."""
        return 10 * len(self.bars)

    @property
    def done_path(self) -> str:
        """Return the lower parts of all bars as one path: a list of a hundred charts has no room for single bars."""
        return "".join(_box(bar.x, bar.done, 0) for bar in self.bars)

    @property
    def failed_path(self) -> str:
        """Return the upper parts of all bars."""
        return "".join(_box(bar.x, bar.failed, bar.done) for bar in self.bars)


def _box(x: int, height: float, above: float) -> str:
    return f"M{x + 1} {HEIGHT - above:g}v-{height:g}h8v{height:g}z" if height else ""


def chart(figures: Iterable[tuple[str, int, int]], says: str) -> Chart:
    """Return the bars of figures: what each is of, how many are done, and how many failed."""
    triples = list(figures)
    most = max((done + failed for _, done, failed in triples), default=0)
    bars = [
        Bar(
            x=10 * place,
            done=_height(done, most),
            failed=_height(failed, most),
            says=f"{of}: {done:,} done, {failed:,} failed",
        )
        for place, (of, done, failed) in enumerate(triples)
    ]
    return Chart(bars=bars, says=says, most=most)


def _height(number: int, most: int) -> float:
    """Return a height in proportion, but never nothing for something."""
    return max(1.5, round(number / most * (HEIGHT - 4), 1)) if number else 0


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a job's timeline."""

    kind: str
    """``waited``, ``later``, ``running``, ``done``, ``failed`` or ``lost``, the class of the style sheet."""
    x: float
    width: float
    says: str


_GOOD = ("Done", "Stepped", "Awaiting", "Snoozed", "Declared", "NotReady")
_UNCOUNTED = ("Interrupted", "HandedBack", "Canceled")


def timeline(record: Record, now: datetime) -> list[Piece]:
    """Return the waits and runs of a job from when it was added until it ended, or now, to scale."""
    end = record.ended_at or now
    whole = max((end - record.created_at).total_seconds(), 0.001)

    def place(moment: datetime) -> float:
        return min(max((moment - record.created_at).total_seconds() / whole, 0.0), 1.0) * WIDTH

    pieces, reached = [], 0.0
    for began, ended, kind, says in _runs(record, now):
        begin = max(place(began), reached)
        if begin > reached:
            waited = (begin - reached) / WIDTH * whole
            pieces.append(Piece(kind="waited", x=reached, width=begin - reached, says=f"waited {waited:.3g} s"))
        width = min(max(place(ended) - begin, LEAST), WIDTH - begin) if begin < WIDTH - LEAST else LEAST
        begin = min(begin, WIDTH - LEAST)
        pieces.append(Piece(kind=kind, x=begin, width=width, says=says))
        reached = begin + width
    if reached < WIDTH - 1:
        kind = "later" if record.status is Status.POSTPONED else "waited"
        pieces.append(
            Piece(kind=kind, x=reached, width=WIDTH - reached, says="waits" if record.ended_at is None else "")
        )
    return pieces


def _runs(record: Record, now: datetime) -> Iterator[tuple[datetime, datetime, str, str]]:
    for attempt in record.attempts:
        if attempt.started_at is not None:
            yield attempt.started_at, attempt.ended_at, kind_of(attempt), f"attempt {attempt.number}: {attempt.outcome}"
    if record.status is Status.PROCESSING and record.started_at is not None:
        yield record.started_at, now, "running", f"attempt {record.attempt}: runs"


def kind_of(attempt: Attempt) -> str:
    """Return how an attempt ended, as a class of the style sheet."""
    if attempt.outcome in _GOOD:
        return "done"
    return "lost" if attempt.outcome in _UNCOUNTED else "failed"
