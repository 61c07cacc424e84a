"""Encodes messages as arrays of MessagePack, the name of the message and its fields, and outcomes for messages.

A job takes a dozen messages, and each is encoded or decoded by one call of C: a run and its end take 3 us on their way
through all three processes, and 14 as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any, get_args

import msgspec

from taskqueue.daemon.protocol.channel import ChannelBroken
from taskqueue.daemon.protocol.messages import Message
from taskqueue.execution.run import failure_of
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle import outcomes
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.lifecycle.outcomes import Outcome
from taskqueue.model.record import Failure
from taskqueue.model.retry import GiveUp, RetryIn, decision_document, decision_of
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


_OF_NODE = "retry_for"
"""The field of ``Unloadable`` that the node sets."""

_OUTCOMES: Mapping[str, Callable[..., Outcome]] = {kind.__name__: kind for kind in get_args(Outcome)}


def outcome_fields(outcome: Outcome) -> dict[str, Any]:
    """Return the fields of an outcome as plain JSON values, for ``Ended.fields``; fields that are None are left out."""
    if type(outcome) is outcomes.Done and outcome.reports is None:  # as most runs end
        return {"result": outcome.result}
    return {name: _as_json(value) for name, value in vars(outcome).items() if value is not None and name != _OF_NODE}


def _as_json(value: Any) -> Any:
    match value:
        case Failure():
            return asdict(value)
        case RetryIn() | GiveUp():
            return decision_document(value)
        case Phase():
            return value.value
        case JobId():
            return str(value)
        case tuple():
            return [_as_json(item) for item in value]
    return value


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
        values[_OF_NODE] = timedelta(seconds=unroutable_after)
    return _OUTCOMES[name](**values)
