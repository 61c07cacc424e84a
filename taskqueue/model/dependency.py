"""What a job waits for before it begins, and what becomes of it when one of these jobs ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bson import ObjectId


class OnFailure(str, Enum):
    """What a job that ended without success does to one that waits for it: end it, let it run, keep it waiting."""

    __str__ = str.__str__

    CANCEL = "cancel"
    IGNORE = "ignore"
    WAIT = "wait"


@dataclass(frozen=True, kw_only=True)
class Dependency:
    """A job that has to end first."""

    id: ObjectId
    on_failure: OnFailure = OnFailure.CANCEL
