"""The policy that a user writes: kept by its import path, asked in the worker that ran the attempt."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model.lazy_dataclass import dataclass
from taskqueue.model.retry.decision import AskWorker, Decision, Situation

_PATH_SHAPE = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"


@dataclass(frozen=True)
class CustomRetry:
    """A class of your own, ``module:Class``, made with ``settings`` as keyword arguments.

    Its ``decide(situation)`` returns seconds, ``RetryIn``, ``GiveUp``, or None to give up; it may have
    ``is_last(situation)``.
    """

    path: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not re.fullmatch(_PATH_SHAPE, self.path):
            raise InvalidOption(f"{self.path!r} is not an import path of a retry policy: write 'module:Class'")
        try:
            plain = json.loads(json.dumps(self.settings, allow_nan=False))
        except (TypeError, ValueError) as refused:
            raise InvalidOption(
                f"settings of the retry policy {self.path} are not plain JSON values: {refused}"
            ) from None
        object.__setattr__(self, "settings", plain)

    def decide(self, _situation: Situation) -> Decision:
        """Return that the class must be asked."""
        return AskWorker(path=self.path, settings=self.settings)

    def is_last(self, _situation: Situation) -> bool:
        """Return False: the class is not asked here."""
        return False

    def document(self) -> dict[str, Any]:
        """Return the policy as plain JSON values."""
        return {"policy": "custom", "path": self.path, "settings": dict(self.settings)}

    def __str__(self) -> str:
        """Return the policy in words."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"retry as {self.path}({given}) decides"
