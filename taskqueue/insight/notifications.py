"""What each receiver of notifications knows, in the form in which it is stored: plain values and pure functions.

A finding is sent when it appears, and again when it has been gone for ``GONE_FOR``: one that comes and goes within
that time is the same one. A message stays as it is, with its id, until its receiver has taken it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from taskqueue.insight.needs import Need, Subject
from taskqueue.insight.nodes import leader
from taskqueue.model.finding import Level
from taskqueue.model.serializer import clean
from taskqueue.model.timestamps import milliseconds, moment
from taskqueue.model.wording import minute
from taskqueue.store import Lease

STATE = "notifications"
"""The lease in which the state is kept. It is never held, and so survives the node that sends."""

TURN = "turn of notifications"
"""The lease of the node that sends."""

GONE_FOR = timedelta(minutes=5)
"""How long a finding must be gone before its end is sent."""

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=15), timedelta(minutes=10)
"""The time from a failed delivery to the next one; each failure in a row doubles it."""

FAILS_AFTER = 3
"""After this many failed tries, the receiver itself is a finding."""

SILENT_AFTER, FORGOTTEN_AFTER = timedelta(minutes=5), timedelta(days=1)
"""Sending nothing for the first of these times is a finding; after the second it no longer is."""

MOST_FINDINGS = 200
"""Maximum number of findings that are known at once; later ones are sent when there is room."""

LONGEST = 1000
"""Maximum number of characters of a sentence that are kept."""


_TYPES: Mapping[Any, Any] = {"str": str, "int": int, "bool": bool, "int | None": int | None}
_LAST_TIME = 253_000_000_000_000  # in the year 9987


@dataclass(frozen=True, kw_only=True)
class KnownFinding:
    """A finding that was seen, until every receiver has been told that it has ended; times in milliseconds."""

    id: str
    key: str
    subject: str
    name: str
    level: str
    says: str
    do: str
    since: int
    gone_since: int | None = None
    is_over: bool = False


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message to one receiver: the findings that came up or ended since the message before."""

    id: str
    at: int
    began: tuple[KnownFinding, ...] = ()
    over: tuple[KnownFinding, ...] = ()
    open: int = 0
    """How many findings are still present."""

    def document(self) -> dict[str, Any]:
        """Return what a webhook or a command gets, in plain JSON values."""
        return {
            "type": "taskqueue.findings",
            "timestamp": moment(self.at).isoformat(),
            "data": {
                "id": self.id,
                "began": [_shown(finding) for finding in self.began],
                "over": [_shown(finding) for finding in self.over],
                "open": self.open,
            },
        }

    def json(self) -> bytes:
        """Return the document as JSON; halves of characters, which no encoding has, become question marks."""
        return json.dumps(self.document(), ensure_ascii=False).encode(errors="replace")


def _shown(finding: KnownFinding) -> dict[str, Any]:
    since = moment(finding.since).isoformat()
    until = None if finding.gone_since is None else moment(finding.gone_since).isoformat()
    names = ("id", "level", "subject", "name", "says", "do")
    return {**{name: getattr(finding, name) for name in names}, "since": since, "until": until}


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What one receiver knows, and the message that it has not accepted yet."""

    name: str
    known: tuple[str, ...] = ()
    """The ids of the findings that were sent to it and whose end was not."""
    message: Message | None = None
    tries: int = 0
    try_at: int = 0
    error: str = ""
    """Why it did not accept the message at the last try."""
    fails_since: int | None = None


_Kept = TypeVar("_Kept", KnownFinding, Message, Delivery)


@dataclass(frozen=True, kw_only=True)
class State:
    """The findings that are known, and the receivers by their ids."""

    findings: tuple[KnownFinding, ...] = ()
    receivers: Mapping[str, Delivery] = field(default_factory=dict)

    def due(self, now: datetime) -> list[str]:
        """Return the ids of receivers to which a message must be sent now, those with the fewest tries first."""
        at = milliseconds(now)
        latest = milliseconds(now + LONGEST_PAUSE)  # later than that is a time of a clock that was set back since
        receivers = [(id, delivery) for id, delivery in self.receivers.items() if delivery.message is not None]
        waiting = [id for id, delivery in receivers if delivery.try_at <= at or delivery.try_at > latest]
        return sorted(waiting, key=lambda id: self.receivers[id].tries)

    @property
    def waiting(self) -> int:
        """Return how many messages have not been accepted yet."""
        return sum(delivery.message is not None for delivery in self.receivers.values())


def looked(state: State, needs: Sequence[Need], receivers: Mapping[str, str], now: datetime) -> State:
    """Return the state after a look that has found ``needs``; ``receivers`` are the names of all by their ids."""
    findings = _seen(state.findings, needs, milliseconds(now))
    before = {id: replace(state.receivers.get(id, Delivery(name=name)), name=name) for id, name in receivers.items()}
    deliveries = {id: _with_message(id, delivery, findings, milliseconds(now)) for id, delivery in before.items()}
    awaited = {id for delivery in deliveries.values() for id in delivery.known}
    messages = [delivery.message for delivery in deliveries.values() if delivery.message is not None]
    awaited |= {new.id for message in messages for new in message.began}
    return State(
        findings=tuple(finding for finding in findings if not finding.is_over or finding.id in awaited),
        receivers=deliveries,
    )


def _seen(before: Iterable[KnownFinding], needs: Sequence[Need], now: int) -> list[KnownFinding]:
    """Return the findings after a look, known ones first."""
    present: dict[str, Need] = {}
    for need in needs:
        present.setdefault(need.key, need)
    findings = [finding if finding.is_over else _aged(finding, finding.key in present, now) for finding in before]
    keys = {finding.key for finding in findings if not finding.is_over}
    new = [_new(need, now) for key, need in present.items() if key not in keys]
    return [*findings, *new[: max(0, MOST_FINDINGS - len(keys))]]


def _aged(finding: KnownFinding, is_present: bool, now: int) -> KnownFinding:
    if is_present:
        return finding if finding.gone_since is None else replace(finding, gone_since=None)
    gone_since = now if finding.gone_since is None else min(finding.gone_since, now)  # the clock may be set back
    return replace(finding, gone_since=gone_since, is_over=moment(now) - moment(gone_since) >= GONE_FOR)


def _new(need: Need, now: int) -> KnownFinding:
    return KnownFinding(
        id=_digest("fnd", need.key, str(now)),
        key=need.key,
        subject=need.subject.value,
        name=need.name,
        level=need.level.value,
        says=need.says[:LONGEST],
        do=need.do[:LONGEST],
        since=now,
    )


def _with_message(id: str, delivery: Delivery, findings: Iterable[KnownFinding], now: int) -> Delivery:
    """Return the delivery with a message, if there is something to send and the last message was accepted."""
    if delivery.message is not None:
        return delivery
    findings = list(findings)
    began = tuple(finding for finding in findings if not finding.is_over and finding.id not in delivery.known)
    over = tuple(finding for finding in findings if finding.is_over and finding.id in delivery.known)
    if not began and not over:
        return delivery
    name = _digest("msg", id, *(finding.id for finding in began), "over", *(finding.id for finding in over))
    still_open = sum(not finding.is_over for finding in findings)
    return replace(delivery, message=Message(id=name, at=now, began=began, over=over, open=still_open))


def _digest(prefix: str, *parts: str) -> str:
    return f"{prefix}_{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}"


def attempted(state: State, receiver: str, now: datetime) -> State:
    """Return the state before trying a delivery: if the process dies, the other receivers come before it."""
    delivery = state.receivers[receiver]
    pause = min(FIRST_PAUSE * 2 ** min(delivery.tries, 16), LONGEST_PAUSE)
    return _with(state, receiver, replace(delivery, tries=delivery.tries + 1, try_at=milliseconds(now + pause)))


def delivered(state: State, receiver: str) -> State:
    """Return the state after the receiver has accepted its message."""
    delivery = state.receivers[receiver]
    assert delivery.message is not None
    over = {finding.id for finding in delivery.message.over}
    known_ids = (*delivery.known, *(finding.id for finding in delivery.message.began))
    return _with(state, receiver, Delivery(name=delivery.name, known=tuple(id for id in known_ids if id not in over)))


def refused(state: State, receiver: str, error: str, now: datetime) -> State:
    """Return the state after a delivery failed."""
    delivery = state.receivers[receiver]
    since = milliseconds(now) if delivery.fails_since is None else delivery.fails_since
    return _with(state, receiver, replace(delivery, error=clean(error[:LONGEST]), fails_since=since))


def _with(state: State, receiver: str, delivery: Delivery) -> State:
    return replace(state, receivers={**state.receivers, receiver: delivery})


def state_of(leases: Iterable[Lease]) -> State:
    """Return the stored state; an empty one if there is none, or if it cannot be read."""
    about = next((lease.about for lease in leases if lease.name == STATE), {})
    try:
        return _read(about)
    except (KeyError, TypeError, AttributeError, ValueError):  # everything is sent again
        return State()


def _read(about: Mapping[str, Any]) -> State:
    return State(
        findings=_findings(about.get("findings", ())),
        receivers={id: _delivery(**fields) for id, fields in about.get("receivers", {}).items()},
    )


def _findings(entries: Iterable[Mapping[str, Any]]) -> tuple[KnownFinding, ...]:
    return tuple(_typed(KnownFinding(**fields)) for fields in entries)


def _delivery(*, known: Iterable[str], message: Mapping[str, Any] | None, **fields: Any) -> Delivery:
    if message is not None:
        lists = {name: _findings(message[name]) for name in ("began", "over")}
        return _typed(Delivery(known=tuple(known), message=_typed(Message(**{**message, **lists})), **fields))
    return _typed(Delivery(known=tuple(known), message=None, **fields))


def _typed(value: _Kept) -> _Kept:
    """Return the value; raise ``TypeError`` or ``ValueError`` if a field is not of its type, or is no time."""
    for part in fields(value):
        given = getattr(value, part.name)
        if part.type in _TYPES and not isinstance(given, _TYPES[part.type]):
            raise TypeError(f"{part.name} is {given!r}")
        if isinstance(given, int) and not 0 <= given <= _LAST_TIME:
            raise ValueError(f"{part.name} is {given}")
    return value


def document(state: State) -> dict[str, Any]:
    """Return the state in plain JSON values, which ``state_of`` reads back."""
    return asdict(replace(state, receivers=dict(state.receivers)))


def flaws(leases: Sequence[Lease], now: datetime) -> Iterator[Need]:
    """Yield receivers that do not accept their messages, and a leader that sends none although another node did."""
    turn = next((lease for lease in leases if lease.name == TURN), None)
    if turn is None or now - turn.until > FORGOTTEN_AFTER:
        return
    if now - turn.until > SILENT_AFTER:
        if leader(leases, now) is not None:
            says = f"no notification has been sent since {minute(turn.until, now)}: the leader is not sending any"
            do = "start every node that may lead with the same --notify; see the log of the leader"
            yield Need(subject=Subject.NOTIFICATIONS, name="", says=says, do=do)
        return
    for delivery in state_of(leases).receivers.values():
        if delivery.tries >= FAILS_AFTER and delivery.message is not None:
            since = minute(moment(delivery.fails_since or delivery.message.at), now)
            error = delivery.error or "each delivery was cut off, see the log of the leader"
            says = f"{delivery.name} has accepted no notification since {since}: {error}"
            do = "fix it, then test it: `taskqueue notify --test --notify RECEIVER`"
            yield Need(subject=Subject.NOTIFICATIONS, name=delivery.name, says=says, do=do, level=Level.ERROR)
