"""One job as text, for the pages of ``top``: its log, and all that is known of it."""

from __future__ import annotations

from taskqueue.cli import record_facts, show
from taskqueue.insight import records
from taskqueue.insight.why import why
from taskqueue.model.ids import JobId
from taskqueue.model.log_lines import lines_of
from taskqueue.store import Store

NO_LINES = "no log lines are kept"


def log(store: Store, id: JobId) -> str:
    """Return its kept log lines, those of each run below its attempt."""
    text: list[str] = []
    for run, stored in sorted(store.log_lines(id).items()):
        lines = list(lines_of(run, stored))
        if lines:
            text.append(f"attempt {lines[0].attempt}, {lines[0].at.astimezone():%Y-%m-%d %Z}")
        text += [f"{line.at.astimezone():%H:%M:%S} {line.level.upper():7} {line.message}" for line in lines]
    return "\n".join(text) or NO_LINES


def everything(store: Store, id: JobId) -> str:
    """Return the sentences of *why* and the lines of `taskqueue show`."""
    [record] = records.read(store, [id])
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
