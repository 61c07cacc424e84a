"""The books of a storm: what was added, what ran, what the store says of it, and what does not agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from taskqueue import Process, Status
from taskqueue.errors import StoreUnavailable
from taskqueue.insight.analytics import history
from taskqueue.model.ids import JobId
from taskqueue.model.log_lines import lines_of
from taskqueue.store import Store

LONG = timedelta(minutes=1)
ENDS = ("done", "failed", "timeout", "canceled")


@dataclass(kw_only=True)
class Books:
    """Counted while the storm goes on; runs are counted from a file that the jobs write, not from the store."""

    store: Store
    file: Path
    added: list[JobId] = field(default_factory=list)
    at_most_once: set[JobId] = field(default_factory=set)
    ended: defaultdict[JobId, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """The final events of each job by their id."""
    cursor: str | None = None

    def read_events(self) -> int:
        """Take in what has ended since the last time, and return how many jobs have by now."""
        try:
            events, self.cursor = self.store.events(self.cursor)
        except StoreUnavailable:
            return len(self.ended)
        for event in events:
            if event.ended is not None:
                self.ended[event.ended][event.id] = event.name
        return len(self.ended)

    def keys(self) -> list[str]:
        """Return ``id:claims`` of every run that began."""
        return [line.split()[1] for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def complaints(self, kept: list[Process]) -> Iterator[str]:
        """Yield in words what is wrong, given the jobs as the store has them after all."""
        keys = self.keys()
        runs = Counter(JobId(key.partition(":")[0]) for key in keys)
        if len(set(keys)) != len(keys):
            yield f"a claim ran twice: {[key for key, number in Counter(keys).items() if number > 1]}"
        jobs = {process.id: process for process in kept}
        for id in self.added:
            if id not in jobs:
                yield f"job {id} is lost"
                continue
            yield from self._complaints_of(jobs[id], runs[id], set(keys))
        for id in jobs.keys() - set(self.added):
            yield f"job {id} was never added"
        yield from self._complaints_of_history(kept)

    def _complaints_of_history(self, kept: list[Process]) -> Iterator[str]:
        """Yield where the history does not agree with the jobs, of which each has been added, begun and ended."""
        begin, end = min(job.snapshot.created_at for job in kept), self.store.now()
        self.store.repair(end + LONG)  # as the nodes do after a while
        entries = list(history(self.store, begin, end, None, None, "minute"))
        told = {name: sum(getattr(entry, name) for entry in entries) for name in ("added", "started", *ENDS)}
        ends = Counter(job.status.name.lower() for job in kept)
        begun = sum(attempt.started_at is not None for job in kept for attempt in job.attempts)
        wanted = {"added": len(kept), "started": begun, **{name: ends[name] for name in ENDS}}
        is_exact = not self.store.url.startswith("mongodb")  # a killed node loses the figures of its last seconds
        if told != wanted and (is_exact or any(told[name] > wanted[name] for name in wanted)):
            yield f"the history has {told}, but {len(kept)} jobs began {begun} times and ended as {dict(ends)}"

    def _complaints_of(self, job: Process, runs: int, keys: set[str]) -> Iterator[str]:
        told = sorted(self.ended[job.id].values())
        if told != [job.status.name.lower()]:
            yield f"job {job.id} is {job.status.name}, its final events are {told}"
        once = job.id in self.at_most_once
        if job.status is not Status.DONE and not (once and job.status is Status.FAILED):
            yield f"job {job.id} is {job.status.name}: {job.cause.value}, {job.error}"
        if job.status is Status.DONE and (runs == 0 or job.result not in keys):
            yield f"job {job.id} is DONE after {runs} runs with result {job.result}"
        if job.status is Status.DONE and job.result != f"{job.id}:{job.snapshot.claims}":
            yield f"job {job.id} has the outcome of another claim than its last: {job.result}"
        if runs > (1 if once else job.snapshot.claims):
            yield f"job {job.id} ran {runs} times with {job.snapshot.claims} claims"
        yield from self._complaints_of_lines(job, keys)

    def _complaints_of_lines(self, job: Process, keys: set[str]) -> Iterator[str]:
        """Yield which log lines are not with the run that wrote them, and which of a run that was heard of are lost."""
        lines = defaultdict(list)
        for id_run in self.store.log_lines(job.id).items():
            for line in lines_of(*id_run):
                lines[line.run].append(line)
        numbers = {attempt.claims: attempt.number for attempt in job.attempts}
        for run, those in lines.items():
            begin = f"attempt {numbers.get(run, those[0].attempt)} is run {job.id}:{run}"
            if those[0].message != begin or any(not line.message.endswith(f" run {job.id}:{run}") for line in those):
                yield f"run {run} of job {job.id} has the lines of another: {those}"
            if [line.number for line in those] != list(range(1, len(those) + 1)):
                yield f"run {run} of job {job.id} has lost lines: {those}"
        for attempt in job.attempts:
            died_heard = attempt.exit != "" and f"{job.id}:{attempt.claims}" in keys
            if len(lines[attempt.claims]) < (2 if attempt.outcome == "Done" else int(died_heard)):
                yield f"run {attempt.claims} of job {job.id} has lost its lines: {attempt}"
