"""Decides about failures of one class with one error: mutes, resolves or reopens them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from taskqueue.errors import InvalidOption
from taskqueue.insight.failure_groups import WEEK, Lately, shares_of
from taskqueue.insight.failure_states import PREFIX, FailureDecision, FailureState, decisions_of, facts_of
from taskqueue.insight.recent_figures import RecentFigures
from taskqueue.model.fingerprint import group_id
from taskqueue.model.history import OTHER, Parts
from taskqueue.model.record import Holder
from taskqueue.model.schedules import moment_of, seconds_of
from taskqueue.model.serializer import clipped
from taskqueue.model.shown_text import as_code
from taskqueue.model.wording import local
from taskqueue.scheduler.controls import user_and_host
from taskqueue.store import Lease, Store

MOST = 200
"""Maximum number of decisions that a store keeps; with one more, the oldest ones end."""

KEPT_BY = Holder(seat="operators", incarnation="decisions")
"""The holder of the leases of decisions: always the same, so that a decision can be replaced."""


class Group(NamedTuple):
    """A class, and the fingerprint of an error of its attempts."""

    job: str
    fingerprint: str

    @property
    def id(self) -> str:
        """Return its short name."""
        return group_id(self.job, self.fingerprint)

    def __str__(self) -> str:
        return f"{self.job}: {self.fingerprint or 'no error'}"


def group_of(store: Store, failure: Any) -> Group:
    """Return the group of this id, or of this fingerprint if one class has it; raise ``InvalidOption`` otherwise.

    A group is known while its failures are in the history of the last week, or a decision about it is kept.
    """
    if not isinstance(failure, str) or not failure:
        raise InvalidOption(f"failure={as_code(failure)}: pass the id of a failure, as `taskqueue failures` lists it")
    now, figures = store.now(), RecentFigures(store)
    groups = {Group(*key) for key in decisions_of(store.leases())}
    groups |= _groups(figures.minutes(now)) | _groups(figures.hours(now - WEEK, now))
    matching = [group for group in groups if failure in (group.id, group.fingerprint)]
    if len(matching) > 1:
        ids = ", ".join(f"{group.id} ({group.job})" for group in sorted(matching))
        raise InvalidOption(f"several classes have failure {as_code(failure)}: pass an id: {ids}")
    if not matching:
        raise InvalidOption(f"no attempt failed with {as_code(failure)} in the last 7 days: see `taskqueue failures`")
    return matching[0]


def mute(store: Store, failure: Any, until: Any, reason: str, by: str | None) -> FailureDecision:
    """Mute the failures until a time, or until they grow, or happen again after they have stopped."""
    return _decide(store, failure, FailureState.MUTED, until, reason, by)


def resolve(store: Store, failure: Any, reason: str, by: str | None) -> FailureDecision:
    """Note that the failures are resolved: one more failure is a finding."""
    return _decide(store, failure, FailureState.RESOLVED, None, reason, by)


def reopen(store: Store, failure: Any) -> bool:
    """End the decision about the failures, and return whether there was one."""
    group = group_of(store, failure)
    if tuple(group) not in decisions_of(store.leases()):
        return False
    store.resign(f"{PREFIX}{group.id}", KEPT_BY)
    return True


def _decide(
    store: Store, failure: Any, state: FailureState, until: Any, reason: str, by: str | None
) -> FailureDecision:
    group, now = group_of(store, failure), store.now()
    decision = FailureDecision(
        job=group.job,
        fingerprint=group.fingerprint,
        state=state,
        since=now,
        by=clipped(str(by or user_and_host())),
        reason=clipped(str(reason)),
        until=None if until is None else _later(until, now),
        share=_share(store, group, now) if state is FailureState.MUTED and until is None else None,
    )
    _make_room(store, decision, now)
    lease = Lease(name=f"{PREFIX}{group.id}", holder=KEPT_BY, since=now, until=now, about=facts_of(decision))
    store.acquire(lease, now)
    return decision


def _share(store: Store, group: Group, now: datetime) -> float:
    """Return the share of attempts that fail so now: of the last hour, or if that is more of the last minutes."""
    lately = Lately(RecentFigures(store).minutes(now))
    shares = shares_of(lately.failures.get(group, {}), lately, group.job, now)
    return max(share.value for share in shares)


def _make_room(store: Store, new: FailureDecision, now: datetime) -> None:
    """Remove decisions that have ended, and the oldest ones if there are too many."""
    others = [decision for decision in decisions_of(store.leases()).values() if decision.id != new.id]
    ended = [decision for decision in others if decision.has_ended(now)]
    active = [decision for decision in others if not decision.has_ended(now)]
    for decision in [*ended, *active[: max(0, len(active) - MOST + 1)]]:
        store.resign(f"{PREFIX}{decision.id}", KEPT_BY)


def _later(until: Any, now: datetime) -> datetime:
    """Return a time after now, or one that is a duration from now."""
    try:
        at = now + timedelta(seconds=seconds_of(until))
    except InvalidOption:
        at = moment_of(until, now)
    if at <= now:
        raise InvalidOption(f"until={as_code(until)} is not after now, {local(now)}: pass a later time, or '2h'")
    return at


def _groups(parts: Parts) -> set[Group]:
    """Return the groups that have failures, without errors that are counted together."""
    return {
        Group(job, name[2:])
        for part in parts.values()
        for (_, job), figures in part.items()
        for name in figures
        if name.startswith("x:") and OTHER not in (job, name[2:])
    }
