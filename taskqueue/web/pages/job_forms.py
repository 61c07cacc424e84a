"""The forms of a job: change it while it waits, after a preview of the difference, or run it again with other data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from taskqueue.errors import InvalidJob, Unreadable, WrongStatus
from taskqueue.model.record import Record, Status
from taskqueue.model.secret_keys import MASK
from taskqueue.model.serializer import decode
from taskqueue.scheduler.process import Process
from taskqueue.web.masking import Masking
from taskqueue.web.pages.job import cut
from taskqueue.web.problems import Problem
from taskqueue.web.view import View, see_other

MOST_DIFFERENCES = 50
"""Differences in data that the preview lists."""

NOT_JSON = "the data are not JSON that can be read: see quotes, commas and brackets"

CHANGED_SINCE = (
    "The {0} was changed since this page was opened. Preview again: the difference is to the {0} as it is now."
)


class Difference(NamedTuple):
    """One value before and after a change, as it is shown."""

    name: str
    before: str | datetime | None
    after: str | datetime | None


def change_form(view: View) -> Mapping[str, Any]:
    """Return the form with the current values. Raises ``WrongStatus`` for a job that does not wait."""
    process = view.scheduler.get_job(view.path["id"])
    _check_waits(process)
    return _change_form(view, process, {**_current(view, process), "at": ""})


def save_change(view: View) -> Any:
    """Preview the change, or with ``confirm`` make it; if a value is refused, return the form with the error."""
    process = view.scheduler.get_job(view.path["id"])
    current = _current(view, process)
    given = given_of(view, {**current, "at": ""})
    if "data" in view.form:
        view.actions.check_class(process.job)
    try:
        _check_waits(process)
        changes = _changes(process, current, given)
        if view.form.get("seen", _seen(process, current)) != _seen(process, current):
            return _change_form(view, process, given, CHANGED_SINCE.format("job"))
        if changes and view.form.get("confirm"):
            view.actions.update_job(view.path["id"], changes)
            return see_other(view, f"/jobs/{process.id}?done=changed")
        now = view.overviews.now()
        after = view.actions.preview_update(view.path["id"], changes, now) if changes else process.snapshot
    except WrongStatus as error:
        return _change_form(view, process, given, f"{error}. Nothing was changed.")
    except (InvalidJob, Problem) as error:
        if isinstance(error, Problem) and error.status == 403:
            raise
        return _change_form(view, process, given, str(error))
    answer = _change_form(view, process, given)
    confirmed = {**given, "at": _due(given["at"], after)}
    differences = list(_differences(view, process.snapshot, after, changes.get("data", ...)))
    return {**answer, "differences": differences, "confirmed": confirmed}


def _check_waits(process: Process) -> None:
    """Raise ``WrongStatus`` for a job that runs or has ended."""
    if process.status not in (Status.WAITING, Status.POSTPONED):
        raise WrongStatus(process.id, process.status.name, "be changed while it is WAITING or POSTPONED")


def _current(view: View, process: Process) -> dict[str, str]:
    """Return the values that the form can change, as it shows them; data only if this user may change and read them."""
    current = {
        "queue": process.queue,
        "priority": str(process.priority),
        "tags": "\n".join(process.tags),
    }
    if not view.actions.may_add(process.job):
        return current
    try:
        data = view.masking.masked(json.loads(process.snapshot.data))
    except (RecursionError, ValueError):  # damaged
        return current
    return {**current, "data": json.dumps(data, ensure_ascii=False, indent=2)}


def _seen(process: Process, current: Mapping[str, str]) -> str:
    return word_of([*current.values(), str(process.snapshot.ready_at)])


def word_of(shown: Iterable[str]) -> str:
    """Return a word that stands for the values that a form shows: another one if somebody has changed them since."""
    return hashlib.sha256(json.dumps([*shown]).encode()).hexdigest()[:16]


def given_of(view: View, current: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of the form as they are read: without spaces around them, but for tags, which may have them."""
    given = {}
    for name, text in current.items():
        lines = view.form.get(name, text).replace("\r\n", "\n")  # browsers send each end of a line as CRLF
        is_same = lines == text.replace("\r\n", "\n")
        given[name] = text if is_same else lines if name == "tags" else lines.strip()
    return given


def tags_of(text: str, before: Sequence[str]) -> tuple[str, ...]:
    """Return the tags of the lines; spaces around a tag stay only if it had them before."""
    lines = (line if line in before else line.strip() for line in text.split("\n"))
    return tuple(filter(None, lines))


def _changes(process: Process, current: Mapping[str, str], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that the form gives other values. Raises ``InvalidJob``."""
    changes: dict[str, Any] = {}
    if given["priority"] != current["priority"]:
        changes["priority"] = integer("priority", given["priority"])
    if given["queue"] != current["queue"]:
        changes["queue"] = given["queue"]
    if given["tags"] != current["tags"]:
        changes["tags"] = tags_of(given["tags"], process.tags)
    if given["at"]:
        changes["at"] = None if given["at"] == "now" else given["at"]
    if "data" in current and (data := decoded(given["data"])) != decode(current["data"]):
        changes["data"] = data
    return changes


def _due(given: str, after: Record) -> str:
    """Return the time that the preview shows: the change takes place some seconds later."""
    if not given or given == "now" or after.ready_at is None:
        return given
    return f"{after.ready_at:%Y-%m-%dT%H:%M:%S.%fZ}"


def _differences(view: View, before: Record, after: Record, given: Any) -> Iterator[Difference]:
    yield from (
        Difference(name, old, new)
        for name, old, new in (
            ("queue", before.queue, after.queue),
            ("priority", str(before.priority), str(after.priority)),
            ("tags", ", ".join(before.tags), ", ".join(after.tags)),
            ("due", before.ready_at, after.ready_at),
        )
        if old != new
    )
    if given is not ...:
        yield from differences_of_data(view.masking, json.loads(before.data), json.loads(after.data), given)


def differences_of_data(masking: Masking, old: Any, new: Any, given: Any) -> Iterator[Difference]:
    """Yield the values of data that differ, the first ones if they are many.

    ``given`` are the new data as the user wrote them, with masks. A secret value counts as changed unless the user left
    its mask: if it were compared with the old one, the answer would confirm a guess.
    """
    found = list(_of_data("data", masking.masked(old), masking.masked(new), given))
    yield from found[:MOST_DIFFERENCES]
    if len(found) > MOST_DIFFERENCES:
        yield Difference(f"data: {len(found) - MOST_DIFFERENCES:,} more", "", "")


def _of_data(path: str, old: Any, new: Any, given: Any) -> Iterator[Difference]:
    """Yield the values, both masked, that differ; of lists that are equal otherwise, the secrets that were written."""
    if isinstance(old, dict) and isinstance(new, dict):
        texts = given if isinstance(given, dict) else {}
        for key in {**old, **new}:
            yield from _of_data(f"{path}.{key}", *(each.get(key, ...) for each in (old, new, texts)))
        return
    if isinstance(old, list) and old == new and isinstance(given, list) and len(given) == len(old):
        for number, values in enumerate(zip(old, new, given, strict=True)):
            yield from _of_data(f"{path}.{number}", *values)
        return
    if old != new or (MASK in (old, new) and given != MASK):
        yield Difference(path, _text(old), _text(new))


def _text(value: Any) -> str:
    if value is ...:
        return ""
    return MASK if value == MASK else cut(json.dumps(value, ensure_ascii=False))


def _change_form(view: View, process: Process, given: Mapping[str, str], problem: str = "") -> Mapping[str, Any]:
    current = _current(view, process)
    return {
        **_form(view, process, "change", given, problem, is_masked=MASK in current.get("data", "")),
        "queues": list(view.scheduler.stats()["queues"]),
        "seen": _seen(process, current),
    }


def edit_form(view: View) -> Mapping[str, Any]:
    """Return the form with the data of the job, secret values masked; masks that stay are put back by the action."""
    process = view.scheduler.get_job(view.path["id"])
    value = json.loads(process.snapshot.data)
    masked = view.masking.masked(value)
    text = json.dumps(masked, ensure_ascii=False, indent=2)
    return _form(view, process, "edit", {"data": text}, is_masked=masked != value)


def run_edited(view: View) -> Any:
    """Run a copy with these data; if they are refused, return the form with the error."""
    given = {"data": view.form.get("data", "")}
    try:
        copy = view.actions.run_again(view.path["id"], data=decoded(given["data"]))
    except (InvalidJob, Problem) as error:
        return _form(view, view.scheduler.get_job(view.path["id"]), "edit", given, str(error))
    return see_other(view, f"/jobs/{copy.id}?done=again")


def _form(
    view: View, process: Process, kind: str, given: Mapping[str, str], problem: str = "", *, is_masked: bool = False
) -> Mapping[str, Any]:
    if not view.may_act_on(process.queue):
        raise Problem("forbidden", f"user {view.user.name} may not act on jobs of queue {process.queue}")
    if kind == "edit":
        view.actions.check_class(process.job)
    return {
        "kind": kind,
        "process": process,
        "given": given,
        "problem": problem,
        "is_masked": is_masked,
        "differences": None,
    }


def decoded(text: str) -> Any:
    """Return the data that a form has as text. Raises ``InvalidJob``."""
    try:
        return decode(text)
    except Unreadable:
        raise InvalidJob(NOT_JSON) from None


def integer(name: str, text: str, wanted: str = "a whole number from -20 to 20") -> int:
    """Return the number that a field has as text. Raises ``InvalidJob``."""
    try:
        return int(text)
    except ValueError:
        raise InvalidJob(f"{name}={text[:50]!r}: pass {wanted}") from None
