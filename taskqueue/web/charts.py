"""Charts as geometry: bars over a time, and the timeline of a job, in the units of an SVG's view box."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from taskqueue.insight.releases import Release
from taskqueue.model.record import Attempt, Record, Status
from taskqueue.model.wording import percent

HEIGHT = 60
"""The height of a chart of bars; its width is the number of bars times ten."""

WIDTH = 1000
"""The width of a timeline."""

NARROWEST, CHARACTER, LONGEST_NAME = 280, 7, 14
"""The width in pixels of a chart on a phone and of a character, and the most characters of a name above it."""

LEAST = 6
"""The least width of a run in a timeline, so that even a run of a millisecond is visible."""


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
class Mark:
    """The mark of a release in a chart."""

    x: float
    percent: float
    """How far it is from the left, of the width."""
    says: str
    text: str
    """The name, cut if it is long; empty if names of later releases need its room."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Bars with their scale, and what they show in words."""

    bars: Sequence[Bar]
    says: str
    most: int
    """The number of jobs of the highest bar."""
    marks: Sequence[Mark] = ()

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


def chart(figures: Iterable[tuple[str, int, int]], says: str, words: tuple[str, str] = ("done", "failed")) -> Chart:
    """Return the bars of figures: what each is of, how many are done, and how many failed, in these words."""
    triples = list(figures)
    most = max((done + failed for _, done, failed in triples), default=0)
    bars = [
        Bar(
            x=10 * place,
            done=_height(done, most),
            failed=_height(failed, most),
            says=f"{of}: {done:,} {words[0]}, {failed:,} {words[1]}",
        )
        for place, (of, done, failed) in enumerate(triples)
    ]
    return Chart(bars=bars, says=says, most=most)


def _height(number: int, most: int) -> float:
    """Return a proportional height that is never zero for a positive number."""
    return max(1.5, round(number / most * (HEIGHT - 4), 1)) if number else 0


@dataclass(frozen=True, kw_only=True)
class ShareChart:
    """Shares over a time as bars, to scale: a small share is a small bar."""

    path: str
    width: int
    says: str
    most: float
    """The share of the highest bar, 0 to 1."""
    marks: Sequence[Mark] = ()


def share_chart(pairs: Iterable[tuple[int, int]], says: str) -> ShareChart:
    """Return the shares of pairs of numbers: how many of how many."""
    shares = [part / whole if whole else 0.0 for part, whole in pairs]
    most = max(shares, default=0.0)
    path = "".join(
        _box(10 * place, round(share / most * (HEIGHT - 4), 1), 0) for place, share in enumerate(shares) if share
    )
    return ShareChart(path=path, width=10 * len(shares), says=says, most=most)


SCALES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The upper ends of a scale of shares: a small share looks small, and the scale seldom changes."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Values over a time as a line with steps; a part without a value is a gap."""

    path: str
    width: int
    says: str
    most: float
    """The upper end of the scale."""
    bars: Sequence[Bar] = ()
    """The texts on hover, each over the whole height."""


def share_line(shares: Sequence[tuple[str, float | None]], says: str) -> Line:
    """Return the share in each of these times, None if there is none."""
    values = [share for _, share in shares if share is not None]
    highest = max(values, default=0.0)
    bars = [
        Bar(x=10 * place, done=0, failed=0, says=f"{time}: {'no attempt' if share is None else percent(share)}")
        for place, (time, share) in enumerate(shares)
    ]
    most = next(scale for scale in SCALES if highest <= scale)
    path, said = _steps([share for _, share in shares], most), f"{says}: at most {percent(highest)}"
    return Line(path=path, width=10 * len(shares), says=said, most=most, bars=bars)


def trend_line(values: Sequence[float | None], says: str) -> Line:
    """Return these values to the scale of the highest one."""
    most = max((value for value in values if value is not None), default=0.0)
    return Line(path=_steps(values, most), width=10 * len(values), says=says, most=most)


def _steps(values: Sequence[float | None], most: float) -> str:
    path, was_there = "", False
    for place, value in enumerate(values):
        if value is not None:
            y = round(HEIGHT - 2 - value / most * (HEIGHT - 4), 1) if most else HEIGHT - 2
            path += f"V{y:g}h10" if was_there else f"M{10 * place} {y:g}h10"
        was_there = value is not None
    return path


OverTime = TypeVar("OverTime", Chart, ShareChart)


def marked(drawn: OverTime, releases: Sequence[Release], begin: datetime, end: datetime) -> OverTime:
    """Return the chart of this time with a mark for each release in it, which its words name as well."""
    marks: list[Mark] = []
    free = 100.0 + 100 * CHARACTER / NARROWEST
    for release in reversed([release for release in releases if begin <= release.at < end]):
        share = (release.at - begin) / (end - begin)
        percent, says = round(100 * share, 1), f"release {release.name}, {release.at:%a %H:%M} UTC"
        name = release.name if len(release.name) <= LONGEST_NAME else f"{release.name[: LONGEST_NAME - 1]}…"
        room = 100 * CHARACTER * (len(name) + 1) / NARROWEST
        left, right = (percent - room, percent) if percent > 50 else (percent, percent + room)
        has_room = right <= free
        free = left if has_room else free
        marks.append(Mark(x=round(drawn.width * share, 1), percent=percent, says=says, text=name if has_room else ""))
    if not marks:
        return drawn
    return replace(drawn, marks=marks[::-1], says=f"{drawn.says}; {', '.join(mark.says for mark in marks[::-1])}")


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
