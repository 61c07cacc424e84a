"""Encodes messages as arrays of MessagePack, the name of the message and its fields, and outcomes for messages.

A job takes a dozen messages, and each is encoded or decoded by one call of C: a run and its end take 3 us on their way
through all three processes, and 14 as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import msgspec
from typing_extensions import assert_never

from taskqueue.daemon.protocol.channel import ChannelBroken
from taskqueue.daemon.protocol.messages import Message
from taskqueue.execution.run import failure_of
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.lifecycle.outcomes import Outcome
from taskqueue.model.retry import decision_document, decision_of
from taskqueue.model.serializer import clean


def encode(message: Message) -> bytes:
    """Return the message as bytes; lone surrogates in its texts are written out, as stores keep them."""
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:
        kind = type(message)
        return _encoder.encode(kind(*[_written_out(getattr(message, name)) for name in kind.__struct_fields__]))


def decode(payload: bytes) -> Message:
    """Return the message that ``encode`` was given; raise ``ChannelBroken`` for anything else."""
    try:
        return _decoder.decode(payload)
    except (ValueError, RecursionError) as error:
        flaw = f"the channel received a message of no known form ({type(error).__name__}): {payload[:40]!r}"
        raise ChannelBroken(flaw) from error


def _written_out(value: Any) -> Any:
    """Return the value without lone surrogates in its texts."""
    match value:
        case str():
            return clean(value)
        case dict():
            return {_written_out(key): _written_out(item) for key, item in value.items()}
        case list() | tuple():
            return [_written_out(item) for item in value]
    return value


def _as_plain(value: Any) -> Any:
    """Return a value of a class that is derived from text or a number, such as one of numpy, as its base class."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"a message cannot hold a {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_as_plain)
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


_OUTCOMES: Mapping[str, Callable[..., Outcome]] = {
    kind.__name__: kind
    for kind in (
        outcomes.Done,
        outcomes.Failed,
        outcomes.GivenUp,
        outcomes.Snoozed,
        outcomes.NotReady,
        outcomes.CheckFailed,
        outcomes.Stepped,
        outcomes.Awaiting,
        outcomes.TimedOut,
        outcomes.Stalled,
        outcomes.Canceled,
        outcomes.Interrupted,
        outcomes.HandedBack,
        outcomes.Crashed,
        outcomes.Declared,
        outcomes.Unloadable,
        outcomes.Unreadable,
    )
}


def outcome_fields(outcome: Outcome) -> dict[str, Any]:
    """Return the fields of an outcome as plain JSON values, for ``Ended.fields``."""
    match outcome:
        case outcomes.Done(result=result, reports=reports):
            return {"result": result} if reports is None else {"result": result, "reports": reports}
        case outcomes.Stepped(phase=phase, state=state, reports=reports):
            return {"phase": phase.value, "state": state, "reports": reports}
        case outcomes.Failed(failure=failure, delay=delay, decision=decision, parts=parts):
            asked = {"delay": delay, "decision": decision and decision_document(decision)}
            return {"failure": asdict(failure), **asked, "parts": [asdict(part) for part in parts]}
        case (
            outcomes.TimedOut(failure=failure, decision=decision) | outcomes.Stalled(failure=failure, decision=decision)
        ):
            return {"failure": asdict(failure), "decision": decision and decision_document(decision)}
        case outcomes.Snoozed(seconds=seconds):
            return {"seconds": seconds}
        case outcomes.NotReady(reason=reason):
            return {"reason": reason}
        case outcomes.Declared(options=options):
            return {"options": options}
        case outcomes.Awaiting(ids=ids):
            return {"ids": [str(id) for id in ids]}
        case (
            outcomes.GivenUp(failure=failure)
            | outcomes.Unloadable(failure=failure)
            | outcomes.CheckFailed(failure=failure)
            | outcomes.Unreadable(failure=failure)
            | outcomes.Crashed(failure=failure)
        ):
            return {"failure": asdict(failure)}
        case outcomes.Interrupted(failure=failure):
            return {} if failure is None else {"failure": asdict(failure)}
        case outcomes.Canceled() | outcomes.HandedBack():
            return {}
        case _ as unknown:
            assert_never(unknown)


def outcome_of(name: str, fields: Mapping[str, Any], unroutable_after: float) -> Outcome:
    """Return the outcome named ``name`` with the fields of a message.

    ``unroutable_after`` is the node's setting: the seconds for which an unloadable job is tried again.
    """
    if name == "Done":
        return outcomes.Done(**fields)
    values = dict(fields)
    if "failure" in values:
        values["failure"] = failure_of(values["failure"])
    if "parts" in values:
        values["parts"] = tuple(map(failure_of, values["parts"]))
    if values.get("decision") is not None:
        values["decision"] = decision_of(values["decision"])
    if "phase" in values:
        values["phase"] = Phase(values["phase"])
    if "ids" in values:
        values["ids"] = tuple(JobId(id) for id in values["ids"])
    if name == "Unloadable":
        values["retry_for"] = timedelta(seconds=unroutable_after)
    return _OUTCOMES[name](**values)
