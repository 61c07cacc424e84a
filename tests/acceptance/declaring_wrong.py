"""A job whose class declares an unknown option, so that its module cannot be imported."""

from __future__ import annotations

from typing import Any, ClassVar

from taskqueue import Job


class Confused(Job):
    """Declares what there is not."""

    options: ClassVar[Any] = {"retries": 3}

    def start(self) -> None:
        """Do nothing."""
