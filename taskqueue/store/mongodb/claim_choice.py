"""Which candidates a claim tries to take: the lowest, within the bounds of its node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from taskqueue.store import ClaimRequest
from taskqueue.store.mongodb.claim_candidates import Candidate
from taskqueue.store.mongodb.claim_sizes import is_beyond
from taskqueue.store.mongodb.limits import LimitRoom


class Chosen(NamedTuple):
    """What a claim tries to take, and whether its bytes kept it from more."""

    candidates: list[Candidate]
    has_more: bool


def bound_of(wanted: ClaimRequest, bound: int | None) -> int:
    """Return the most records to take from a queue with this bound."""
    return wanted.pooled + wanted.forced if bound is None else bound


def within(found: Iterable[Candidate], wanted: ClaimRequest, free: LimitRoom | None) -> Chosen:
    """Take from the merged ranges until the bounds of pool, queues, limits and bytes are reached."""
    total, has_more = 0, False
    limits = {False: wanted.pooled, True: wanted.forced}
    bounds = {name: bound_of(wanted, bound) for name, bound in wanted.queues.items()}
    chosen: list[Candidate] = []
    for one in found:
        if limits[one.forced] <= 0 or bounds.get(one.queue, 1) <= 0:
            continue
        if not one.forced and is_beyond(total + one.size, wanted.pooled - limits[False] + 1, wanted):
            limits[False], has_more = 0, True
            continue
        if one.lane and (free is None or not free.reserve(one.lane)):
            continue
        limits[one.forced] -= 1
        total += 0 if one.forced else one.size
        if one.queue in bounds:
            bounds[one.queue] -= 1
        chosen.append(one)
    return Chosen(chosen, has_more)
