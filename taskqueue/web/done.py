"""The sentence above a page after an action, from a word in its address, and how to undo the action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskqueue.web.view import Button

SENTENCES: Mapping[str, str] = {
    "canceled": "Done: the job is canceled, or asked to end if it runs.",
    "again": "Done: this copy runs again.",
    "changed": "Done: the job is changed.",
    "paused": "Done: no job of the queue starts until it is resumed.",
    "resumed": "Done: jobs start again.",
    "drained": "Done: the node starts no more jobs.",
    "undrained": "Done: the node starts jobs again.",
    "triggered": "Done: the schedule has started this job.",
    "schedule-paused": "Done: the schedule starts no jobs until it is resumed.",
    "schedule-resumed": "Done: the schedule starts jobs again.",
    "matching": "Done: {of} jobs.",
}
"""What was done, by the word in an address; no other text of an address is shown."""

NUMBERS: Mapping[str, str] = {
    "0": "Nothing was left to do: somebody else did it since the jobs were counted.",
    "1": "Done: 1 job.",
}
"""The sentences for numbers that have their own."""

UNDO: Mapping[str, tuple[str, str]] = {
    "paused": ("/queues/resume", "queue"),
    "drained": ("/nodes/undrain", "node"),
}
"""The form that takes an action back, and the name of its field."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """What was done, in a sentence."""

    says: str
    undo: Button | None = None


def done_of(query: Mapping[str, str]) -> Done | None:
    """Return the action that the address names as done; None if it names none."""
    word, of = query.get("done", ""), query.get("of", "")
    if word not in SENTENCES:
        return None
    says = SENTENCES[word]
    if word == "matching":
        says = NUMBERS.get(of) or says.format(of=f"{int(of):,}" if of.isdecimal() and len(of) < 10 else "all")
    if word not in UNDO or "of" not in query:
        return Done(says=says)
    path, name = UNDO[word]
    return Done(says=says, undo=Button(label="Undo", path=path, fields={name: of}))
