"""Everything about one job as text: why it is in its state, its facts, attempts, log lines and stack."""

from __future__ import annotations

from taskqueue.cli import record_facts, show
from taskqueue.insight import records
from taskqueue.insight.why import why as why_of
from taskqueue.model.ids import JobId
from taskqueue.model.log_lines import lines_of
from taskqueue.scheduler import stacks
from taskqueue.store import Store

NO_LINES = "no log lines are kept"


def why(store: Store, id: str) -> str:
    """Say why the job is in its current state."""
    return why_of(store, JobId(id))


def log(store: Store, id: str) -> str:
    """Return its kept log lines, those of each run below its attempt."""
    text: list[str] = []
    for run, kept in sorted(store.log_lines(JobId(id)).items()):
        lines = list(lines_of(run, kept))
        if lines:
            text.append(f"attempt {lines[0].attempt}, {lines[0].at.astimezone():%Y-%m-%d %Z}")
        text += [f"{line.at.astimezone():%H:%M:%S} {line.level.upper():7} {line.message}" for line in lines]
    return "\n".join(text) or NO_LINES


def stack(store: Store, id: str) -> str:
    """Return where the running job is, which its node is asked for; raise ``WrongStatus`` and ``StackUnavailable``."""
    return stacks.stack(store, JobId(id))


def everything(store: Store, id: str) -> str:
    """Return the sentences of *why* and the lines of `taskqueue show`."""
    [record] = records.read(store, [JobId(id)])
    now = store.now()
    cause = record_facts.cause(record, now, record_facts.controls_for(store, [record]))
    facts = [(name, value) for name, value in show.facts(record, cause) if value]
    wide = max(len(name) for name, _ in facts)
    parts = [why(store, id), "", *(f"{name:{wide}}  {value}" for name, value in facts)]
    for heading, text in show.texts(record):
        parts += ["", heading, text]
    if record.attempts:
        parts += ["", "attempts"]
        parts += ["  ".join(show.attempt_cells(attempt)) for attempt in record.attempts]
    return "\n".join(parts)
