"""The queues: how old and large each backlog is, how fast it moves, its pause; the limits, who holds them, a change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from taskqueue.insight.limit_states import MOST_KEYS, LimitState
from taskqueue.insight.overview import QueueState
from taskqueue.insight.overview_reader import Overview
from taskqueue.model.controls import EVERY_QUEUE, Control, Kind
from taskqueue.model.history import Step
from taskqueue.model.limits import COUNT_LIMIT, Family
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.model.wording import count, span
from taskqueue.scheduler.operations import Target
from taskqueue.web.charts import Chart, chart
from taskqueue.web.paging import part_of
from taskqueue.web.problems import Problem
from taskqueue.web.view import View, see_other

MOST_HOLDERS = 5
"""Maximum number of jobs that are named as holders of a limit's places."""

MOST_LIMITS = 25
"""Limits on the page, the full ones first."""


def queues(view: View) -> Mapping[str, Any]:
    """Return all queues that have jobs, had some in the last minutes, or are paused; and limits in force."""
    state, controls, limits = view.overviews.read(), view.scheduler.controls(), view.scheduler.limits()
    active = {queue.name for queue in state.queues}
    idle = [QueueState(name=name) for name in {name for name, _ in state.tally} - active]
    by_name = sorted([*state.queues, *idle], key=lambda queue: queue.name)  # the order stays while ages change
    part = part_of(by_name, lambda queue: queue.name, view.query)
    changed = [control for control in controls if control.kind is Kind.LIMIT]
    pauses = {control.name: control for control in controls if control.kind is Kind.PAUSE}
    return {
        "queues": part,
        "charts": _charts(state, {queue.name for queue in part.rows}),
        "paused_all": pauses.get(EVERY_QUEUE),
        "offered": {queue.name: view.offered(Target.QUEUE, queue.name, pauses.get(queue.name)) for queue in part.rows},
        "offered_of_all": view.offered(Target.QUEUE, EVERY_QUEUE, pauses.get(EVERY_QUEUE)),
        "limits": shown_limits(view, limits[:MOST_LIMITS]),
        "more_limits": len(limits[MOST_LIMITS:]),
        "are_all_limits": len(limits) < MOST_KEYS,
        "most_holders": MOST_HOLDERS,
        "changed": changed[:MOST_LIMITS],
        "more_changed": len(changed[MOST_LIMITS:]),
        "may_limit": view.may_act_on(None),
    }


def shown_limits(view: View, states: Iterable[LimitState]) -> list[dict[str, Any]]:
    """Return limits with their names, in which values that look secret are masked."""
    return [{"state": state, "of": view.masking.limit(state.limit_key).of.removeprefix("name=")} for state in states]


def limit_form(view: View) -> Mapping[str, Any]:
    """Return a limit and what would follow from the ``count`` in the address. Raises ``Problem``."""
    if not view.may_act_on(None):
        raise Problem("forbidden", f"user {view.user.name} may not change limits: an operator of all queues can")
    family, given = Family.of(view.query.get("of", "")), view.query.get("count", "").strip()
    states, changes = view.scheduler.limits({str(family)}), _changes(view)
    change = changes.get(str(family))
    if not states and change is None:
        says = f"no running or waiting job has the limit {family.name!r}, and it was not changed"
        raise Problem("not-found", f"{says}: `taskqueue limit` changes it for jobs to come")
    number = _number(given)
    is_number = 1 <= number <= COUNT_LIMIT
    now = states[0].limit_key.count if states else change.count if change else None
    return {
        "family": family,
        "now": now,
        "change": change,
        "others": [name for name in changes if name != str(family) and Family.of(name).scope == family.scope],
        "used": max((state.used for state in states), default=0),
        "waiting": sum(state.waiting for state in states),
        "number": number if is_number and number != now else None,
        "given": given or now,
        "follows": _follows(states, number) if is_number else "",
        "problem": f"{given[:50]!r}: pass a whole number from 1 to {COUNT_LIMIT:,}" if given and not is_number else "",
    }


def _number(given: str) -> int:
    """Return the number that was given, 0 if it is none or has too many digits."""
    return int(given) if given.isdecimal() and len(given) <= len(str(COUNT_LIMIT)) else 0


def _changes(view: View) -> dict[str, Control]:
    """Return the changed limits by their family."""
    return {control.name: control for control in view.scheduler.controls() if control.kind is Kind.LIMIT}


def _follows(states: Sequence[LimitState], number: int) -> str:
    """Return what happens to running and waiting jobs once this number is the limit."""
    over = sum(max(state.used - number, 0) for state in states)
    if over and (per := states[0].limit_key.per) is not None:
        return (
            f"{over:,} more {'job' if over == 1 else 'jobs'} than that started in the last {span(per)}: "
            "no further job starts until fewer have."
        )
    if over:
        jobs = "1 more job than that is" if over == 1 else f"{over:,} more jobs than that are"
        return f"{jobs} running: no further job starts until enough have ended."
    waiting = sum(state.waiting for state in states)
    free = sum(min(state.waiting, number - state.used) for state in states)
    return f"It then has room for {free:,} of {count(waiting, 'waiting job')}." if waiting else "No job waits for it."


def set_limit(view: View) -> Response:
    """Give a limit another number, or with an empty one restore the declared numbers of its name."""
    family, number = Family.of(view.form.get("of", "")), view.form.get("count", "").strip()
    before = {name: change.count for name, change in _changes(view).items() if Family.of(name).scope == family.scope}
    value = family.as_argument(_number(number)) if _number(number) else number[:50] or None
    view.actions.set_limit(family.name, value, view.form.get("reason", ""))
    done = {"done": "limit", "of": str(family)}
    if before.keys() <= {str(family)}:  # to undo it restores no other limit of the name
        done["was"] = str(before.get(str(family), ""))
    return see_other(view, f"/queues?{urlencode(done)}")


def _charts(state: Overview, names: Collection[str]) -> Mapping[str, Chart]:
    """Return what ended in the last hour for each of these queues, in parts of two minutes."""
    length = 2 * Step.MINUTE.length
    begin = moment(Step.MINUTE.begin(milliseconds(state.at))) - 59 * Step.MINUTE.length
    numbers: dict[str, list[list[int]]] = {}
    for at, part in state.minutes.items():
        place = (moment(at) - begin) // length
        for (queue, _), figures in part.items() if 0 <= place < 30 else ():
            if queue not in names:
                continue
            bar = numbers.setdefault(queue, [[0, 0] for _ in range(30)])[place]
            bar[0] += figures.get("done", 0)
            bar[1] += figures.get("failed", 0) + figures.get("timeout", 0)
    return {
        queue: chart(
            (("2 min", done, failed) for done, failed in parts), f"ended in the last hour: {sum(map(sum, parts)):,}"
        )
        for queue, parts in numbers.items()
    }
