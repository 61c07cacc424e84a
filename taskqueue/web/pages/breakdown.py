"""Divides the jobs that match a filter by class, queue, error, or by a key of their tags or meta."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from taskqueue.model.job_filter import JobFilter, Token
from taskqueue.model.meta import ADDED_BY
from taskqueue.model.record import Record, Status
from taskqueue.web.view import View

MOST_READ = 1000
"""How many jobs are divided: the first of the list."""

MOST_PARTS, MOST_KEYS = 20, 12
"""The largest parts that are shown, and how many keys of tags and meta are offered."""

OWN = ("class", "queue", "error")
"""The keys of all jobs."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The jobs with the same value; an empty value stands for jobs that have none."""

    value: str
    number: int
    failed: int
    ended: int
    address: str

    @property
    def failed_share(self) -> float | None:
        """Return how many of the ended jobs failed, 0 to 1; None if none has ended."""
        return self.failed / self.ended if self.ended else None


def breakdown(view: View, job_filter: JobFilter, query: dict[str, Any], order: str) -> dict[str, Any] | None:
    """Return the parts of the first jobs that match by the key that the address names as ``by``, if it names any."""
    key = view.query.get("by", "").strip()
    if not key or view.masking.is_secret(key):
        return None
    records = [process.snapshot for process in view.scheduler.find_jobs(query, order=order, limit=MOST_READ)]
    jobs: Counter[Token] = Counter()
    failed: Counter[Token] = Counter()
    ended: Counter[Token] = Counter()
    for record in records:
        for token in set(_tokens(record, key)) or {Token(key, "")}:
            jobs[token] += 1
            failed[token] += record.status in (Status.FAILED, Status.TIMEOUT)
            ended[token] += record.status.is_final
    parts = [
        Part(
            value=token.value.removeprefix(f"{key}:"),
            number=number,
            failed=failed[token],
            ended=ended[token],
            address=job_filter.adding(*token).address() if token.value else "",
        )
        for token, number in jobs.most_common(MOST_PARTS)
    ]
    return {"key": key, "parts": parts, "others": len(jobs) - len(parts), "read": len(records)}


def keys_of(view: View, records: Iterable[Record]) -> Sequence[str]:
    """Return the keys by which these jobs can be divided, except secret ones."""
    own: dict[str, None] = {}
    for record in records:
        names = [*(tag.partition(":")[0] for tag in record.tags if ":" in tag), *record.meta]
        own.update(dict.fromkeys(name for name in names if name and name != ADDED_BY))
    return [*OWN, *[key for key in own if not view.masking.is_secret(key)][:MOST_KEYS]]


def _tokens(record: Record, key: str) -> Iterator[Token]:
    """Yield the tokens with this key that the job matches."""
    match key:
        case "class":
            yield Token("class", record.job)
        case "queue":
            yield Token("queue", record.queue)
        case "error":
            if record.error is not None:
                yield Token("error", record.error.type)
        case _:
            yield from (Token("tag", tag) for tag in record.tags if tag.startswith(f"{key}:") and tag != f"{key}:")
            if record.meta.get(key, "").strip():
                yield Token(f"meta.{key}", record.meta[key])
