"""Checks the arguments that have a fixed set of values, so that all stores refuse others in the same words."""

from __future__ import annotations

from taskqueue.errors import InvalidQuery
from taskqueue.store import CONTROLS, ENDS, NEWS, PLANS, STOPS, WORK

ORDERS = ("id", "created_at", "ended_at", "rank")
"""The fields by which ``Store.find`` orders records."""

TOPICS = (WORK, STOPS, PLANS, CONTROLS, NEWS, ENDS)
"""The topics for which ``Store.bell`` gives bells."""


def order_of(order: str) -> tuple[str, bool]:
    """Return the field of the order, and whether it descends; raise ``InvalidQuery`` for an unknown one."""
    field = order.removeprefix("-")
    if field not in ORDERS:
        raise InvalidQuery(f"order={order!r}: use {', '.join(ORDERS)}, or one of them with a '-' before it to descend")
    return field, order.startswith("-")


def check_topic(topic: str) -> None:
    """Raise ``ValueError`` for an unknown topic, whose bell would never ring."""
    if topic not in TOPICS:
        raise ValueError(f"topic={topic!r}: use {', '.join(TOPICS)}")
