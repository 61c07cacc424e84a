"""The transitions of a record between its statuses, as the documentation shows them: the lifecycle makes no others."""

from __future__ import annotations

from collections.abc import Mapping

from taskqueue.model.record import Status

W, P, R = Status.WAITING, Status.POSTPONED, Status.PROCESSING
D, F, C, T = Status.DONE, Status.FAILED, Status.CANCELED, Status.TIMEOUT

TRANSITIONS: Mapping[tuple[Status, str], frozenset[Status]] = {
    (P, "promote"): frozenset({W}),
    (P, "release"): frozenset({P, W, C}),
    (W, "claim"): frozenset({R}),
    (W, "cancel"): frozenset({C}),
    (P, "cancel"): frozenset({C}),
    (W, "give up"): frozenset({F}),
    (P, "give up"): frozenset({F}),
    (R, "cancel"): frozenset({R}),
    (W, "update"): frozenset({W, P}),
    (P, "update"): frozenset({W, P}),
    (W, "expire"): frozenset({C}),
    (P, "expire"): frozenset({C}),
    (R, "Done"): frozenset({D}),
    (R, "Failed"): frozenset({W, P, F}),
    (R, "GivenUp"): frozenset({F}),
    (R, "Snoozed"): frozenset({W, P}),
    (R, "NotReady"): frozenset({P}),
    (R, "CheckFailed"): frozenset({P, F}),
    (R, "Stepped"): frozenset({W}),
    (R, "Awaiting"): frozenset({P}),
    (R, "TimedOut"): frozenset({W, P, T}),
    (R, "Stalled"): frozenset({W, P, T}),
    (R, "Canceled"): frozenset({C}),
    (R, "Interrupted"): frozenset({W, P, F}),
    (R, "HandedBack"): frozenset({W, P}),
    (R, "Crashed"): frozenset({W, P, F}),
    (R, "Declared"): frozenset({W, P, F}),
    (R, "Unloadable"): frozenset({P, F}),
    (R, "Unreadable"): frozenset({F}),
}
"""From a status, by a verb or an outcome, to these statuses; a cancel request turns every pending one into CANCELED.

A job in steps that would end without success is WAITING instead, and ends so after ``clean_up``
(``model.lifecycle.continuation``).
"""
